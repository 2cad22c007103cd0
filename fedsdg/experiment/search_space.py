"""What a hyper-parameter search tries: an axis for every parameter, equally many points of each.

Equal tuning: every method gets the same number of points of its own space. They are a scrambled
Sobol sequence (Sobol 1967; scrambled as in Owen 1998, by SciPy), which fills a few dimensions more
evenly than independent draws do. Never imports torch.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsdg.parts import Declared, Range
from fedsdg.rng import stream

#: What ends a range, ``[low, high, log]``; a list without it is a list of choices.
SCALES = ("log", "linear")

#: An optimum nearer than this share of a range to one of its ends lies at an edge.
EDGE = 0.05

#: What ``trials`` says for a search in two stages: points by dimensions, the best of them again.
TWO_STAGE = "two-stage"
#: Points of the first stage: so many, or more for a space of many dimensions.
LEAST_TRIALS, TRIALS_PER_DIMENSION = 12, 6
#: Points beyond the edge at which the best point of the first stage lies.
TRIALS_BEYOND = 6
#: Points of the first stage that the second stage tries on the other seeds.
FINALISTS = 3

#: What a range of η_m may begin with: the least rate with which gates can move.
BOUND = "bound"

#: Significant digits of a value that is tried: enough to tell points apart, few enough to copy.
DIGITS = 4


@dataclass(frozen=True)
class Interval:
    """The values from ``low`` to ``high``, evenly spread over their logarithm or as they are.

    ``bound``: ``low`` is the least rate of gates, which ``resolved`` puts in place of 0.
    """

    low: float
    high: float
    scale: str
    integer: bool = False
    bound: bool = False

    def at(self, share: float) -> Any:
        """The value at a share in [0, 1) of the range; every whole number gets an equal part."""
        if self.integer and self.scale == "linear":
            return int(self.low + math.floor(share * (self.high - self.low + 1)))
        low, high = self._place(self.low), self._place(self.high)
        value = low + share * (high - low)
        value = math.exp(value) if self.scale == "log" else value
        if self.integer:
            return round(value)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def edge(self, value: Any) -> str | None:
        """``low`` or ``high`` where the value lies within ``EDGE`` of an end of the range."""
        low, high = self._place(self.low), self._place(self.high)
        share = (self._place(value) - low) / (high - low)
        return "low" if share <= EDGE else "high" if share >= 1 - EDGE else None

    def widened(self, side: str, allowed: Range) -> Interval:
        """Return the range, longer by a third of its (logarithmic) width on one side.

        Args:
            side: ``low`` or ``high``.
            allowed: The parameter's own range, beyond which nothing goes; nor does the low end of
                a range that begins at the bound of the gates' rate.

        Returns:
            The wider range; the same one where there is no room.
        """
        if side == "low" and self.bound:
            return self
        low, high = self._place(self.low), self._place(self.high)
        third = (high - low) / 3
        end = low - third if side == "low" else high + third
        end = math.exp(end) if self.scale == "log" else end
        end = round(end) if self.integer else float(f"{end:.{DIGITS}g}")
        if side == "low":
            least = -math.inf if allowed.least is None else allowed.least
            if self.scale == "log" and self.integer:
                least = max(least, 1)  # 0 has no logarithm.
            return replace(self, low=min(max(end, least), self.low))
        most = math.inf if allowed.most is None else allowed.most
        return replace(self, high=max(min(end, most), self.high))

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def to_dict(self) -> dict[str, Any]:
        found = {"low": self.low, "high": self.high, "scale": self.scale}
        return {**found, "bound": True} if self.bound else found

    def _place(self, value: float) -> float:
        return math.log(value) if self.scale == "log" else value


@dataclass(frozen=True)
class Choices:
    """A few values, each as likely as the others."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """The value in whose part of [0, 1) the share lies."""
        return self.values[math.floor(share * len(self.values))]

    def edge(self, value: Any) -> str | None:
        """``low`` or ``high`` where the value is the least or the greatest of at least three."""
        numbers = all(
            isinstance(one, int | float) and not isinstance(one, bool) for one in self.values
        )
        if not numbers or len(self.values) < 3:
            return None
        return {min(self.values): "low", max(self.values): "high"}.get(value)

    def to_dict(self) -> dict[str, Any]:
        return {"choices": list(self.values)}


Axis = Interval | Choices


@dataclass(frozen=True)
class SearchConfig:
    """Hyper-parameter search: seeds outside the grid, and what is tried of every method.

    ``trials``: points of every method's space; None tries every combination of choices, and
    ``TWO_STAGE`` as many points as ``trial_count`` says, on the first seed, and the best of them on
    the other seeds.
    ``skews``: those of the experiment's settings that count; none are all of them.
    ``space``: label of a method → parameter → axis.
    """

    seeds: tuple[int, ...] = (100,)
    trials: int | str | None = None
    skews: tuple[str, ...] = ()
    space: Mapping[str, Mapping[str, Axis]] = field(default_factory=dict)


def parse_axis(value: Any, parameter: Declared, where: str) -> Axis:
    """An axis as in a config: ``[low, high, log]``, ``[low, high, linear]`` or a list of values.

    Raises ``ValueError`` for values that the parameter does not allow, and for an empty range.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"{where} is {value!r}, but must be a range such as [0.001, 0.1, log] or a list of "
            "values"
        )
    if value[0] == BOUND:
        return _from_bound(value, parameter, where)
    if value[-1] not in SCALES:
        if any(one in value[:position] for position, one in enumerate(value)):
            raise ValueError(f"{where} names a value twice: {value}")
        return Choices(tuple(parameter.check(one, where) for one in value))
    if len(value) != 3:
        raise ValueError(f"{where} is {value!r}, but a range is [low, high, {value[-1]}]")
    low, high = (parameter.check(end, where) for end in value[:2])
    if low is None or high is None or not low < high:
        raise ValueError(f"{where} goes from {low} to {high}, but a range must begin below its end")
    if value[2] == "log" and low <= 0:
        raise ValueError(
            f"{where} begins at {low}, but a logarithmic range must begin above 0; raise it or "
            "write linear"
        )
    return Interval(low, high, value[2], parameter.kind is int)


