"""The comparative claims of the benchmark, each tested against the summary: holds or does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from fedsdg.analysis.formatting import points
from fedsdg.analysis.names import (
    BETTER_BASELINE,
    GLOBAL,
    PERSONAL,
    ROUNDS,
    SUBJECT,
    WORST,
    method_title,
    skew_title,
)
from fedsdg.analysis.summary import Cell, Setting, Summary
from fedsdg.results import atomic_path, write_json

#: Whom FedSDG is claimed to beat, and in what. The global model is not what it is made for.
_EXAMINED = (
    (BETTER_BASELINE, (PERSONAL, WORST, GLOBAL)),
    ("fine-tune", (PERSONAL, WORST)),
    ("local-only", (PERSONAL, WORST)),
)

_PREAMBLE = (
    "Paired differences over seeds in percentage points, with 95 % Student-t intervals. A claim "
    "“FedSDG is higher” holds if the whole interval is above zero. The intervals are not corrected "
    "for the number of claims; the table of differences has Holm's p."
)


@dataclass(frozen=True)
class Claim:
    """ "FedSDG exceeds the rival here", with its verdict; differences are in percentage points.

    ``verdict`` is "holds" if the whole 95 % interval is above zero, "undecided" if one seed
    allows no interval, else "does not hold".
    """

    dataset: str
    clients: int
    skew: str
    metric: str
    at: str
    rival: str
    rival_method: str
    n: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    verdict: str
    text: str


def claims(summary_dir: str | Path) -> list[Claim]:
    """All claims of a summary, by cell, rival, metric and reported round."""
    summary = Summary(summary_dir)
    rows = summary.rows("differences")
    names = ("dataset", "clients", "skew", "rival", "metric", "at")
    table = {tuple(row[name] for name in names): row for row in rows}
    found = []
    for cell in summary.cells():
        for rival, metrics in _EXAMINED:
            for metric in metrics:
                for at in ROUNDS:
                    place = (cell.setting.dataset, cell.setting.clients, cell.skew)
                    row = table.get((*place, rival, metric.key, at))
                    if row is not None:
                        found.append(_claim(cell, metric.title, row))
    return found


def write_claims(summary_dir: str | Path, output_stem: str | Path) -> list[Path]:
    """Write the claims to ``{output_stem}.json`` and ``.md``, and return both paths."""
    found = claims(summary_dir)
    json_path, markdown_path = (Path(f"{output_stem}{suffix}") for suffix in (".json", ".md"))
    write_json(json_path, [asdict(claim) for claim in found])
    with atomic_path(markdown_path) as temporary:
        temporary.write_text(_markdown(found), encoding="utf-8")
    return [json_path, markdown_path]


def _markdown(found: list[Claim]) -> str:
    lines = ["# Claims", "", _PREAMBLE, ""]
    if found:
        holding = sum(claim.verdict == "holds" for claim in found)
        lines += [f"{holding} of {len(found)} claims hold.", ""]
    else:
        lines.append("No claim can be tested: the experiment lacks FedSDG or all of its rivals.")
    for head, members in groupby(found, key=_head):
        marks = {"holds": "✓", "undecided": "?", "does not hold": "✗"}
        lines += [f"## {head}", "", *(f"- {marks[c.verdict]} {c.text}" for c in members), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _head(claim: Claim) -> str:
    return f"{Setting(claim.dataset, claim.clients).title}, {skew_title(claim.skew)}"


def _claim(cell: Cell, metric: str, row: Mapping[str, Any]) -> Claim:
    if row["low"] is None:
        interval, verdict, because = "", "undecided", " (one seed gives no interval)"
    else:
        interval = f" [{points(row['low'])}, {points(row['high'])}]"
        verdict = "holds" if row["low"] > 0 else "does not hold"
        because = ""
        if verdict != "holds":
            because = " (it is lower)" if row["high"] < 0 else " (the interval contains 0)"
    rival = method_title(row["rival_method"])
    if row["rival"] == BETTER_BASELINE:
        rival = f"the better of FedAvg by samples and uniform (here {rival})"
    text = (
        f"At {skew_title(cell.skew)} ({cell.setting.title}, {ROUNDS[row['at']]}), "
        f"{method_title(SUBJECT)} minus {rival} in {metric}: "
        f"{points(row['mean'])} points{interval}, n = {row['n']}: {verdict}{because}"
    )
    low, high = (None if row[name] is None else 100 * row[name] for name in ("low", "high"))
    return Claim(
        dataset=cell.setting.dataset,
        clients=cell.setting.clients,
        skew=cell.skew,
        metric=row["metric"],
        at=row["at"],
        rival=row["rival"],
        rival_method=row["rival_method"],
        n=row["n"],
        mean=100 * row["mean"],
        low=low,
        high=high,
        p=row["p"],
        verdict=verdict,
        text=text,
    )
