"""What the published experiments compare, read from their config files: cells and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.files.strict_yaml import read_yaml


@dataclass(frozen=True)
class Grid:
    """An experiment's cells (a skew, or ``skew@scenario``), labels of rows, and data sets."""

    experiment: str
    file: Path
    cells: tuple[str, ...]
    rows: tuple[str, ...]
    datasets: tuple[str, ...] = ()


def published_grids(folder: str | Path) -> dict[str, Grid]:
    """The grid of every YAML file in ``folder`` and below that names an experiment.

    A key that a file does not have is that of the files which it is laid ``over``, and else that of
    ``config.yaml``. Raises ``FileNotFoundError`` where there is no ``config.yaml`` or no such file,
    and ``ValueError`` naming the file that is no config.
    """
    base_file = Path(folder) / "config.yaml"
    if not base_file.is_file():
        raise FileNotFoundError(f"there is no {base_file}; name the folder of the configs")
    base = _read(base_file)
    grids = {}
    for file in sorted(Path(folder).rglob("*.yaml")):
        own = _read(file)
        if "experiment" in own:
            config = {**base, "scenarios": {}}
            for layer in (*(_read(file.parent / name) for name in own.get("over") or ()), own):
                below, above = config["scenarios"], layer.get("scenarios", {})
                scenarios = {} if above is None else {**below, **above}
                config |= {**layer, "scenarios": scenarios}
            grid = _grid(file, config)
            grids[grid.experiment] = grid
    return grids


def _grid(file: Path, config: Mapping[str, Any]) -> Grid:
    scenarios = [name for name, given in config["scenarios"].items() if given is not None]
    cells = [
        f"{skew}@{scenario}" if scenario else skew
        for skew in config["skews"]
        for scenario in (scenarios or [""])
    ]
    rows = [
        entry if isinstance(entry, str) else entry.get("name", entry.get("type"))
        for entry in config["methods"]
    ]
    datasets = tuple(map(str, config.get("datasets") or ()))
    return Grid(str(config["experiment"]), file, tuple(cells), tuple(rows), datasets)


def _read(file: Path) -> dict[str, Any]:
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no mapping of keys; it is no config")
    return content
