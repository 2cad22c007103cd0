"""The section ``search``: what a search tries of every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from fedsdg.config import plugins
from fedsdg.config.entries import Entry, settings_of
from fedsdg.config.values import Seeds, Texts
from fedsdg.errors import ConfigError, hint, shortened
from fedsdg.parts import Count, Part

SCALES = ("log", "linear")
BOUND = "bound"
"""What a range of eta_m may begin with: the least rate with which gates can move."""
_FORM = "a range such as [0.001, 0.1, log] or a list of values"


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


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"is {shortened(value)}, but must be a mapping of keys to values")
    return value


class Search(Part):
    """What `fedsdg search` tries; its seeds are none of the grid's."""

    seeds: Seeds = (100,)
    "seeds outside the grid; in two stages the first is searched and the others confirm"
    trials: Count | Literal["two-stage"] | None = None
    "points of every method's space; null: every combination of choices"
    skews: Texts = ()
    "skews or settings to search on; none: all"
    space: Annotated[Mapping[str, Any], PlainValidator(_mapping)] = {}
    """label of a method → parameter → `[low, high, log]`, `[low, high, linear]` or a list of
    values; null takes an axis of a file below away"""

    def check_fields(self) -> None:
        """Check that two stages have seeds for both."""
        if self.trials == "two-stage" and len(self.seeds) < 2:
            raise ValueError(
                f"seeds is {list(self.seeds)}, but with trials: two-stage the best points of the "
                "first seed are tried again on the others; name further seeds"
            )


def read_space(space: Mapping[str, Any], entries: tuple[Entry, ...]) -> dict[str, dict[str, Axis]]:
    """Return the axes of each method's space.

    A label may also be the type of a method that no entry has: a config that is laid over another
    may replace its methods.

    Raises:
        ConfigError: It names no method or parameter, or values that a parameter does not allow.
    """
    types = {entry.label: entry.type for entry in entries}
    found: dict[str, dict[str, Axis]] = {}
    for label, axes in space.items():
        if label not in types and label not in plugins.METHODS:
            raise ConfigError(f"names no method of the config: {label!r}{hint(label, types)}")
        kind = types.get(label, label)
        known = [key for key in settings_of(kind).model_fields if key not in ("type", "name")]
        found[label] = {}
        for key, axis in _mapping(axes).items():
            if key not in known:
                raise ConfigError(f"has no parameter {key!r}{hint(key, known)}", label)
            if axis is not None:
                found[label][key] = _read_axis(axis, kind, key, f"{label}.{key}")
        if not found[label]:
            raise ConfigError("names no parameter; name one or remove it", label)
    return found


def _read_axis(value: Any, kind: str, key: str, place: str) -> Axis:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"is {shortened(value)}, but must be {_FORM}", place)
    if value[0] == BOUND:
        return _from_bound(value, kind, key, place)
    if value[-1] not in SCALES:
        if any(one in value[:position] for position, one in enumerate(value)):
            raise ConfigError(f"names a value twice: {value}", place)
        return tuple(_checked(one, kind, key, place) for one in value)
    if len(value) != 3:
        raise ConfigError(f"is {value}, but a range is [low, high, {value[-1]}]", place)
    low, high = (_checked(end, kind, key, place) for end in value[:2])
    if low is None or high is None or not low < high:
        raise ConfigError(f"goes from {low} to {high}, but a range must rise", place)
    if value[2] == "log" and low <= 0:
        raise ConfigError(
            f"begins at {low}, but a logarithmic range must begin above 0; raise it or write "
            "linear",
            place,
        )
    return Interval(low, high, value[2] == "log", isinstance(low, int))


def _from_bound(value: list[Any], kind: str, key: str, place: str) -> Interval:
    """Return a range of eta_m whose low end follows from rounds, cohorts and batches."""
    if key != "eta_m":
        raise ConfigError(
            f"begins at '{BOUND}', the least rate with which gates can move, but eta_m alone has "
            "one; write a number",
            place,
        )
    if len(value) != 3 or value[2] != "log":
        raise ConfigError(f"is {value}, but from the bound a range is [{BOUND}, high, log]", place)
    high = _checked(value[1], kind, key, place)
    if not high:
        raise ConfigError(f"ends at {high}, but must end above the bound; raise its end", place)
    return Interval(None, high, True)


def _checked(value: Any, kind: str, key: str, place: str) -> Any:
    """Return a value as the parameter has it."""
    try:
        return getattr(settings_of(kind).read({"type": kind, key: value}), key)
    except ConfigError as error:
        raise ConfigError(error.text, place) from None
