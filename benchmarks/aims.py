"""What the engine set out to reach, and how far it came: reported, not enforced (see gate.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class Aim(NamedTuple):
    """A number of one rule at one size: a share of the memory's speed, a ratio, or milliseconds."""

    rule: str
    clients: int
    parameters: int
    against: str
    """"floor", "milliseconds", or the code that is compared with."""
    bound: float

    @property
    def at_most(self) -> bool:
        return self.against == "milliseconds"


LARGE = ((10, 10_000_000), (100, 2_000_000))
SMALL = (10, 130_000)

AIMS = (
    *(Aim(rule, *size, "floor", 0.85) for rule in ("fedsdg", "fedavg") for size in LARGE),
    Aim("fedsdg", 10, 1_000_000, "plain", 5),
    *(
        Aim(rule, *size, "byzfl", ratio)
        for rule in ("geometric-median", "krum")
        for size, ratio in zip(LARGE, (10, 5), strict=True)
    ),
    *(
        Aim("coordinate-median", *size, code, ratio)
        for size in LARGE
        for code, ratio in (("numpy", 20), ("torch", 5))
    ),
)


def reached(timings: Sequence[Row]) -> list[dict[str, Any]]:
    """Every aim that was measured, with the value; `met` is None where nothing is judged."""
    small = (
        Aim(row["rule"], *SMALL, "milliseconds", 1.0)
        for row in timings
        if (row["suite"], row["code"]) == ("sizes", "ours")
        and (row["clients"], row["parameters"]) == SMALL
    )
    return [found for aim in (*AIMS, *small) if (found := _look_up(aim, timings)) is not None]


def _look_up(aim: Aim, timings: Sequence[Row]) -> dict[str, Any] | None:
    place = ("sizes", aim.rule, aim.clients, aim.parameters)
    ours = ("floor", "milliseconds")
    code = "ours" if aim.against in ours else aim.against
    for row in timings:
        at = tuple(row[key] for key in ("suite", "rule", "clients", "parameters"))
        if at != place or row["code"] != code:
            continue
        key = {"floor": "floor", "milliseconds": "seconds"}.get(aim.against, "ratio")
        value = row.get(key)
        if value is None:
            return None
        value *= 1e3 if aim.at_most else 1
        met = value <= aim.bound if aim.at_most else value >= aim.bound
        refused = row["refused"] or (aim.against == "floor" and row["in_cache"])
        return {
            **aim._asdict(),
            "at_most": aim.at_most,
            "value": value,
            "met": None if refused else met,
        }
    return None
