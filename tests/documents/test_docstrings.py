"""Public functions say what they take: in rebuilt rooms all of them, in the others ever more."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "fedsdg"
LACKING = {"aggregation": 85, "federation": 45, "models": 13, "data": 8}
"""Public functions of two or more parameters without ``Args:``, by room; a number only falls."""


def lacking(node: ast.AST) -> Iterator[str]:
    """Yield the public functions, methods included, whose docstring has no ``Args:``."""
    for child in ast.iter_child_nodes(node):
        if getattr(child, "name", "_").startswith("_"):
            continue
        if isinstance(child, ast.ClassDef):
            yield from lacking(child)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs]
            count = sum(argument.arg not in ("self", "cls") for argument in given)
            if count >= 2 and "Args:" not in (ast.get_docstring(child) or ""):
                yield child.name


def test_public_functions_say_what_they_take() -> None:
    found: Counter[str] = Counter()
    names = []
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE)
        for name in lacking(ast.parse(file.read_text(encoding="utf-8"))):
            found[place.parts[0]] += 1
            names.append(f"{place} {name}")
    more = {room: count for room, count in found.items() if count > LACKING.get(room, 0)}
    assert more == {}, "\n".join(name for name in names if name.split("/")[0] in more)
