"""Is a round or a rule much slower than at another commit? A ratio, measured in one run.

    python -m benchmarks.regression main        (make bench-regression BASE=main)

Two processes, one in a checkout of the other commit and one here, hold the same pieces of work and
take turns, one thread each, so that what slows the machine slows both; the best times count. What
takes more than ``LIMIT`` times as long as there fails, if three attempts agree. Short and generous,
for machines that nobody keeps quiet: finer differences are for ``benchmarks.compare``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.allocator import SETTINGS
from benchmarks.timing import seconds

ROOT = Path(__file__).parents[1]
LIMIT = 1.5
ATTEMPTS = 3
TURNS = 9

#: method -> a round of it on the digits; rule -> the updates that it aggregates.
ROUNDS = ("fedsdg", "fedavg")
RULES = ("fedsdg", "krum", "geometric-median", "coordinate-median")
CLIENTS, PARAMETERS = 10, 130_000
PIECES = (*(f"a round of {name}" for name in ROUNDS), *(f"the rule {name}" for name in RULES))


def work(piece: str) -> None:
    """Answer each line of standard input, which says go, with the seconds of the piece."""
    import torch

    torch.set_num_threads(1)
    name = piece.rpartition(" ")[2]
    if piece.startswith("a round of "):
        from benchmarks.federations import federation

        made = federation("digits", name)

        def once() -> object:
            return made.step(1)
    else:
        from benchmarks.cohorts import Cohort
        from benchmarks.rules import ours

        once = ours(name, Cohort.draw(CLIENTS, PARAMETERS))
    once()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(seconds(once), flush=True)


class Unable(RuntimeError):
    """A checkout cannot do a piece of work."""


@contextmanager
def answering(
    checkout: Path, module: str, piece: str, environment: Mapping[str, str] | None = None
) -> Iterator[Callable[[str], str]]:
    """A process in a checkout that answers lines; called with one, it gives the answer.

    Args:
        checkout: Where the process runs, and whose package it imports.
        module: The benchmark that, called with ``--work`` and the piece, says ready, then answers.
        piece: The piece of work.
        environment: Variables of this process alone.

    Raises:
        Unable: The process ended; its last words.
    """
    shared = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--work", piece],
        cwd=checkout,
        env=os.environ | SETTINGS | shared | (environment or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def answer() -> str:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        if not line:
            said = process.stderr.read().strip().splitlines() or ["it ended without a word"]
            raise Unable(f"{piece} in {checkout}: {said[-1]}")
        return line

    def ask(line: str) -> str:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return answer()

    try:
        while answer().strip() != "ready":
            pass
        yield ask
    finally:
        process.kill()
        process.wait()


@contextmanager
def worker(checkout: Path, piece: str) -> Iterator[Callable[[], float]]:
    """A process that does a piece of work in a checkout; called, it gives the seconds."""
    with answering(checkout, "benchmarks.regression", piece) as ask:
        yield lambda: float(ask("go"))


def ratio(here: Callable[[], float], there: Callable[[], float]) -> float:
    """Best time here over best time there, in turns; the smallest of the attempts it takes."""
    best = float("inf")
    for _ in range(ATTEMPTS):
        pairs = [(there(), here()) for _ in range(TURNS)]
        theirs, own = (min(times) for times in zip(*pairs, strict=True))
        best = min(best, own / theirs)
        if best <= LIMIT:
            break
    return best


def regressions(base: Path, pieces: Sequence[str] = PIECES) -> list[str]:
    """The pieces that are slower here than in the checkout ``base``, after a line for each.

    What the other commit cannot do is said, and not judged. Raises ``Unable`` for what cannot be
    done here.
    """
    slower = []
    for piece in pieces:
        with worker(ROOT, piece) as here:
            try:
                with worker(base, piece) as there:
                    found = ratio(here, there)
            except Unable as error:
                print(f"{piece}: not judged, the other commit cannot do it ({error})", flush=True)
                continue
        verdict = "ok" if found <= LIMIT else f"slower, at most {LIMIT} is allowed"
        print(f"{piece}: {found:.2f} times as long as there: {verdict}", flush=True)
        slower += [piece] if found > LIMIT else []
    return slower


@contextmanager
def checked_out(base: str) -> Iterator[Path]:
    """Another commit in a temporary folder, with the benchmarks of this one."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "base")
        git = ["git", "-C", str(ROOT), "worktree"]
        added = [*git, "add", "--quiet", "--detach", str(checkout), base]
        if subprocess.run(added, check=False).returncode:
            raise LookupError(f"there is no commit {base!r} to compare with")
        try:
            shutil.rmtree(checkout / "benchmarks", ignore_errors=True)
            shutil.copytree(ROOT / "benchmarks", checkout / "benchmarks")
            yield checkout
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=False)


def main(arguments: Sequence[str]) -> int:
    """0 where nothing is much slower, 1 where something is, 2 for what cannot be compared."""
    if arguments[:1] == ["--work"]:
        work(arguments[1])
        return 0
    if len(arguments) != 1:
        print("error: name a commit: python -m benchmarks.regression main", file=sys.stderr)
        return 2
    try:
        with checked_out(arguments[0]) as base:
            return int(bool(regressions(base)))
    except (LookupError, Unable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
