"""Which definitions a run can reach, and their hash: a part of the run's address in the store.

A definition is a function, a class or a constant of a module. Reached is what the parts of the
run's method, of its conditions and of its training use, what every run begins with uses, what these
use, and so on; also what else stands in their modules and is executed with them. Definitions count
as syntax trees, without what changes no result: comments, docstrings, import statements, the types
of arguments, what errors say, what is printed. In which module they stand does not count either.
Of the tables of methods and conditions a run reaches the rows that it is made of. Found by reading
files, among them the declarations, which say of every row what it is made of: neither torch nor any
of these modules is imported.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsdg.experiment.conditions import Conditions
from fedsdg.files import atomic_path
from fedsdg.methods.chosen import name_of
from fedsdg.methods.declared import ChoiceRow, Row
from fedsdg.methods.plugins import CHOICES, find_row, offered_choices, plugin_sources

if TYPE_CHECKING:
    from fedsdg.experiment.run_config import RunConfig

PACKAGE = Path(__file__).parents[1]

#: What is used: a module and names that lead on from there. A module alone is all of it.
Use = tuple[str, ...]

#: What every run begins with.
ROOTS: tuple[Use, ...] = (
    ("fedsdg.models.backbones", "load_backbone"),
    ("fedsdg.experiment.material", "prepare_material"),
    ("fedsdg.experiment.runs", "execute"),
)

#: What the package offers as a whole: its version, which another release changes and no result
#: depends on, and doors for notebooks, through which no run goes.
OFFERED = frozenset({"fedsdg"})

#: Functions whose last argument is a class with which a value is compared.
_COMPARE = ("isinstance", "setup.condition", "self.condition")

#: Modules whose work is in the address by other means, so that neither they nor what they use
#: count unless something else reaches it: what a config says (its hash), the tables (the rows),
#: plugins (their hash in the config), data and their division (the hash of the partition, which
#: holds that of the data set), and this one (its outcome).
ELSEWHERE = OFFERED | frozenset(
    {
        "fedsdg.experiment.conditions",
        "fedsdg.experiment.config",
        "fedsdg.experiment.run_config",
        "fedsdg.experiment.sections",
        "fedsdg.data.datasets",
        "fedsdg.data.partition",
        "fedsdg.data.reading",
        "fedsdg.data.sources",
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

    Args:
        method: Its row, or the files of the plugin that it comes from.
        conditions: What the runs meet.
        training: The package's own optimiser and loss, as far as it trains with them.
        borrowed: The files of plugins that the others come from.
    """
    found = reached(method, conditions, training, borrowed)
    digests = [one.digest for one in found.values()]
    digests += [method.text] if isinstance(method, Row) else []
    return _hash_of(digests)


def reached(
    method: Row | Iterable[Path],
    conditions: Conditions,
    training: Iterable[ChoiceRow] = (),
    borrowed: Iterable[Path] = (),
) -> dict[Use, Definition]:
    """All definitions of the package that such a run may use and that count; see ``code_hash``."""
    named = [name for row in training for name in row.modules]
    files = [*borrowed]
    if isinstance(method, Row):
        named += method.modules
    else:
        files += method
    roots = [*ROOTS, *_classes(conditions)]
    if conditions.attack is not None:
        roots.append(("fedsdg.federation.conditions.attack", "Attackers"))
        named += conditions.attack.modules
        if conditions.attack.plugin is not None:
            files += plugin_sources(conditions.attack.plugin.place)
    roots += [tuple(name.split(":")) for name in named]
    for file in files:
        source = _read(file.read_bytes(), "", is_package=False)
        roots += [use for uses in source.imported.values() for use in uses]
        roots += [use for one in source.statements() for use in one.uses if use[0]]
    return used_by(roots)


def code_of(*doors: str) -> str:
    """The hash of all code that can be reached from modules, or ``module:name``, without words."""
    roots = [tuple(door.split(":")) for door in doors]
    return _hash_of([one.digest for one in used_by(roots, OFFERED).values()])


def _hash_of(digests: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(sorted(digests)).encode()).hexdigest()


def _classes(conditions: Conditions) -> list[Use]:
    """The classes of the conditions that there are."""
    values = (getattr(conditions, entry.name) for entry in fields(conditions))
    kinds = [type(value) for value in values if is_dataclass(value)]
    return [(kind.__module__, kind.__name__) for kind in kinds]


# --- From definition to definition ----------------------------------------------------------------


