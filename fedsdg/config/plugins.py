"""A user's own methods, parts and data sets: one Python file, or a module.

A plugin registers parts by ``class Silent(Attack, name="silent")``, and defines
``METHODS = {name: Method(...)}`` and ``DATASETS = {name: load}``, as far as it has any.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsdg.data.sources import DATASETS as OWN_DATASETS
from fedsdg.errors import ConfigError
from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import Optimiser
from fedsdg.methods.families import METHODS as OWN_METHODS
from fedsdg.methods.method import Method
from fedsdg.parts import Part

METHODS: dict[str, Method] = dict(OWN_METHODS)
"""All methods by name: those of the package in the order of tables, then those of plugins."""
DATASETS: dict[str, Callable[[], Any]] = {}
"""Functions that load the data sets of plugins, by name."""
KINDS: tuple[type[Part], ...] = (Optimiser, Loss, Attack, Condition)
_GONE = {"OPTIMISERS": "Optimiser", "LOSSES": "Loss", "ATTACKS": "Attack"}


@dataclass(frozen=True)
class Plugin:
    """What was imported."""

    place: str
    "the file or the module"
    sha256: str
    "of the file and of the modules beside it that it imports"
    names: frozenset[tuple[str, str]]
    "kind and name of all that it brings"


_LOADED: dict[str, Plugin] = {}


def load(place: str) -> Plugin:
    """Import a plugin once; what it brings can be named from then on.

    Args:
        place: A Python file, or the name of a module.

    Raises:
        ConfigError: It cannot be imported, or brings a name that there is already.
    """
    if place in _LOADED:
        return _LOADED[place]
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise ConfigError(f"names {place}, but there is no such file")
    before = _names()
    try:
        module = _from_file(path) if is_file else importlib.import_module(place)
        _require_rows(module)
    except Exception as error:
        _forget(_names() - before)
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        text += _line(error, path)
        if "cannot import name 'part'" in text:
            text += (
                "; @part is gone: a subclass of Rule or Term is a part, with limits by Field(ge=0)"
            )
        raise ConfigError(f"names {place}, which is no plugin: {text}") from error
    METHODS.update(getattr(module, "METHODS", {}))
    DATASETS.update(getattr(module, "DATASETS", {}))
    source = Path(str(module.__file__))
    found = Plugin(place, _sha256(source), _names() - before)
    _LOADED[place] = found
    return found


def hashes(names: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of the plugins that bring some names.

    Args:
        names: Kind ("method", "optimiser", "loss", "attack", "dataset") and name.

    Returns:
        SHA-256 by place, for those from plugins.
    """
    wanted = set(names.items())
    return {one.place: one.sha256 for one in _LOADED.values() if one.names & wanted}


def title(method: str) -> str | None:
    """Return the title of a plugin's method, which records cannot know otherwise."""
    return METHODS[method].title if method not in OWN_METHODS else None


def _names() -> frozenset[tuple[str, str]]:
    found = {("method", name) for name in METHODS} | {("dataset", name) for name in DATASETS}
    for kind in KINDS:
        found |= {(kind.__name__.lower(), name) for name in kind.registry}
    return frozenset(found)


def _forget(names: frozenset[tuple[str, str]]) -> None:
    """Take back what a plugin registered before it failed."""
    for kind in KINDS:
        for of, name in names:
            if of == kind.__name__.lower():
                del kind.registry[name]


def _require_rows(module: ModuleType) -> None:
    for table, kind in _GONE.items():
        if hasattr(module, table):
            raise ConfigError(
                f"it defines {table}, which is gone; write class X({kind}, name='x') of "
                "fedsdg.federation instead"
            )
    for name, row in getattr(module, "METHODS", {}).items():
        if name in METHODS:
            raise ConfigError(f"it defines the method {name!r}, which exists; rename it")
        if not isinstance(row, Method):
            raise ConfigError(f"its METHODS[{name!r}] is a {type(row).__name__}; write Method(...)")
        _ = row.parameters  # Two parts with one parameter are an error now.
    for name, loader in getattr(module, "DATASETS", {}).items():
        if name in DATASETS or name in OWN_DATASETS:
            raise ConfigError(f"it defines the data set {name!r}, which exists; rename it")
        if not callable(loader):
            raise ConfigError(f"its DATASETS[{name!r}] is no function")


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
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _sha256(file: Path) -> str:
    """Return the hash of a file and of the modules beside it that it imports, directly or not."""
    files = [file]
    for known in files:
        for name in _imported(known):
            beside = file.with_name(f"{name}.py")
            if beside.is_file() and beside not in files and name not in sys.stdlib_module_names:
                files.append(beside)
    digest = hashlib.sha256()
    for known in (file, *sorted(files[1:])):
        digest.update(hashlib.sha256(known.read_bytes()).digest())
    return digest.hexdigest()


def _imported(file: Path) -> Iterator[str]:
    """Yield the modules that a file imports by one plain name; none if it cannot be parsed."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # Importing it says what is wrong.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if "." not in alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and "." not in node.module:
            yield node.module


def _line(error: BaseException, path: Path) -> str:
    """Return the last line of the plugin that an error passed through, in words."""
    trace = error.__traceback__
    line = 0
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line})" if line else ""
