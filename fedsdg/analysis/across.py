"""Methods over several arenas in print: two tables and a figure, from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsdg.analysis.arenas import Arenas, read_arenas
from fedsdg.analysis.formatting import printed
from fedsdg.analysis.interquartile import Estimate
from fedsdg.analysis.names import EXPECTED
from fedsdg.analysis.overall import Overall, overall, unsettled, where
from fedsdg.analysis.plots import save_figure
from fedsdg.analysis.tables import save_table
from fedsdg.analysis.tables.across import across, to_target

#: Of the figure.
CAPTION = (
    "Left: interquartile mean of {metric} over all cells and seeds (the mean without the lowest "
    "and the highest quarter of the values, whichever cells these are of). Right: performance "
    "profiles, the share of clients whose own {metric} is above τ, mean over runs and cells. Bars "
    "and bands: 95 % intervals of a bootstrap that draws seeds within each cell; those of the "
    "bands hold at each τ for itself. At most five methods are in colour"
)


def write_across(
    names: Sequence[str],
    records: str | Path,
    output: str | Path,
    figures: str | Path | None = None,
    metric: str = EXPECTED.key,
) -> list[Path]:
    """Write ``across`` and ``to_target`` (.csv, .md, .tex) into the folder ``output``, and the
    figure ``across`` (.pdf, .svg, .png, .json) into ``figures``, or beside them; return the paths.

    ``names`` are the arenas, folders below ``records``. Raises ``ValueError`` as ``read_arenas``,
    before anything is written.
    """
    arenas = read_arenas(records, names, metric)
    found = overall(arenas)
    tables = [across(arenas, found), to_target(arenas)]
    from fedsdg.analysis.plots.across import draw
    from fedsdg.analysis.plots.style import put_above, styled

    with styled(arenas.summaries[0].roles):
        figure = draw(found, arenas.metric)
        if notes := unsettled(arenas):
            put_above(figure, " ".join(notes))
        facts = across_facts(arenas, found)
        inputs = [file for summary in arenas.summaries for file in summary.inputs]
        written = [file for t in tables for file in save_table(t, Path(output) / t.name)]
        return written + save_figure(figure, Path(figures or output) / "across", facts, inputs)


def across_facts(arenas: Arenas, found: Sequence[Overall]) -> dict[str, Any]:
    """What the sidecar of the figure says of what is drawn."""
    caption = f"{CAPTION.format(metric=arenas.metric.title)}. {where(arenas)}."
    return {
        "figure": "across",
        "caption": " ".join([caption, *unsettled(arenas)]),
        "arenas": [summary.experiment for summary in arenas.summaries],
        "metric": arenas.metric.key,
        "seeds": arenas.seeds,
        "numbers": {one.method: _numbers(one) for one in found},
    }


def _numbers(one: Overall) -> dict[str, Any]:
    profile = one.profile
    return {
        "interquartile_mean": _ends(one.mean),
        "probability_of_improvement": _ends(one.improved),
        "profile": None
        if profile is None
        else {
            name: _listed(getattr(profile, name)) for name in ("thresholds", "share", "low", "high")
        },
    }


def _ends(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: None if end is None else printed(end) for name, end in ends.items()}


def _listed(values: np.ndarray | None) -> list[float] | None:
    return None if values is None else [printed(float(value)) for value in values]
