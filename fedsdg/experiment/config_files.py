"""Config files: laid over one another, with single values over them, and checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedsdg.experiment.config import Config, parse_config
from fedsdg.experiment.scenarios import laid_over
from fedsdg.files import hint, write_bytes
from fedsdg.files.shipped import root, shipped
from fedsdg.parts import mapping

#: ValueError: dates and whole numbers that there are not, and bytes that are no text.
_NO_YAML = (yaml.YAMLError, ValueError, RecursionError)


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _setting(text: str) -> dict[str, Any]:
    """``federation.rounds=3`` as the mappings that a file with this one value would give."""
    place, sign, value = text.partition("=")
    if not sign or not all(place.split(".")):
        raise ValueError(f"--set {text!r}: write key=value, such as training.device=cuda")
    try:
        setting: Any = yaml.safe_load(value)
    except _NO_YAML as error:
        why = _in_a_line(error)
        raise ValueError(
            f"--set {text!r:.99}: {value!r:.99} is not a value in YAML ({why})"
        ) from error
    for key in reversed(place.split(".")):
        setting = {key: setting}
    return dict(setting)


#: What is said of a file, and not of those that are laid over it.
ABOUT_THE_FILE = frozenset({"about", "over"})


def default_file() -> Path:
    """The config that all others are laid over: $FEDSDG_CONFIG, else the package's own."""
    named = os.environ.get("FEDSDG_CONFIG")
    return Path(named) if named else shipped("config/config.yaml")


def named_file(name: str | Path) -> Path:
    """The config file that a person means: one of theirs, else one that the package brings.

    The package's own are called without a folder and an ending: ``needs``, ``extended/drift``.
    """
    if os.path.isfile(name):
        return Path(name)
    brought = _brought()
    if str(name) in brought:
        return shipped(f"config/{name}.yaml")
    # Of a path the last part, which may be the name of one that comes with the package.
    meant = str(name) if not Path(name).suffix else Path(name).stem
    raise FileNotFoundError(
        f"there is no config file {name}; name one with --config, or one of the package"
        f"{hint(meant, brought)}"
    )


def _brought() -> list[str]:
    folder = root() / "config"
    files = sorted(folder.rglob("*.yaml"))
    return [file.relative_to(folder).with_suffix("").as_posix() for file in files]


def merged_config(
    paths: Sequence[str | Path] = (), settings: Sequence[str] = (), plugins: Sequence[str] = ()
) -> dict[str, Any]:
    """What ``load_config`` checks, as the files say it."""
    merged: dict[str, Any] = {}
    for file in [default_file(), *map(named_file, paths)]:
        if not os.path.isfile(file):
            raise FileNotFoundError(f"there is no config file {file}; name one with --config")
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except _NO_YAML as error:
            raise ValueError(f"{file} is not valid YAML: {_in_a_line(error)}") from error
        laid = mapping(content, f"the config file {file}")
        for key in ABOUT_THE_FILE | ({"search"} & set(laid)):
            merged.pop(key, None)
        merged = laid_over(merged, laid)
    for text in settings:
        merged = laid_over(merged, _setting(text))
    listed = merged.get("plugins", [])
    if plugins and isinstance(listed, list):
        merged["plugins"] = [*listed, *(place for place in plugins if place not in listed)]
    return merged


def load_config(
    paths: Sequence[str | Path] = (), settings: Sequence[str] = (), plugins: Sequence[str] = ()
) -> Config:
    """Lay config files over ``default_file()``, in order, and check what comes of it.

    Mappings are merged, all else is replaced; so is ``search``, since a space belongs to the
    methods and the data that it was made for. ``paths``: files, or names of the package's own
    (``named_file``). ``settings`` are single values laid over the files, as
    ``training.device=cuda``; ``plugins`` are added to those that the config lists.
    """
    return parse_config(merged_config(paths, settings, plugins))


def kept_whole(merged: Mapping[str, Any], folder: Path = Path(".fedsdg/config")) -> Path:
    """Keep a merged config as one file, named by its experiment and its own hash; absolute."""
    text = yaml.safe_dump(merged, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder.absolute() / f"{merged['experiment']}-{digest}.yaml"
    if not path.exists():
        write_bytes(path, text.encode())
    return path
