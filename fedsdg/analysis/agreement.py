"""Whether the primary comparisons come out here as they stand in the committed record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsdg.analysis.comparisons import Comparison, comparisons
from fedsdg.analysis.formatting import points
from fedsdg.analysis.inference import Interval
from fedsdg.analysis.summary import Summary
from fedsdg.files import hint

AGREES, DIFFERS, NO_TELLING = "they agree", "they do not agree", "too little to tell"


def compared(
    experiment: str, results: Path = Path("results")
) -> list[tuple[Comparison, Comparison | None]]:
    """Each primary comparison as it comes out here, and as it stands in the record, if it does.

    What is compared was named by the config that the runs here were made with. Raises
    ``FileNotFoundError`` where the experiment was not computed here.
    """
    folder = results / "summary" / experiment
    if not folder.is_dir():
        known = sorted(place.name for place in folder.parent.glob("*") if place.is_dir())
        meant = hint(experiment, known) if known else "; run the experiment first"
        raise FileNotFoundError(
            f"{experiment!r} was not computed here: there is no {folder}{meant}"
        )
    here = comparisons(Summary(folder))
    record = results / "reference" / experiment
    recorded = (record / "runs.parquet").is_file()
    there = {one.named.id: one for one in comparisons(Summary(record))} if recorded else {}
    return [(one, there.get(one.named.id)) for one in here]


def agreement(experiment: str, results: Path = Path("results")) -> Iterator[str]:
    """One line for each primary comparison: its difference here, the record's, and agreement."""
    pairs = compared(experiment, results)
    if not pairs:
        yield f"{experiment}: its config names no primary comparisons"
    for here, record in pairs:
        yield f"{experiment}, {here.named.id}: {line(here, record)}"


def facts(experiment: str, results: Path = Path("results")) -> list[dict[str, Any]]:
    """The same in JSON's types; differences are shares, not points, and ``says`` is the line."""
    return [
        {
            "experiment": experiment,
            "id": here.named.id,
            "subject": here.named.subject,
            "rivals": list(here.named.rivals),
            "metric": here.named.metric.key,
            "dataset": here.named.cell.setting.dataset,
            "skew": here.named.cell.skew,
            "here": _facts(here),
            "record": None if record is None else _facts(record),
            "says": line(here, record),
        }
        for here, record in compared(experiment, results)
    ]


def _facts(one: Comparison) -> dict[str, Any]:
    interval = one.decisive.interval
    ends = {key: getattr(interval, key, None) for key in ("mean", "low", "high")}
    return {**ends, "n": one.n, "verdict": str(one.verdict)}


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
