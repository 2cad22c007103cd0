"""A summary of some of the runs alone: what a table would be made from if there were no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fedsdg.analysis.differences import DIFFERENCES_SCHEMA, differences
from fedsdg.analysis.summary import Summary

#: What names a run in the files of a summary; ``skew`` is with its scenario.
RUN = ("dataset", "clients", "skew", "method", "seed")


def key(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """What names a run."""
    return tuple(run[name] for name in RUN)


class Selected(Summary):
    """The runs of a summary that ``keep`` holds for, with their rounds, clients and timings.

    Paired differences are computed anew from these runs. At least one run must be kept.
    """

    def __init__(self, whole: Summary, keep: Callable[[Mapping[str, Any]], bool]) -> None:
        self.folder = whole.folder
        self.inputs = []
        self.whole = whole
        self.runs = [run for run in whole.runs if keep(run)]
        self.kept = {key(run) for run in self.runs}

    def frame(
        self,
        name: str,
        columns: list[str] | None = None,
        optional: Sequence[str] = (),
        where: pc.Expression | None = None,
    ) -> pd.DataFrame:
        """As ``Summary.frame``, of these runs; ``columns`` must hold those of ``RUN``."""
        if name == "differences":
            table = pa.Table.from_pylist(
                differences(self.runs, self.roles.subject), DIFFERENCES_SCHEMA
            )
            frame: pd.DataFrame = table.to_pandas()
            return frame if columns is None else frame[columns]
        frame = self.whole.frame(name, columns, optional, where)
        named = pd.MultiIndex.from_frame(frame[list(RUN)])
        return frame[named.isin(self.kept)]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """As ``Summary.rows``, of these runs."""
        if name == "runs":
            return self.runs
        if name == "differences":
            return differences(self.runs, self.roles.subject)
        return [row for row in self.whole.rows(name) if key(row) in self.kept]
