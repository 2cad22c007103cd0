"""The suite from Python, for notebooks: ``fedsdg.run`` and ``fedsdg.records``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedsdg.config.config import Config
from fedsdg.config.layers import load
from fedsdg.errors import ConfigError, hint
from fedsdg.experiment.grid import run_here
from fedsdg.experiment.runs import Task, task_of
from fedsdg.files import read_json
from fedsdg.files.places import RECORDS, shipped
from fedsdg.files.records import read_parquet


@dataclass(frozen=True)
class Records:
    """The records of an experiment or of one run as data frames.

    Example:
        >>> fedsdg.records("needs").runs.groupby("method")["selected_accuracy"].mean()
    """

    folder: Path
    "where they are"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row per run: status, accuracies, bytes, hashes; the only row of a single run."""
        if (self.folder / "runs.parquet").is_file():
            return self._frame("runs")
        result = read_json(self.folder / "result.json")
        return pd.json_normalize(result, sep="_")

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

    def _frame(self, name: str) -> pd.DataFrame:
        return pd.DataFrame(read_parquet(self.folder / f"{name}.parquet").to_pandas())


def records(experiment: str | Path) -> Records:
    """Return the records in a folder, or the published record of an experiment.

    Args:
        experiment: A folder such as ``results/summary/mine``, an arena such as ``needs``, or the
            name of another experiment with a published record.

    Raises:
        FileNotFoundError: There is neither.
    """
    published = shipped(RECORDS)
    for folder in (Path(experiment), published / experiment):
        if (folder / "rounds.parquet").is_file():
            return Records(folder)
    known = [file.parent.name for file in sorted(published.glob("[!.]*/runs.parquet"))]
    raise FileNotFoundError(f"there are no records of {experiment}{hint(experiment, known)}")


def run(
    method: str,
    *,
    config: str | Path | Sequence[str | Path] = (),
    settings: Sequence[str] = (),
    plugins: str | Path | Sequence[str | Path] = (),
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
        ValueError: The config is wrong, a name means nothing, or the run failed.

    Example:
        >>> fedsdg.run("fedavg", config="smoke", skew="iid").rounds["accuracy"].plot()
    """
    files, places = ([one] if isinstance(one, str | Path) else [*one] for one in (config, plugins))
    whole = load(files, settings, [str(place) for place in places])
    whole, task = chosen(whole, method, dataset, skew, seed)
    failure = run_here(whole, task)
    if failure is not None:
        raise ValueError(f"{task.title} failed: {failure}")
    assert task.folder is not None
    return Records(task.folder)


def chosen(
    config: Config, method: str, dataset: str | None, skew: str | None, seed: int | None
) -> tuple[Config, Task]:
    """Return the run that names choose, and the config extended by names that it lacks.

    Args:
        config: The config.
        method: A label of the config, or any method.
        dataset: None: the config's only one.
        skew: A skew, or ``{skew}@{scenario}``; None: the config's only one.
        seed: None: the config's first.

    Raises:
        ConfigError: A name means nothing, or one of several must be named.
    """
    config = config.including(method, dataset, skew)
    datasets = [dataset] if dataset else [*config.sources]
    skews = [skew] if skew else config.settings
    for option, names in (("dataset", datasets), ("skew", skews)):
        if len(names) > 1:
            raise ConfigError(f"name one {option} with --{option}: {', '.join(names)}")
    seed = config.seeds[0] if seed is None else seed
    return config, task_of(config, config.run(datasets[0], skews[0], config.method(method), seed))
