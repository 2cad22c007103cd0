"""Where the methods of several arenas stand, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsdg.analysis.arenas import Arenas
from fedsdg.analysis.client_accuracies import CLIENT_COLUMNS, client_accuracies
from fedsdg.analysis.horizon import horizon_label
from fedsdg.analysis.improvement import probability_of_improvement
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.interquartile import Estimate, interquartile_mean
from fedsdg.analysis.profiles import Profile, performance_profile

#: Accuracies at which profiles are drawn, shares of 1.
THRESHOLDS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class Overall:
    """A method over all tasks; accuracies are shares of 1.

    ``improved``: the probability that the subject is better; None of itself and where it is not
    among the methods. ``profile`` over clients: None for a metric that no single client has.
    """

    method: str
    mean: Estimate
    improved: Estimate | None
    profile: Profile | None


def overall(arenas: Arenas) -> tuple[Overall, ...]:
    """One ``Overall`` for each method, in the order of the methods."""
    scores = {method: arenas.scores(method) for method in arenas.methods}
    who = arenas.subject
    subject = scores.get(who)
    profiles = _profiles(arenas)
    return tuple(
        Overall(
            method,
            interquartile_mean(own),
            None if subject is None or method == who else probability_of_improvement(subject, own),
            profiles.get(method),
        )
        for method, own in scores.items()
    )


def _profiles(arenas: Arenas) -> dict[str, Profile]:
    if arenas.metric.key not in CLIENT_COLUMNS:
        return {}
    found = [client_accuracies(summary, arenas.metric.key) for summary in arenas.summaries]
    of = dict(zip((summary.experiment for summary in arenas.summaries), found, strict=True))
    profiles = {}
    for method in arenas.methods:
        clients = [
            [
                of[task.arena][
                    task.cell.setting.dataset,
                    task.cell.setting.clients,
                    task.cell.skew,
                    method,
                    seed,
                ]
                for seed in task.seeds
            ]
            for task in arenas.tasks
        ]
        profiles[method] = performance_profile(clients, THRESHOLDS)
    return profiles


def where(arenas: Arenas) -> str:
    """What a caption says of the tasks: arenas, cells, seeds, and methods shown."""
    named = []
    for summary in arenas.summaries:
        cells = [summary.cell_name(t.cell) for t in arenas.tasks if t.summary is summary]
        named.append(f"{summary.experiment} ({'; '.join(cells)})")
    seeds = f"{arenas.seeds} seed{'s' * (arenas.seeds > 1)} in each of {len(arenas.tasks)} cells"
    return f"Arenas: {', '.join(named)}; {seeds}; the methods that all of them have"


def unsettled(arenas: Arenas) -> tuple[str, ...]:
    """What had not settled among the methods shown, an arena a sentence."""
    labels = {s.experiment: horizon_label(s, methods=arenas.methods) for s in arenas.summaries}
    return tuple(f"{name}: {label}." for name, label in labels.items() if label)


def without_width(found: tuple[Overall, ...]) -> bool:
    """Whether some probability is 0 or 1, where the bootstrap has nothing to draw but itself."""
    return any(one.improved is not None and one.improved.value in (0.0, 1.0) for one in found)


def shown(estimate: Estimate) -> bool:
    """Whether tables and figures show the interval: of ``SHOWN_FROM`` seeds a task or more."""
    return estimate.low is not None and estimate.seeds >= SHOWN_FROM
