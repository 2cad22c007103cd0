"""How a run shows that it moves: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def round_progress(title: str, rounds: int) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """A bar on a terminal; elsewhere a plain line per evaluated round."""
    from tqdm import tqdm

    on_terminal = sys.stderr.isatty()
    with tqdm(total=rounds, desc=title, unit="round", disable=not on_terminal) as bar:

        def report(round_: int, record: Mapping[str, Any]) -> None:
            bar.update(round_ - bar.n)  # a resumed run does not begin with round 1
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
