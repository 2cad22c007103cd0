"""Rows from outside the package: of a file or of another package, beside those of the tables.

A plugin is a Python file that defines ``METHODS = {name: Method(...)}``, or ``OPTIMISERS``,
``LOSSES`` or ``ATTACKS = {name: Choice(...)}``, or ``DATASETS = {name: load}``, where ``load()``
gives an ``ImageData``, or declares metrics with ``fedsdg.analysis.metric``; or an entry point of
the group ``fedsdg.methods`` that refers to such a module, or to a mapping of methods. A config
lists the plugins that it needs, so that what is installed beside changes no experiment. The hash of
a plugin's source, with that of the modules beside it that it imports, belongs to the runs that use
its rows: edited, they are new runs. Of a data set its images count.

Rows are asked for in two forms: described (``Row``, ``ChoiceRow``), for whoever checks or lists
them, and as real parts, for a run. The package's own are described by a file, without torch; a
plugin's, and all real parts, import it, as late as they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from fedsdg.files import source_hash
from fedsdg.methods import declared
from fedsdg.methods.chosen import name_of, parameters_of
from fedsdg.methods.declared import ChoiceRow, Row
from fedsdg.methods.plugin_errors import said, unusable
from fedsdg.methods.plugin_files import PluginFiles, read_plugin
from fedsdg.parts import replaced

if TYPE_CHECKING:
    from fedsdg.data.datasets import ImageData
    from fedsdg.methods.method import Method

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
    return _owners("METHODS", declared.methods(), "methods", plugins)


def offered_attacks(plugins: Iterable[Plugin]) -> dict[str, Plugin | None]:
    """As ``offered``, where each attack is from."""
    return _owners("ATTACKS", declared.choices("attacks"), "attacks", plugins)


def offered_datasets(plugins: Iterable[Plugin]) -> dict[str, Plugin | None]:
    """As ``offered``, where each data set is from."""
    from fedsdg.data.sources import NUM_CLASSES

    return _owners("DATASETS", NUM_CLASSES, "data sets", plugins)


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


def find_row(name: str, plugin: Plugin | None) -> Row:
    """What is known of a method, of the package or of a plugin."""
    if plugin is None:
        return declared.methods()[name]
    row: Row = described(plugin)["METHODS"][name]
    return row


def find_method(name: str, plugin: Plugin | None) -> Method:
    """A method's real parts, of the package or of a plugin; imports torch.

    Raises ``ValueError`` where the package's row was edited after its declaration was written.
    """
    if plugin is not None:
        own: Method = contents(plugin)["METHODS"][name]
        return own
    from fedsdg.methods.describing import text_of
    from fedsdg.methods.families import METHODS

    if text_of(METHODS[name]) != declared.methods()[name].text:
        raise ValueError(
            f"the method {name!r} was edited after {declared.FILE.name} was written, from which "
            "configs are checked; give `make documents`"
        )
    return METHODS[name]


def find_attack(name: str, plugin: Plugin | None) -> ChoiceRow:
    """What is known of an attack, of the package or of a plugin."""
    own = declared.choices("attacks") if plugin is None else described(plugin)["ATTACKS"]
    return own[name]


def build_attack(name: str, parameters: Mapping[str, Any], plugin: Plugin | None) -> Any:
    """An attack's part with these parameters; imports torch."""
    return replaced(_real("ATTACKS", name, plugin), parameters)


def _real(table: str, name: str, plugin: Plugin | None) -> Any:
    """The part of a row of a plugin's table, or of the package's of the same name."""
    if plugin is not None:
        return contents(plugin)[table][name].part
    from fedsdg.methods import choices

    return getattr(choices, table)[name].part


@dataclass(frozen=True)
class OfferedData:
    """A data set of a plugin: light, so that it travels to the processes of a grid."""

    name: str
    plugin: Plugin

    def load(self) -> ImageData:
        """The images; ``ValueError`` where the plugin gives anything else."""
        from fedsdg.data.datasets import ImageData

        try:
            data = contents(self.plugin)["DATASETS"][self.name]()
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"the plugin {self.plugin.place} cannot load {self.name!r}: {said(error)}"
            ) from error
        if not isinstance(data, ImageData):
            raise ValueError(
                f"the plugin {self.plugin.place} loads a {type(data).__name__} as {self.name!r}; "
                "make what it returns with fedsdg.data.datasets.ImageData"
            )
        return replace(data, name=self.name)


#: The keys of ``training`` that choose from a table: its names here and in the package's file.
CHOICES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"optimiser": ("OPTIMISERS", "optimisers"), "loss": ("LOSSES", "losses")}
)


