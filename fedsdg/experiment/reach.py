"""Which code a run can reach, and its hash: a part of the run's address in the store.

Reached is what the run's own modules import, directly or not, and what the parts of its method, of
its conditions and of its training (optimiser and loss) import besides. Modules count as syntax
trees without comments and docstrings, so that words may be edited freely. Of the tables of methods
and conditions a run reaches the rows that it is made of. Found by reading files, among them the
declarations, which say of every row what it is made of: neither torch nor any of these modules is
imported.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsdg.experiment.conditions import Conditions
from fedsdg.methods.chosen import name_of
from fedsdg.methods.declared import ChoiceRow, Row
from fedsdg.methods.plugins import CHOICES, find_row, offered_choices, plugin_sources

if TYPE_CHECKING:
    from fedsdg.experiment.run_config import RunConfig

PACKAGE = Path(__file__).parents[1]

#: What every run begins with.
ROOT = "fedsdg.experiment.runs"

#: What the package offers as a whole: its version, which another release changes and no result
#: depends on, and doors for notebooks, through which no run goes.
OFFERED = frozenset({"fedsdg"})

#: Modules whose work is in the address by other means, so that neither they nor what they import
#: count unless something else reaches it: what a config says (its hash), the tables (the rows),
#: plugins (their hash in the config), data and their division (the hash of the partition, which
#: holds that of the data set), and this one (its outcome).
ELSEWHERE = OFFERED | frozenset(
    {
        "fedsdg.experiment.attackers",
        "fedsdg.experiment.conditions",
        "fedsdg.experiment.config",
        "fedsdg.experiment.run_config",
        "fedsdg.experiment.sections",
        "fedsdg.data.datasets",
        "fedsdg.data.partition",
        "fedsdg.data.partition_spec",
        "fedsdg.methods.choices",
        "fedsdg.methods.declared",
        "fedsdg.methods.families",
        "fedsdg.methods.plugins",
        "fedsdg.experiment.reach",
    }
)


def source_hash(run: RunConfig) -> str:
    """The hash of all code that a run can reach; a plugin's own is in the run's config."""
    lent = [file for plugin in run.borrowed.values() for file in plugin_sources(plugin.place)]
    method = find_row(run.method, None) if run.plugin is None else plugin_sources(run.plugin.place)
    return code_hash(method, run.conditions, training_rows(run), lent)


def training_rows(run: RunConfig) -> tuple[ChoiceRow, ...]:
    """The optimiser and the loss that a run trains with, where they are the package's own."""
    return tuple(
        offered_choices(key)[name_of(getattr(run.training, key))]
        for key in CHOICES
        if key not in run.borrowed
    )


def code_hash(
    method: Row | Iterable[Path],
    conditions: Conditions,
    training: Iterable[ChoiceRow] = (),
    borrowed: Iterable[Path] = (),
) -> str:
    """The hash of the code behind a method under some conditions.

    ``method``: its row, or the files of the plugin that it comes from. ``training``: the package's
    own optimiser and loss, as far as it trains with them. ``borrowed``: the files of plugins that
    the others come from.
    """
    modules = reached(method, conditions, training, borrowed)
    digest = hashlib.sha256()
    for name in sorted(modules):
        digest.update(f"{name} {_digest(name)}\0".encode())
    if isinstance(method, Row):
        digest.update(method.text.encode() + b"\0")
    kinds = {kind for one in _given(conditions) for kind in type(one).__mro__}
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        if _file(kind.__module__) is not None:
            digest.update(_class_text(kind.__module__, kind.__name__).encode() + b"\0")
    return digest.hexdigest()


def reached(
    method: Row | Iterable[Path],
    conditions: Conditions,
    training: Iterable[ChoiceRow] = (),
    borrowed: Iterable[Path] = (),
) -> frozenset[str]:
    """The names of all modules of the package that such a run may import and that count."""
    roots = {ROOT, *conditions.modules, *(name for row in training for name in row.modules)}
    files = [*borrowed]
    if isinstance(method, Row):
        roots |= {*method.modules}
    else:
        files += method
    if conditions.attack is not None and conditions.attack.plugin is not None:
        files += plugin_sources(conditions.attack.plugin.place)
    for file in files:
        roots |= imports(ast.parse(file.read_bytes()), "", is_package=False)
    return frozenset().union(*map(closure, roots))


