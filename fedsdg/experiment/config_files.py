"""Config files: laid over one another, with single values over them, and checked."""

from __future__ import annotations

import difflib
import functools
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedsdg.experiment.config import Config, parse_config
from fedsdg.experiment.config_values import parse_files
from fedsdg.experiment.scenarios import laid_over
from fedsdg.files import hint, write_bytes
from fedsdg.files.places import root, shipped
from fedsdg.files.strict_yaml import parse_yaml, read_yaml
from fedsdg.parts import mapping


def _setting(text: str) -> dict[str, Any]:
    """``federation.rounds=3`` as the mappings that a file with this one value would give."""
    place, sign, value = text.partition("=")
    if not sign or not all(place.split(".")):
        raise ValueError(f"--set {text!r}: write key=value, such as training.device=cuda")
    try:
        setting: Any = parse_yaml(value)
    except ValueError as error:
        raise ValueError(
            f"--set {text!r:.99}: {value!r:.99} is not a value in YAML ({error})"
        ) from error
    for key in reversed(place.split(".")):
        setting = {key: setting}
    return dict(setting)


#: The files that a file belongs over, besides the default config; paths relative to its own.
OVER = "over"
#: What is said of a file, and not of those that are laid over it.
ABOUT_THE_FILE = frozenset({"about", OVER})


def default_file() -> Path:
    """The config that all others are laid over: $FEDSDG_CONFIG, else the package's own."""
    named = os.environ.get("FEDSDG_CONFIG")
    return Path(named) if named else shipped("config/config.yaml")


def named_file(name: str | Path) -> Path:
    """Return the config file that a name stands for.

    A file of this path is taken first. Otherwise the name may be that of a config of the package,
    without folder and ending (``cross-needs``, ``extended/drift``) or as it lies in a checkout
    (``config/cross-needs.yaml``), which standard error mentions.

    Args:
        name: A path, or the name of a config of the package.

    Returns:
        The path of an existing file.

    Raises:
        FileNotFoundError: There is neither; the message has the closest name.
    """
    if os.path.isfile(name):
        return Path(name)
    brought = _brought()
    if str(name) in brought:
        return shipped(f"config/{name}.yaml")
    path = Path(name)
    meant = path.stem if path.suffix else str(name)
    if path.suffix == ".yaml" and path.parts[0] == "config":
        meant = path.relative_to("config").with_suffix("").as_posix()
        if meant in brought:
            _mention_fallback(str(name), meant)
            return shipped(f"config/{meant}.yaml")
    close = difflib.get_close_matches(str(name), map(str, path.parent.glob("*.yaml")), n=1)
    raise FileNotFoundError(
        f"there is no config file {name}; name a file, or a config of the package"
        f"{hint(str(name), close) if close else hint(meant, brought)}"
    )


@functools.cache
def _mention_fallback(name: str, meant: str) -> None:
    """Say once per process that the package's config stands in for a missing file."""
    print(f"fedsdg: there is no {name} here; the package's own {meant!r} is used", file=sys.stderr)


def _brought() -> list[str]:
    folder = root() / "config"
    files = sorted(folder.rglob("*.yaml"))
    return [file.relative_to(folder).with_suffix("").as_posix() for file in files]


def beneath(file: Path) -> list[Path]:
    """The files that a config file says it belongs over, besides the default one, in order.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: ``over`` is no list of files.
    """
    names = parse_files(_content(file).get(OVER, []), OVER)
    files = [Path(os.path.normpath(file.parent / name)) for name in names]
    for below in files:
        if not below.is_file():
            raise FileNotFoundError(
                f"there is no {below}, which {file} is laid over; restore it, or change 'over'"
            )
    return files


def _content(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"there is no config file {file}; name one with --config")
    return mapping(read_yaml(file), f"the config file {file}")


def merged_config(
    paths: Sequence[str | Path] = (), settings: Sequence[str] = (), plugins: Sequence[str] = ()
) -> dict[str, Any]:
    """What ``load_config`` checks, as the files say it."""
    files = [default_file()]
    for file in map(named_file, paths):
        files += [one for one in beneath(file) if one not in files]
        files.append(file)
    merged: dict[str, Any] = {}
    for file in files:
        laid = _content(file)
        for key in ABOUT_THE_FILE | ({"search"} & set(laid)):
            merged.pop(key, None)
        merged = laid_over(merged, laid)
    merged.pop(OVER, None)
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
    (``named_file``); those that a file names under ``over`` are laid before it, once. ``settings``
    are single values laid over the files, as ``training.device=cuda``; ``plugins`` are added to
    those that the config lists.
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
