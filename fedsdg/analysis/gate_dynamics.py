"""What gates do over the rounds: their values, what hangs on them, and whether they count steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.frames import groups
from fedsdg.analysis.summary import Summary

_RUN = ["dataset", "clients", "skew", "seed"]
_COLUMNS = [*_RUN, "method", "round", "client", "gates"]
_OPTIONAL = [
    "local_steps",
    "steps",
    "conflicts",
    "private_shares",
    "private_ratio",
    "gate_penalty",
    "private_penalty",
]
#: Columns of a client and round, and how they are called.
MEASURES: Mapping[str, str] = {
    "gate": "gate m",
    "private_share": "private share",
    "private_ratio": "‖θ_p‖ / ‖θ_g‖",
    "gate_penalty": "gate penalty Σ m",
    "private_penalty": "private penalty",
    "closed": "gates < 0.1",
    "middle": "gates in [0.4, 0.6]",
    "open": "gates > 0.9",
}
#: Beside the measures: Spearman's ρ of a client's mean gate with its local steps so far.
CORRELATION = "correlation"


def gate_dynamics(summary: Summary) -> pd.DataFrame:
    """Means over clients of the subject's gates at each evaluation.

    Columns: dataset, clients, skew, seed, method, group ("A": clients that agree, "B": clients
    that do not, "": of one kind), round, measure, value. ``MEASURES`` are first taken within a
    client (mean gate m, the shares of its gates below 0.1, in [0.4, 0.6] and above 0.9, its mean
    private share) and then averaged over the clients that were drawn; ``CORRELATION`` is taken
    over all drawn clients and stands with group "". Old records lack some measures, and of them
    local steps are counted from the rounds in which a client took part.
    """
    method = summary.subject()
    frame = summary.frame("clients", _COLUMNS, optional=_OPTIONAL)
    frame = frame[frame["method"] == method].sort_values("round", kind="stable")
    counted = frame["local_steps"].fillna(0).groupby([frame[name] for name in [*_RUN, "client"]])
    frame = frame.assign(steps=frame["steps"].fillna(counted.cumsum()))
    evaluated = summary.frame("rounds", [*_RUN, "method", "round", "evaluated"])
    evaluated = evaluated[evaluated["evaluated"].astype(bool)].drop(columns="evaluated")
    frame = frame[frame["gates"].notna()].merge(evaluated, on=[*_RUN, "method", "round"])
    columns = [*_RUN, "method", "group", "round", "measure", "value"]
    if frame.empty:
        return pd.DataFrame(columns=columns)
    frame = _within_clients(frame)
    parted = frame["conflicts"].notna().any()
    kind = np.where(frame["conflicts"].fillna(False).astype(bool), "B", "A") if parted else ""
    frame = frame.assign(group=kind)
    rows: list[dict[str, Any]] = []
    for key, clients in groups(frame, *_RUN, "round"):
        place = dict(zip([*_RUN, "round"], key, strict=True)) | {"method": method}
        for group, own in groups(clients, "group"):
            means = own[list(MEASURES)].astype(float).mean()
            rows += [
                place | {"group": group, "measure": name, "value": float(means[name])}
                for name in MEASURES
                if np.isfinite(means[name])
            ]
        rho = clients["gate"].rank().corr(clients["steps"].astype(float).rank())
        if np.isfinite(rho):
            rows.append(place | {"group": "", "measure": CORRELATION, "value": float(rho)})
    return pd.DataFrame(rows, columns=columns)


def _within_clients(frame: pd.DataFrame) -> pd.DataFrame:
    gates = frame["gates"].map(np.asarray)
    shares = frame["private_shares"].map(
        lambda value: float(np.mean(value)) if np.ndim(value) and len(value) else np.nan
    )
    return frame.assign(
        gate=gates.map(np.mean),
        closed=gates.map(lambda m: np.mean(m < 0.1)),
        middle=gates.map(lambda m: np.mean((m >= 0.4) & (m <= 0.6))),
        open=gates.map(lambda m: np.mean(m > 0.9)),
        private_share=shares,
    )
