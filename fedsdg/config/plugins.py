"""A user's own methods, parts and data sets: one Python file, or a module.

A plugin registers parts by ``class Silent(Attack, name="silent")``, and defines
``METHODS = {name: Method(...)}`` and ``DATASETS = {name: load}``, as far as it has any.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedsdg.data.sources import DATASETS as OWN_DATASETS
from fedsdg.errors import ConfigError
from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import Optimiser
from fedsdg.files import PACKAGE, sha256_file, sha256_json
from fedsdg.methods.families import METHODS as OWN_METHODS
from fedsdg.methods.method import Method
from fedsdg.parts import Part

METHODS: dict[str, Method] = dict(OWN_METHODS)
"""All methods by name: those of the package in the order of tables, then those of plugins."""
DATASETS: dict[str, Callable[[], Any]] = {}
"""Functions that load the data sets of plugins, by name."""
TABLES: dict[str, dict[str, Any]] = {
    "method": METHODS,
    "dataset": DATASETS,
    **{kind.kind_name: kind.registry for kind in (Optimiser, Loss, Attack, Condition)},
}
"""All that plugins add to, by kind and name."""
_DEFINED: tuple[tuple[str, str, Any, str], ...] = (
    ("METHODS", "method", Method, "Method(...)"),
    ("DATASETS", "dataset", Callable, "a function"),
)
"""What a module may define: kind and type of the values, and what to write."""


@dataclass(frozen=True)
class Plugin:
    """An imported plugin."""

    module: str
    "the name under which it is imported"
    file: Path
    "where it lies"
    sha256: str
    "hash of the file and of the modules beside it that it imports"
    names: frozenset[tuple[str, str]]
    "kind and name of all that it brings"


LIBRARIES = (PACKAGE, Path(traceback.__file__).parent, Path(np.__file__).parents[1])
"""Folders of code that is not the user's."""

_LOADED: dict[str, Plugin] = {}


def load(place: str) -> Plugin:
    """Import a plugin once; what it brings can be named from then on.

    Args:
        place: A Python file, or the name of a module.

    Raises:
        ConfigError: It cannot be imported, or brings a name that there is already.
    """
    path = Path(place)
    is_file = path.suffix == ".py"
    key = str(path.resolve()) if is_file else place
    if key in _LOADED:
        if _sha256(_LOADED[key].file) != _LOADED[key].sha256:
            raise ConfigError(f": {place} has changed since it was imported; start Python again")
        return _LOADED[key]
    if is_file and not path.is_file():
        raise ConfigError(f": there is no plugin file {place}; correct its name")
    before = {kind: dict(table) for kind, table in TABLES.items()}
    try:
        module = _from_file(path) if is_file else importlib.import_module(place)
        if getattr(module, "__file__", None) is None:
            raise ValueError("it has no file; name a Python file, or a module that has one")
        file = Path(str(module.__file__))
        sha256 = _sha256(file)
        _add(module)
    except (Exception, SystemExit) as error:
        for kind, table in TABLES.items():
            table.clear()
            table.update(before[kind])
        raise ConfigError(f": {place} is no plugin: {raised(error)}{_remedy(error)}") from error
    names = {(kind, name) for kind, table in TABLES.items() for name in table.keys() - before[kind]}
    _LOADED[key] = Plugin(module.__name__, file, sha256, frozenset(names))
    return _LOADED[key]


def hashes(method: str, dataset: str, parts: Sequence[Part]) -> list[str]:
    """Return the hashes of the plugins that a run uses.

    Args:
        method: Its name.
        dataset: Its name.
        parts: Those that its config names besides: optimiser, loss, attack and conditions.
    """
    names = {("method", method), ("dataset", dataset)}
    names |= {(part.kind_name, part.registered_as) for part in parts}
    return sorted(plugin.sha256 for plugin in _LOADED.values() if plugin.names & names)


def _add(module: ModuleType) -> None:
    """Add the methods and data sets of a module, which must be new."""
    for title, kind, wanted, remedy in _DEFINED:
        given = getattr(module, title, {})
        if not isinstance(given, dict):
            raise ValueError(f"its {title} is a {type(given).__name__}; write {{name: {remedy}}}")
        for name, value in given.items():
            if name in TABLES[kind] or name in OWN_DATASETS:
                raise ValueError(f"it defines {name!r}, which exists; rename it")
            if not isinstance(value, wanted):
                fault = f"is a {type(value).__name__}; write {remedy}"
                raise ValueError(f"its {title}[{name!r}] {fault}")
            TABLES[kind][name] = value


def _from_file(path: Path) -> ModuleType:
    """Import a file under a name of its own; modules beside it stand behind all others."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = f"fedsdg_plugin_{path.stem}_{_sha256(path)[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def sources(file: Path) -> list[Path]:
    """Return a file, and the modules and packages beside it that imports name, directly or not.

    Of a package, which its ``__init__.py`` stands for, all files.
    """
    files = [file, *(file.parent.rglob("*.py") if file.name == "__init__.py" else ())]
    others = {*sys.stdlib_module_names, PACKAGE.name}
    for known in files:
        text = known.read_text(encoding="utf-8", errors="replace")
        for line in re.findall(r"^\s*(?:import|from)\s(.*)", text, re.MULTILINE):
            beside = [file.with_name(f"{name}.py") for name in {*re.findall(r"\w+", line)} - others]
            for name in {*re.findall(r"(?:^|,)\s*(\w+)", line)} - others:
                beside += file.with_name(name).rglob("*.py")
            files += [one for one in beside if one.is_file() and one not in files]
    return [file, *sorted({*files} - {file})]


def _sha256(file: Path) -> str:
    """Return the hash of a file and of the modules beside it that it imports."""
    return sha256_json([sha256_file(known) for known in sources(file)])


def raised(error: BaseException) -> str:
    """Return what a plugin raised in one line, and in which of its lines.

    Args:
        error: With its traceback.

    Example: ``ValueError: no such key (my_method.py, line 3)``.
    """
    text = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not any(file.is_relative_to(folder) for folder in LIBRARIES):
            return f"{text} ({file.name}, line {frame.lineno})"
    return text


def _remedy(error: BaseException) -> str:
    """Return what to write instead, for faults that say nothing of it."""
    if isinstance(error, SystemExit):
        return "; leave out what ends the program"
    of_an_import = isinstance(error, ImportError) and "fedsdg" in str(error)
    return "; docs/add-a-method.md shows what plugins import" if of_an_import else ""
