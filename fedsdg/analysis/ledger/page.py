"""The ledger as a page: counts of verdicts first, then a table for each specification."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from fedsdg.analysis.formatting import MISSING, p_value
from fedsdg.analysis.judge import LEAST_SEEDS
from fedsdg.analysis.ledger.entries import VERDICTS, Entry
from fedsdg.files import atomic_path

SOURCES = {
    "000": "Specification 000: the server's aggregation",
    "001": "Specification 001: a chapter on aggregation",
    "002": "Specification 002: the client, its private branch and its gates",
    "003": "Specification 003: aggregation by contribution",
    "004": "Specification 004: horizontal aggregation in XFL",
    "study": "The studies: hypotheses of this project",
}

_PREAMBLE = f"""# What the specifications claim, and what the record says

Every sentence of the specifications that a run can test, with its verdict, and hypotheses of this
project. Behind each claim stands its origin: *specification*; *hypothesis*, written before its
runs; or *post hoc*, where its quantity could be read before it was written. The claims stand in
[claims.yaml](../claims.yaml), each with the measure, the threshold and the experiment that decide
it; `fedsdg render ledger` looks up the numbers in [results/reference/](../results/reference) and
writes this page.

A claim is *supported* if a two-sided t-test over seeds puts the mean on the side that is claimed,
*refuted* if on the other side, and *undecided* otherwise: p below 0.05 after the adjustment of
Benjamini and Hochberg over all claims of the same specification, or of the same study. Without the
adjustment that is the whole 95 % interval on one side. What must hold against each of several
rivals, or in each of several cells, is supported with the largest p of them, and refuted with the
smallest times their number. Post hoc claims have an interval and *no verdict*. From fewer than
{LEAST_SEEDS} seeds only the mean is shown and nothing is decided, unless the number is counted and
not measured (bytes, parameters): then any number of seeds decides. *Open* is what needs something
that is not built, not affordable, or not yet in the record. Some claims are decided by arithmetic:
then the test that does it is named.

Accuracies are those of the round that validation selects; where the last quarter of the rounds says
otherwise, both words are shown and the claim is undecided. Differences are paired over seeds;
intervals of correlations are those of Fisher's z; intervals of shares are cut at 0 and 100 %; a
level of accuracy has an interval over seeds and test images where a record holds the answers per
image. *Visible* is the smallest distance from the threshold that these seeds would have decided
with a chance of 80 %. Where a specification names no number, the threshold is this project's.
*Horizon* says where training stood at its end, for the row and what it is compared with: steady,
rising, past its best, or that it cannot be told. Gates that cannot have moved (η_m × steps below 3)
decide no claim about gates. Within a table what is refuted comes first."""

_HEADS = (
    "claim",
    "verdict",
    "effect",
    "threshold",
    "n",
    "p",
    "visible",
    "measured as",
    "where",
    "horizon",
)


def write_page(entries: Sequence[Entry], file: str | Path) -> None:
    """Write the page of these entries.

    Args:
        entries: The judged claims.
        file: The path of the Markdown file; one that exists is replaced.
    """
    with atomic_path(file) as temporary:
        temporary.write_text(page(entries), encoding="utf-8")


def page(entries: Sequence[Entry]) -> str:
    """Markdown: the counts, then a table for each source, sorted by ``VERDICTS``."""
    lines = [_PREAMBLE, "", *_counts(entries)]
    ordered = sorted(entries, key=lambda e: (e.source, VERDICTS.index(e.verdict)))
    for source, members in groupby(ordered, key=lambda entry: entry.source):
        lines += ["", f"## {SOURCES.get(source, source)}", "", *_table(_HEADS, map(_row, members))]
    return "\n".join(lines) + "\n"


def _counts(entries: Sequence[Entry]) -> list[str]:
    sources = sorted({entry.source for entry in entries})
    heads = ("verdict", "claims", *sources)
    rows = []
    for verdict in VERDICTS:
        counts = [sum((e.source, e.verdict) == (s, verdict) for e in entries) for s in sources]
        rows.append((f"**{verdict}**", str(sum(counts)), *map(str, counts)))
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: object) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    cells = (" | ".join(cell.replace("\n", " ") for cell in row) for row in rows)  # type: ignore[attr-defined]
    return [*lines, *(f"| {row} |" for row in cells)]


def _row(entry: Entry) -> tuple[str, ...]:
    said = f"{entry.section}; {entry.origin}" if entry.origin else entry.section
    said += f", seen in {entry.seen_in}" if entry.seen_in else ""
    name = f'<a id="{entry.id}"></a>`{entry.id}`<br>{entry.sentence} *({said})*'
    verdict = f"**{entry.verdict}**"
    verdict += "".join(f"<br>{text}" for text in (entry.reason, entry.remark) if text)
    where = f"{entry.experiment}, `{entry.cell}`" if entry.experiment else MISSING
    how = f"{entry.measure}: {entry.compared}" if entry.measure else MISSING
    if entry.note:
        how += f"<br>{entry.note}"
    return (
        name.replace("|", "\\|"),
        verdict.replace("|", "\\|"),
        f"{effect_text(entry)}{_means(entry)}",
        f"{entry.threshold} {entry.unit}".strip() if entry.threshold else MISSING,
        str(entry.n) if entry.n else MISSING,
        MISSING if entry.p is None else p_value(entry.p).removeprefix("p = ").removeprefix("p "),
        MISSING
        if entry.visible is None
        else shown(entry.visible, "%" if entry.unit == "points" else entry.unit),
        how.replace("|", "\\|"),
        where,
        entry.horizon or MISSING,
    )


def effect_text(entry: Entry) -> str:
    """The effect with its unit and interval: "+3.4 points [+2.7, +4.1]"."""
    if entry.effect is None:
        return MISSING
    text = f"{shown(entry.effect, entry.unit)} {entry.unit}".strip()
    if entry.low is not None and entry.high is not None and entry.low != entry.high:
        text += f" [{shown(entry.low, entry.unit)}, {shown(entry.high, entry.unit)}]"
    return text


def _means(entry: Entry) -> str:
    """The two sides of a difference or ratio."""
    if not entry.means:
        return ""
    unit = "%" if entry.unit == "points" else ""
    both = [shown(entry.means[side], unit) for side in ("subject", "compared")]
    return f"<br>({both[0]} and {both[1]})"


def shown(value: float, unit: str) -> str:
    """A number as the page prints it: shares and points to one decimal, else three digits.

    Args:
        value: The number, in ``unit``.
        unit: "%", "points" or any other unit, "" for none.

    Returns:
        The number without its unit, with U+2212 as minus sign. Points have a plus sign as well;
        numbers of another unit from 100 on have one decimal.
    """
    if unit in ("%", "points"):
        rounded = round(value, 1) + 0.0
        text = f"{rounded:{'+' if unit == 'points' and rounded else ''}.1f}"
    else:
        text = f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"
    return text.replace("-", "−")
