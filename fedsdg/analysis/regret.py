"""Regret: how many points a method is below the best row of a cell, over several experiments.

The table and the figure of ``fedsdg.analysis.views.regret``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING, few_seeds
from fedsdg.analysis.frames import records as plain_records
from fedsdg.analysis.horizon import horizon_label
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import (
    EXPECTED,
    METRIC_KEYS,
    method_order,
    method_title,
    metric_named,
)
from fedsdg.analysis.summary import Cell, Summary
from fedsdg.analysis.tables import save_table
from fedsdg.analysis.tables.layout import Entry, Table, block
from fedsdg.analysis.views.regret import regrets
from fedsdg.files import hint

_CAPTION = (
    "Regret: percentage points of {metric} below the best row of a cell, {at}, mean [95 % "
    "Student-t interval] over seeds; the best is chosen on half of the seeds and measured on the "
    "other half, both ways. Bold: rows that cannot be told from the best (paired t-tests, Holm "
    "over the rows of the cell, 5 %). Oracles (†) are told the groups or have all data in one "
    "place: they are never the best. Sorted by the number of cells and by the largest regret; – a "
    "row that does not stand in the cell"
)
_KEYS = ("experiment", "dataset", "clients", "skew", "method")


def read_arenas(records: str | Path, names: Sequence[str], metric: str) -> list[Summary]:
    """The summaries of arenas, each named once.

    Args:
        records: The folder of the records.
        names: Experiments.
        metric: A metric that some cell must have.

    Returns:
        A summary for each name, in order.

    Raises:
        ValueError: The metric or an arena is unknown, or one is named twice.
    """
    if metric not in METRIC_KEYS:
        raise ValueError(f"there is no metric {metric!r}{hint(metric, METRIC_KEYS)}")
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise ValueError(f"the arena {twice[0]!r} is named twice; name each once")
    for name in names:
        if not (Path(records) / name / "runs.parquet").is_file():
            known = sorted(file.parent.name for file in Path(records).glob("*/runs.parquet"))
            raise ValueError(f"there is no record of {name!r} in {records}{hint(name, known)}")
    return [Summary(Path(records) / name) for name in names]


def regret_table(summaries: Sequence[Summary], metric: str = EXPECTED.key) -> Table:
    """Methods by cells, and the largest regret of each method over the cells in which it stands.

    Args:
        summaries: The runs of each experiment, at least one; their order is that of the columns.
        metric: The key of a metric.

    Returns:
        The table, in percentage points; its ``raw`` holds the rows of ``regrets`` in that unit.
    """
    rows = regrets(summaries, metric)
    cells = [(s, cell) for s in summaries for cell in s.cells() if _has(rows, s, cell)]
    largest = rows.groupby("method")["regret"].max()
    order = _order(rows)
    table = {tuple(row[name] for name in _KEYS): row for row in plain_records(rows)}
    lines = []
    for method in order:
        oracle = bool(rows.loc[rows["method"] == method, "oracle"].any())
        line = [Entry(method_title(method) + " †" * oracle)]
        for summary, cell in cells:
            key = (summary.experiment, *cell.place.values(), method)
            line.append(_entry(table.get(key)))
        line.append(Entry(_tenths(largest[method])))
        lines.append(line)
    heads = [(s.experiment, s.cell_name(cell)) for s, cell in cells]
    title = metric_named(metric, summaries[0].metrics).title
    caption = _CAPTION.format(metric=title, at=summaries[0].rounds[summaries[0].reported])
    notes = [f"{s.experiment}: {label}." for s in summaries if (label := horizon_label(s))]
    notes = [*few_seeds(rows["n"], SHOWN_FROM), *notes]
    one = block("", ["Method", *heads, "largest"], lines)
    points = {name: f"{name} (percentage points)" for name in ("regret", "low", "high")}
    shares = {name: 100 * rows[name] for name in points}
    raw = rows.assign(**shares).rename(columns=points)
    return Table("regret", f"{caption}.", (one,), tuple(notes), raw)


def _order(rows: pd.DataFrame) -> list[str]:
    """The methods by the number of cells in which they stand, then by their largest regret."""
    largest, standing = rows.groupby("method")["regret"].max(), rows.groupby("method").size()
    return sorted(largest.index, key=lambda m: (-standing[m], largest[m], method_order(m)))


def _drawn(summaries: Sequence[Summary], rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``regrets`` as the heat map takes them: titles, in order, and what is bold."""
    order = _order(rows)
    titles = {
        (s.experiment, *cell.place.values()): "\n".join(
            filter(None, (s.experiment, s.cell_name(cell)))
        )
        for s in summaries
        for cell in s.cells()
    }
    oracles = set(rows.loc[rows["oracle"], "method"])
    names = {m: method_title(m) + " †" * (m in oracles) for m in order}
    cells = [titles[tuple(row)] for row in rows[[*_KEYS[:4]]].itertuples(index=False, name=None)]
    return pd.DataFrame(
        {
            "row": pd.Categorical(rows["method"].map(names), [*dict.fromkeys(names.values())]),
            "cell": pd.Categorical(cells, [*dict.fromkeys(titles.values())]),
            "regret": rows["regret"],
            "bold": rows["tied"],
        }
    )


