"""Sentences about an experiment: its primary comparisons, and differences that are described.

Verdicts are for the comparisons that were named beforehand. Every other difference stands with its
interval and without a word of judgement.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from fedsdg.analysis.comparisons import SEEDS, Comparison, Difference, comparisons, facts
from fedsdg.analysis.formatting import difference, p_value
from fedsdg.analysis.horizon import horizon_label
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import method_title, skew_title
from fedsdg.analysis.summary import Setting, Summary
from fedsdg.analysis.tables.primary import remarks
from fedsdg.files import atomic_path, markdown_escape, write_json

_PREAMBLE = (
    "Paired differences over seeds in percentage points, with 95 % Student-t intervals from "
    f"{SHOWN_FROM} seeds on. Verdicts are for the primary comparisons alone, which the config "
    f"named beforehand: from {SEEDS} seeds on, by p-values that Holm adjusts over all of them. The "
    "other differences are described and not tested."
)


def described(summary: Summary) -> list[dict[str, Any]]:
    """Subject minus every baseline, fine-tuning and local training: rows of differences.parquet.

    Those of the reported value, in the metrics that the experiment has; by cell, rival and metric.
    """
    rows = {
        tuple(row[name] for name in ("dataset", "clients", "skew", "rival", "metric")): row
        for row in summary.rows("differences")
        if row["at"] == summary.reported
    }
    return [
        {
            **{name: row[name] for name in ("dataset", "clients", "skew", "metric", "at", "n")},
            "subject": row["subject"],
            "rival": rival,
            **{name: None if row[name] is None else 100 * row[name] for name in _ENDS},
        }
        for cell in summary.cells()
        for rival in summary.roles.described
        for metric in summary.metrics
        if (row := rows.get((*cell.place.values(), rival, metric.key)))
    ]


_ENDS = ("mean", "low", "high")


def write_claims(summary_dir: str | Path, output_stem: str | Path) -> list[Path]:
    """Write ``{output_stem}.json`` (differences in points) and ``.md``, and return both paths.

    Args:
        summary_dir: The folder of a summary or of a record.
        output_stem: The path of both files without their endings.
    """
    summary = Summary(summary_dir)
    primary, others = comparisons(summary), described(summary)
    json_path, markdown_path = (Path(f"{output_stem}{suffix}") for suffix in (".json", ".md"))
    write_json(json_path, {"primary": [*map(facts, primary)], "described": others})
    with atomic_path(markdown_path) as temporary:
        temporary.write_text(_markdown(summary, primary, others), encoding="utf-8")
    return [json_path, markdown_path]


def claims_page(summary: Summary) -> str:
    """Return the Markdown page of ``write_claims``."""
    return _markdown(summary, comparisons(summary), described(summary))


def _markdown(summary: Summary, primary: list[Comparison], others: list[dict[str, Any]]) -> str:
    lines = ["# Claims", "", _PREAMBLE, ""]
    if label := horizon_label(summary):
        lines += [f"{label[0].upper()}{label[1:]}.", ""]
    lines += ["## Primary comparisons", ""]
    if not primary:
        lines += ["This experiment names none, so it has no verdicts.", ""]
    else:
        lines += [*(f"- {sentence(summary, one)}" for one in primary), ""]
    lines += ["## Described", ""]
    if not others:
        subject = summary.roles.subject
        lines.append(f"Nothing: the experiment lacks '{subject}' or all of those it would meet.")
    for head, members in groupby(others, key=_head):
        lines += [f"### {head}", "", *(f"- {_described(summary, row)}" for row in members), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _head(row: Mapping[str, Any]) -> str:
    return f"{Setting(row['dataset'], row['clients']).title}, {skew_title(row['skew'])}"


def _shown(method: str) -> str:
    """The title of a method as Markdown shows it."""
    return markdown_escape(method_title(method))


def sentence(summary: Summary, one: Comparison) -> str:
    """A primary comparison in one sentence, which begins with its verdict.

    Args:
        summary: The summary that the comparison is from.
        one: A comparison after Holm.

    Returns:
        Markdown: the verdict, the difference from each rival with its interval, the metric, the
        cell and n; p-values only from ``SEEDS`` common seeds on.
    """
    named = one.named
    several = len(one.differences) > 1
    listed = [f"{_shown(each.rival)} {_ends(each)}" for each in one.differences]
    against = "each of " + ", ".join(listed) if several else listed[0]
    tests = []
    if one.n >= SEEDS and one.p_holm is not None and one.p_equivalent_holm is not None:
        tests = [p_value(one.p_holm), f"of equivalence {p_value(one.p_equivalent_holm)}"]
        if one.decisive.judged is not None and one.decisive.judged.visible is not None:
            tests.append(f"{100 * one.decisive.judged.visible:.1f} points would have been seen")
    tail = f" ({'; '.join(tests)})" if tests else ""
    asides = "".join(f"; {text}" for text in remarks(summary, one))
    where = named.where or summary.cell_name(named.cell)
    return (
        f"**{named.id}: {one.verdict}**. {_shown(named.subject)} minus {against} in "
        f"{named.metric.title} at {where}, n = {one.n}{tail}{asides}."
    )


def _ends(one: Difference) -> str:
    if one.judged is None:
        return "(no common seed)"
    return difference(one.n, one.judged.effect, one.judged.low, one.judged.high)


def _described(summary: Summary, row: Mapping[str, Any]) -> str:
    mean, low, high = (None if row[name] is None else row[name] / 100 for name in _ENDS)
    title = next(metric.title for metric in summary.metrics if metric.key == row["metric"])
    return (
        f"{_shown(row['subject'])} minus {_shown(row['rival'])} in {title}: "
        f"{difference(row['n'], mean or 0.0, low, high)} points, n = {row['n']} "
        f"({summary.rounds[row['at']]})"
    )
