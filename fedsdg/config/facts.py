"""Facts on methods that records keep, so that tables and figures need no plugins."""

from __future__ import annotations

from typing import Any

from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.config.entries import Entry
from fedsdg.methods.families import FAMILIES


def config_facts(config: Config) -> dict[str, dict[str, Any]]:
    """Return what tables and figures say of the methods of a config.

    Args:
        config: The config.

    Returns:
        By label, such as ``fedsdg-softmax``: ``title`` in print; ``family``; ``personal``: whether
        clients end with different models; ``oracle``: whether it knows the groups or has all data
        in one place; ``order`` in tables, where variants follow their method.
    """
    order = list(plugins.METHODS)
    return {
        entry.label: {
            "title": _title(entry),
            "family": next((name for name, rows in FAMILIES.items() if entry.type in rows), ""),
            "personal": entry.row.personal,
            "oracle": entry.type == "centralised" or entry.parameters.get("assignment") == "known",
            "order": 2 * order.index(entry.type) + (entry.label != entry.type),
        }
        for entry in config.methods
    }


def _title(entry: Entry) -> str:
    """Return the title of a row, and of its variants such as ``krum-2``: "Krum (2)"."""
    title = entry.row.title
    if entry.label == entry.type:
        return title
    variant = entry.label.removeprefix(f"{entry.type}-")
    if variant == entry.label:
        return entry.label
    return f"{title[:-1]}, {variant})" if title.endswith(")") else f"{title} ({variant})"
