"""Config files laid over one another, with single values over them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsdg.config.config import Config
from fedsdg.config.scenarios import overlay
from fedsdg.errors import ConfigError, hint, shortened
from fedsdg.files import sha256_json, write_bytes
from fedsdg.files.places import root, shipped
from fedsdg.files.yaml_text import read_yaml, read_yaml_file, yaml_bytes

OVER = "over"
"""The files that a file is laid over, besides the default config; paths relative to its own."""


def default_file() -> Path:
    """Return the config that all others are laid over: $FEDSDG_CONFIG, else the package's own."""
    named = os.environ.get("FEDSDG_CONFIG")
    return named_file(named) if named else shipped("config/config.yaml")


def named_file(name: str | Path) -> Path:
    """Return the config file that a name stands for.

    A file of this path is taken first. Otherwise the name may be that of a config of the package,
    without folder and ending (``needs``, ``extended/byzantine``) or as it lies in a checkout
    (``config/needs.yaml``).

    Raises:
        FileNotFoundError: There is none; the message has the closest name.
    """
    path = Path(name)
    if path.is_file():
        return path
    folder = root() / "config"
    files = sorted(folder.rglob("*.yaml"))
    known = [file.relative_to(folder).with_suffix("").as_posix() for file in files]
    meant = str(name).removeprefix("config/").removesuffix(".yaml")
    if meant in known:
        return shipped(f"config/{meant}.yaml")
    beside = [str(file) for file in path.parent.glob("*.yaml")]
    raise FileNotFoundError(
        f"there is no config file {name}; name a file, or a config of the package"
        f"{hint(meant, [*beside, *known])}"
    )


def merged(
    paths: Sequence[str | Path] = (), settings: Sequence[str] = (), plugins: Sequence[str] = ()
) -> dict[str, Any]:
    """Return one mapping of config files laid over ``default_file()``.

    Mappings are merged and everything else is replaced; so is ``search``, since a space belongs to
    the methods and the data that it was made for.

    Args:
        paths: Files, or names of the package's own (``named_file``); those that a file names under
            ``over``, and those below them, are laid before it, once.
        settings: Single values laid over the files, such as ``training.device=cuda``.
        plugins: Are added to those that the files list.
    """
    files = [default_file()]
    for file in map(named_file, paths):
        known = {one.resolve() for one in files}
        below = {one.resolve(): one for one in _files_below(file)}
        files += [one for place, one in below.items() if place not in known]
        files.append(file)
    whole: dict[str, Any] = {}
    for file in files:
        content = read_layer(file)
        for key in {"about", OVER} | ({"search"} & set(content)):
            whole.pop(key, None)
        whole = overlay(whole, content)
    whole.pop(OVER, None)
    for setting in settings:
        whole = overlay(whole, _setting(setting))
    listed = whole.get("plugins") or []
    if plugins and isinstance(listed, list):
        whole["plugins"] = [*listed, *(place for place in plugins if place not in listed)]
    return whole


def load(
    paths: Sequence[str | Path] = (), settings: Sequence[str] = (), plugins: Sequence[str] = ()
) -> Config:
    """Check the config that ``merged`` makes, and return it.

    Args:
        paths: As of ``merged``.
        settings: As of ``merged``.
        plugins: As of ``merged``.

    Example:
        >>> load(["needs"], ["seeds=[3]"]).experiment
        'needs'
    """
    return Config.read(merged(paths, settings, plugins))


def kept_whole(content: Mapping[str, Any], folder: Path = Path(".fedsdg/config")) -> Path:
    """Keep a merged config as one file, named by its experiment and its hash.

    Args:
        content: The config.
        folder: The folder of the file.

    Returns:
        The file, absolute.
    """
    name = f"{content['experiment']}-{sha256_json(content)[:12]}.yaml"
    write_bytes(folder.absolute() / name, yaml_bytes(dict(content)))
    return folder.absolute() / name


def _files_below(file: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files that a config file says it is laid over, each after those below it."""
    names = read_layer(file).get(OVER) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f": over is {shortened(names)}, but must be a list of files", str(file))
    for name in names:
        below = Path(os.path.normpath(file.parent / name))
        if not below.is_file():
            raise FileNotFoundError(
                f"there is no {below}, which {file} is laid over; restore it, or change 'over'"
            )
        if below in (file, *above):
            raise ConfigError(f": over names {below}, which is laid over it; remove it", str(file))
        yield from _files_below(below, (file, *above))
        yield below


def read_layer(file: Path) -> Mapping[str, Any]:
    """Return what a config file holds; raises ConfigError unless that is a mapping."""
    content = read_yaml_file(file)
    if not isinstance(content, Mapping):
        text = f"is {shortened(content)}, but must be a mapping of keys to values"
        raise ConfigError(text, f"the config file {file}")
    return content


def _setting(text: str) -> dict[str, Any]:
    """Return ``federation.rounds=3`` as the mappings of a file with this one value."""
    place, sign, value = text.partition("=")
    if not sign or not all(place.split(".")):
        raise ConfigError(f"--set {text!r}: write key=value, such as training.device=cuda")
    setting: Any = read_yaml(value, f"--set {place}")
    for key in reversed(place.split(".")):
        setting = {key: setting}
    return dict(setting)