def _from_bound(value: list[Any], parameter: Declared, where: str) -> Interval:
    """A range of η_m whose low end is computed from rounds, cohorts and batches."""
    if parameter.name != "eta_m":
        raise ValueError(
            f"{where} begins at '{BOUND}', the least rate with which gates can move, but eta_m "
            "alone has one; write a number"
        )
    if len(value) != 3 or value[2] != "log":
        raise ValueError(
            f"{where} is {value!r}, but from the bound a range is [{BOUND}, high, log]"
        )
    high = parameter.check(value[1], where)
    if not high:
        raise ValueError(f"{where} ends at {high}, but must end above the bound; raise its end")
    return Interval(0.0, high, "log", bound=True)


def trial_count(trials: int | str | None, space: Mapping[str, Axis]) -> int | None:
    """Points that are drawn of a space; in two stages max(12, 6 · dimensions), on one seed."""
    if isinstance(trials, str):
        return max(LEAST_TRIALS, TRIALS_PER_DIMENSION * len(space))
    return trials


def widened(
    space: Mapping[str, Axis], best: Mapping[str, Any], parameters: Mapping[str, Declared]
) -> dict[str, Axis]:
    """Return the space, each range longer on the side at whose end the best point lies."""
    wider = dict(space)
    for name, axis in space.items():
        side = axis.edge(best[name])
        if isinstance(axis, Interval) and side is not None:
            wider[name] = axis.widened(side, parameters[name].range)
    return wider


def points_beyond(
    space: Mapping[str, Axis], wider: Mapping[str, Axis], seed: int, label: str
) -> list[dict[str, Any]]:
    """Return the first ``TRIALS_BEYOND`` points of the wider space that the space does not hold.

    They are the beginning of a Sobol sequence over the wider space without the points inside the
    narrower one, so they are spread evenly over the part that was added, corners included.
    """
    grown = [name for name in space if wider[name] != space[name]]
    found: list[dict[str, Any]] = []
    # At least an eighth of the points lies beyond where a range grew by a third; a range that its
    # parameter's own one cuts short may have room for fewer values than points.
    for power in range(4, 13):
        drawn = points(wider, 2**power, seed, f"{label} beyond")
        found = [p for p in drawn if any(p[n] not in space[n] for n in grown)]  # type: ignore[operator]
        if len(found) >= TRIALS_BEYOND:
            break
    return found[:TRIALS_BEYOND]


def points(
    space: Mapping[str, Axis], trials: int | None, seed: int, label: str
) -> list[dict[str, Any]]:
    """What is tried of one method: parameter → value, ``trials`` times.

    A Sobol sequence is balanced after a power of two, so the next one is drawn (SciPy warns
    otherwise) and its beginning taken. More trials therefore begin with the same ones. Draws from
    the stream ``search`` of ``seed`` at an address made of the label: adding a method moves no
    other's points. Without ``trials`` every combination; ``ValueError`` if there is a range.
    """
    if trials is None:
        for name, axis in space.items():
            if isinstance(axis, Interval):
                raise ValueError(
                    f"search.space.{label}.{name} is a range: say in search.trials how many points "
                    "of it are tried"
                )
        lists = [axis.values for axis in space.values() if isinstance(axis, Choices)]
        return [dict(zip(space, values, strict=True)) for values in itertools.product(*lists)]
    from scipy.stats import qmc

    key = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")
    sequence = qmc.Sobol(len(space), scramble=True, rng=stream("search", seed, key))
    shares: np.ndarray = sequence.random_base2(math.ceil(math.log2(trials)))[:trials]
    return [
        {name: axis.at(share) for (name, axis), share in zip(space.items(), row, strict=True)}
        for row in shares.tolist()
    ]


def expected_best(scores: list[float]) -> list[float]:
    """For k = 1 … n the mean, over all choices of k of the n scores, of the best of them.

    With the scores in ascending order the i-th is the best of C(i − 1, k − 1) of the C(n, k)
    choices: the expected best of k trials drawn without replacement.
    """
    ascending, n = sorted(scores), len(scores)
    return [
        sum(math.comb(i, k - 1) * score for i, score in enumerate(ascending)) / math.comb(n, k)
        for k in range(1, n + 1)
    ]
