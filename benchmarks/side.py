"""One side of a comparison of commits: does a piece of work whenever it is asked, and says seconds.

    PYTHONPATH=CHECKOUT python benchmarks/side.py '["rule", "krum", 10, 130000]'

Runs in any checkout, so it knows the package by its doors alone: `aggregate` and the command line.
Each line of standard input asks for the piece once more; the answer is JSON, the processor's
seconds and the samples trained on. A run writes to the working folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

Piece = Callable[[], tuple[float, int]]
SMALL_BACKBONE = [f"backbones.letters.{few}" for few in ("images=400", "epochs=1", "held_out=100")]
"""Made in seconds; how good it is does not matter to speed."""


def rule(name: str, clients: int, parameters: int) -> Piece:
    """Return one call of `aggregate` on dictionaries of two tensors."""
    import torch

    from fedsdg.aggregation import aggregate

    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(parameters, generator=generator)

    def cut(row: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"a": row[: parameters // 3], "b": row[parameters // 3 :]}

    updates = [torch.randn(parameters, generator=generator).add_(0.5) for _ in range(clients)]
    params = [cut(theta + update) for update in updates]
    ones = [1] * clients

    def call() -> tuple[float, int]:
        start = time.process_time()
        aggregate(name, cut(theta), params, num_samples=ones, client_samples=ones)
        return time.process_time() - start, 0

    return call


def run(config: str, method: str, skew: str, rounds: int) -> Piece:
    """Return one `fedsdg run` of seed 0, from its config to its records."""
    import pandas as pd

    from fedsdg.cli import main

    output, store = Path("run").absolute(), Path("store").absolute()
    os.environ["FEDSDG_STORE"] = str(store)
    words = ["run", "--config", config, "--method", method, "--skew", skew, "--seed", "0"]
    words += ["--output", str(output), "--set", f"federation.rounds={rounds}", *SMALL_BACKBONE]

    def call() -> tuple[float, int]:
        for kept in (output, store):
            shutil.rmtree(kept, ignore_errors=True)
        start = time.process_time()
        if code := main(words):
            raise SystemExit(code)
        spent = time.process_time() - start
        return spent, int(pd.read_parquet(output / "rounds.parquet")["samples_processed"].sum())

    return call


PIECES: dict[str, Callable[..., Piece]] = {"rule": rule, "run": run}


def answer_requests() -> None:
    """Do the piece once, say that, and answer every line of standard input."""
    kind, *sizes = json.loads(sys.argv[1])
    say = os.fdopen(os.dup(1), "w")
    with contextlib.redirect_stdout(sys.stderr):
        piece = PIECES[kind](*sizes)
        piece()  # Compiles, and makes what is lacking.
        print("ready", file=say, flush=True)
        for _ in sys.stdin:
            print(json.dumps(piece()), file=say, flush=True)


if __name__ == "__main__":
    answer_requests()
