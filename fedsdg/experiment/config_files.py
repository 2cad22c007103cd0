"""Config files: laid over one another, with single values over them, and checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedsdg.experiment.config import Config, parse_config
from fedsdg.experiment.scenarios import laid_over
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

#: Beside all rooms, since whoever installs the package wants it.
DEFAULT_FILE = Path(__file__).parents[1] / "default_config.yaml"


def default_file() -> Path:
    """The config that all others are laid over: $FEDSDG_CONFIG, else the package's own."""
    return Path(os.environ.get("FEDSDG_CONFIG") or DEFAULT_FILE)


def load_config(
    paths: Sequence[str | Path] = (), settings: Sequence[str] = (), plugins: Sequence[str] = ()
) -> Config:
    """Lay config files over ``default_file()``, in order, and check what comes of it.

    Mappings are merged, all else is replaced; so is ``search``, since a space belongs to the
    methods and the data that it was made for. ``settings`` are single values laid over the files,
    as ``training.device=cuda``; ``plugins`` are added to those that the config lists.
    """
    merged: dict[str, Any] = {}
    for file in [default_file(), *map(Path, paths)]:
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
    return parse_config(merged)
