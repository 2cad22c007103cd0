"""The page of the Python interface: what its names say of themselves.

A name stands here if other code may rely on it. mkdocstrings fills in signature and docstring.
"""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

PAGE = "api.md"
#: Heading → modules, classes and functions; after a colon those of a module that are shown.
NAMES = {
    "Runs, records, comparisons": (
        "fedsdg.experiment.notebook: run, records, Records",
        "fedsdg.experiment.compare: compare, Comparison",
    ),
    "Aggregation": (
        "fedsdg.aggregation.api.aggregate",
        "fedsdg.aggregation.api.Aggregated",
        "fedsdg.aggregation.server_aggregate.fedsdg_server_aggregate",
        "fedsdg.aggregation.files.aggregate_files",
        "fedsdg.aggregation.files.AggregatedFiles",
        "fedsdg.aggregation.ranks.Ranks",
        "fedsdg.aggregation.by_client.aggregate_by_client",
    ),
    "Methods of your own": (
        "fedsdg.parts.Part",
        "fedsdg.methods.method.Method",
        "fedsdg.aggregation.types: Rule, Plan, Combination, TrimmedMean, Context, UploadRequest",
        "fedsdg.aggregation.rows.Rows",
        "fedsdg.federation.terms.Term",
        "fedsdg.federation.personalisation.Personalisation",
        "fedsdg.federation.conditions.attack.Attack",
    ),
    "Statistics": (
        "fedsdg.analysis.statistics: interval, differences, regret",
        "fedsdg.analysis.metrics: metric, values",
    ),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the page."""
    parts = ["# Python interface", "The names that other code may rely on."]
    for heading, names in NAMES.items():
        parts += [f"## {heading}", *map(_directive, names)]
    files.append(File.generated(config, PAGE, content="\n\n".join(parts) + "\n"))
    return files


def _directive(name: str) -> str:
    place, _, members = name.partition(": ")
    return f"::: {place}" + (f"\n    options:\n      members: [{members}]" if members else "")
