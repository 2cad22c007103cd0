"""Is this tree slower than another commit? Rules and whole runs of both take turns.

    python -m benchmarks.compare main [--quick]        (make bench-compare BASE=main QUICK=1)

Two processes, one with the package of the other commit and one with that of this tree, do the same
piece of work in turns, on one thread each; processor time counts, the median over the turns of
their ratio. A piece that takes longer than `thresholds.yaml` allows in each of three attempts is
slower. Imports and compilation are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import results
from benchmarks.timing import OURS, OtherPrograms, Timings

SIDE = Path(__file__).with_name("side.py")
ROOT = Path(__file__).parents[1]
BASE = "base"
ATTEMPTS = 3
ROUNDS = 60
Side = Callable[[], tuple[float, int]]


class Piece(NamedTuple):
    """A piece of work; `arguments` are those of a function of `side`."""

    kind: str
    arguments: tuple[str | int, ...]

    @property
    def title(self) -> str:
        """How the piece is called in print."""
        name, *sizes = self.arguments
        if self.kind == "run":
            return f"{sizes[0]} in {name}"
        return f"{name} at {sizes[0]} × {sizes[1]:,}"


RULES = ("fedsdg", "fedavg-uniform", "krum", "geometric-median", "coordinate-median")
METHODS = ("fedsdg", "fedavg", "fine-tune", "ditto", "fedrep", "local-only", "feddpa")
FULL = (
    *(Piece("rule", (rule, 10, 10_000_000)) for rule in RULES),
    *(Piece("run", ("config", method, "dirichlet~0.1", ROUNDS)) for method in METHODS[:2]),
    *(Piece("run", ("needs", method, "iid@half", ROUNDS)) for method in METHODS),
)
QUICK = (
    *(Piece("rule", (rule, 10, 130_000)) for rule in RULES),
    *(Piece("run", ("config", method, "dirichlet~0.1", 10)) for method in METHODS[:2]),
)
TURNS = {"full": 7, "quick": 5}


class UnableError(RuntimeError):
    """A side cannot do a piece of work."""


@contextmanager
def side(checkout: Path, piece: Piece) -> Iterator[Side]:
    """Start a process that does a piece of work with the package of a checkout.

    Yields:
        A function that has the piece done once more, and returns seconds and samples.

    Raises:
        UnableError: The process ended; with its last words.
    """
    words = [sys.executable, str(SIDE), json.dumps([piece.kind, *piece.arguments])]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log.txt").open("w+") as log:
        process = subprocess.Popen(
            words,
            env=environment,
            cwd=folder,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def answer() -> str:
            if line := answers.readline():
                return line
            log.seek(0)
            last = log.read().strip().splitlines()[-1:]
            raise UnableError(f"{piece.title} in {checkout}: {''.join(last)}")

        def ask() -> tuple[float, int]:
            requests.write("once more\n")
            seconds, samples = json.loads(answer())
            return seconds, samples

        try:
            answer()
            yield ask
        finally:
            process.kill()
            process.wait()


def measure(here: Side, base: Side, turns: int, most: float) -> Timings:
    """Measure two sides in turns, up to `ATTEMPTS` times while ours takes too long.

    Args:
        here: This tree.
        base: The other commit.
        turns: Of an attempt.
        most: How many times as long ours may take.

    Raises:
        UnableError: The sides do not train on the same number of samples.
    """
    attempts: list[Timings] = []
    while len(attempts) < ATTEMPTS:
        other_programs = OtherPrograms()
        pairs = [(base(), here()) for _ in range(turns)]
        samples = {side[1] for pair in pairs for side in pair}
        if len(samples) > 1:
            raise UnableError(f"not the same work: {samples} samples are trained on")
        seconds = {BASE: [b[0] for b, _ in pairs], OURS: [h[0] for _, h in pairs]}
        attempts.append(Timings(seconds, other_programs.cores()))
        if attempts[-1].ratio(BASE) >= 1 / most:
            break
    return max(attempts, key=lambda timings: timings.ratio(BASE))


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out another commit of this repository in a temporary folder.

    Raises:
        LookupError: There is no such commit.
    """
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "base")
        added = [*git, "add", "--quiet", "--detach", str(checkout), commit]
        if subprocess.run(added, check=False).returncode:
            raise LookupError(f"there is no commit {commit!r} to compare with")
        try:
            yield checkout
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=False)


def compare(checkout: Path, pieces: Sequence[Piece], turns: int, most: float) -> list[results.Row]:
    """Measure pieces here and in a checkout, print a line for each, and return the rows.

    A piece that the checkout cannot do is named and left out.

    Raises:
        UnableError: This tree cannot do a piece.
    """
    rows: list[results.Row] = []
    for piece in pieces:
        with side(ROOT, piece) as here:
            try:
                with side(checkout, piece) as base:
                    timings = measure(here, base, turns, most)
            except UnableError as error:
                print(f"{piece.title}: not compared, {error}", flush=True)
                continue
        took = 1 / timings.ratio(BASE)
        verdict = "ok" if took <= most else f"slower, at most {most:g} is allowed"
        print(f"{piece.title}: {took:.2f} times as long as there, {verdict}", flush=True)
        rows += results.rows_of("commits", "processor time", piece.title, timings)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing is slower, 1 if a piece is, 2 if nothing can be compared."""
    parser = argparse.ArgumentParser(description="Compare the speed of this tree and a commit.")
    parser.add_argument("base", help="a commit")
    parser.add_argument("--quick", action="store_true", help="small pieces: a minute or two")
    parser.add_argument("--measured", type=Path, help="write all measurements to this JSON file")
    given = parser.parse_args(arguments)
    form, pieces = ("quick", QUICK) if given.quick else ("full", FULL)
    most = results.thresholds()["compare"][form]
    try:
        with checked_out(given.base) as checkout:
            rows = compare(checkout, pieces, TURNS[form], most)
    except (LookupError, UnableError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.measured:
        results.write(given.measured, rows, base=given.base, form=form)
    ratios = [row["ratio"] for row in rows if row["code"] == BASE]
    if not ratios:
        print("error: nothing could be compared", file=sys.stderr)
        return 2
    return int(min(ratios) < 1 / most)


if __name__ == "__main__":
    sys.exit(main())
