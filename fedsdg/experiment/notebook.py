"""The suite from Python, for notebooks: ``fedsdg.run`` and ``fedsdg.records``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedsdg.analysis.records import renamed
from fedsdg.config.config import Config
from fedsdg.config.data_sets import dataset_name
from fedsdg.config.layers import load
from fedsdg.errors import ConfigError, hint
from fedsdg.experiment.grid import run_here
from fedsdg.experiment.runs import Task, task_of
from fedsdg.files import read_json
from fedsdg.files.places import ARENAS, RECORDS, shipped
from fedsdg.files.records import read_parquet

Names = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Records:
    """The records of an experiment or of one run as data frames; columns: docs/records.md.

    Example:
        >>> fedsdg.records("needs").runs.groupby("method")["selected_accuracy"].mean()
    """

    folder: Path
    "where they are"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row per run: status, accuracies, bytes, hashes; a single one for one run."""
        if (self.folder / "runs.parquet").is_file():
            return self._frame("runs")
        facts = {key: value for key, value in self.result.items() if key != "config"}
        return pd.json_normalize(facts, sep="_").rename(columns=renamed)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per round."""
        return self._frame("rounds")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row per client and round."""
        return self._frame("clients")

    @cached_property
    def timings(self) -> pd.DataFrame:
        """Seconds of each round, which differ from one machine to another."""
        return self._frame("timings")

    @cached_property
    def result(self) -> dict[str, Any]:
        """Of one run: its config, its hashes, and what it reached."""
        return dict(read_json(self.folder / "result.json"))

    def _frame(self, name: str) -> pd.DataFrame:
        frame: pd.DataFrame = read_parquet(self.folder / f"{name}.parquet").to_pandas()
        return frame.rename(columns=renamed)


def records(experiment: str | Path) -> Records:
    """Return the records in a folder, or the published record of an experiment.

    Args:
        experiment: A folder such as ``results/summary/mine``, an arena such as ``needs``, or the
            name of another experiment with a published record.

    Raises:
        FileNotFoundError: There is neither.
    """
    if (Path(experiment) / "rounds.parquet").is_file():
        return Records(Path(experiment))
    published = shipped(RECORDS)
    name = ARENAS.get(str(experiment), str(experiment))
    if not (published / name / "runs.parquet").is_file():
        known = [file.parent.name for file in published.glob("*/runs.parquet")]
        raise FileNotFoundError(
            f"there are no records in {experiment}, and no published record of that name"
            f"{hint(experiment, sorted([*ARENAS, *known]))}"
        )
    return Records(published / name)


def run(
    method: str,
    *,
    config: Names = (),
    settings: Sequence[str] = (),
    plugins: Names = (),
    dataset: str | None = None,
    skew: str | None = None,
    seed: int | None = None,
) -> Records:
    """Do one run, or take it from the store, and return its records.

    Args:
        method: A label of the config, or any method.
        config: Files or names of configs, laid over the default config.
        settings: Single values laid over them, such as ``training.eta_g=0.01``.
        plugins: Files or modules with methods of one's own.
        dataset: Of the config, or any other; None: the config's only one.
        skew: Of the config, or any other; None: the config's only one.
        seed: None: the config's first.

    Raises:
        ConfigError: The config is wrong, or a name means nothing.
        ValueError: The run failed; its records say how far it came.

    Example:
        >>> fedsdg.run("fedavg", config="smoke", skew="iid").rounds["accuracy"].plot()
    """
    whole = load(_listed(config), settings, [str(place) for place in _listed(plugins)])
    whole, task = chosen(whole, method, dataset, skew, seed)
    failure = run_here(whole, task)
    if failure is not None:
        raise ValueError(f"{task.title} failed: {failure}")
    assert task.folder is not None
    return Records(task.folder)


def chosen(
    config: Config, method: str, dataset: str | None, setting: str | None, seed: int | None
) -> tuple[Config, Task]:
    """Return the run that names choose, and the config extended by names that it lacks.

    Args:
        config: The config.
        method: A label, or any method.
        dataset: A data set; None: the only one.
        setting: A skew, or ``{skew}@{scenario}``; None: the only one.
        seed: None: the first.

    Raises:
        ConfigError: A name means nothing, or one of several must be named.
    """
    config = config.including(method, dataset, setting)
    dataset = dataset or _only_one(map(dataset_name, config.datasets), "dataset")
    setting = setting or _only_one(config.settings, "skew")
    seed = config.seeds[0] if seed is None else seed
    return config, task_of(config, config.run(dataset, setting, config.method(method), seed))


def _only_one(names: Any, option: str) -> str:
    known = list(names)
    if len(known) != 1:
        raise ConfigError(f"name one {option} with --{option}: {', '.join(known)}")
    return str(known[0])


def _listed(names: Names) -> list[str | Path]:
    return [names] if isinstance(names, str | Path) else list(names)
