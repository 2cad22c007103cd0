"""The picture of a method: what goes down, what goes up, what a client keeps for itself."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedsdg.methods.declared import Row

ROOT = Path(__file__).resolve().parents[2]
#: Where sizes are looked up, the first that has a method: the grid in which each ran once, arenas.
RECORDS = ("every-method", "label-skew", "needs", "views")


class Exchange(NamedTuple):
    """Bytes of one client in one round, on the arenas' model, and what it keeps between rounds."""

    up: float
    down: float
    kept: float


def measured() -> Mapping[str, Exchange]:
    """By method, from the committed records: means over the runs of the first that has it."""
    found: dict[str, Exchange] = {}
    for record in RECORDS:
        folder = ROOT / "results/reference" / record
        columns = ["method", "status", "rounds", "bytes_up", "bytes_down", "client_storage_bytes"]
        runs = pd.read_parquet(folder / "runs.parquet", columns=[*columns, "config"])
        runs = runs[runs["status"] == "ok"]
        for name, part in runs.groupby("method"):
            if str(name) in found:
                continue
            one = part.iloc[0]
            cohort = json.loads(one["config"])["federation"]["clients_per_round"]
            visits = one["rounds"] * cohort
            found[str(name)] = Exchange(
                one["bytes_up"] / visits, one["bytes_down"] / visits, one["client_storage_bytes"]
            )
    return found


def picture(row: Row, sent: Exchange | None) -> str:
    """An SVG: the server above, a client below, between them what travels in a round.

    It takes its colours from the page, so it serves light and dark alike.
    """
    down = _size(row.down, None if sent is None else sent.down)
    up = _size(row.up, None if sent is None else sent.up)
    kept = "nothing" if not (sent and sent.kept) else f"{sent.kept:,.0f} bytes"
    if sent is None:
        kept = "not recorded"
    trains = "cross-entropy" + "".join(f" + {term}" for term in row.terms)
    travels = row.up != "0" or row.down != "0"
    lines = [
        _box(10, 8, "Server", f"rule: {row.rule}"),
        _box(10, 152, "Client k", f"minimises {trains}"),
        _text(30, 222, f"keeps for itself between rounds: {kept}", "small"),
    ]
    if travels:
        lines += [_arrow(150, 70, 150, 148), _arrow(370, 148, 370, 70)]
        lines += [_text(160, 114, f"down: {down}"), _text(380, 114, f"up: {up}")]
    else:
        lines.append(_text(30, 114, "nothing travels"))
    label = f"{row.title}: down {down}, up {up}; a client keeps {kept}"
    return (
        '<div><svg class="exchange" role="img" viewBox="0 0 600 240" '
        f'aria-label="{html.escape(label, quote=True)}">{"".join(lines)}</svg></div>'
    )


def _size(words: str, amount: float | None) -> str:
    if amount is None or words == "0":
        return words
    return f"{words} = {amount:,.0f} bytes"


def _box(x: int, y: int, title: str, text: str) -> str:
    height = 60 if y < 100 else 80
    return (
        f'<rect x="{x}" y="{y}" width="580" height="{height}" rx="8"/>'
        f"{_text(x + 20, y + 25, title, 'title')}{_text(x + 20, y + 47, text)}"
    )


def _text(x: int, y: int, text: str, kind: str = "plain") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{html.escape(text)}</text>'


def _arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    tip = 7 if y2 > y1 else -7
    head = f"M{x2 - 6} {y2 - tip}L{x2} {y2}L{x2 + 6} {y2 - tip}"
    return f'<path d="M{x1} {y1}V{y2}{head}" class="arrow"/>'
