"""Facts on methods that records keep, so that tables and figures need no plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.methods.families import FAMILIES


def config_facts(config: Config) -> dict[str, dict[str, Any]]:
    """Return the facts on the methods of a config, by label; see ``method_facts``."""
    return {
        entry.label: method_facts(entry.label, entry.type, entry.parameters)
        for entry in config.methods
    }


def method_facts(
    label: str, kind: str, parameters: Mapping[str, Any], title: str = ""
) -> dict[str, Any]:
    """Return what tables and figures say of a method.

    Args:
        label: Its name in the records, such as ``fedsdg-softmax``.
        kind: The method that it is, or is a variant of, such as ``fedsdg``.
        parameters: Its values.
        title: That of a plugin's method that is not loaded.

    Returns:
        ``title`` in print; ``family``; ``personal``: whether clients end with different models;
        ``oracle``: whether it knows the groups or has all data in one place; ``order`` in tables,
        where variants follow their method.
    """
    titles = {name: row.title for name, row in plugins.METHODS.items()}
    titles.setdefault(kind, title or kind)
    row = plugins.METHODS.get(kind)
    base = max((n for n in titles if label == n or label.startswith(f"{n}-")), key=len, default="")
    shown = titles.get(base, label)
    variant = label.removeprefix(base).removeprefix("-") if base else ""
    if variant:
        shown = f"{shown[:-1]}, {variant})" if shown.endswith(")") else f"{shown} ({variant})"
    return {
        "title": " ".join(shown.split()),
        "family": next((name for name, rows in FAMILIES.items() if kind in rows), ""),
        "personal": row is None or row.personal,
        "oracle": kind == "centralised" or parameters.get("assignment") == "known",
        "order": 2 * list(titles).index(kind) + (label != kind),
    }
