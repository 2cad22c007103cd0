"""Rows from outside the package: of a file or of another package, beside those of the tables.

A plugin is a Python file that defines ``METHODS = {name: Method(...)}``, ``OPTIMISERS`` or ``LOSSES
= {name: Choice(...)}``, ``ATTACKS = {name: AttackKind(...)}`` or ``DATASETS = {name: load}``, where
``load()`` gives an ``ImageData``; or an entry point of the group ``fedsdg.methods`` that refers to
such a module, or to a mapping of methods. A config lists the plugins that it needs, so that what is
installed beside changes no experiment. The hash of a plugin's source, with that of the modules
beside it that it imports, belongs to the runs that use its rows: edited, they are new runs. Of a
data set its images count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from fedsdg.data.datasets import DATASETS, ImageData
from fedsdg.files import source_hash
from fedsdg.methods.composition import Choice, Key, Method
from fedsdg.methods.conditions import ATTACKS, AttackKind
from fedsdg.methods.local_parts import LOSSES, OPTIMISERS, name_of, parameters_of
from fedsdg.methods.plugin_files import PluginFiles, read_plugin
from fedsdg.methods.table import METHODS

#: The group of entry points that other packages offer methods and all else in.
GROUP = "fedsdg.methods"
_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Plugin:
    """A plugin as its runs know it; light, so that it travels to the processes of a grid."""

    #: A file ending in ``.py``, relative to the working directory, or the name of an entry point.
    place: str
    #: Of the file and its siblings; of an entry point, of all sources of its package.
    sha256: str

    def facts(self) -> dict[str, str]:
        """What a run's config holds of it: in which folder a file lies makes no other run."""
        return {"name": Path(self.place).name, "sha256": self.sha256}


def find_plugin(place: str) -> Plugin:
    """The plugin at a place, not imported yet.

    Raises ``FileNotFoundError`` where there is no such file, ``ValueError`` for an entry point that
    is not installed or whose sources cannot be found.
    """
    if not place.endswith(".py"):
        return Plugin(place, _package_hash(place))
    return Plugin(place, _files(place).sha256)


def offered(plugins: Iterable[Plugin]) -> dict[str, Plugin | None]:
    """Where each method is from, by name: None for the rows of the table, which come first.

    Raises ``ValueError`` for a name that is taken, and for a plugin that cannot be loaded.
    """
    return _owners("METHODS", METHODS, "methods", plugins)


def offered_attacks(plugins: Iterable[Plugin]) -> dict[str, Plugin | None]:
    """As ``offered``, where each attack is from."""
    return _owners("ATTACKS", ATTACKS, "attacks", plugins)


def offered_datasets(plugins: Iterable[Plugin]) -> dict[str, Plugin | None]:
    """As ``offered``, where each data set is from."""
    return _owners("DATASETS", DATASETS, "data sets", plugins)


def _owners(
    table: str, own: Iterable[str], what: str, plugins: Iterable[Plugin]
) -> dict[str, Plugin | None]:
    found: dict[str, Plugin | None] = dict.fromkeys(own)
    for plugin in plugins:
        for name in contents(plugin)[table]:
            if name in found:
                owner = found[name]
                taken = f"the table of {what}" if owner is None else f"the plugin {owner.place}"
                raise ValueError(
                    f"the plugin {plugin.place} defines {name!r}, which {taken} has already; "
                    "give it another name"
                )
            found[name] = plugin
    return found


def find_method(name: str, plugin: Plugin | None) -> Method:
    """The row of a method, from the table or from a plugin."""
    return (METHODS if plugin is None else plugin_methods(plugin))[name]


def plugin_methods(plugin: Plugin) -> Mapping[str, Method]:
    """A plugin's methods; see ``contents``."""
    methods: Mapping[str, Method] = contents(plugin)["METHODS"]
    return methods


