"""Effect of attacks on each rule: accuracy over the share of attackers, and blocked clients."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.formatting import setting
from fedsdg.analysis.frames import (
    CASE,
    MEAN,
    PLACE,
    RUN,
    finished,
    flat,
    groups,
    over_seeds,
    split_scenario,
)
from fedsdg.analysis.names import GLOBAL, attack_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.costs import progress

#: Prefix of the keys of a run's config that describe its attack.
_ATTACK = "conditions.attack."
#: One line of a figure: a rule under one attack by one share of the clients.
ARENA = [*PLACE, "attack", "share", "method"]

#: Settings in a form that can be compared: their names and values in print, in order.
_Values = tuple[tuple[str, str], ...]


def under_attack(summary: Summary) -> pd.DataFrame:
    """The finished runs with ``attack`` and ``share``; share 0 stands under every attack.

    A run without attackers is the same under every attack, so it is repeated for each attack that
    other runs carry out under the same other conditions.
    """
    runs = finished(summary)
    shares, kinds, around = [], [], []
    for settings in runs["settings"]:
        parted = {name: value for name, value in settings.items() if name.startswith(_ATTACK)}
        others = {name: value for name, value in settings.items() if name not in parted}
        shares.append(float(parted.pop(f"{_ATTACK}share", None) or 0.0))
        kinds.append(_values(parted, _ATTACK))
        around.append(_values(others, "conditions.", "federation."))
    # An attack that no client carries out has a title only if there is no other.
    carried_out = {kind for kind, share in zip(kinds, shares, strict=True) if share}
    titles = _titles(carried_out or {kind for kind in kinds if kind})
    runs = runs.assign(
        share=shares,
        around=pd.Series(around, runs.index, object),
        attack=pd.Series([titles.get(kind) for kind in kinds], runs.index, object),
    )
    clean = runs[runs["share"] == 0]
    parts = [runs[runs["share"] > 0]]
    for attack, under_it in runs[runs["attack"].notna()].groupby("attack"):
        parts.append(clean[clean["around"].isin(set(under_it["around"]))].assign(attack=attack))
    both = pd.concat(parts).drop(columns="around").drop_duplicates([*ARENA, "seed"])
    return both.sort_values(["attack", "share"], kind="stable", ignore_index=True)


def _values(settings: Mapping[str, Any], *below: str) -> _Values:
    """Settings whose names start with a prefix, without the attack's prefix and without None."""
    return tuple(
        sorted(
            (name.removeprefix(_ATTACK), setting(value))
            for name, value in settings.items()
            if name.startswith(below) and value is not None
        )
    )


def _titles(kinds: Collection[_Values]) -> dict[_Values, str]:
    """A title for each attack: its type, and the settings in which attacks of one type differ."""
    titles = {}
    for kind in kinds:
        alike = [dict(other) for other in kinds if dict(other)["type"] == dict(kind)["type"]]
        differing = [
            f"{key} = {value}" for key, value in kind if len({o.get(key) for o in alike}) > 1
        ]
        titles[kind] = ", ".join([attack_title(dict(kind)["type"]), *differing])
    return titles


def accuracy_by_share(summary: Summary) -> pd.DataFrame:
    """Rows of ``ARENA`` with ``n``, ``mean``, ``low``, ``high`` of the reported global accuracy."""
    return over_seeds(under_attack(summary), ARENA, GLOBAL.key)


def losses(summary: Summary) -> pd.DataFrame:
    """The accuracy that an attack costs a rule: with attackers minus without, paired by seed.

    Returns:
        Rows of ``ARENA`` with a share above 0: ``n`` seeds that have both, and ``mean``, ``low``
        and ``high`` of the difference in the reported global accuracy, a share of 1.
    """
    runs = under_attack(summary)
    same = [*PLACE, "attack", "method", "seed"]
    clean = runs.loc[runs["share"] == 0, [*same, GLOBAL.key]]
    pairs = runs[runs["share"] > 0].merge(clean, on=same, suffixes=("", "_clean"))
    pairs = pairs.assign(loss=pairs[GLOBAL.key] - pairs[f"{GLOBAL.key}_clean"])
    return over_seeds(pairs, ARENA, "loss")


def shared_accuracy_by_round(summary: Summary) -> pd.DataFrame:
    """Global accuracy by round, ordered by the share of the clients that attack.

    Returns:
        ``CASE``, share, round and ``MEAN``.
    """
    curves = progress(summary, GLOBAL)[[*CASE, "round", *MEAN]]
    shares = {
        (run["dataset"], run["clients"], run["skew"]): float(
            flat(json.loads(run["config"])).get(f"{_ATTACK}share") or 0.0
        )
        for run in summary.runs
        if run["config"]
    }
    cells = curves[PLACE].itertuples(index=False, name=None)
    curves = curves.assign(share=[shares.get(cell, 0.0) for cell in cells])
    return curves.sort_values("share", kind="stable", ignore_index=True)


