"""Running federations so that they survive: from their checkpoints on, and keeping new ones.

Federations that train together (the seeds of a cell) are at the same round at any time: taken up
again at different rounds, their rows would meet others in a pass, and differ in rounding.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.federation.checkpoints import Checkpoints, InUse
from fedsdg.federation.rounds import Federation
from fedsdg.federation.together import require_alike, step_together


class Effort:
    """What a run has cost so far, over all processes that worked on it.

    Of the seconds that ``runs`` runs spend together, each is given its share. ``resumed_after``
    lists the rounds after which it was taken up again.
    """

    def __init__(self, before: Mapping[str, Any] | None = None, runs: int = 1) -> None:
        self._clock, self._busy, self._runs = time.perf_counter(), time.process_time(), runs
        self._before = before or {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_seconds": 0.0,
            "cpu_seconds": 0.0,
            "resumed_after": [],
        }

    def facts(self) -> dict[str, Any]:
        """Start, seconds and resumptions until now, as plain JSON."""
        wall = (time.perf_counter() - self._clock) / self._runs
        busy = (time.process_time() - self._busy) / self._runs
        return {
            **self._before,
            "wall_seconds": self._before["wall_seconds"] + wall,
            "cpu_seconds": self._before["cpu_seconds"] + busy,
        }


class Journey:
    """One or several alike federations on their way to the last round, all at the same round.

    ``make()`` builds them before their first round; ``checkpoints`` are theirs, in order.
    ``federations`` are there from ``start`` on.
    """

    def __init__(
        self, make: Callable[[], Sequence[Federation]], checkpoints: Sequence[Checkpoints]
    ) -> None:
        self._make = make
        self._checkpoints = list(checkpoints)
        self._efforts: list[Effort] = []
        self._said: set[str] = set()
        self._last = 0
        self.federations: list[Federation] = []

    def run(
        self, *, seconds: float, progress: Callable[[int, int, Mapping[str, Any]], None]
    ) -> list[dict[str, Any]]:
        """Run the rounds that are left and return what each run has cost in all (see ``Effort``).

        ``progress(number of the federation, round, record)`` is called after each round.

        The state is saved after the first round that ends ``seconds`` or more after it was last
        saved, and at SIGINT and SIGTERM, which break off the round they meet and raise ``Stopped``.
        When it is saved changes no result. A run that fails by itself (``ValueError``, a loss that
        is not finite) loses its checkpoints and starts anew next time; one that the machine
        failed (memory, disk, device) keeps them. A checkpoint that cannot be written stops nothing.
        """
        self._start()
        saved_at = time.perf_counter()
        schedule = self.federations[0].schedule
        with stopped_by_signals() as check:
            try:
                for round_ in range(self._last + 1, schedule.rounds + 1):
                    records = step_together(self.federations, round_)
                    for number, record in enumerate(records):
                        progress(number, round_, record)
                    check()
                    if round_ < schedule.rounds and time.perf_counter() - saved_at >= seconds:
                        self._save()
                        saved_at = time.perf_counter()
            except Stopped as stop:
                self._save()
                sentence = "stopped before the first round was over; the same command starts anew"
                if self._last:
                    sentence = f"stopped; the same command goes on after round {self._last}"
                raise Stopped(stop.args[0], sentence) from None
            except (ValueError, FloatingPointError):
                for checkpoints in self._checkpoints:
                    checkpoints.remove()
                raise
        return self._facts()

    def _start(self) -> None:
        """Build the federations and bring all of them to the newest round that all have kept."""
        at_most: int | None = None
        while True:
            self.federations = list(self._make())
            require_alike(self.federations)
            found = [self._restore(number, at_most) for number in range(len(self._checkpoints))]
            rounds = {one.rounds_done for one in self.federations}
            if len(rounds) == 1:
                break
            at_most = min(rounds)
        self._last = min(rounds)
        if self._last:
            folders = ", ".join(str(checkpoints.folder) for checkpoints in self._checkpoints)
            self._say(f"going on after round {self._last} from the checkpoint in {folders}")
        # One pass serves all of them, and one memory holds it.
        for one in self.federations:
            one.passes = self.federations[0].passes
        for facts in found:
            if facts is not None:
                facts["resumed_after"] = [*facts["resumed_after"], self._last]
                self.federations[0].passes.restore(facts)
        self._efforts = [Effort(facts, len(found)) for facts in found]

    def _restore(self, number: int, at_most: int | None) -> dict[str, Any] | None:
        if at_most == 0:
            return None
        checkpoints = self._checkpoints[number]
        try:
            return checkpoints.restore(self.federations[number], self._say, at_most=at_most)
        except InUse as error:
            self._say(f"{error}; this one starts from the beginning")
            return None

    def _facts(self) -> list[dict[str, Any]]:
        return [
            {**effort.facts(), **one.passes.facts()}
            for effort, one in zip(self._efforts, self.federations, strict=True)
        ]

    def _save(self) -> None:
        done = self.federations[0].rounds_done
        if done == self._last:
            return
        for one, checkpoints, facts in zip(
            self.federations, self._checkpoints, self._facts(), strict=True
        ):
            try:
                checkpoints.save(one, facts)
            except OSError as error:
                self._say(
                    f"no checkpoint could be saved in {checkpoints.folder} ({error}); the run goes "
                    "on, and would be taken up from an earlier one",
                    about=str(checkpoints.folder),
                )
                return
        self._last = done

    def _say(self, sentence: str, about: str = "") -> None:
        """Say a sentence, or one of several about the same thing, once."""
        if (about or sentence) not in self._said:  # a full disk would say so after every round
            print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)
        self._said.add(about or sentence)