def find_attack(name: str, plugin: Plugin | None) -> AttackKind:
    """The row of an attack, from the table or from a plugin."""
    row: AttackKind = (ATTACKS if plugin is None else contents(plugin)["ATTACKS"])[name]
    return row


@dataclass(frozen=True)
class OfferedData:
    """A data set of a plugin: light, so that it travels to the processes of a grid."""

    name: str
    plugin: Plugin

    def load(self) -> ImageData:
        """The images; ``ValueError`` where the plugin gives anything else."""
        try:
            data = contents(self.plugin)["DATASETS"][self.name]()
        except Exception as error:
            raise ValueError(
                f"the plugin {self.plugin.place} cannot load {self.name!r}: {_said(error)}"
            ) from error
        if not isinstance(data, ImageData):
            raise ValueError(
                f"the plugin {self.plugin.place} loads a {type(data).__name__} as {self.name!r}; "
                "make what it returns with fedsdg.data.datasets.image_data"
            )
        return replace(data, name=self.name)


#: The tables that a config chooses from by a key of ``training``, and what plugins call theirs.
CHOICES: Mapping[str, tuple[str, Mapping[str, Choice]]] = MappingProxyType(
    {"optimiser": ("OPTIMISERS", OPTIMISERS), "loss": ("LOSSES", LOSSES)}
)


def offered_choices(key: str, plugins: Iterable[Plugin]) -> dict[str, Choice]:
    """What the key ``key`` of ``training`` may name: rows of its table, then those of plugins.

    Raises ``ValueError`` for a name that is taken, and for a plugin that cannot be loaded.
    """
    table, found = CHOICES[key][0], dict(CHOICES[key][1])
    for plugin in plugins:
        for name, row in contents(plugin)[table].items():
            if name in found:
                raise ValueError(
                    f"the plugin {plugin.place} has {name!r} in {table}, which is there already; "
                    "give it another name"
                )
            found[name] = row
    return found


def lender(key: str, name: str, plugins: Iterable[Plugin]) -> Plugin | None:
    """The plugin whose row ``name`` is; None where it is one of the package's."""
    table, own = CHOICES[key]
    if name in own:
        return None
    return next(plugin for plugin in plugins if name in contents(plugin)[table])


def find_choice(key: str, name: str, plugin: Plugin | None) -> Choice:
    """The row ``name`` of what ``key`` of ``training`` may be, from its table or from a plugin."""
    table, own = CHOICES[key]
    row: Choice = (own if plugin is None else contents(plugin)[table])[name]
    return row


def build_choice(key: str, value: str | Mapping[str, Any], plugin: Plugin | None) -> Any:
    """The part that a checked value of the key ``key`` of ``training`` stands for."""
    choice = find_choice(key, name_of(value), plugin)
    return choice.part.build(parameters_of(value, choice))


#: The tables of a plugin: of what they are made, and how one row is called.
_KINDS: Mapping[str, tuple[type, str]] = {
    "METHODS": (Method, "method"),
    "OPTIMISERS": (Choice, "optimiser"),
    "LOSSES": (Choice, "loss"),
    "ATTACKS": (AttackKind, "attack"),
    "DATASETS": (Callable, "data set"),  # type: ignore[dict-item]
}


def _require_place(name: str, plugin: Plugin) -> None:
    if not _DATASET.fullmatch(name):
        raise ValueError(
            f"the plugin {plugin.place}: the data set {name!r} must have a name of letters, "
            "digits, '_' and '-'; it is part of paths"
        )


