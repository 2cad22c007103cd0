"""How many times as fast as others' a round was to be: reported, not enforced (see gate.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class RoundAim(NamedTuple):
    """The least ratio of seconds: a code in its precision over ours in ours."""

    device: str
    model: str
    code: str
    precision: str
    ours: str
    bound: float


def amx() -> bool:
    """Whether the processor multiplies matrices in bfloat16 by tiles; False where unknown."""
    facts = Path("/proc/cpuinfo")
    return facts.is_file() and " amx_bf16" in facts.read_text()


def round_aims() -> tuple[RoundAim, ...]:
    """The aims on this machine."""
    return (
        RoundAim("cpu", "digits", "plain", "float32", "float32", 3),
        RoundAim("cpu", "digits", "flower", "float32", "float32", 10),
        RoundAim("cpu", "digits", "flower-fresh", "float32", "float32", 10),
        RoundAim("cpu", "vit-tiny", "plain", "float32", "bfloat16", 3 if amx() else 2.5),
        RoundAim("cuda", "vit-tiny", "plain", "float32", "float32", 20),
    )


def rounds_reached(rounds: Sequence[Row]) -> list[dict[str, Any]]:
    """Every aim that was measured, for every method; `met` is None on busy cores."""
    at = {(r["device"], r["model"], r["method"], r["code"], r["precision"]): r for r in rounds}
    found = []
    for aim in round_aims():
        for method in dict.fromkeys(row["method"] for row in rounds):
            place = (aim.device, aim.model, method)
            theirs = at.get((*place, aim.code, aim.precision))
            own = at.get((*place, "ours", aim.ours))
            if theirs is None or own is None:
                continue
            value = theirs["seconds"] / own["seconds"]
            met = None if theirs["refused"] or own["refused"] else value >= aim.bound
            found.append({**aim._asdict(), "method": method, "value": value, "met": met})
    return found
