"""The experiments that ship with the package: what is in ``config``. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedsdg.experiment.config import Config
from fedsdg.experiment.config_files import load_config
from fedsdg.files.places import RECORD, filled, root

#: Where they are, in a checkout or in a wheel.
CONFIGS = root() / "config"
#: The config over which all others are laid.
FIRST = "config.yaml"


@dataclass(frozen=True)
class Arena:
    """An experiment: its name, and its file below the folder of configs.

    ``about``: a sentence on what differs among its clients. ``runs`` = methods × data sets ×
    settings × seeds; ``recorded``: whether its record is committed.
    """

    name: str
    file: str
    about: str
    datasets: tuple[str, ...]
    clients: int
    methods: int
    rounds: int
    seeds: int
    runs: int
    recorded: bool


def arenas() -> Iterator[Arena]:
    """Yield all experiments that ship, the first one first."""
    files = sorted(CONFIGS.rglob("*.yaml"), key=lambda file: (file.parent != CONFIGS, file))
    for file in sorted(files, key=lambda file: file != CONFIGS / FIRST):
        config = load_config([CONFIGS / FIRST, file])
        yield _arena(config, file.relative_to(CONFIGS).as_posix())


def _arena(config: Config, file: str) -> Arena:
    methods, seeds = len(config.methods), len(config.seeds)
    record = filled(RECORD, experiment=config.experiment)
    return Arena(
        name=config.experiment,
        file=file,
        about=config.about,
        datasets=config.datasets,
        clients=config.federation.clients,
        methods=methods,
        rounds=config.federation.rounds,
        seeds=seeds,
        runs=methods * len(config.datasets) * len(config.settings) * seeds,
        # A search may lie there before its runs.
        recorded=(CONFIGS.parent / record / "runs.parquet").is_file(),
    )
