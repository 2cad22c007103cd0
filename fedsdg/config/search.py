"""The section ``search``: the values that a search tries of every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from fedsdg.config import plugins
from fedsdg.config.entries import Entry, settings_of
from fedsdg.config.values import Seeds, Texts, distinct
from fedsdg.errors import ConfigError, hint, require_one_of, shortened
from fedsdg.parts import Count, Part

BOUND = "bound"
"""May stand for the low end of a range of eta_m: the least rate with which gates can move."""


@dataclass(frozen=True)
class Interval:
    """The values from low to high, evenly spread over their logarithm or as they are."""

    low: float | None
    "None: the least rate with which gates can move"
    high: float
    log: bool
    whole: bool = False
    "whether the parameter is a whole number"


Axis = Interval | tuple[Any, ...]


class Search(Part):
    """Hyper-parameters that `fedsdg search` tries, on seeds that the grid does not use."""

    seeds: Seeds = (100,)
    """seeds outside the grid; trials run on the first, at half of the rounds, and the best three
    again at full length on the others"""
    trials: Count | None = None
    "points of every row's space, alike for all; null: every combination of choices"
    skews: Texts = ()
    "skews or settings to search on; none: all"
    space: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """label of a method → parameter → `[low, high, log]`, `[low, high, linear]` or a list of
    values; with --set, null takes an axis away"""


def read_space(space: Mapping[str, Any], entries: tuple[Entry, ...]) -> dict[str, dict[str, Axis]]:
    """Return the axes of each method's space.

    A label may also be the type of a method that no entry has: a config that is laid over another
    may replace its methods.

    Args:
        space: Label → parameter → axis, as a config has it.
        entries: The methods of the config.

    Raises:
        ConfigError: It names no method or parameter, or values that a parameter does not allow.
    """
    types = {entry.label: entry.type for entry in entries}
    result: dict[str, dict[str, Axis]] = {}
    for label, axes in space.items():
        if label not in plugins.METHODS:
            require_one_of(types, label, "names no method of the config:", "search.space")
        kind = types.get(label, label)
        given = {key: axis for key, axis in axes.items() if axis is not None}
        if not given:
            text = "names no parameter; name one or remove it"
            raise ConfigError(text, f"search.space.{label}")
        result[label] = {}
        for key, axis in given.items():
            try:
                result[label][key] = _read_axis(axis, kind, key)
            except ConfigError as error:
                raise ConfigError(error.text, f"search.space.{label}.{key}") from None
    return result


def _read_axis(value: Any, kind: str, key: str) -> Axis:
    """Return the axis of one parameter of a method."""
    known = settings_of(kind).model_fields
    if key not in known:
        raise ConfigError(f"is no parameter{hint(key, known)}")
    if not isinstance(value, list) or not value:
        form = "a range such as [0.001, 0.1, log] or a list of values"
        raise ConfigError(f"is {shortened(value)}, but must be {form}")
    if value[-1] not in ("log", "linear"):
        return tuple(_checked(one, kind, key) for one in distinct(tuple(value)))
    if len(value) != 3:
        raise ConfigError(f"is {value}, but a range is [low, high, {value[-1]}]")
    high = _checked(value[1], kind, key)
    is_log = value[2] == "log"
    if value[0] == BOUND:
        if key != "eta_m" or not is_log or not high:
            raise ConfigError(
                f"is {value}, but a range from the least rate with which gates can move is "
                "[bound, high, log] with high above 0, and eta_m alone has one"
            )
        return Interval(None, high, True)
    low = _checked(value[0], kind, key)
    if not {type(low), type(high)} <= {int, float} or not low < high:
        raise ConfigError(f"goes from {value[0]!r} to {value[1]!r}, but a numeric range must rise")
    if is_log and low <= 0:
        need = "a logarithmic range must begin above 0; raise it or write linear"
        raise ConfigError(f"begins at {low}, but {need}")
    return Interval(low, high, is_log, isinstance(low, int))


def _checked(value: Any, kind: str, key: str) -> Any:
    """Return a value as the parameter has it."""
    return getattr(settings_of(kind).read({key: value}), key)
