"""The parts of `make gpu` that are no program of their own; each writes JSON and says a line.

python3 -m benchmarks.gpu_parts kernels --device cuda --out kernels.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: What docs/gpu.md lists, as it is imported.
PACKAGES = (
    *("torch", "triton", "timm", "numpy", "scipy", "pandas", "pyarrow", "sklearn", "PIL"),
    *("safetensors", "yaml", "matplotlib", "tqdm", "numba", "peft", "pytest", "pytest_benchmark"),
    "hypothesis",
)
CASES = (("digits", "float32"), ("vit-tiny", "float32"), ("vit-tiny", "bfloat16"))


def environment(device: str, small: bool) -> tuple[dict[str, Any], str, bool]:
    """Versions, the machine, what is missing."""
    import torch

    from fedsdg.experiment.machine.gpu import gpu_facts
    from fedsdg.files import provenance

    missing = [name for name in PACKAGES if find_spec(name) is None]
    there = device == "cpu" or torch.cuda.is_available()
    facts = {**provenance(), "missing": missing, "cuda_is_available": torch.cuda.is_available()}
    if there:
        facts |= gpu_facts(device)
    said = f"torch {torch.__version__} on {facts.get('gpu', device)}"
    if missing:
        said += f"; missing: {', '.join(missing)}"
    return facts, said if there else "torch sees no GPU", there


def digest(device: str, small: bool) -> tuple[dict[str, Any], str, bool]:
    """SHA-256 of what two rounds leave: the server's model and what clients keep."""
    import torch

    from benchmarks.federations import federation
    from fedsdg.experiment.machine.gpu import repeatable

    found = {}
    for model, precision in CASES[: 1 if small else None]:
        made = federation(model, "fedsdg", device, precision=precision)
        with repeatable(device):
            for round_ in (1, 2):
                made.step(round_)
        hashed = hashlib.sha256()
        for tensor in (made.theta, made.bank.private(torch.arange(made.num_clients))):
            hashed.update(tensor.cpu().numpy().tobytes())
        found[f"{model} {precision}"] = hashed.hexdigest()
    return found, json.dumps(found), True


def twice(device: str, small: bool) -> tuple[dict[str, Any], str, bool]:
    """The same in two processes."""
    command = [sys.executable, "-m", "benchmarks.gpu_parts", "digest", "--device", device]
    command += ["--small"] * small
    answers = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    once, again = answers
    differ = [case for case in once if once[case] != again[case]]
    said = (
        f"different bytes in {', '.join(differ)}" if differ else f"equal bytes: {', '.join(once)}"
    )
    return {"once": once, "again": again}, said, not differ


def kernels(device: str, small: bool) -> tuple[dict[str, Any], str, bool]:
    """Every rule and kernel against a copy in the GPU's memory."""
    from benchmarks.copying import SIZES, WORKS, against_a_copy, draw

    rows = []
    for size in ((5, 1000),) if small else SIZES:
        updates = draw(*size, device)
        turns = {"turns": 2, "copied": 1 << 20} if small else {}
        rows += [against_a_copy(name, updates, **turns) for name in WORKS]
        del updates
    short = [row for row in rows if row["goal"] and row["of_the_floor"] < row["goal"]]
    said = f"{len(rows)} measured, all right; " + ", ".join(
        f"{row['rule']} {row['of_the_floor']:.2f}" for row in rows[: len(WORKS)]
    )
    return {"rows": rows, "below_the_goal": [row["rule"] for row in short]}, said, True


PARTS = {part.__name__: part for part in (environment, digest, twice, kernels)}


def main() -> int:
    """Run the part that is named; exit code 1 where it did not go well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found, said, well = PARTS[arguments.part](arguments.device, arguments.small)
    if arguments.out:
        from fedsdg.files import write_json

        write_json(arguments.out, found)
    print(said, flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
