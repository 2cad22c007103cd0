"""Public functions say what they take: in rebuilt rooms all of them, in the others ever more."""

import ast
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fedsdg"
#: Public functions of two or more parameters without ``Args:``, by room. A number only falls; a
#: room that is not listed has none.
LACKING = {
    ".": 7,
    "aggregation": 85,
    "data": 8,
    "experiment": 141,
    "federation": 45,
    "files": 11,
    "methods": 17,
    "models": 13,
}


def room_of(file: Path) -> str:
    """The folder below the package."""
    parts = file.relative_to(PACKAGE).parts[:-1]
    return parts[0] if parts else "."


def lacking(file: Path) -> list[str]:
    """The public functions of a module, methods included, whose docstring has no ``Args:``."""
    found = []

    def visit(node: ast.AST, public: bool) -> None:
        for child in ast.iter_child_nodes(node):
            named = not getattr(child, "name", "").startswith("_")
            if isinstance(child, ast.ClassDef):
                visit(child, public and named)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and public and named:
                given = [*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs]
                count = sum(argument.arg not in ("self", "cls") for argument in given)
                if count >= 2 and "Args:" not in (ast.get_docstring(child) or ""):
                    found.append(f"{file.relative_to(PACKAGE)}:{child.lineno} {child.name}")

    visit(ast.parse(file.read_text(encoding="utf-8")), True)
    return found


FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(set(map(room_of, FILES)))


@pytest.mark.parametrize("room", ROOMS)
def test_public_functions_say_what_they_take(room) -> None:
    names = [name for file in FILES if room_of(file) == room for name in lacking(file)]
    assert len(names) <= LACKING.get(room, 0), "\n".join(names)


def test_the_list_has_no_room_that_is_done() -> None:
    counts = Counter(room_of(file) for file in FILES for _ in lacking(file))
    assert counts == {room: number for room, number in LACKING.items() if number}