def offered_choices(key: str, plugins: Iterable[Plugin] = ()) -> dict[str, ChoiceRow]:
    """What the key ``key`` of ``training`` may name: rows of its table, then those of plugins.

    Raises ``ValueError`` for a name that is taken, and for a plugin that cannot be loaded.
    """
    table, own = CHOICES[key]
    found = dict(declared.choices(own))
    for plugin in plugins:
        for name, row in described(plugin)[table].items():
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
    if name in declared.choices(own):
        return None
    return next(plugin for plugin in plugins if name in contents(plugin)[table])


def build_choice(key: str, value: str | Mapping[str, Any], plugin: Plugin | None) -> Any:
    """The part that a checked value of the key ``key`` of ``training`` stands for; imports torch.

    Raises ``ValueError`` for parameters that do not go together.
    """
    return replaced(_real(CHOICES[key][0], name_of(value), plugin), parameters_of(value))


#: The tables of a plugin: the type of their rows, and how one is called.
_KINDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "METHODS": ("Method", "method"),
        "OPTIMISERS": ("Choice", "optimiser"),
        "LOSSES": ("Choice", "loss"),
        "ATTACKS": ("Choice", "attack"),
        "DATASETS": ("function", "data set"),
    }
)


def _require_place(name: str, plugin: Plugin) -> None:
    if not _DATASET.fullmatch(name):
        raise ValueError(
            f"the plugin {plugin.place}: the data set {name!r} must have a name of letters, "
            "digits, '_' and '-'; it is part of paths"
        )


@cache
def contents(plugin: Plugin) -> Mapping[str, Mapping[str, Any]]:
    """A plugin's tables by name, imported once a process; of a data set the function that loads it.

    Raises ``ValueError`` where the plugin cannot be imported, was changed since it was found, or
    holds anything but rows.
    """
    given = _from_file(plugin) if plugin.place.endswith(".py") else _from_package(plugin)
    found = {}
    for table, (kind, _) in _KINDS.items():
        form = "functions" if table == "DATASETS" else f"{kind}(...)"
        rows = given.get(table) or {}
        if not isinstance(rows, Mapping):
            raise ValueError(
                f"the plugin {plugin.place} has a {type(rows).__name__} as {table}, which must map "
                f"names to {form}"
            )
        for name, row in rows.items():
            if not isinstance(name, str) or not _is_row(row, table):
                raise ValueError(
                    f"the plugin {plugin.place} has a {type(row).__name__} under {name!r} of "
                    f"{table}, which must map names to {form}"
                )
            if table == "DATASETS":
                _require_place(name, plugin)
        found[table] = MappingProxyType(dict(rows))
    if not any(found.values()) and not any(map(_of_analysis, given.values())):
        raise ValueError(
            f"the plugin {plugin.place} defines no methods; write METHODS = {{'name': Method(...)}}"
            ", or one of OPTIMISERS, LOSSES, ATTACKS, DATASETS, or a metric"
        )
    return MappingProxyType(found)


def _of_analysis(value: Any) -> bool:
    """Whether a plugin took this from ``fedsdg.analysis``, where metrics are declared."""
    return str(getattr(value, "__module__", "")).startswith("fedsdg.analysis")


def _is_row(row: Any, table: str) -> bool:
    from fedsdg.methods.choice import Choice
    from fedsdg.methods.method import Method

    if table == "DATASETS":
        return callable(row)
    return isinstance(row, Method if table == "METHODS" else Choice)


@cache
def described(plugin: Plugin) -> Mapping[str, Mapping[str, Any]]:
    """As ``contents``, each row described: which its parts may be wrong for.

    Raises ``ValueError`` for a part whose declaration is incomplete: a field without a range, for
    instance.
    """
    from fedsdg.methods.describing import choice_row_of, require_kind, require_settable, row_of

    found: dict[str, dict[str, Any]] = {}
    for table, rows in contents(plugin).items():
        found[table] = {}
        for name, row in rows.items():
            try:
                if table == "DATASETS":
                    continue
                if table == "METHODS":
                    found[table][name] = row_of(row)
                else:
                    require_kind(table, row)
                    found[table][name] = choice_row_of(row)
                require_settable(table, found[table][name])
            except (Exception, SystemExit) as error:
                what = _KINDS[table][1]
                raise ValueError(
                    f"the plugin {plugin.place}, {what} {name!r}: {said(error)}"
                ) from error
    return MappingProxyType(found)


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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `sys.exit(0)` would end the command as if all were well.
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _unusable(plugin, error) from error
    return found.__dict__ if isinstance(found, ModuleType) else {"METHODS": found}


def _require_unchanged(plugin: Plugin, sha256: str) -> None:
    if sha256 != plugin.sha256:
        raise ValueError(
            f"the plugin {plugin.place} was edited while it was in use; give the command again"
        )


def _unusable(plugin: Plugin, error: BaseException) -> ValueError:
    words = {table: word for table, (_, word) in _KINDS.items()}
    return unusable(plugin.place, plugin_sources(plugin.place), words, error)