def trade_off(summary: Summary) -> pd.DataFrame:
    """Rows of ``ARENA``: ``accuracy``, ``distance`` and ``seconds``, means over seeds.

    The accuracy is the reported one of the global model; the distance from the step to the
    mean of the honest updates and the seconds of an aggregation are medians over a run's rounds.
    """
    runs = under_attack(summary)
    rounds = summary.frame("rounds", [*CASE, "seed"], ["honest_distance"])
    timings = summary.frame("timings", [*CASE, "seed", "aggregate_seconds"])
    names = {GLOBAL.key: "accuracy", "honest_distance": "distance", "aggregate_seconds": "seconds"}
    for frame in (rounds, timings):
        medians = split_scenario(frame).groupby(RUN, as_index=False)[frame.columns[-1]].median()
        runs = runs.merge(medians, on=RUN, how="left")
    runs = runs.rename(columns=names)
    measured = ["accuracy", "distance", "seconds"]
    return runs.groupby(ARENA, sort=False, as_index=False)[measured].mean()


def over_attacks(rows: pd.DataFrame) -> pd.DataFrame:
    """``trade_off`` over the attacks: the median and the worst for each rule and share.

    The worst accuracy is the lowest and the worst distance the largest.
    """
    by_rule = rows.groupby([*PLACE, "share", "method"], sort=False)
    return by_rule.agg(
        accuracy_median=("accuracy", "median"),
        accuracy_worst=("accuracy", "min"),
        distance_median=("distance", "median"),
        distance_worst=("distance", "max"),
        seconds=("seconds", "median"),
    ).reset_index()


def robustness(summary: Summary) -> pd.DataFrame:
    """``over_attacks`` in rows: ``PLACE``, share, method, ``measure`` and its ``mean``.

    Attacked shares only: without attackers a mean is the honest mean itself.
    """
    rows = over_attacks(trade_off(summary))
    rows = rows[rows["share"] > 0]
    names = [name for name in rows if name not in (*PLACE, "share", "method")]
    rows = rows.melt([*PLACE, "share", "method"], names, "measure", "mean")
    return rows.dropna(subset=["mean"]).reset_index(drop=True)


#: Columns that describe the detection of a run's attackers: see ``detection``.
DETECTION = ["precision", "recall", "delay", "blocked", "wrongly"]


def detections(summary: Summary) -> pd.DataFrame:
    """Judge the detection of attackers in each run whose method can block clients.

    Returns:
        ``RUN``, the number of ``attackers`` that took part, and ``DETECTION``.
    """
    clients = summary.frame(
        "clients", [*CASE, "seed", "round", "client", "participated"], ["attacker", "blocked"]
    )
    clients = split_scenario(clients[clients["blocked"].notna()])
    rows = []
    for run, rows_of_run in groups(clients, *RUN):
        attackers = rows_of_run.loc[rows_of_run["attacker"].eq(True), "client"].nunique()
        row = dict(zip(RUN, run, strict=True)) | {"attackers": attackers}
        rows.append(row | detection_of_run(rows_of_run))
    return pd.DataFrame(rows, columns=[*RUN, "attackers", *DETECTION])


def detection_of_run(clients: pd.DataFrame) -> dict[str, Any]:
    """Judge the blocks of a run by its rows of ``clients.parquet``: see ``detection``.

    A client is blocked or not until another row says otherwise.
    """
    every = range(1, int(clients["round"].max()) + 1), range(int(clients["client"].max()) + 1)

    def grid(name: str) -> pd.DataFrame:
        """[round, client], NaN where a client has no row."""
        values = clients.pivot(index="round", columns="client", values=name)
        return values.reindex(index=every[0], columns=every[1]).astype(float)

    blocked = grid("blocked").ffill().fillna(0).to_numpy(dtype=bool)
    participated = grid("participated").fillna(0).to_numpy(dtype=bool)
    attackers = grid("attacker").fillna(0).any(axis=0).to_numpy(dtype=bool)
    return detection(blocked, attackers, participated)


def detection(
    blocked: np.ndarray, attackers: np.ndarray, participated: np.ndarray
) -> dict[str, Any]:
    """Judge the blocks of a run of T rounds with K clients.

    An attacker that never took part counts nowhere unless it is blocked.

    Args:
        blocked: Whether a client is blocked after a round, bool [T, K].
        attackers: Which clients attack, bool [K].
        participated: Whether a client took part in a round, bool [T, K].

    Returns:
        ``precision``: the share of the clients blocked in the end that attack; ``recall``: the
        share of the attackers that took part which are blocked in the end; ``delay``: rounds from
        an attacker's first participation to its first block (0: in the same round), mean over the
        attackers that are blocked; ``blocked`` and ``wrongly``: the number of clients blocked in
        the end, and of honest clients among them. None where there is nothing to divide by.

    Raises:
        ValueError: The shapes do not belong together.
    """
    if blocked.ndim != 2 or not len(blocked) or participated.shape != blocked.shape:
        raise ValueError(
            f"blocked {list(blocked.shape)} and participated {list(participated.shape)} must both "
            "be [T, K], with at least one round"
        )
    if attackers.shape != blocked.shape[1:]:
        raise ValueError(
            f"attackers {list(attackers.shape)} must be [{blocked.shape[1]}], one per client"
        )
    at_end = blocked[-1]
    caught = at_end & attackers
    present = attackers & participated.any(axis=0)
    met = caught & present
    delays = blocked.argmax(axis=0) - participated.argmax(axis=0)
    return {
        "precision": _share(caught, at_end),
        "recall": _share(met, present),
        "delay": float(delays[met].mean()) if met.any() else None,
        "blocked": int(at_end.sum()),
        "wrongly": int((at_end & ~attackers).sum()),
    }


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None