@cache
def contents(plugin: Plugin) -> Mapping[str, Mapping[str, Any]]:
    """A plugin's tables by name, imported once a process, each row put together with its defaults.

    Raises ``ValueError`` where the plugin cannot be imported, was changed since it was found, or
    holds anything but rows whose parts can be built.
    """
    given = _from_file(plugin) if plugin.place.endswith(".py") else _from_package(plugin)
    found = {}
    for table, (kind, word) in _KINDS.items():
        form = "functions" if table == "DATASETS" else f"{kind.__name__}(...)"
        rows = given.get(table) or {}
        if not isinstance(rows, Mapping):
            raise ValueError(
                f"the plugin {plugin.place} has a {type(rows).__name__} as {table}, which must map "
                f"names to {form}"
            )
        for name, row in rows.items():
            if not isinstance(name, str) or not isinstance(row, kind):
                raise ValueError(
                    f"the plugin {plugin.place} has a {type(row).__name__} under {name!r} of "
                    f"{table}, which must map names to {form}"
                )
            if table == "DATASETS":
                _require_place(name, plugin)
                continue
            try:
                _try(row)
            except Exception as error:
                raise ValueError(f"the plugin {plugin.place}, {word} {name!r}: {error}") from error
        found[table] = MappingProxyType(dict(rows))
    if not any(found.values()):
        raise ValueError(
            f"the plugin {plugin.place} defines no methods; write METHODS = {{'name': Method(...)}}"
            ", or one of OPTIMISERS, LOSSES, ATTACKS, DATASETS"
        )
    return MappingProxyType(found)


def _try(row: Any) -> None:
    """Build every part with the default parameters, so that a slip shows before any training."""
    defaults = {
        key: parameter.check(parameter.default, f"the default of {key}")
        for key, parameter in row.parameters.items()
    }
    for part in row.parts if isinstance(row, Method) else (row.part,):
        for value in part.arguments.values():
            if isinstance(value, Key) and value.name not in defaults:
                raise ValueError(f"{part.name} asks for {value.name!r}, which no parameter is")
        part.build(defaults)


def _files(place: str) -> PluginFiles:
    try:
        return read_plugin(Path(place))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no plugin {place}; its path is relative to the working directory"
        ) from error


def _from_file(plugin: Plugin) -> Mapping[str, Any]:
    files = _files(plugin.place)
    _require_unchanged(plugin, files.sha256)
    try:
        return vars(files.execute())
    except Exception as error:
        raise _unusable(plugin, error) from error


def _entry_point(place: str) -> metadata.EntryPoint:
    installed = metadata.entry_points(group=GROUP)
    if place not in installed.names:
        known = ", ".join(sorted(installed.names)) or "none"
        raise ValueError(
            f"there is no plugin {place!r}: neither a file, whose name ends in .py, nor an "
            f"installed entry point of the group {GROUP} (there are: {known})"
        )
    return installed[place]


def plugin_sources(place: str) -> list[Path]:
    """The files that a plugin consists of, siblings too; of an entry point, all of its package."""
    if place.endswith(".py"):
        return _files(place).paths
    package, relative = _package(place)
    return [package / relative] if relative else sorted(package.rglob("*.py"))


def _package_hash(place: str) -> str:
    package, relative = _package(place)
    return source_hash(relative, package=package)


def _package(place: str) -> tuple[Path, str]:
    """The folder of an entry point's sources, and the one file of it that counts, or ""."""
    top = _entry_point(place).module.partition(".")[0]
    spec = util.find_spec(top)
    if spec is None or spec.origin is None:
        raise ValueError(f"the plugin {place} is in the package {top}, which has no sources")
    file = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return file.parent, file.name
    return file.parent, ""


def _from_package(plugin: Plugin) -> Mapping[str, Any]:
    _require_unchanged(plugin, _package_hash(plugin.place))
    try:
        found = _entry_point(plugin.place).load()
    except Exception as error:
        raise _unusable(plugin, error) from error
    return found.__dict__ if isinstance(found, ModuleType) else {"METHODS": found}


def _require_unchanged(plugin: Plugin, sha256: str) -> None:
    if sha256 != plugin.sha256:
        raise ValueError(
            f"the plugin {plugin.place} was edited while it was in use; give the command again"
        )


def _unusable(plugin: Plugin, error: Exception) -> ValueError:
    return ValueError(f"the plugin {plugin.place} cannot be imported: {_said(error)}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")
