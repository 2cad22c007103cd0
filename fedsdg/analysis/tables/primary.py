"""The comparisons that were named beforehand, with their verdicts."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.comparisons import SEEDS, Comparison, Difference, comparisons, facts
from fedsdg.analysis.formatting import MISSING, few_seeds, p_value
from fedsdg.analysis.formatting import difference as points_with_interval
from fedsdg.analysis.horizon import horizon_label
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.judge import LEVEL
from fedsdg.analysis.names import method_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Entry, Table, block

_CAPTION = (
    "Primary comparisons, named in the config before the runs: paired differences over seeds in "
    "percentage points [95 % Student-t interval]; p of the two-sided paired t-test and of two "
    "one-sided tests that the difference lies within ±1 point, both adjusted by Holm over all that "
    "are named; the smallest difference that one such test would have seen with 80 % power. "
    f"Verdicts at the {100 * LEVEL:.0f} % level, from {SEEDS} common seeds on. Of several rivals "
    "the smallest difference decides: higher means higher than each (largest p), lower means lower "
    "than at least one (p times their number). A regret is compared as the sum over its cells. A "
    "verdict that the last quarter of the rounds does not share is undecided, and both words are "
    "shown. Verdicts are for these comparisons alone"
)
_HEADS = ["Comparison", "Metric", "Where", "Minus", "n", "Difference"]
_HEADS += ["p (Holm)", "p of equivalence (Holm)", "Visible", "Verdict"]
#: The column of the raw numbers that holds the mean difference.
MEAN_DIFFERENCE = "mean (percentage points)"
#: Names of a difference's facts as columns of the raw numbers.
_RENAMED = {
    "mean": MEAN_DIFFERENCE,
    "low": "low (percentage points)",
    "high": "high (percentage points)",
    "smallest_visible": "smallest visible (percentage points)",
    "n": "n of rival",
    "p": "p of rival",
    "p_equivalent": "p_equivalent of rival",
}


def primary(summary: Summary) -> Table:
    """A row for each comparison; below one with several rivals a row for each of them."""
    found = comparisons(summary)
    lines = [line for one in found for line in _lines(summary, one)]
    notes: tuple[str, ...] = ("This experiment names no primary comparisons.",)
    if found:
        notes = few_seeds((d.n for one in found for d in one.differences), SHOWN_FROM)
        for one in found:
            notes += tuple(f"{one.named.id}: {text}." for text in remarks(summary, one))
    caption = f"{_CAPTION}; {summary.rounds[summary.reported]}. {hyperparameters(summary.runs)}"
    raw = pd.DataFrame(
        [
            {key: value for key, value in whole.items() if key != "differences"} | part
            for whole in map(facts, found)
            for part in _parts(whole)
        ]
    )
    return Table("primary", caption, (block("", _HEADS, lines),), notes, raw)


def remarks(summary: Summary, one: Comparison) -> list[str]:
    """Return the remarks on a verdict: the horizon of its rows, and a verdict that disagrees.

    Args:
        summary: The summary that the comparison is from.
        one: A comparison; a regret, which has several cells, gets no horizon.

    Returns:
        Up to two texts.
    """
    methods = (one.named.subject, *one.named.rivals)
    label = "" if one.named.cells else horizon_label(summary, one.named.cell, methods)
    return [text for text in (label, one.remark) if text]


def _parts(whole: dict[str, object]) -> list[dict[str, object]]:
    """The differences of a comparison, their own p apart from the comparison's."""
    differences = whole["differences"]
    assert isinstance(differences, list)
    return [{_RENAMED.get(k, k): value for k, value in one.items()} for one in differences]


def _lines(summary: Summary, one: Comparison) -> list[list[str | Entry]]:
    several = len(one.differences) > 1
    subject = method_title(one.named.subject)
    rival = f"each of {len(one.differences)}" if several else method_title(one.decisive.rival)
    tested = {"id": one.named.id, "rival": one.decisive.rival}
    head: list[str | Entry] = [
        f"{one.named.id}: {subject}",
        one.named.metric.title,
        one.named.where or summary.cell_name(one.named.cell),
        rival,
        str(one.n),
        _entry(one, one.decisive),
        Entry(_p(one.p_holm, one.n)).of("p_holm", tested),
        Entry(_p(one.p_equivalent_holm, one.n)).of("p_equivalent_holm", tested),
        _visible(one, one.decisive),
        Entry(one.verdict).of("verdict", tested),
    ]
    if not several:
        return [head]
    described: list[list[str | Entry]] = [
        ["", "", "", method_title(d.rival), str(d.n), _entry(one, d), "", "", _visible(one, d), ""]
        for d in one.differences
    ]
    return [head, *described]


def _entry(one: Comparison, difference: Difference) -> Entry:
    row = {"id": one.named.id, "rival": difference.rival}
    return Entry(difference_text(difference)).of(MEAN_DIFFERENCE, row)


def difference_text(difference: Difference) -> str:
    """A difference in points with its interval, from five seeds on."""
    judged = difference.judged
    if judged is None:
        return MISSING
    return points_with_interval(judged.n, judged.effect, judged.low, judged.high)


def _p(p: float | None, n: int) -> str:
    return (
        MISSING
        if p is None or n < SHOWN_FROM
        else p_value(p).removeprefix("p = ").removeprefix("p ")
    )


def _visible(one: Comparison, difference: Difference) -> Entry:
    visible = difference.judged.visible if difference.judged else None
    few = visible is None or difference.n < SHOWN_FROM
    text = MISSING if few else f"{100 * (visible or 0.0):.1f}"
    row = {"id": one.named.id, "rival": difference.rival}
    return Entry(text).of(_RENAMED["smallest_visible"], row)