def used_by(roots: Iterable[Use], elsewhere: frozenset[str] = ELSEWHERE) -> dict[Use, Definition]:
    """What is used by following ``roots``, directly or not, by module and name.

    Args:
        roots: Where to begin.
        elsewhere: Modules that are not entered.

    Raises:
        ValueError: A root is in no module of the package.
    """
    found: dict[Use, Definition] = {}
    left = []
    for root in roots:
        if root[0].split(".")[0] == PACKAGE.name and _source(root[0]) is None:
            raise ValueError(f"there is no module {root[0]!r}; a part of a method names it")
        left.append(root)
    entered: set[str] = set()
    seen: set[Use] = set()
    while left:
        use = left.pop()
        if use in seen:
            continue
        seen.add(use)
        module, *names = use
        source = _source(module)
        inner = ".".join(use[:2])
        if source is None:
            continue
        if module in elsewhere:
            left += [(inner, *names[1:])] if names and _source(inner) is not None else []
            continue
        if not names:
            left += [(module, name) for name in (*source.defined, *source.imported)]
            names = [""]
        if module not in entered:
            entered.add(module)
            # Whoever imports a module executes it, and the packages around it.
            found |= {(module, f"@{n}"): one for n, one in enumerate(source.loose)}
            left += [use for one in source.loose for use in one.uses]
            left += [(package, "") for package in _around(module)]
        name, *further = names
        definitions, imports = source.defined.get(name, ()), source.imported.get(name, ())
        for number, one in enumerate(definitions):
            found[module, name, *([str(number)] if number else [])] = one
            left += one.uses
        left += [(*origin, *further) for origin in imports]
        if name and not definitions and not imports:
            if _source(inner) is not None:
                left.append((inner, *further))
            elif "__getattr__" in source.defined:
                left.append(_served(module, name, further))
    return found


def _served(module: str, name: str, further: list[str]) -> Use:
    """Where a name is defined that a module hands on by its ``__getattr__``, as ``_HOMES`` says."""
    home = getattr(importlib.import_module(module), "_HOMES", {}).get(name)
    return (f"{module}.{home}", name, *further) if home else (module,)


def _around(module: str) -> list[str]:
    words = module.split(".")
    return [".".join(words[:length]) for length in range(1, len(words))]


# --- Files ----------------------------------------------------------------------------------------


class Definition(NamedTuple):
    """A statement of a module: what it says, without words, and what it uses."""

    digest: str
    uses: tuple[Use, ...]


class Source(NamedTuple):
    """A module: what its names stand for, and what else it executes."""

    defined: Mapping[str, tuple[Definition, ...]]
    imported: Mapping[str, tuple[Use, ...]]
    loose: tuple[Definition, ...]

    def statements(self) -> list[Definition]:
        """All that is defined or executed here."""
        return [one for ones in (*self.defined.values(), self.loose) for one in ones]


@cache
def _files() -> dict[str, Path]:
    """All modules of the package, by name."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        words = [PACKAGE.name, *file.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = file
    return found


def _source(module: str) -> Source | None:
    """A module of the package; None for anything else."""
    return _sources().get(module)


@cache
def _sources() -> Mapping[str, Source]:
    """All modules of the package, read once for as long as no file changes."""
    texts = {name: file.read_bytes() for name, file in _files().items()}
    stamp = hashlib.sha256(Path(__file__).read_bytes())
    for name, text in texts.items():
        stamp.update(f"{name}\0{len(text)}\0".encode() + text)
    kept = PACKAGE / "__pycache__" / f"reach-{stamp.hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError):
        return {name: _from_plain(said) for name, said in json.loads(kept.read_bytes()).items()}
    found = {
        name: _read(text, name, is_package=_files()[name].name == "__init__.py")
        for name, text in texts.items()
    }
    with contextlib.suppress(OSError):
        kept.parent.mkdir(exist_ok=True)
        for old in kept.parent.glob("reach-*.json"):
            old.unlink(missing_ok=True)
        with atomic_path(kept) as place:
            place.write_text(json.dumps(found))
    return found


def _from_plain(said: Any) -> Source:
    """A source from JSON, which knows no tuples."""

    def definitions(ones: Any) -> tuple[Definition, ...]:
        return tuple(Definition(digest, tuple(map(tuple, uses))) for digest, uses in ones)

    defined, imported, loose = said
    return Source(
        {name: definitions(ones) for name, ones in defined.items()},
        {name: tuple(map(tuple, uses)) for name, uses in imported.items()},
        definitions(loose),
    )


@cache
def _read(text: bytes, module: str, *, is_package: bool) -> Source:
    tree = ast.parse(text, module)
    defined: dict[str, list[Definition]] = {}
    imported: dict[str, list[Use]] = {}
    loose: list[Definition] = []
    statements = list(_statements(tree.body))
    for one in statements:
        if isinstance(one, ast.Import | ast.ImportFrom):
            for name, use in _imported(one, module, is_package).items():
                imported.setdefault(name, []).append(use)
    known = {name: (module, name) for one in statements for name in _defines(one)}
    known |= {name: (module, name) for name in imported}
    for one in statements:
        inside = [node for node in ast.walk(one) if isinstance(node, ast.Import | ast.ImportFrom)]
        own = {
            name: use
            for node in inside
            for name, use in _imported(node, module, is_package).items()
        }
        names = _defines(one)
        bare = _Wordless().visit(one)
        if bare is None:
            continue
        digest = hashlib.sha256(_plain(bare).encode()).hexdigest()[:32]
        definition = Definition(digest, _uses(bare, known | own))
        for name in names:
            defined.setdefault(name, []).append(definition)
        if not names:
            loose.append(definition)
    return Source(
        {name: tuple(ones) for name, ones in defined.items()},
        {name: tuple(uses) for name, uses in imported.items()},
        tuple(loose),
    )


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those of its branches one by one."""
    for one in body:
        if isinstance(one, ast.If):
            if not _is_type_checking(one.test):
                yield ast.Expr(one.test)
                yield from _statements(one.body)
            yield from _statements(one.orelse)
        elif isinstance(one, ast.Try):
            handled = [inner for handler in one.handlers for inner in handler.body]
            yield from _statements([*one.body, *handled, *one.orelse, *one.finalbody])
        else:
            yield one


