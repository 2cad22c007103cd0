"""The suite from Python, for notebooks: ``fedsdg.run``, ``fedsdg.compare``, ``fedsdg.records``.

Each is the command of the same name; what it finds comes back as data frames.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedsdg.experiment import comparing
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.machine.progress import round_progress
from fedsdg.experiment.single import do, single
from fedsdg.experiment.store import store_folder
from fedsdg.files import hint, read_json
from fedsdg.files.places import RECORDS, shipped
from fedsdg.files.records import read_parquet

Names = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Records:
    """The records of an experiment or of one run, each a data frame; columns: docs/records.md."""

    folder: Path

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row a run: status, reported accuracies, bytes, hashes, config."""
        return self._frame("runs")

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row a round."""
        return self._frame("rounds")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row a client and round."""
        return self._frame("clients")

    @cached_property
    def timings(self) -> pd.DataFrame:
        """Seconds of each round, which differ from one machine to another."""
        return self._frame("timings")

    def _frame(self, name: str) -> pd.DataFrame:
        frame: pd.DataFrame = read_parquet(self.folder / f"{name}.parquet").to_pandas()
        return frame


@dataclass(frozen=True)
class Run(Records):
    """The records of one run, and what it reports."""

    @cached_property
    def result(self) -> dict[str, Any]:
        """``result.json``: its config, its hashes, and accuracies as reported."""
        found: dict[str, Any] = read_json(self.folder / "result.json")
        return found


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: ``places`` in words, ``ranking`` as a frame, the ``page``."""

    places: tuple[str, ...]
    ranking: pd.DataFrame
    page: Path
    records: Records


def records(experiment: str | Path) -> Records:
    """The published record of an experiment, by its name; or the records in a folder.

    ``records("cross-needs").runs`` are the published runs of the arena ``needs``;
    ``records("results/summary/mine")`` what was computed here. Raises ``FileNotFoundError`` where
    there is neither.
    """
    if (Path(experiment) / "runs.parquet").is_file():
        return Records(Path(experiment))
    published = shipped(RECORDS)
    known = sorted(file.parent.name for file in published.glob("*/runs.parquet"))
    if str(experiment) not in known:
        raise FileNotFoundError(
            f"there are no records in {experiment}, and no published record of that name"
            f"{hint(str(experiment), known)}"
        )
    return Records(published / experiment)


def run(
    method: str,
    *,
    config: Names = (),
    settings: Sequence[str] = (),
    plugins: Names = (),
    dataset: str | None = None,
    skew: str | None = None,
    seed: int | None = None,
    store: str | Path | None = None,
) -> Run:
    """One run of a method, as ``fedsdg run --method`` does it, or its records where it is finished.

    ``config``: files laid over the default config, ``settings`` such as ``training.eta_g=0.01``
    over those; ``plugins``: files with methods of one's own; ``store``: the folder of finished
    runs, by default that of the commands (``FEDSDG_STORE``). Raises ``ValueError`` where the run
    fails, with its sentence.
    """
    loaded = load_config(_listed(config), settings, [str(one) for one in _listed(plugins)])
    one = single(loaded, method, dataset, skew, seed)
    failure = do(one, store_folder(store), one.folder, round_progress)
    if failure:
        raise ValueError(f"{one.title} failed: {failure}")
    return Run(one.folder)


def compare(
    files: Names,
    *,
    arena: str = "needs",
    seeds: int = 5,
    against: Sequence[str] = (),
    tune: bool = False,
    baselines_here: bool = False,
    store: str | Path | None = None,
) -> Comparison:
    """Methods of one's own among the published rows of an arena, as ``fedsdg compare`` does it."""
    places_of = tuple(str(file) for file in _listed(files))
    request = comparing.Request(places_of, arena, seeds, tuple(against), tune, baselines_here)
    found = comparing.compare(request, store_folder(store), jobs=os.cpu_count() or 1)
    tables = [table.numbers for table in found.tables]
    return Comparison(
        found.sentences,
        pd.concat(tables, ignore_index=True),
        found.folder / comparing.PAGE,
        Records(found.folder / "records"),
    )


def _listed(names: Names) -> list[str | Path]:
    return [names] if isinstance(names, str | Path) else list(names)
