"""Methods over several arenas: interquartile means, probabilities of improvement, and targets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from fedsdg.analysis.arenas import Arenas, Task
from fedsdg.analysis.formatting import MISSING, amount, few_seeds
from fedsdg.analysis.frames import groups
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.interquartile import Estimate
from fedsdg.analysis.names import method_title
from fedsdg.analysis.overall import Overall, overall, shown, unsettled, where, without_width
from fedsdg.analysis.reaching import Reached, reached, seeds_to_target
from fedsdg.analysis.tables.layout import Table, block
from fedsdg.analysis.views.costs import SMOOTHED, YARDSTICK

#: The target, as a share of what the yardstick has in the end.
SHARE = 0.95

_CAPTION = (
    "Interquartile mean of {metric} (%), {at}, over all cells and seeds (the mean without the "
    "lowest and the highest quarter of the values, whichever cells these are of), and the "
    "probability that a run of {subject} is better than one of the method in the same cell "
    "(Mann-Whitney U over the number of pairs, mean over cells), each with the 95 % interval of a "
    "bootstrap that draws seeds within each cell. {where}"
)
_ONE_SIDED = (
    "A probability of 0 or 1 has an interval without width: the bootstrap draws from the seeds "
    "that there are, and knows of no others."
)
_REACHING = (
    "Rounds, and megabytes sent and received, until a seed's {metric}, smoothed over {smoothed} "
    "evaluations, first reaches {share} of what {yardstick} has in the end: median over seeds "
    "[95 % interval by order statistics, from six seeds on], and how many of the seeds get there. "
    "A seed that never does counts as more than was tried: > stands before that; {missing} where "
    "nothing is sent at all. All seeds of a method in a cell are counted. {where}"
)


def across(arenas: Arenas, found: Sequence[Overall] = ()) -> Table:
    """A row for each method; ``found`` are its overall where they are at hand."""
    found = tuple(found) or overall(arenas)
    title = method_title(arenas.subject)
    heads = ["Method", f"IQM of {arenas.metric.short} (%)", f"P({title} is better)"]
    lines = [
        [method_title(one.method), _printed(one.mean, 100, 1), _printed(one.improved, 1, 2)]
        for one in found
    ]
    notes = list(few_seeds([arenas.seeds], SHOWN_FROM))
    if arenas.subject not in arenas.methods:
        notes.append(f"{title} is not among the methods that all of these arenas have.")
    if without_width(found):
        notes.append(_ONE_SIDED)
    notes += unsettled(arenas)
    caption = _CAPTION.format(
        metric=arenas.metric.title,
        at=arenas.summaries[0].rounds[arenas.summaries[0].reported],
        subject=title,
        where=where(arenas),
    )
    raw = pd.DataFrame([_raw(one, arenas) for one in found])
    return Table("across", f"{caption}.", (block("", heads, lines),), tuple(notes), raw)


def _printed(estimate: Estimate | None, unit: float, places: int) -> str:
    if estimate is None:
        return MISSING
    text = f"{unit * estimate.value:.{places}f}"
    if not shown(estimate):
        return text
    low, high = estimate.low, estimate.high
    assert low is not None and high is not None
    return f"{text} [{unit * low:.{places}f}, {unit * high:.{places}f}]"


def _raw(one: Overall, arenas: Arenas) -> dict[str, object]:
    mean, improved = one.mean, one.improved
    return {
        "method": one.method,
        "metric": arenas.metric.key,
        "cells": mean.tasks,
        "seeds": mean.seeds,
        **{
            f"interquartile mean, {name} (%)": None if end is None else 100 * end
            for name, end in (("value", mean.value), ("low", mean.low), ("high", mean.high))
        },
        **{
            f"probability of improvement, {name}": None if improved is None else end
            for name, end in (
                ("value", improved and improved.value),
                ("low", improved and improved.low),
                ("high", improved and improved.high),
            )
        },
    }


def to_target(arenas: Arenas) -> Table:
    """A block for each cell: a row for each method."""
    blocks, raw = [], []
    for summary in arenas.summaries:
        runs = seeds_to_target(summary, SHARE)
        for task in arenas.tasks:
            here = runs[task.cell.matches(runs)] if task.summary is summary else runs[:0]
            of = dict(groups(here, "method"))
            rows = [
                _reaching(task, method, of[method]) for method in arenas.methods if method in of
            ]
            if rows:
                target = f"to {100 * here['target'].iloc[0]:.1f} %"
                heads = ["Method", "seeds there", f"rounds {target}", f"MB {target}"]
                blocks.append(block(task.title, heads, [line for line, _ in rows]))
                raw += [numbers for _, numbers in rows]
    caption = _REACHING.format(
        metric=arenas.summaries[0].personal.title,
        smoothed=SMOOTHED,
        share=f"{100 * SHARE:.0f} %",
        yardstick=method_title(YARDSTICK),
        missing=MISSING,
        where=where(arenas),
    )
    notes = () if blocks else (f"No cell has a run of {method_title(YARDSTICK)} to measure by.",)
    tables = tuple(blocks) or (block("", ["Method"], []),)
    return Table("to_target", f"{caption}.", tables, notes, pd.DataFrame(raw))


def _reaching(task: Task, method: str, runs: pd.DataFrame) -> tuple[list[str], dict[str, object]]:
    """The line of a method, and its raw numbers."""
    rounds, sent = (reached(runs[name].tolist()) for name in ("round", "bytes"))
    last_round, last_bytes = (float(runs[f"last_{name}"].max()) for name in ("round", "bytes"))
    line = [
        method_title(method),
        f"{rounds.reached}/{rounds.seeds}",
        _spent(rounds, last_round, 1.0),
        _spent(sent, last_bytes, 1e6),
    ]
    numbers: dict[str, object] = {
        "arena": task.arena,
        "dataset": task.cell.setting.dataset,
        "clients": task.cell.setting.clients,
        "skew": task.cell.skew,
        "method": method,
        "target (%)": 100 * float(runs["target"].iloc[0]),
        "seeds": rounds.seeds,
        "seeds there": rounds.reached,
    }
    for name, one in (("rounds", rounds), ("bytes", sent)):
        numbers |= {f"{name}, {end}": getattr(one, end) for end in ("median", "low", "high")}
    return line, numbers | {"rounds tried": last_round, "bytes tried": last_bytes}


def _spent(one: Reached, most: float, unit: float) -> str:
    """Median and interval; what is beyond ``most``, the most that was tried, as "> most"."""
    if not most:
        return MISSING

    def text(value: float) -> str:
        beyond = math.isinf(value)
        number = most if beyond else value
        return ("> " if beyond else "") + (f"{number:.0f}" if unit == 1.0 else amount(number, unit))

    if one.low is None or one.high is None:
        return text(one.median)
    return f"{text(one.median)} [{text(one.low)}, {text(one.high)}]"
