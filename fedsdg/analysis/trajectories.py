"""The way of models through parameter space, as drawn in the plane where most of it happens."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.frames import RUN, split_scenario
from fedsdg.analysis.summary import Summary

COLUMNS = [*RUN, "kind", "client", "round", "step", "x", "y", "plane_share"]


def trajectories(summary: Summary) -> pd.DataFrame:
    """Rows of ``COLUMNS`` for the lowest seed: a client's way in a round, and the aggregates.

    ``kind`` is "local" for a client's points, step 0 being what it starts from, and "aggregate"
    for the server's model after a round (client and step are null). x and y are coordinates in the
    plane of the run, ``plane_share`` the share of all variation that lies in it.
    """
    identity = ["dataset", "clients", "skew", "method", "seed"]
    ways = summary.frame("clients", [*identity, "round", "client"], ["path_x", "path_y"])
    models = summary.frame("rounds", [*identity, "round"], ["model_x", "model_y", "plane_share"])
    ways, models = ways[ways["path_x"].notna()], models[models["model_x"].notna()]
    shares = models.groupby(identity, as_index=False)["plane_share"].first()
    steps = pd.Series([list(range(len(way))) for way in ways["path_x"]], index=ways.index)
    local = ways.assign(step=steps).explode(["path_x", "path_y", "step"])
    local = local.rename(columns={"path_x": "x", "path_y": "y"}).assign(kind="local")
    local = local.merge(shares, on=identity, how="left")
    models = models.rename(columns={"model_x": "x", "model_y": "y"}).assign(kind="aggregate")
    rows = split_scenario(pd.concat([part for part in (local, models) if len(part)] or [local]))
    rows = rows.assign(x=rows["x"].astype(float), y=rows["y"].astype(float))
    for name in ("client", "step", "plane_share"):
        if name not in rows:
            rows[name] = float("nan")
        rows[name] = rows[name].astype(float)
    case = [name for name in RUN if name != "seed"]
    lowest = rows.groupby(case)["seed"].transform("min")
    return rows.loc[rows["seed"] == lowest, COLUMNS].reset_index(drop=True)
