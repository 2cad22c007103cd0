"""A round of several federations whose clients train in common, such as the seeds of a method."""

from __future__ import annotations

import signal
import sysconfig
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.environment.circumstances import Attendance

if TYPE_CHECKING:
    from fedsdg.federation.local_work import Samples
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
        with no_exit(f"round {round_}"):
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


@contextmanager
def no_exit(when: str) -> Iterator[None]:
    """Turn an attempt of a part to end the program into an error that names the part.

    A process that a signal ends exits by itself, which stays as it is.

    Args:
        when: The place in the run, such as "round 3", that begins the sentence.

    Raises:
        ValueError: ``SystemExit`` was raised within the block.
    """
    try:
        yield
    except SystemExit as error:
        if error.code == 128 + signal.SIGTERM:
            raise
        library = Path(sysconfig.get_path("stdlib"))
        frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        others = [one for one in frames if not Path(one[0].co_filename).is_relative_to(library)]
        code, line = others[-1]
        raise ValueError(
            f"{when}: {code.co_qualname} ({Path(code.co_filename).name}, line {line}) tried to end "
            f"the program with exit code {error.code or 0}; raise an error instead"
        ) from error


def require_alike(federations: Sequence[Federation]) -> None:
    """Raise ``ValueError`` unless the federations can train in common.

    They must have equal samples, layout, work, schedule and own model; seeds and shards are their
    own.
    """
    first = federations[0]
    for other in federations[1:]:
        for what in ("samples", "layout", "work", "schedule", "own"):
            mine, its = getattr(first, what), getattr(other, what)
            if its is not mine and not (_same(its, mine) if what == "samples" else its == mine):
                raise ValueError(
                    f"seeds {first.seed} and {other.seed} cannot train together: they differ in "
                    f"their {what}; run them one by one"
                )


def _same(one: Samples, other: Samples) -> bool:
    """Whether two sets of samples, each made for its federation, hold the same numbers."""
    if one.images.dtype != other.images.dtype or one.images.device != other.images.device:
        return False
    pairs = [(one.images, other.images), (one.labels, other.labels)]
    if one.for_gates is not None and other.for_gates is not None:
        pairs.append((one.for_gates, other.for_gates))
    elif one.for_gates is not other.for_gates:
        return False
    return all(torch.equal(mine, its) for mine, its in pairs)
