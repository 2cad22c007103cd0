"""How runs show that they move: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def _scores(record: Mapping[str, Any]) -> dict[str, str]:
    shown = (
        ("loss", "train_loss"),
        ("personal", "personal_accuracy"),
        ("global", "global_accuracy"),
    )
    return {name: f"{record[key]:.3f}" for name, key in shown if record.get(key) is not None}


def _line(title: str, counted: str, record: Mapping[str, Any], left: str = "") -> None:
    scores = " ".join(f"{name}={score}" for name, score in _scores(record).items())
    print(f"{title}: round {counted} {scores}{left}", file=sys.stderr, flush=True)


class TimeLeft:
    """How long what is left will take, if it takes as long as what was done since now."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, done: int, total: int) -> str:
        """ ", about 12 min left"; nothing where nothing is done, or left."""
        if not 0 < done < total:
            return ""
        seconds = (time.monotonic() - self._begun) * (total - done) / done
        for unit, length in (("h", 3600), ("min", 60)):
            if seconds >= 1.5 * length:
                return f", about {seconds / length:.0f} {unit} left"
        return f", about {math.ceil(seconds)} s left"


@contextlib.contextmanager
def round_progress(title: str, rounds: int) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """One run: a bar on a terminal; elsewhere a plain line per evaluated round."""
    from tqdm import tqdm

    on_terminal = sys.stderr.isatty()
    begin, left = 0, TimeLeft()
    with tqdm(total=rounds, desc=title, unit="round", disable=not on_terminal) as bar:

        def report(round_: int, record: Mapping[str, Any]) -> None:
            nonlocal begin
            begin = begin or round_
            bar.update(round_ - bar.n)  # a resumed run does not begin with round 1
            if not record["evaluated"]:
                return
            bar.set_postfix(_scores(record), refresh=False)
            if not on_terminal:
                said = left(round_ - begin + 1, rounds - begin + 1)
                _line(title, f"{round_}/{rounds}", record, said)

        yield report


#: Seconds between two lines of a log.
PAUSE = 10.0


@contextlib.contextmanager
def byte_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal; elsewhere a plain line at the end of every pass, and now and then."""
    from tqdm import tqdm

    on_terminal = sys.stderr.isatty()
    said = time.monotonic()
    with tqdm(unit="B", unit_scale=True, unit_divisor=1024, disable=not on_terminal) as bar:

        def report(title: str, done: int, total: int) -> None:
            nonlocal said
            if on_terminal:
                if done == 0:
                    bar.set_description(title, refresh=False)
                    bar.reset(total)
                bar.update(done - bar.n)
            elif (done and done == total) or time.monotonic() - said > PAUSE:
                said = time.monotonic()
                sizes = [tqdm.format_sizeof(size, "B", 1024) for size in (done, total)]
                print(f"{title}: {sizes[0]} of {sizes[1]}", file=sys.stderr, flush=True)

        yield report


class GridProgress:
    """Many runs: one bar over all their rounds on a terminal; elsewhere plain lines.

    ``repeated``: where standard error is no terminal, print finished runs on standard output too.
    """

    def __init__(self, experiment: str, rounds: int, *, repeated: bool = False) -> None:
        self._experiment = experiment
        self._rounds = rounds
        self._repeated = repeated
        self._runs = self._done = 0
        self._seen: dict[str, int] = {}
        self._bar: Any = None
        self._passed, self._left = 0, TimeLeft()

    def __enter__(self) -> GridProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def say(self, text: str) -> None:
        """One line, above the bar."""
        from tqdm import tqdm

        tqdm.write(f"{self._experiment}: {text}", file=sys.stderr)
        sys.stderr.flush()

    def start(self, runs: int, finished: int) -> None:
        """So many runs there are, so many of them were finished before."""
        from tqdm import tqdm

        self._runs, self._done = runs, finished
        self._left = TimeLeft()
        self.say(f"{runs} runs, {finished} of them finished before")
        self._bar = tqdm(
            desc=self._experiment,
            total=(runs - finished) * self._rounds,
            unit="round",
            disable=not sys.stderr.isatty(),
        )
        self._count()

    def _count(self) -> None:
        self._bar.set_description(f"{self._experiment} [{self._done}/{self._runs}]", refresh=False)

    @property
    def stopped(self) -> str:
        """What a person should know who has ended it before its time."""
        if not self._runs:
            return "stopped before the first run; the same command goes on"
        return (
            f"stopped: {self._done} of {self._runs} runs are finished, and the rounds that others "
            "had done are saved; the same command goes on from there"
        )

    def stop(self) -> None:
        """No run is left."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def round(self, title: str, record: Mapping[str, Any]) -> None:
        """A run has done a round."""
        # A resumed run does not begin with round 1.
        self._pass(record["round"] - self._seen.get(title, 0))
        self._seen[title] = record["round"]
        self._bar.set_postfix_str(title, refresh=False)
        if self._bar.disable and record["evaluated"]:
            _line(title, f"{record['round']}/{self._rounds}", record)

    def finished(self, title: str, failure: str | None) -> None:
        """A run is over."""
        self._done += 1
        # Rounds that a failed run lacks, and those of a run from the store, keep nobody waiting.
        self._pass(self._rounds - self._seen.pop(title, 0))
        self._count()
        left = self._left(self._passed, self._bar.total) if self._bar.disable else ""
        line = f"[{self._done}/{self._runs}] {title}: {failure or 'ok'}{left}"
        self.say(line)
        if self._repeated and self._bar.disable:
            print(f"{self._experiment}: {line}", flush=True)

    def _pass(self, rounds: int) -> None:
        self._passed += rounds
        self._bar.update(rounds)
