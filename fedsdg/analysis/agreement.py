"""Whether the primary comparisons come out here as they stand in the committed record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedsdg.analysis.comparisons import Comparison, comparisons
from fedsdg.analysis.formatting import points
from fedsdg.analysis.inference import Interval
from fedsdg.analysis.summary import Summary

AGREES, DIFFERS, NO_TELLING = "they agree", "they do not agree", "too little to tell"


def agreement(experiment: str, results: Path = Path("results")) -> Iterator[str]:
    """One line for each primary comparison: its difference here, the record's, and agreement.

    What is compared was named by the config that the runs here were made with. Raises
    ``FileNotFoundError`` where the experiment was not computed here.
    """
    here = comparisons(Summary(results / "summary" / experiment))
    if not here:
        yield f"{experiment}: its config names no primary comparisons"
        return
    folder = results / "reference" / experiment
    recorded = (folder / "runs.parquet").is_file()
    there = {one.named.id: one for one in comparisons(Summary(folder))} if recorded else {}
    for one in here:
        yield f"{experiment}, {one.named.id}: {line(one, there.get(one.named.id))}"


def line(here: Comparison, record: Comparison | None) -> str:
    """ "here +1.2 points (n = 5), the record +1.4 (n = 10): higher; they agree"."""
    own = f"here {_difference(here)}"
    if record is None:
        return f"{own}; the record does not have it"
    if (here.named.subject, here.named.rivals, here.named.metric.key, here.named.cell) != (
        record.named.subject,
        record.named.rivals,
        record.named.metric.key,
        record.named.cell,
    ):
        return f"{own}; the record compares something else under this name"
    outcome = agrees(here.decisive.interval, record.decisive.interval)
    return f"{own}, the record {_difference(record)}: {record.verdict}; {outcome}"


def agrees(here: Interval | None, record: Interval | None) -> str:
    """Whether two means of the same comparison tell the same.

    They agree where their 95 % intervals overlap, so also where the one holds the mean of the
    other. One seed here has no interval: it agrees where it has the record's sign.
    """
    if here is None or record is None:
        return NO_TELLING
    if here.low is None or here.high is None or record.low is None or record.high is None:
        same = here.mean * record.mean > 0 or here.mean == record.mean
        return f"{'the same' if same else 'another'} sign, and one seed has no interval"
    return AGREES if here.low <= record.high and record.low <= here.high else DIFFERS


def _difference(one: Comparison) -> str:
    interval = one.decisive.interval
    mean = "no difference" if interval is None else f"{points(interval.mean)} points"
    return f"{mean} (n = {one.n})"
