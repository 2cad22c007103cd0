"""What the hyper-parameter search of an experiment found: equal trials of every method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from fedsdg.analysis.names import method_order
from fedsdg.analysis.summary import Summary

#: Of a frame that has no rows, too.
_CURVE = ("method", "trials", "score", "expected_best")


def searched(summary: Summary) -> Iterator[tuple[str, dict[str, Any]]]:
    """(label, what the file of the search says) of every method with a complete trial."""
    found = summary.search()
    methods = {} if found is None else found["methods"]
    for label in sorted(methods, key=method_order):
        if methods[label]["best"] is not None:
            yield label, methods[label]


def curves(summary: Summary) -> pd.DataFrame:
    """A row for each method and k = 1 … n of its n complete trials.

    ``expected_best``: the mean best validation accuracy of k of the trials, over all choices of k;
    ``score``: that of the k-th trial in the order in which they were drawn. Shares.
    """
    rows = []
    for label, method in searched(summary):
        scores = [trial["score"] for trial in method["trials"] if trial["score"] is not None]
        for k, (score, best) in enumerate(zip(scores, method["expected_best"], strict=True), 1):
            rows.append({"method": label, "trials": k, "score": score, "expected_best": best})
    return pd.DataFrame(rows, columns=_CURVE)