def _has(rows: pd.DataFrame, summary: Summary, cell: Cell) -> bool:
    return bool((cell.matches(rows) & (rows["experiment"] == summary.experiment)).any())


def _entry(row: Mapping[str, Any] | None) -> Entry:
    if row is None:
        return Entry(MISSING)
    text = _tenths(row["regret"])
    if row["n"] >= SHOWN_FROM and row["low"] is not None:
        text += f" [{_tenths(row['low'])}, {_tenths(row['high'])}]"
    entry = Entry(text, bold=bool(row["tied"]))
    return entry.of("regret (percentage points)", {name: row[name] for name in _KEYS})


def _tenths(share: float) -> str:
    """A share in points to one decimal: 0.0123 → "1.2"; never "−0.0"."""
    return f"{round(100 * share, 1) + 0.0:.1f}".replace("-", "−")


def write_across(
    names: Sequence[str],
    records: str | Path,
    output: str | Path,
    figures: str | Path | None = None,
    metric: str = EXPECTED.key,
) -> list[Path]:
    """Write the table ``regret`` (.csv, .md, .tex) and the figure of the same name.

    Args:
        names: The arenas, folders below ``records``.
        records: The folder of the records.
        output: The folder of the table.
        figures: The folder of the figure (.pdf, .svg, .png, .json); None: that of the table.
        metric: The key of a metric.

    Returns:
        The files that were written.

    Raises:
        ValueError: As ``read_arenas`` and ``regrets``, before anything is written.
    """
    summaries = read_arenas(records, names, metric)
    table = regret_table(summaries, metric)
    from fedsdg.analysis.plots import save_figure
    from fedsdg.analysis.plots.drawing import heat_map
    from fedsdg.analysis.plots.style import styled

    with styled(summaries[0].roles):
        figure = heat_map(
            _drawn(summaries, regrets(summaries, metric)),
            x="cell",
            y="row",
            value="regret",
            across=(),
            scale=100.0,
            full=20.0,
            bar="points below the best",
            written=True,
        )
        facts = across_facts(summaries, metric)
        inputs = [file for summary in summaries for file in summary.inputs]
        written = save_table(table, Path(output) / table.name)
        return written + save_figure(figure, Path(figures or output) / table.name, facts, inputs)


def across_facts(summaries: Sequence[Summary], metric: str) -> dict[str, Any]:
    """Return the content of the figure's sidecar.

    Args:
        summaries: The runs of each arena, at least one.
        metric: The key of a metric.

    Returns:
        ``figure``, ``caption`` with its notes, ``arenas``, ``metric``, and ``numbers``: the rows of
        ``regret_table``, in percentage points.
    """
    table = regret_table(summaries, metric)
    return {
        "figure": "regret",
        "caption": " ".join([table.caption, *table.notes]),
        "arenas": [summary.experiment for summary in summaries],
        "metric": metric,
        "numbers": plain_records(table.raw),
    }
