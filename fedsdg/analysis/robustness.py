"""What attacks do to each rule: accuracy over the share of attackers, and whom a screen catches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from fedsdg.analysis.detection import Detection, detection_of_run
from fedsdg.analysis.formatting import setting
from fedsdg.analysis.frames import PLACE, RUN, finished, groups, over_seeds, records, split_scenario
from fedsdg.analysis.names import GLOBAL, attack_title
from fedsdg.analysis.summary import Summary

#: Where a run's config says how it was attacked.
_ATTACK = "conditions.attack."
#: One line of a figure: a rule under one attack by one share of the clients.
ARENA = [*PLACE, "attack", "share", "method"]


def under_attack(summary: Summary) -> pd.DataFrame:
    """The finished runs with ``attack`` and ``share``; share 0 stands under every attack.

    A run without attackers is the same whatever the attack, so that it is repeated for each that
    is carried out under its other conditions.
    """
    runs = finished(summary)
    own = [_attack(settings) for settings in runs["settings"].tolist()]
    # An attack that nobody carries out has a title only where there is no other.
    carried_out = [attack for attack in own if attack.get("share")]
    titles = _titles(carried_out or [attack for attack in own if attack])
    runs = runs.assign(
        attack=pd.Series([titles.get(_kind(attack)) for attack in own], runs.index, object),
        share=[float(attack.get("share", 0.0)) for attack in own],
        around=[_around(settings) for settings in runs["settings"].tolist()],
    )
    clean = runs[runs["share"] == 0]
    named = runs[runs["attack"].notna()]
    parts = [runs[runs["share"] > 0]]
    for attack, under_it in named.groupby("attack"):
        parts.append(clean[clean["around"].isin(set(under_it["around"]))].assign(attack=attack))
    both = pd.concat(parts).drop(columns="around").drop_duplicates([*ARENA, "seed"])
    return both.sort_values(["attack", "share"], kind="stable", ignore_index=True)


def _attack(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key.removeprefix(_ATTACK): value
        for key, value in settings.items()
        if key.startswith(_ATTACK) and value is not None
    }


def _around(settings: Mapping[str, Any]) -> str:
    """What a run has to cope with beside an attack, as something that can be compared."""
    groups_of_keys = ("conditions.", "federation.")
    kept = {
        key: setting(value)
        for key, value in settings.items()
        if key.startswith(groups_of_keys) and not key.startswith(_ATTACK) and value is not None
    }
    return repr(sorted(kept.items()))


def _kind(attack: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """An attack without the share of attackers, as something that can be compared."""
    return tuple(sorted((k, setting(v)) for k, v in attack.items() if k != "share"))


def _titles(attacks: list[dict[str, Any]]) -> dict[tuple[tuple[str, str], ...], str]:
    """A title for each attack: its type, and in what those of one type differ."""
    kinds = {_kind(attack) for attack in attacks}
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


def trade_off(summary: Summary) -> pd.DataFrame:
    """Rows of ``ARENA``: ``accuracy``, ``distance`` and ``seconds``, means over seeds.

    The accuracy is the reported one of the global model; the distance from the step to the
    mean of the honest updates and the seconds of an aggregation are medians over a run's rounds.
    """
    runs = under_attack(summary)
    rounds = summary.frame(
        "rounds", ["dataset", "clients", "skew", "method", "seed"], ["honest_distance"]
    )
    timings = summary.frame(
        "timings", ["dataset", "clients", "skew", "method", "seed", "aggregate_seconds"]
    )
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


def detections(summary: Summary) -> pd.DataFrame:
    """One row per run that blocked somebody or could have: ``RUN``, the number of ``attackers``
    that took part, and the fields of ``detection.Detection``."""
    identity = ["dataset", "clients", "skew", "method", "seed"]
    clients = summary.frame(
        "clients", [*identity, "round", "client", "participated"], ["attacker", "blocked"]
    )
    clients = split_scenario(clients[clients["blocked"].notna()])
    names = ["attackers", *(field.name for field in fields(Detection))]
    rows = []
    for run, rows_of_run in groups(clients, *RUN):
        attackers = rows_of_run.loc[rows_of_run["attacker"].eq(True), "client"].nunique()
        found = asdict(detection_of_run(records(rows_of_run)))
        rows.append(dict(zip(RUN, run, strict=True)) | {"attackers": attackers} | found)
    return pd.DataFrame(rows, columns=[*RUN, *names])
