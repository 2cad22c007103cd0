"""The experiments that ship with the package: what is in ``config``. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsdg.experiment.config import Config
from fedsdg.experiment.config_files import load_config, merged_config
from fedsdg.files.places import RECORD, filled
from fedsdg.files.shipped import root

#: Where they are, in a checkout or in a wheel.
CONFIGS = root() / "config"
#: The config over which all others are laid.
FIRST = "config.yaml"


@dataclass(frozen=True)
class Arena:
    """An experiment: its name, and its file below the folder of configs.

    ``about``: a sentence on what differs among its clients. ``over``: the files that it is laid
    over besides the first. ``runs`` = methods × data sets × settings × seeds; ``recorded``:
    whether its record is committed.
    """

    name: str
    file: str
    about: str
    over: tuple[str, ...]
    datasets: tuple[str, ...]
    clients: int
    methods: int
    rounds: int
    seeds: int
    runs: int
    recorded: bool


def arenas(folder: Path = CONFIGS) -> Iterator[Arena]:
    """All experiments below a folder of configs, the first one first.

    Their records lie in ``results/reference`` beside the folder. Raises ``FileNotFoundError`` where
    there are none, and ``ValueError`` for a file that is no config.
    """
    if not (folder / FIRST).is_file():
        raise FileNotFoundError(
            f"there is no {folder / FIRST}; name the folder of a checkout's configs with --configs"
        )
    files = sorted(folder.rglob("*.yaml"), key=lambda file: (file.parent != folder, file))
    for file in sorted(files, key=lambda file: file != folder / FIRST):
        said = merged_config([folder / FIRST, file]).get("over")
        over = [folder / name for name in said] if isinstance(said, list) else []
        config = load_config([folder / FIRST, *over, file])
        yield _arena(config, file.relative_to(folder).as_posix(), folder)


def _arena(config: Config, file: str, folder: Path) -> Arena:
    methods, seeds = len(config.methods), len(config.seeds)
    record = filled(RECORD, experiment=config.experiment)
    return Arena(
        name=config.experiment,
        file=file,
        about=config.about,
        over=config.over,
        datasets=config.datasets,
        clients=config.federation.clients,
        methods=methods,
        rounds=config.federation.rounds,
        seeds=seeds,
        runs=methods * len(config.datasets) * len(config.settings) * seeds,
        # A search may lie there before its runs.
        recorded=(folder.parent / record / "runs.parquet").is_file(),
    )
