"""A summary whose fractions are all a little larger or smaller: how far rounding can move a page.

A number that changes in print when every fraction of the records changes by a billionth lies on the
border between two printed numbers, where another processor may print the other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from fedsdg.analysis.summary import Summary


class Nudged(Summary):
    """The summary of a folder with every fraction multiplied by ``factor``; whole numbers stay."""

    def __init__(self, folder: str | Path, factor: float) -> None:
        self.factor = factor
        super().__init__(folder)

    def frame(
        self,
        name: str,
        columns: list[str] | None = None,
        optional: Sequence[str] = (),
        where: pc.Expression | None = None,
    ) -> pd.DataFrame:
        """As ``Summary.frame``."""
        frame = super().frame(name, columns, optional, where)
        changed: dict[str, Any] = {}
        for column in frame:
            values = frame[column]
            if values.dtype.kind == "f":
                changed[str(column)] = values.where(values == values.round(), values * self.factor)
            elif values.dtype.kind == "O":
                changed[str(column)] = values.map(lambda value: nudged(value, self.factor))
        return frame.assign(**changed)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """As ``Summary.rows``."""
        rows: list[dict[str, Any]] = nudged(super().rows(name), self.factor)
        return rows


def nudged(value: Any, factor: float) -> Any:
    """Fractions multiplied by a factor, however deep they lie in rows, lists and arrays."""
    if isinstance(value, Mapping):
        return {key: nudged(part, factor) for key, part in value.items()}
    if isinstance(value, list):
        return [nudged(part, factor) for part in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value * factor
    if isinstance(value, float) and not value.is_integer():
        return value * factor
    return value


def summary_of(folder: str | Path, factor: float) -> Summary:
    """The summary of a folder; as it is where the factor is 1."""
    return Summary(folder) if factor == 1.0 else Nudged(folder, factor)
