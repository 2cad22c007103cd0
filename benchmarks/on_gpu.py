"""Check a machine with a GPU: its tests, speed of rules, a run, and the same round twice.

python3 -m benchmarks.on_gpu --out FOLDER        (make gpu OUT=FOLDER)

Every stage is a process whose output goes to a file in the folder; nothing has to be installed but
what docs/running.md names. Without FEDSDG_DATA/cifar100 the run is two rounds on random images.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
DIGEST = """
import sys
from benchmarks.federations import digest
print(digest(*sys.argv[1:], rounds=2))
"""


def stages(out: Path, device: str) -> dict[str, list[str]]:
    """Return the arguments of python for every stage, in the order of its worth."""
    rules, rounds = (str(ROOT / "benchmarks" / f"bench_{name}.py") for name in ("rules", "rounds"))
    to = ["-p", "no:cacheprovider", "--device", device, *["--short"] * (device == "cpu")]
    twice = ["-c", DIGEST, "digits" if device == "cpu" else "vit-tiny", device]
    run = ["-m", "fedsdg", "run", "--config", "cifar100-needs", "--method", "fedsdg"]
    run += ["--set", f"training.device={device}"]
    marked = sorted(
        str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.cuda" in path.read_text()
    )
    has_data = (Path(os.environ.get("FEDSDG_DATA", "data")) / "cifar100").is_dir()
    return {
        "tests": ["-m", "pytest", "-m", "cuda", "-p", "no:cacheprovider", *marked],
        "rules": ["-m", "pytest", rules, *to, "--measured", str(out / "rules.json")],
        "rounds": ["-m", "pytest", rounds, *to, "--measured", str(out / "rounds.json")],
        "twice-1": twice,
        "twice-2": twice,
        "run": [*run, "--output", str(out / "run")] if has_data else twice,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Do all stages.

    Returns:
        0, or 1 if a stage fails or the same rounds gave different bytes, or 2 without a GPU.
    """
    parser = argparse.ArgumentParser(description="Check a machine with a GPU.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the outputs")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("error: torch sees no GPU; try the stages without one: --device cpu", file=sys.stderr)
        return 2
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    failed = []
    for name, words in stages(out, given.device).items():
        started = time.monotonic()
        with (out / f"{name}.txt").open("w") as log:
            command = [sys.executable, *words]
            done = subprocess.run(command, cwd=out, env=environment, stdout=log, stderr=log)
        last = (out / f"{name}.txt").read_text().strip().splitlines()[-1:]
        seconds = time.monotonic() - started
        print(f"{name}: exit code {done.returncode} after {seconds:.0f} s, {''.join(last)}")
        failed += [name] * (done.returncode != 0)
    if (out / "twice-1.txt").read_text() != (out / "twice-2.txt").read_text():
        failed.append("the same rounds gave different bytes")
    print("failed: " + ", ".join(failed) if failed else "all stages are well")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
