"""How a run shows that it moves: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def round_progress(title: str, rounds: int) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """A bar on a terminal; elsewhere a plain line per evaluated round."""
    from tqdm import tqdm

    on_terminal = sys.stderr.isatty()
    with tqdm(total=rounds, desc=title, unit="round", disable=not on_terminal) as bar:

        def report(round_: int, record: Mapping[str, Any]) -> None:
            bar.update(1)
            if not record["evaluated"]:
                return
            scores = {
                name: f"{record[key]:.3f}"
                for name, key in (
                    ("loss", "train_loss"),
                    ("personal", "personal_accuracy"),
                    ("global", "global_accuracy"),
                )
                if record.get(key) is not None
            }
            bar.set_postfix(scores, refresh=False)
            if not on_terminal:
                line = " ".join(f"{name}={score}" for name, score in scores.items())
                print(f"{title}: round {round_}/{rounds} {line}", file=sys.stderr, flush=True)

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
