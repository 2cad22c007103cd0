"""Which methods are in colour where lines overlap: a fixed few, and the best of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.plots.style import BACKGROUND, Look, looks, roles
from fedsdg.analysis.summary import REFERENCES, Roles, Summary

#: The baseline in colour, where it is one; else it is the first of them.
_BASELINE = "fedavg-uniform"
_IN_A_SENTENCE = {"fine-tune": "fine-tuning", "local-only": "local only"}
#: Most methods in colour.
IN_COLOUR = 5


def always(who: Roles | None = None) -> tuple[str, ...]:
    """The methods in colour wherever they were run: the subject, a baseline, and the references.

    Args:
        who: The roles of the experiment; without them those of the figure that is being drawn.
    """
    who = who or roles()
    baseline = _BASELINE if _BASELINE in who.baselines else who.baselines[0]
    return tuple(dict.fromkeys([who.subject, baseline, *REFERENCES]))


def coloured(who: Roles) -> str:
    """The methods of ``always`` in a sentence."""
    return ", ".join(_IN_A_SENTENCE.get(method) or method_title(method) for method in always(who))


def cast(methods: Sequence[str], merit: Mapping[str, float] | pd.Series) -> dict[str, Look]:
    """The look of every method: its own for ``leads`` and the ceiling, a thin grey for others.

    Args:
        methods: The labels of the methods.
        merit: Method → how good it is.
    """
    leading, is_ceiling = leads(methods, merit), roles().is_ceiling
    found = looks([method for method in methods if method in leading or is_ceiling(method)])
    return {method: found.get(method, BACKGROUND) for method in methods}


def leads(
    methods: Sequence[str],
    merit: Mapping[str, float] | pd.Series,
    who: Roles | None = None,
    count: int = IN_COLOUR,
) -> list[str]:
    """The methods in colour: ``always``, and the others of highest merit.

    The line of pooled training is a yardstick and takes no method's place.

    Args:
        methods: The labels of the methods.
        merit: Method → how good it is.
        who: The roles of the experiment; without them those of the figure that is being drawn.
        count: Most methods in colour.
    """
    who = who or roles()
    running = [method for method in methods if not who.is_ceiling(method)]
    fixed = [method for method in always(who) if method in running]
    rest = [method for method in running if method not in fixed]
    rest.sort(key=lambda method: (-float(merit.get(method, -np.inf)), method_order(method)))
    return sorted([*fixed, *rest[: count - len(fixed)]], key=method_order)


def merit_of(summary: Summary, key: str) -> dict[str, float]:
    """The mean over cells of each method's mean over seeds of the reported metric.

    Args:
        summary: The experiment.
        key: The key of the metric.
    """
    means: dict[str, list[float]] = {}
    for cell in summary.cells():
        for method, values in summary.reported_values(cell, key).items():
            means.setdefault(method, []).append(float(np.mean(list(values.values()))))
    return {method: float(np.mean(listed)) for method, listed in means.items()}
