"""The effect of a setting: runs that differ in one value of their config; trials of a search."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.formatting import setting
from fedsdg.analysis.frames import MEAN, PLACE, finished, groups, over_seeds, places
from fedsdg.analysis.hyperparameters import symbol
from fedsdg.analysis.names import GLOBAL, PERSONAL, method_order
from fedsdg.analysis.summary import Summary

#: Keys of a run's config that identify it and are not swept.
_IDENTITY = ["dataset", "skew", "seed", "backbone", "method", "federation.clients"]
#: One point of a line: a value of a setting, with the others as they are.
LINE = [*PLACE, "key", "type", "others", "value"]
COLUMNS = [*LINE, "metric", *MEAN]
#: The smaller budgets that the whole of a search is compared with.
FEW_TRIALS = (4, 12)


def sweeps(summary: Summary) -> pd.DataFrame:
    """Rows of ``COLUMNS``: reported accuracy at each value of each setting.

    A setting is swept where runs of one type differ in it and agree in everything else; what
    scenarios set is swept by every label for itself, and ``type`` is then the label.
    ``others`` names the values of the other swept settings, so that a grid gives several lines
    and a single sweep one; values are in order and as text.
    """
    rows = swept_runs(summary)
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    keys = dict.fromkeys((summary.personal.key, PERSONAL.key, GLOBAL.key))
    means = [over_seeds(rows, [*LINE, "exact"], key).assign(metric=key) for key in keys]
    return pd.concat(means, ignore_index=True)[COLUMNS]


def swept_runs(summary: Summary) -> pd.DataFrame:
    """The runs behind ``sweeps``: those of ``frames.finished`` with the rest of ``LINE``.

    ``exact`` is the value as JSON, which ``value`` shows in few characters. A run stands in as many
    rows as settings of it are swept.
    """
    runs = finished(summary)
    parts: list[pd.DataFrame] = []
    for (*_, kind), group in groups(runs, *PLACE, "type"):
        texts = _texts(group)
        labels = list(groups(group, "method"))
        inside = {key for _, members in labels for key in _swept(texts.loc[members.index])}
        parts += _lines(group, texts, kind, [str(key) for key in texts if key not in inside])
        for label, members in labels:
            parts += _lines(members, texts.loc[members.index], label, sorted(inside))
    if not parts:
        return pd.DataFrame(columns=[*LINE, "seed"])
    rows = pd.concat(parts)
    rows = rows.assign(order=rows["value"].map(_order)).sort_values("order", kind="stable")
    # One run may stand under two labels: a grid and a single sweep meet in the default.
    rows = rows.drop_duplicates([*LINE, "seed"])
    shown = [setting(json.loads(value)) for value in rows["value"]]
    return rows.assign(exact=rows["value"], value=shown)


def _texts(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each run, a column for each key of the configs: values as JSON, to be compared.

    A config may leave out a default.
    """
    settings = runs["settings"].tolist()
    columns = {
        key: [json.dumps(values.get(key, "default"), sort_keys=True) for values in settings]
        for key in dict.fromkeys(key for values in settings for key in values)
    }
    return pd.DataFrame(columns, index=runs.index).drop(columns=_IDENTITY, errors="ignore")


def _swept(texts: pd.DataFrame) -> list[str]:
    return [str(name) for name in texts if texts[name].nunique() > 1]


def _lines(
    group: pd.DataFrame, texts: pd.DataFrame, kind: str, keys: Sequence[str]
) -> list[pd.DataFrame]:
    """The runs of a group under each of the keys that are swept in it."""
    swept = _swept(texts)
    parts = []
    for key in (name for name in swept if name in keys):
        rest = [name for name in swept if name != key]
        # Runs agree in the rest of what is swept; there are several values to compare.
        alike = texts[rest].apply(tuple, axis=1) if rest else pd.Series("", index=texts.index)
        tried = alike.map(texts[key].groupby(alike).nunique()) > 1
        rest = [name for name in rest if texts.loc[tried, name].nunique() > 1]
        names = [
            ", ".join(
                f"{symbol(name)} = {setting(json.loads(text))}"
                for name, text in zip(rest, row, strict=True)
            )
            for row in texts[rest].to_numpy()
        ]
        line = group.assign(key=key, value=texts[key], others=names, type=kind)
        parts.append(line[tried])
    return parts


def panels(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(title of the place, key, rows) of every setting; first those that methods share."""
    for where, here in places(rows):
        for key, part in sorted(groups(here, "key"), key=_panel_order):
            yield where, key, part


def _panel_order(item: tuple[Any, pd.DataFrame]) -> tuple[bool, tuple[int, bool, str], str]:
    key, part = item
    kinds = sorted(part["type"].unique(), key=method_order)
    return (len(kinds) == 1, method_order(kinds[0]), key)


def _order(text: str) -> tuple[bool, float, str]:
    """Numbers by value, then words."""
    value = json.loads(text)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not number, float(value) if number else 0.0, text)


def searched(summary: Summary) -> Iterator[tuple[str, dict[str, Any]]]:
    """(label, its part of ``search.json``) of every method with a complete trial."""
    search = summary.search()
    methods = {} if search is None else search["methods"]
    for label in sorted(methods, key=method_order):
        if methods[label]["best"] is not None:
            yield label, methods[label]


def search_curves(summary: Summary) -> pd.DataFrame:
    """The trials of a search of hyper-parameters, for each method and k = 1 … n complete trials.

    Returns:
        ``method``, ``trials`` (k), ``score`` of the k-th trial in the order in which they were
        drawn, and ``expected_best``, the mean best validation accuracy of k of the trials, over all
        choices of k. Shares.
    """
    rows = []
    for label, method in searched(summary):
        scores = [trial["score"] for trial in method["trials"] if trial["score"] is not None]
        for k, (score, best) in enumerate(zip(scores, method["expected_best"], strict=True), 1):
            rows.append({"method": label, "trials": k, "score": score, "expected_best": best})
    return pd.DataFrame(rows, columns=["method", "trials", "score", "expected_best"])


def budgets(summary: Summary) -> pd.DataFrame:
    """The best score that a search finds within a small budget of trials, and within all trials.

    Returns:
        ``method``, ``budget`` in words, ``trials`` and ``mean``, the expected best validation
        accuracy of so many of the trials: each of ``FEW_TRIALS`` that is fewer than all, and all.
    """
    curves = search_curves(summary)
    all_trials = curves["trials"] == curves.groupby("method")["trials"].transform("max")
    rows = curves[all_trials | curves["trials"].isin(FEW_TRIALS)]
    words = np.where(all_trials[rows.index], "all trials", rows["trials"].map("{} trials".format))
    rows = rows.assign(budget=words).rename(columns={"expected_best": "mean"})
    return rows[["method", "budget", "trials", "mean"]].reset_index(drop=True)
