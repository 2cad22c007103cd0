"""The methods that somebody brings to a comparison, in a folder of their own.

They are given as a plugin (``my_method.py``, all its methods with their defaults), or as a config
file that names plugins and entries of ``methods``, and maybe a space to search.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.files import atomic_path, hint
from fedsdg.files.strict_yaml import read_yaml
from fedsdg.methods.plugin_files import read_plugin
from fedsdg.methods.plugins import find_plugin, offered
from fedsdg.parts import mapping

#: What a config file may say here; all else is the arena's.
KEYS = ("methods", "plugins", "search")


@dataclass(frozen=True)
class Newcomers:
    """Entries of ``methods`` as a config has them, the plugins they need, and spaces to search."""

    entries: tuple[Any, ...]
    plugins: tuple[str, ...]
    space: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """How the entries are called in tables."""
        return tuple(_label(entry) for entry in self.entries)

    def of(self, label: str, values: Mapping[str, Any]) -> Newcomers:
        """The same with these values in the entry of this label."""
        entries = tuple(
            {**_as_mapping(entry), **values} if _label(entry) == label else entry
            for entry in self.entries
        )
        return Newcomers(entries, self.plugins, self.space)


def read_newcomers(places: Sequence[str]) -> Newcomers:
    """The newcomers in these files, or of these installed plugins.

    Raises ``FileNotFoundError`` where there is no such file and ``ValueError`` for one that brings
    no method, or says what only an arena says.
    """
    entries: list[Any] = []
    plugins: list[str] = []
    space: dict[str, Any] = {}
    for place in places:
        if Path(place).suffix in (".yaml", ".yml"):
            given = _read_config(Path(place))
            entries += given.get("methods", [])
            plugins += given.get("plugins", [])
            space |= mapping(given.get("search", {}), f"{place}: search").get("space", {})
        else:
            if place.endswith(".py") and not Path(place).is_file():
                raise FileNotFoundError(
                    f"there is no file {place}; name the file that defines METHODS"
                )
            found = offered([find_plugin(place)])
            names = [name for name, owner in found.items() if owner is not None]
            if not names:
                raise ValueError(
                    f"{place} defines no METHODS, so there is nothing to compare; see "
                    "docs/add-a-method.md"
                )
            plugins.append(place)
            entries += names
    if not entries:
        raise ValueError(f"{', '.join(places)}: no entry of 'methods', so nothing to compare")
    return Newcomers(tuple(entries), tuple(dict.fromkeys(plugins)), space)


def settle(newcomers: Newcomers, folder: Path) -> Newcomers:
    """Copy the files of their plugins into ``folder``; the same newcomers as seen from there.

    What is copied is what runs, so that the folder can be kept and run again by itself.
    """
    copied: dict[str, Path] = {}
    for place in newcomers.plugins:
        if not place.endswith(".py"):
            continue
        for file in read_plugin(Path(place)).paths:
            # Some file systems ignore case.
            other = copied.setdefault(file.name.casefold(), file)
            if not other.samefile(file):
                raise ValueError(
                    f"the plugins bring two files called {file.name}, {other} and {file}; rename "
                    "one, for their copies lie in one folder"
                )
            target = folder / file.name
            if not target.exists() or not target.samefile(file):
                with atomic_path(target) as temporary:
                    shutil.copyfile(file, temporary)
    plugins = tuple(Path(p).name if p.endswith(".py") else p for p in newcomers.plugins)
    return Newcomers(newcomers.entries, plugins, newcomers.space)


def _read_config(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"there is no config file {file}")
    given = mapping(read_yaml(file), str(file))
    for key in given:
        if key not in (*KEYS, "experiment"):
            raise ValueError(
                f"{file}: {key!r} is the arena's to say; a comparison takes "
                f"{', '.join(KEYS)} alone{hint(key, KEYS)}"
            )
    return given


def _as_mapping(entry: Any) -> dict[str, Any]:
    return dict(entry) if isinstance(entry, Mapping) else {"type": entry}


def _label(entry: Any) -> str:
    given = _as_mapping(entry)
    return str(given.get("name", given.get("type", "")))
