"""The picture of a method: what goes down, what goes up, what a client keeps for itself."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from fedsdg.files.places import ARENAS, RECORDS, root
from fedsdg.methods.declared import Row

#: Where sizes are looked up, the first that has a method: the grid in which each ran once, arenas.
GRIDS = ("every-method", *ARENAS)
#: Of the picture, in its own units.
WIDTH = 470


class Exchange(NamedTuple):
    """Bytes of one client in one round, on the arenas' model, and what it keeps between rounds."""

    up: float
    down: float
    kept: float


def measured() -> Mapping[str, Exchange]:
    """By method, from the first of the committed runs that has it."""
    columns = ["method", "rounds", "bytes_up", "bytes_down", "client_storage_bytes", "config"]
    runs = pd.concat(
        pd.read_parquet(root() / RECORDS / grid / "runs.parquet", columns=[*columns, "status"])
        for grid in GRIDS
    )
    found: dict[str, Exchange] = {}
    for one in runs[runs["status"] == "ok"].drop_duplicates("method").itertuples():
        visits = one.rounds * json.loads(one.config)["federation"]["clients_per_round"]
        sent = (one.bytes_up / visits, one.bytes_down / visits)
        found[one.method] = Exchange(*sent, one.client_storage_bytes)
    return found


def picture(row: Row, sent: Exchange | None) -> str:
    """An SVG: the server above, a client below, between them what travels in a round.

    It takes its colours from the page, so it serves light and dark alike.
    """
    kept = "not recorded" if sent is None else _bytes(sent.kept)
    trains = " + ".join(("cross-entropy", *row.terms))
    lines = [
        _box(8, 60, "Server", f"rule: {row.rule}"),
        _box(152, 82, "Client k", f"minimises {trains}"),
        _text(20, 222, f"keeps for itself between rounds: {kept}"),
    ]
    if row.up == row.down == "0":
        lines.append(_text(20, 114, "nothing travels"))
    else:
        lines += _travels(60, 70, 148, "down", row.down, sent and sent.down)
        lines += _travels(260, 148, 70, "up", row.up, sent and sent.up)
    label = f"{row.title}: down {row.down}, up {row.up}; a client keeps {kept}"
    return (
        f'<div><svg class="exchange" role="img" viewBox="0 0 {WIDTH} 240" '
        f'aria-label="{html.escape(label, quote=True)}">{"".join(lines)}</svg></div>'
    )


def _bytes(amount: float) -> str:
    return f"{amount:,.0f} bytes" if amount else "nothing"


def _travels(x: int, y1: int, y2: int, way: str, words: str, amount: float | None) -> list[str]:
    """An arrow, beside it what is sent, and below that its bytes where they are known."""
    lines = [_arrow(x, y1, y2), _text(x + 12, 104, f"{way}: {words}")]
    return lines if amount is None else [*lines, _text(x + 12, 126, _bytes(amount))]


def _box(y: int, height: int, title: str, text: str) -> str:
    return (
        f'<rect x="2" y="{y}" width="{WIDTH - 4}" height="{height}" rx="8"/>'
        f"{_text(20, y + 25, title, 'title')}{_text(20, y + 47, text)}"
    )


def _text(x: int, y: int, text: str, kind: str = "plain") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{html.escape(text)}</text>'


def _arrow(x: int, y1: int, y2: int) -> str:
    tip = 7 if y2 > y1 else -7
    head = f"M{x - 6} {y2 - tip}L{x} {y2}L{x + 6} {y2 - tip}"
    return f'<path d="M{x} {y1}V{y2}{head}" class="arrow"/>'
