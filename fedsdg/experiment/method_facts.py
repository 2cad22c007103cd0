"""Facts on methods that records keep, so that analysis needs neither plugins nor their table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fedsdg.experiment.config import Config
from fedsdg.methods.declared import Row, methods

#: Personalisations that leave every client with the model of the server.
_ONE_MODEL = ("", "Shared", "FrozenA", "Alternating")
#: Rules that give clients different models.
_SEVERAL_MODELS = ("Clustered", "Pens", "CgsvXu")

Facts = dict[str, dict[str, Any]]


def config_facts(config: Config) -> Facts:
    """Return the facts on the methods of a config, by label; see ``method_facts``."""
    return {
        one.label: method_facts(one.label, one.type, one.row, {**one.row.fixed, **one.parameters})
        for one in config.methods
    }


def recorded_facts(runs: Iterable[Mapping[str, Any]]) -> Facts:
    """Return the facts on the methods of runs, by label; see ``method_facts``.

    Args:
        runs: Rows of runs.parquet. Of a plugin they know the title alone.
    """
    facts: Facts = {}
    # Of a method none of whose runs was begun no more than its label is known.
    for run in sorted(runs, key=lambda run: not run.get("config")):
        label = run["method"]
        kind = run.get("type") or label
        row = methods().get(kind, Row(title=run.get("title") or kind))
        parameters = json.loads(run.get("config") or "{}").get("parameters", {})
        facts.setdefault(label, method_facts(label, kind, row, {**row.fixed, **parameters}))
    return facts


def method_facts(label: str, kind: str, row: Row, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tables and figures say of a method.

    Args:
        label: Its name in the records: ``fedsdg-softmax``.
        kind: The method that it is, or is a variant of: ``fedsdg``.
        row: The row of this method.
        values: Its parameters.

    Returns:
        ``title`` in print; ``family``; ``personal``: whether clients end with different models;
        ``oracle``: whether it knows the groups or has all data in one place; ``order`` in tables,
        where variants follow their method.
    """
    known = {name: one.title for name, one in methods().items()}
    place = list(known).index(kind) if kind in known else len(known)
    known.setdefault(kind, " ".join(row.title.split()))
    bases = [name for name in known if label == name or label.startswith(f"{name}-")]
    base = max(bases, key=len, default="")
    title = known.get(base, label)
    variant = label[len(base) + 1 :] if base else ""
    if variant:
        title = f"{title[:-1]}, {variant})" if title.endswith(")") else f"{title} ({variant})"
    return {
        "title": title,
        "family": row.family,
        "personal": row.personalisation not in _ONE_MODEL or row.rule in _SEVERAL_MODELS,
        "oracle": kind == "centralised" or values.get("assignment") == "known",
        "order": 2 * place + (label != kind),
    }
