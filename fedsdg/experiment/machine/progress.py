"""How runs show that they move: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
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


def _line(title: str, round_: int, rounds: int, record: Mapping[str, Any]) -> None:
    scores = " ".join(f"{name}={score}" for name, score in _scores(record).items())
    print(f"{title}: round {round_}/{rounds} {scores}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def round_progress(title: str, rounds: int) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """One run: a bar on a terminal; elsewhere a plain line per evaluated round."""
    from tqdm import tqdm

    on_terminal = sys.stderr.isatty()
    with tqdm(total=rounds, desc=title, unit="round", disable=not on_terminal) as bar:

        def report(round_: int, record: Mapping[str, Any]) -> None:
            bar.update(round_ - bar.n)  # a resumed run does not begin with round 1
            if not record["evaluated"]:
                return
            bar.set_postfix(_scores(record), refresh=False)
            if not on_terminal:
                _line(title, round_, rounds, record)

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
    """Many runs: one bar over all their rounds on a terminal; elsewhere plain lines."""

    def __init__(self, experiment: str, rounds: int) -> None:
        self._experiment = experiment
        self._rounds = rounds
        self._runs = self._done = 0
        self._seen: dict[str, int] = {}
        self._bar: Any = None

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
        self.say(f"{runs} runs, {finished} of them finished before")
        self._bar = tqdm(
            desc=self._experiment,
            total=(runs - finished) * self._rounds,
            unit="round",
            disable=not sys.stderr.isatty(),
        )

    def stop(self) -> None:
        """No run is left."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def round(self, title: str, record: Mapping[str, Any]) -> None:
        """A run has done a round."""
        self._seen[title] = record["round"]
        self._bar.update(1)
        self._bar.set_postfix_str(title, refresh=False)
        if self._bar.disable and record["evaluated"]:
            _line(title, record["round"], self._rounds, record)

    def finished(self, title: str, failure: str | None) -> None:
        """A run is over."""
        self._done += 1
        # Rounds that a failed run lacks, and those of a run from the store, keep nobody waiting.
        self._bar.update(self._rounds - self._seen.pop(title, 0))
        self.say(f"[{self._done}/{self._runs}] {title}: {failure or 'ok'}")