@cache
def closure(root: str, elsewhere: frozenset[str] = ELSEWHERE) -> frozenset[str]:
    """The module ``root`` and what it imports within the package, directly or not."""
    found: set[str] = set()
    left = [root]
    while left:
        name = left.pop()
        if name in found or name in elsewhere:
            continue
        found.add(name)
        left += _imports_of(name)
        package = name.rpartition(".")[0]  # Importing a module runs the packages around it.
        left += [package] if package else []
    return frozenset(found)


def code_of(*doors: str) -> str:
    """The hash of all code that whoever imports these modules can reach, without its words.

    ``package.*`` stands for all modules of a package, which may import each other by name.
    """
    roots = {name for door in doors for name in _named(door)}
    reached_there = frozenset().union(*(closure(root, OFFERED) for root in roots))
    digest = hashlib.sha256()
    for name in sorted(reached_there):
        digest.update(f"{name} {_digest(name)}\0".encode())
    return digest.hexdigest()


def _named(door: str) -> list[str]:
    package, star, _ = door.partition(".*")
    if not star:
        return [door]
    place = _file(package)
    if place is None:
        raise ValueError(f"there is no package {package!r}")
    return [
        ".".join([PACKAGE.name, *file.relative_to(PACKAGE).with_suffix("").parts])
        for file in sorted(place.parent.glob("*.py"))
        if file.name != "__init__.py"
    ] + [package]


def imports(tree: ast.AST, module: str, *, is_package: bool) -> set[str]:
    """The modules of the package that a syntax tree imports, wherever in it.

    What stands under ``if TYPE_CHECKING`` is never executed, and left out.
    """
    found = set()
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                around = module.split(".")[: None if is_package else -1]
                around = around[: len(around) - node.level + 1]
                origin = ".".join([*around, *([origin] if origin else [])])
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return {name for name in found if _file(name) is not None}


def _given(conditions: Conditions) -> list[Any]:
    values = (getattr(conditions, entry.name) for entry in fields(conditions))
    return [value for value in values if is_dataclass(value)]


# --- Files ----------------------------------------------------------------------------------------


@cache
def _file(module: str) -> Path | None:
    """Where a module of the package lies; None for anything else."""
    first, *rest = module.split(".")
    if first != PACKAGE.name:
        return None
    place = PACKAGE.joinpath(*rest)
    for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if file.is_file():
            return file
    return None


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    if file is None:
        raise ValueError(f"there is no module {module!r}; a part of a method names it")
    return ast.parse(file.read_bytes(), str(file))


@cache
def _imports_of(module: str) -> frozenset[str]:
    file = _file(module)
    is_package = file is not None and file.name == "__init__.py"
    return frozenset(imports(_tree(module), module, is_package=is_package))


@cache
def _digest(module: str) -> str:
    return hashlib.sha256(_plain(_tree(module)).encode()).hexdigest()


def _class_text(module: str, name: str) -> str:
    (found,) = (
        node for node in _tree(module).body if isinstance(node, ast.ClassDef) and node.name == name
    )
    return _plain(found)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements of a tree, those inside functions too; expressions import nothing."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        skipped = ("body",) if isinstance(node, ast.If) and _is_type_checking(node.test) else ()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and name not in skipped:
                left += inner


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def _plain(node: Any) -> str:
    """A syntax tree as text: without positions, bare strings, and what is empty.

    ``ast.dump`` would do, but differs between versions of Python.
    """
    if isinstance(node, ast.AST):
        said = ((name, getattr(node, name, None)) for name in node._fields)
        inner = [
            f"{name}={_plain(value)}"
            for name, value in said
            if value is not None and value != [] and name != "kind"
        ]
        return f"{type(node).__name__}({','.join(inner)})"
    if isinstance(node, list):
        return "[" + ",".join(_plain(each) for each in node if not _is_words(each)) + "]"
    return repr(node)


def _is_words(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