def _defines(one: ast.stmt) -> list[str]:
    """The names that a statement of a module gives a meaning to."""
    if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [one.name]
    if isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target]
        inner = (node for target in targets for node in ast.walk(target))
        return sorted({node.id for node in inner if isinstance(node, ast.Name)})
    return []


def _imported(node: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> dict[str, Use]:
    """What an import statement makes known, by name."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.split(".")[0]: (
                alias.name if alias.asname else alias.name.split(".")[0],
            )
            for alias in node.names
        }
    origin = node.module or ""
    if node.level:
        around = module.split(".")[: None if is_package else -1]
        around = around[: len(around) - node.level + 1]
        origin = ".".join([*around, *([origin] if origin else [])])
    return {alias.asname or alias.name: (origin, alias.name) for alias in node.names}


def _uses(statement: ast.AST, known: Mapping[str, Use]) -> tuple[Use, ...]:
    """What a statement uses of the names that are ``known`` to it.

    Types of fields are left out, and classes that values are only compared with: the code of a
    class runs if there is an instance, and what makes an instance uses the class.
    """
    found: set[Use] = set()
    left = [statement]
    while left:
        node = left.pop()
        if isinstance(node, ast.AnnAssign):
            left += [node.target, *([node.value] if node.value else [])]
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_COMPARE):
            left += [node.func, *node.args[:-1]]
            continue
        names: list[str] = []
        start: Any = node
        while isinstance(start, ast.Attribute):
            names.insert(0, start.attr)
            start = start.value
        if not isinstance(start, ast.Name):
            left += ast.iter_child_nodes(node)
        elif start.id in known:
            found.add((*known[start.id], *names))
    return tuple(sorted(found))


class _Wordless(ast.NodeTransformer):
    """Takes away what changes no result, in place."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        words = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if words or _only_says(node.value) else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_If(self, node: ast.If) -> Any:
        if _is_type_checking(node.test):
            return [self.visit(one) for one in node.orelse]
        return self.generic_visit(node)


def _only_says(call: ast.expr) -> bool:
    """Whether an expression is a call that prints or warns."""
    return isinstance(call, ast.Call) and ast.unparse(call.func) in ("print", "warnings.warn")


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def _plain(node: Any) -> str:
    """A syntax tree as text: without positions and what is empty.

    ``ast.dump`` would do, but differs between versions of Python.
    """
    if isinstance(node, ast.AST):
        said = ((name, getattr(node, name, None)) for name in node._fields)
        inner = [
            f"{name}={_plain(value)}"
            for name, value in said
            if value is not None and value != [] and name not in ("kind", "type_comment")
        ]
        return f"{type(node).__name__}({','.join(inner)})"
    if isinstance(node, list):
        return "[" + ",".join(_plain(each) for each in node if each is not None) + "]"
    return repr(node)
