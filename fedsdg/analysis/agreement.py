"""Agreement of primary comparisons computed here with those of the committed record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsdg.analysis.comparisons import Comparison, comparisons
from fedsdg.analysis.formatting import points
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.judge import Judgement
from fedsdg.analysis.summary import Summary
from fedsdg.files import hint

AGREES, DIFFERS, NO_TELLING = "they agree", "they do not agree", "too little to tell"


def agreement(experiment: str, results: Path = Path("results")) -> Iterator[str]:
    """Yield a line for each primary comparison: its difference here, the record's, and agreement.

    Args:
        experiment: As its config names it.
        results: The folder of summaries and records.
    """
    judged = facts(experiment, results)
    if not judged:
        yield f"{experiment}: its config names no primary comparisons"
    for comparison in judged:
        yield f"{experiment}, {comparison['id']}: {comparison['says']}"


def facts(experiment: str, results: Path = Path("results")) -> list[dict[str, Any]]:
    """Return each primary comparison as it comes out here and in the record, in JSON's types.

    The comparisons are those that the config of the runs here named. Differences are shares, and
    ``says`` is the line of ``agreement``.

    Args:
        experiment: As its config names it.
        results: The folder of summaries and records.

    Raises:
        FileNotFoundError: The experiment was not computed here.
    """
    folder, record = (results / name / experiment for name in ("summary", "reference"))
    if not folder.is_dir():
        summaries = sorted(file.name for file in folder.parent.glob("*") if file.is_dir())
        meant = hint(experiment, summaries) if summaries else "; run the experiment first"
        raise FileNotFoundError(
            f"{experiment!r} was not computed here: there is no {folder}{meant}"
        )
    recorded = comparisons(Summary(record)) if (record / "runs.parquet").is_file() else []
    there = {comparison.named.id: comparison for comparison in recorded}
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
            "record": _facts(there.get(here.named.id)),
            "says": line(here, there.get(here.named.id)),
        }
        for here in comparisons(Summary(folder))
    ]


def _facts(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    judged = comparison.decisive.judged
    names = {"mean": "effect", "low": "low", "high": "high"}
    ends = {name: getattr(judged, key, None) for name, key in names.items()}
    return {**ends, "n": comparison.n, "verdict": str(comparison.verdict)}


def line(here: Comparison, record: Comparison | None) -> str:
    """Return "here +1.2 points (n = 5), the record +1.4 (n = 10): higher; they agree".

    Args:
        here: The comparison of the runs computed here.
        record: The record's of the same id; None where it has none.
    """
    computed = f"here {_difference(here)}"
    if record is None:
        return f"{computed}; the record does not have it"
    if replace(here.named, id="") != replace(record.named, id=""):
        return f"{computed}; the record compares something else under this name"
    outcome = agrees(here.decisive.judged, record.decisive.judged)
    if here.n < SHOWN_FROM:
        outcome += f"; fewer than {SHOWN_FROM} seeds give no verdict"
    return f"{computed}, the record {_difference(record)}: {record.verdict}; {outcome}"


def agrees(here: Judgement | None, record: Judgement | None) -> str:
    """Say whether two means of the same comparison are compatible.

    They are where their 95 % intervals overlap. One seed has no interval: then the signs are
    compared.

    Args:
        here: The difference computed here; None where there is none.
        record: The record's.
    """
    if here is None or record is None:
        return NO_TELLING
    if here.low is None or here.high is None or record.low is None or record.high is None:
        same = here.effect * record.effect > 0 or here.effect == record.effect
        return f"{'the same' if same else 'another'} sign, and one seed has no interval"
    return AGREES if here.low <= record.high and record.low <= here.high else DIFFERS


def _difference(comparison: Comparison) -> str:
    judged = comparison.decisive.judged
    mean = "no difference" if judged is None else f"{points(judged.effect)} points"
    return f"{mean} (n = {comparison.n})"
