"""The picture of a method: what goes down, what goes up, what a client keeps for itself."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from fedsdg.files.places import ARENAS, RECORDS, root
from fedsdg.methods.method import Method

#: Where sizes are looked up, the first that has a method: the grid in which each ran once, arenas.
GRIDS = ("every-method", *ARENAS)
#: Of the picture, in its own units.
WIDTH = 500


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


def picture(row: Method, sent: Exchange | None) -> str:
    """An SVG: the server above, a client below, between them what travels in a round.

    It takes its colours from the page, so it serves light and dark alike.
    """
    trains = " + ".join(("cross-entropy", *(type(term).__name__ for term in row.terms)))
    lines = [
        _box(8, 60, "Server", f"rule: {type(row.rule).__name__}"),
        _box(152, 82, "Client k", f"minimises {trains}"),
    ]
    if sent is None:
        label = f"{row.title}: not recorded"
    else:
        label = (
            f"down {_bytes(sent.down)}, up {_bytes(sent.up)}; a client keeps {_bytes(sent.kept)}"
        )
        lines += [_arrow(60, 70, 148), _text(72, 114, f"down: {_bytes(sent.down)}")]
        lines += [_arrow(260, 148, 70), _text(272, 114, f"up: {_bytes(sent.up)}")]
        lines.append(_text(20, 222, f"keeps for itself between rounds: {_bytes(sent.kept)}"))
    return (
        f'<div><svg class="exchange" role="img" viewBox="0 0 {WIDTH} 240" '
        f'aria-label="{html.escape(label, quote=True)}">{"".join(lines)}</svg></div>'
    )


def _bytes(amount: float) -> str:
    return f"{amount:,.0f} bytes" if amount else "nothing"


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
