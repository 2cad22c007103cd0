"""A round of several federations whose clients train in common, such as the seeds of a method."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.environment.circumstances import Attendance

if TYPE_CHECKING:
    from fedsdg.federation.rounds import Federation


def step_together(federations: Sequence[Federation], round_: int) -> list[dict[str, Any]]:
    """One round of several federations whose clients train in common; returns their records.

    The federations are alike (see ``require_alike``), such as the seeds of one method: seeds are
    one more group on the client axis. A round happens to all of them or to none.
    """
    attendances = [one.attendance(round_) for one in federations]
    undos = [
        one.undo(attendance.present)
        for one, attendance in zip(federations, attendances, strict=True)
    ]
    try:
        return _step(federations, round_, attendances)
    except BaseException:
        for undo in undos:
            undo()
        raise


def _step(
    federations: Sequence[Federation], round_: int, attendances: Sequence[Attendance]
) -> list[dict[str, Any]]:
    begun = time.perf_counter()
    first = federations[0]
    asked = [
        one.clients(round_, attendance.present)
        for one, attendance in zip(federations, attendances, strict=True)
    ]
    everybody = Clients.joined(asked)
    if len(everybody):
        layout = first.layout.of_round(round_)
        local = first.passes.train(first.model, layout, first.samples, everybody, first.work)
    else:
        local = LocalResult.nobody(everybody)
    # A federation's share of the time that all have spent together.
    seconds = (time.perf_counter() - begun) / len(federations)
    records, end = [], 0
    for one, attendance, own in zip(federations, attendances, asked, strict=True):
        begin, end = end, end + len(own)
        mine = local[np.arange(begin, end)]
        records.append(one.take(round_, attendance, own, mine, seconds))
    return records


def require_alike(federations: Sequence[Federation]) -> None:
    """Raise ``ValueError`` unless the federations can train in common.

    They must share samples, backbone, layout, work, schedule and own model; seeds and shards are
    their own.
    """
    first = federations[0]
    for other in federations[1:]:
        for what in ("samples", "layout", "work", "schedule", "own"):
            mine, its = getattr(first, what), getattr(other, what)
            if its is not mine and (what == "samples" or its != mine):
                raise ValueError(
                    f"seeds {first.seed} and {other.seed} cannot train together: they differ in "
                    f"their {what}; run them one by one"
                )
