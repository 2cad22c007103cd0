"""A newcomer among the rows of a record: what each reached, and the newcomer minus each."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.comparisons import Comparison, facts
from fedsdg.analysis.formatting import MISSING, amount, percent
from fedsdg.analysis.inference import SHOWN_FROM, shown_half_width
from fedsdg.analysis.names import Metric, method_title
from fedsdg.analysis.standing import Line, Standing
from fedsdg.analysis.summary import Cell
from fedsdg.analysis.tables.layout import Block, Entry, Table, block
from fedsdg.analysis.tables.primary import difference_text

_CAPTION = (
    "{newcomer} among the rows of the record of {experiment}, paired by seed: accuracies (%), "
    "{at}, mean ± half-width of the 95 % Student-t interval over the seeds of the newcomer; "
    "megabytes up and down and seconds are means a run. Differences are the newcomer minus each "
    "row in percentage points, with their 95 % interval; verdicts are adjusted for one another by "
    "Holm over all rows, metrics and cells of this table"
)
UNTUNED = (
    "{newcomer} was not tuned: it runs with the values given, beside rows whose values a search "
    "found. --tune gives it the same search."
)
_FAMILY = (
    "Verdicts are adjusted for one another by Holm, here over {number} comparisons, so one can be "
    "undecided though its own interval leaves out 0. Fewer, named beforehand with --against, see "
    "more."
)
_FEW = "Fewer than {number} seeds: the differences have no intervals and no verdicts."
_UNSETTLED = "†: not steady, or not known to be, when the rounds ended."
_SECONDS = "Seconds of the record's rows are of another machine, and are left out."
_UNPAIRED = "Without a place: a row that lacks one of the newcomer's seeds."


def standing_table(standing: Standing) -> Table:
    """For each cell the ranking, and the differences with their verdicts."""
    summary, newcomer = standing.summary, method_title(standing.newcomer)
    blocks: list[Block] = []
    unsettled = unpaired = False
    for cell in standing.cells:
        lines = standing.lines(cell)
        unsettled |= any(not one.steady for one in lines)
        unpaired |= any(one.place is None for one in lines)
        blocks.append(_ranking(standing, cell, lines))
        blocks.append(differences_of(standing, cell))
    notes = [] if standing.tuned else [UNTUNED.format(newcomer=newcomer)]
    few = any(not _judged(standing, cell) for cell in standing.cells)
    notes += [_FEW.format(number=SHOWN_FROM)] * few
    if len(standing.comparisons) > 1 and not few:
        notes.append(_FAMILY.format(number=len(standing.comparisons)))
    notes += [_UNSETTLED] * unsettled + [_UNPAIRED] * unpaired + [_SECONDS] * standing.elsewhere
    caption = _CAPTION.format(
        newcomer=newcomer, experiment=summary.experiment, at=summary.rounds[summary.reported]
    )
    raw = pd.DataFrame(differences(standing))
    return Table("standing", caption, tuple(blocks), tuple(notes), raw)


def differences(standing: Standing) -> list[dict[str, object]]:
    """The newcomer minus each row, in each metric and cell, as plain values."""
    return [_raw(standing, one) for one in standing.comparisons]


def places(standing: Standing) -> list[str]:
    """A sentence for each cell: where the newcomer stands by the headline."""
    found = []
    for cell in standing.cells:
        lines = standing.lines(cell)
        own = next(one for one in lines if one.method == standing.newcomer)
        ranked = [one for one in lines if one.place is not None]
        headline = standing.metrics[0]
        interval = own.accuracies[headline]
        tuned = "" if standing.tuned else ", not tuned"
        found.append(
            f"{method_title(standing.newcomer)}: {own.place} of {len(ranked)} by "
            f"{headline.title}, {percent(interval.mean, shown_half_width(interval))} %, in "
            f"{summary_cell(standing, cell)} ({interval.n} seed{'s' * (interval.n != 1)}{tuned})"
        )
    return found


def summary_cell(standing: Standing, cell: Cell) -> str:
    """The cell in words, on one line.

    Args:
        standing: A newcomer, whose summary decides whether the setting is named too.
        cell: A cell of that summary.
    """
    return standing.summary.cell_title(cell).replace("\n", ", ")


def _ranking(standing: Standing, cell: Cell, lines: list[Line]) -> Block:
    shown = list(dict.fromkeys(standing.shown))
    heads = ["#", "Method", *(metric.short for metric in shown), "MB", "seconds"]
    rows = []
    for one in lines:
        bold = one.method == standing.newcomer
        cells = [
            MISSING if one.place is None else str(one.place),
            method_title(one.method) + " †" * (not one.steady),
            *(_accuracy(one, metric) for metric in shown),
            MISSING if one.megabytes is None else amount(one.megabytes, 1),
            MISSING if one.seconds is None else amount(one.seconds, 1),
        ]
        rows.append([Entry(text, bold=bold) for text in cells])
    return block(summary_cell(standing, cell), heads, rows)


def _judged(standing: Standing, cell: Cell) -> bool:
    """Whether there are seeds enough for intervals and verdicts."""
    return len(standing.seeds(cell)) >= SHOWN_FROM


def _accuracy(line: Line, metric: Metric) -> str:
    interval = line.accuracies.get(metric)
    return MISSING if interval is None else percent(interval.mean, shown_half_width(interval))


def differences_of(standing: Standing, cell: Cell) -> Block:
    """The newcomer minus each row of a cell, in the order of their places.

    Args:
        standing: The newcomer.
        cell: One of its cells.
    """
    table = {
        (one.named.rivals[0], one.named.metric): one
        for one in standing.comparisons
        if one.named.cell == cell
    }
    judged, lines = _judged(standing, cell), []
    for rival in (line.method for line in standing.lines(cell)):
        if rival == standing.newcomer:
            continue
        cells = [method_title(rival)]
        for metric in standing.metrics:
            one = table.get((rival, metric))
            text = MISSING if one is None else difference_text(one.decisive)
            verdict = MISSING if one is None else standing.verdict(one)
            cells += [text, verdict] if judged else [text]
        lines.append(cells)
    heads = [f"{method_title(standing.newcomer)} minus"]
    for metric in standing.metrics:
        heads += [metric.short, "verdict"] if judged else [metric.short]
    return block(f"{summary_cell(standing, cell)}, differences", heads, lines)


def _raw(standing: Standing, one: Comparison) -> dict[str, object]:
    plain = facts(one)
    difference = plain["differences"][0]
    return {
        "newcomer": one.named.subject,
        "rival": difference["rival"],
        "dataset": plain["dataset"],
        "clients": plain["clients"],
        "skew": plain["skew"],
        "metric": plain["metric"],
        "n": plain["n"],
        "mean (percentage points)": difference["mean"],
        "low (percentage points)": difference["low"],
        "high (percentage points)": difference["high"],
        "p": plain["p"],
        "p, Holm": plain["p_holm"],
        "p equivalent, Holm": plain["p_equivalent_holm"],
        "verdict": standing.verdict(one),
    }
