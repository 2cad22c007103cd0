"""What measures read: one experiment's record, and where in it a measure looks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
        """Seed → row of runs.parquet of the runs that went well; there is at least one."""
        found = {
            int(run["seed"]): run
            for run in self.summary.runs
            if (run["skew"], run["method"], run["status"]) == (case.cell, case.method, "ok")
        }
        if not found:
            raise LackingError(f"the record has no run of {case.method} at {case.cell} yet")
        return found

    def settings(self, case: Case) -> dict[str, Any]:
        """The config of the first of these runs."""
        return dict(json.loads(next(iter(self.runs(case).values()))["config"]))

    def per_seed(self, case: Case, frame: pd.DataFrame, *columns: str) -> dict[int, pd.DataFrame]:
        """Seed → the rows of ``frame`` of these runs; raises where a column has no value there."""
        seeds = self.runs(case)
        here = frame[(frame["skew"] == case.cell) & (frame["method"] == case.method)]
        for name in columns:
            if name not in here or here[name].isna().all():
                raise LackingError(f"the record has no {name} of {case.method} yet")
        return {seed: rows for seed in seeds if len(rows := here[here["seed"] == seed])}


@dataclass(frozen=True)
class Case:
    """Where a measure looks: a cell, a row, and the measure's own options."""

    cell: str
    method: str
    options: Mapping[str, Any]


def after(rows: pd.DataFrame, share: float) -> pd.Series:
    """Which rows belong to the rounds after this share of the run."""
    return rows["round"] > share * rows["round"].max()
