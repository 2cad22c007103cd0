"""Who is drawn in colour where lines overlap: a fixed few, and the rest in grey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.plots.style import GREY, Look, looks, roles
from fedsdg.analysis.summary import REFERENCES, Roles, Summary

#: The baseline in colour, where it is one; else it is the first of them.
_BASELINE = "fedavg-uniform"
_IN_A_SENTENCE = {"fine-tune": "fine-tuning", "local-only": "local only"}
#: So many methods may be in colour.
IN_COLOUR = 5

_GREY_MARKERS = "s^v<>XPDdp*"
_GREY_DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4)))


def always(who: Roles | None = None) -> tuple[str, ...]:
    """Who is in colour wherever it was run: the subject, a baseline, and the references.

    ``who``: the roles of the experiment; those of the figure that is being drawn where left out.
    """
    who = who or roles()
    baseline = _BASELINE if _BASELINE in who.baselines else who.baselines[0]
    return tuple(dict.fromkeys([who.subject, baseline, *REFERENCES]))


def coloured(who: Roles) -> str:
    """Those of ``always`` in a sentence."""
    return ", ".join(_IN_A_SENTENCE.get(method) or method_title(method) for method in always(who))


def cast(methods: Sequence[str], merit: Mapping[str, float] | pd.Series) -> dict[str, Look]:
    """The look of every method: its own for ``leads``, a thin grey one for the others.

    Grey lines differ in their markers, so the legend still tells them apart.
    """
    leading, is_ceiling = leads(methods, merit), roles().is_ceiling
    found = looks([method for method in methods if method in leading or is_ceiling(method)])
    others = [method for method in methods if method not in leading and not is_ceiling(method)]
    for i, method in enumerate(others):
        marker = _GREY_MARKERS[i % len(_GREY_MARKERS)]
        dashes = _GREY_DASHES[i // len(_GREY_MARKERS) % len(_GREY_DASHES)]
        grey = Look(GREY, dashes, marker, width=0.8, order=1, small=True)
        found[method] = grey
    return {method: found[method] for method in methods}


def leads(methods: Sequence[str], merit: Mapping[str, float] | pd.Series) -> list[str]:
    """The methods in colour: ``always``, and the others of highest merit up to ``IN_COLOUR``.

    The line of pooled training is a yardstick and takes nobody's place.
    """
    running = [method for method in methods if not roles().is_ceiling(method)]
    fixed = [method for method in always() if method in running]
    rest = [method for method in running if method not in fixed]
    rest.sort(key=lambda method: (-float(merit.get(method, -np.inf)), method_order(method)))
    return sorted([*fixed, *rest[: IN_COLOUR - len(fixed)]], key=method_order)


def merit_of(summary: Summary, key: str) -> dict[str, float]:
    """Method → mean over cells of its mean over seeds of the reported metric."""
    means: dict[str, list[float]] = {}
    for cell in summary.cells():
        for method, values in summary.reported_values(cell, key).items():
            means.setdefault(method, []).append(float(np.mean(list(values.values()))))
    return {method: float(np.mean(listed)) for method, listed in means.items()}
