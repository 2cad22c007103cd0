"""Gates and private shares of every client and block, at every evaluation of every run."""

from __future__ import annotations

import base64
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from fedsdg.analysis.frames import groups
from fedsdg.analysis.names import method_order
from fedsdg.analysis.page.arenas import Arena
from fedsdg.analysis.page.charts import chart
from fedsdg.analysis.summary import Summary

_PLACE = ["dataset", "clients", "skew"]
_RUN = [*_PLACE, "method", "seed"]
#: Column of the records → how the page calls it; a number of either is between 0 and 1.
MEASURES = {"gates": "gate m", "private_shares": "private share"}
#: Stands for a client that was never drawn, and so has no number.
_NONE = 255


def gated(summary: Summary) -> pd.DataFrame:
    """The rows of clients at evaluations, of the methods whose clients have gates."""
    rounds = summary.frame("rounds", [*_RUN, "round", "evaluated"])
    evaluated = rounds.loc[rounds["evaluated"].eq(True), [*_RUN, "round"]]
    frame = summary.frame(
        "clients", [*_RUN, "round", "client", "gates"], ["private_shares", "conflicts"]
    )
    kinds = frame[frame["conflicts"].notna()].groupby([*_PLACE, "seed", "client"])["conflicts"]
    frame = frame[frame["gates"].notna()].merge(evaluated, on=[*_RUN, "round"])
    known = kinds.last().rename("kind").reset_index()
    return frame.drop(columns="conflicts").merge(known, on=[*_PLACE, "seed", "client"], how="left")


def heat_maps(arena: Arena, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One entry for each run of the arena that has gates.

    ``rounds`` are those evaluated, ``clients`` their numbers in the order of the rows (A above B),
    ``kinds`` "A", "B", or "" where clients are of one kind. Each measure is a base64 text of bytes,
    hundredths of the numbers [rounds, clients, blocks]; 255 stands for none.
    """
    found = []
    here = frame[arena.cell.matches(frame)]
    for (method, seed), rows in groups(here, "method", "seed"):
        kinds = rows.groupby("client")["kind"].last()
        of_b = {int(c): bool(kinds.get(c, False)) for c in range(arena.cell.setting.clients)}
        parted = bool(kinds.notna().any())
        clients = sorted(of_b, key=lambda client: (of_b[client], client))
        rounds = sorted(rows["round"].unique().tolist())
        entry: dict[str, Any] = {
            "method": method,
            "seed": int(seed),
            "rounds": rounds,
            "clients": clients,
            "kinds": ["AB"[of_b[client]] if parted else "" for client in clients],
            "blocks": len(rows["gates"].iloc[0]),
        }
        for column in MEASURES:
            known = rows[rows[column].notna()]
            if len(known):
                entry[column] = _packed(known, column, rounds, clients)
        found.append(entry)
    return sorted(found, key=lambda entry: (method_order(entry["method"]), entry["seed"]))


def _packed(rows: pd.DataFrame, column: str, rounds: list[int], clients: list[int]) -> str:
    values = np.stack([np.asarray(one, dtype=float) for one in rows[column]])
    cube = np.full((len(rounds), len(clients), values.shape[1]), _NONE, dtype=np.uint8)
    at = [rounds.index(number) for number in rows["round"]]
    who = [clients.index(client) for client in rows["client"]]
    cube[at, who] = np.rint(100 * np.clip(values, 0, 1)).astype(np.uint8)
    return base64.b64encode(cube.tobytes()).decode()


def specs() -> dict[str, dict[str, Any]]:
    """``blocks``: clients by blocks in one round; ``ways``: clients by rounds, means of blocks.

    The page gives them a height for as many clients as there are.
    """
    scale = alt.Scale(scheme="redblue", reverse=True, domain=[0, 1])
    gaps = alt.Scale(paddingInner=0.06, paddingOuter=0.03)
    found = {}
    for name, column, title in (("blocks", "block", "block"), ("ways", "round", "round")):
        found[name] = (
            chart(280)
            .mark_rect(stroke=None)
            .encode(
                x=alt.X(f"{column}:O", title=title, axis=alt.Axis(labelAngle=0), scale=gaps),
                y=alt.Y("client:N", sort=None, title=None, scale=gaps),
                color=alt.Color("value:Q", scale=scale, title=None),
                tooltip=[
                    alt.Tooltip("client:N", title="client"),
                    alt.Tooltip(f"{column}:O", title=title),
                    alt.Tooltip("value:Q", title="value", format=".2f"),
                ],
            )
            .to_dict()
        )
    return found
