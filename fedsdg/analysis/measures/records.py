"""What measures read: one experiment's record, and where in it a measure looks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.summary import Summary

Values = dict[int, float]


class LackingError(LookupError):
    """The record cannot answer yet: a row, a cell or a column is not there."""


class Record:
    """What measures read of one experiment: its summary, whole tables at a time."""

    def __init__(self, summary: Summary) -> None:
        self.folder = summary.folder
        self.summary = summary

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """All rounds of all runs."""
        return self.summary.frame("rounds")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """All rows of clients of all runs."""
        return self.summary.frame("clients")

    @cached_property
    def timings(self) -> pd.DataFrame:
        """Seconds of all rounds of all runs."""
        return self.summary.frame("timings")

    def runs(self, case: Case) -> dict[int, dict[str, Any]]:
        """Return the row of runs.parquet of every seed whose run went well, at least one.

        Raises:
            LackingError: there is none, or seeds are those of several data sets or federations.
        """
        found = [
            run
            for run in self.summary.runs
            if (run["skew"], run["method"], run["status"]) == (case.cell, case.method, "ok")
            and case.dataset in (None, run["dataset"])
            and case.clients in (None, run["clients"])
        ]
        if not found:
            on = f" on {case.dataset}" if case.dataset else ""
            raise LackingError(f"the record has no run of {case.method} at {case.cell}{on} yet")
        if len(datasets := {run["dataset"] for run in found}) > 1:
            raise LackingError(
                f"{case.method} at {case.cell} has runs on {', '.join(sorted(datasets))}: name "
                f"one with 'dataset'"
            )
        if len(sizes := {run["clients"] for run in found}) > 1:
            raise LackingError(
                f"{case.method} at {case.cell} has runs of {', '.join(map(str, sorted(sizes)))} "
                f"clients, which a claim cannot tell apart: record them as two experiments"
            )
        return {int(run["seed"]): run for run in found}

    def settings(self, case: Case) -> dict[str, Any]:
        """The config of the first of these runs."""
        return dict(json.loads(next(iter(self.runs(case).values()))["config"]))

    def per_seed(self, case: Case, frame: pd.DataFrame, *columns: str) -> dict[int, pd.DataFrame]:
        """Seed → the rows of ``frame`` of these runs; raises where a column has no value there."""
        runs = self.runs(case)
        place = ("dataset", "clients", "skew", "method")
        run = next(iter(runs.values()))
        here = frame[np.logical_and.reduce([frame[name] == run[name] for name in place])]
        for name in columns:
            if name not in here or here[name].isna().all():
                raise LackingError(f"the record has no {name} of {case.method} yet")
        return {seed: rows for seed in runs if len(rows := here[here["seed"] == seed])}


@dataclass(frozen=True)
class Case:
    """Where a measure looks: a cell, a row, and the measure's own options.

    A record of several data sets, or numbers of clients, needs their names as well.
    """

    cell: str
    method: str
    options: Mapping[str, Any]
    dataset: str | None = None
    clients: int | None = None


def after(rows: pd.DataFrame, share: float) -> pd.Series:
    """Which rows belong to the rounds after this share of the run."""
    return rows["round"] > share * rows["round"].max()
