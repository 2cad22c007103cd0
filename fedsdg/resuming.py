"""Running a federation so that it survives: from its checkpoint on, and keeping new ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fedsdg.federation.checkpoints import Checkpoints, InUse
from fedsdg.federation.rounds import Federation
from fedsdg.interruption import Stopped, stopped_by_signals


class Effort:
    """What a run has cost so far, over all processes that worked on it.

    ``resumed_after`` lists the rounds after which it was taken up again.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        self._clock, self._busy = time.perf_counter(), time.process_time()
        self._before = before or {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_seconds": 0.0,
            "cpu_seconds": 0.0,
            "resumed_after": [],
        }

    def facts(self) -> dict[str, Any]:
        """Start, seconds and resumptions until now, as plain JSON."""
        return {
            **self._before,
            "wall_seconds": self._before["wall_seconds"] + time.perf_counter() - self._clock,
            "cpu_seconds": self._before["cpu_seconds"] + time.process_time() - self._busy,
        }


def run_to_the_end(
    federation: Federation,
    checkpoints: Checkpoints,
    *,
    seconds: float,
    progress: Callable[[int, Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Run the rounds that are left and return what the run has cost in all (see ``Effort``).

    The state is saved after the first round that ends ``seconds`` or more after it was last saved,
    and at SIGINT and SIGTERM, which break off the round they meet and raise ``Stopped``. When
    it is saved changes no result. A run that fails by itself (``ValueError``, a loss that is not
    finite) loses its checkpoints and starts anew next time; one that the machine
    failed (memory, disk, device) keeps them. A checkpoint that cannot be written stops nothing.
    """
    effort = Effort()
    said: set[str] = set()

    def say(sentence: str) -> None:
        if sentence not in said:  # a full disk would say so after every round
            print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)
        said.add(sentence)

    try:
        found = checkpoints.restore(federation, say)
    except InUse as error:
        found = None
        say(f"{error}; this one starts from the beginning")
    last = federation.rounds_done
    if found is not None:
        found["resumed_after"] = [*found["resumed_after"], last]
        effort = Effort(found)
        say(f"going on after round {last} from the checkpoint in {checkpoints.folder}")
    saved_at = time.perf_counter()

    def keep() -> None:
        nonlocal last, saved_at
        if federation.rounds_done > last:
            try:
                checkpoints.save(federation, effort.facts())
                last = federation.rounds_done
            except OSError as error:
                say(
                    f"no checkpoint could be saved in {checkpoints.folder} ({error}); the run goes "
                    "on, and would be taken up from an earlier one"
                )
        saved_at = time.perf_counter()

    def after_round(round_: int, record: Mapping[str, Any]) -> None:
        progress(round_, record)
        check()
        if round_ < federation.schedule.rounds and time.perf_counter() - saved_at >= seconds:
            keep()

    with stopped_by_signals() as check:
        try:
            federation.run(after_round)
        except Stopped as stop:
            keep()
            sentence = "stopped before the first round was over; the same command starts anew"
            if last:
                sentence = f"stopped; the same command goes on after round {last}"
            raise Stopped(stop.args[0], sentence) from None
        except (ValueError, FloatingPointError):
            checkpoints.remove()
            raise
    return effort.facts()
