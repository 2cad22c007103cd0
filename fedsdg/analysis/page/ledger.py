"""The ledger's claims as rows of the page: sentence, verdict, and the number that decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedsdg.analysis.formatting import MISSING
from fedsdg.analysis.ledger.entries import VERDICTS, Entry
from fedsdg.analysis.ledger.page import SOURCES, shown


@dataclass(frozen=True)
class Claim:
    """A row, in print."""

    id: str
    source: str
    sentence: str
    section: str
    verdict: str
    reason: str
    effect: str
    interval: str
    value: float | None
    threshold: str
    seeds: str
    measure: str
    where: str
    horizon: str


def claims(entries: Sequence[Entry]) -> list[Claim]:
    """A row for each entry, by verdict as the ledger orders them, and then by source."""
    ordered = sorted(entries, key=lambda e: (VERDICTS.index(e.verdict), e.source, e.id))
    return [
        Claim(
            id=entry.id,
            source=SOURCES.get(entry.source, entry.source),
            sentence=entry.sentence,
            section=entry.section,
            verdict=entry.verdict,
            reason=entry.reason,
            effect=_effect(entry),
            interval=_interval(entry),
            value=entry.effect,
            threshold=f"{entry.threshold} {entry.unit}".strip() if entry.threshold else MISSING,
            seeds=str(entry.n) if entry.n else MISSING,
            measure=f"{entry.measure}: {entry.compared}" if entry.measure else MISSING,
            where=f"{entry.experiment}, {entry.cell}" if entry.experiment else MISSING,
            horizon=entry.horizon or MISSING,
        )
        for entry in ordered
    ]


def _effect(entry: Entry) -> str:
    if entry.effect is None:
        return MISSING
    return f"{shown(entry.effect, entry.unit)} {entry.unit}".strip()


def _interval(entry: Entry) -> str:
    if entry.low is None or entry.high is None or entry.low == entry.high:
        return ""
    return f"[{shown(entry.low, entry.unit)}, {shown(entry.high, entry.unit)}]"
