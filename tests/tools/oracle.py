"""Dump what an engine makes of a config, and compare dumps: an oracle while there are two engines.

    python -m tests.tools.oracle dump first every-method --at COMMIT --set federation.rounds=3
    python -m tests.tools.oracle dump next every-method --beside --set federation.rounds=3
    python -m tests.tools.oracle compare first next --tolerance 1e-6

A dump is a folder with a file for each run of the grid: the server's models, the rows that clients
keep, and the rows of both tables of the record, in which floats keep their bits.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
BACKBONES = "results/reference/backbones"


def dump(
    folder: Path, files: Sequence[str], settings: Sequence[str], only: str, beside: bool
) -> None:
    """Run each run of a grid that the pattern ``only`` names, and write what it comes to.

    Args:
        folder: Where the files go.
        files: Configs, by file or by name.
        settings: Single values laid over them.
        only: A pattern of setting/label/seed.
        beside: Take the engine in ``next_federation``.
    """
    from fedsdg.experiment.config_files import load_config
    from fedsdg.experiment.loading import load_images
    from fedsdg.experiment.material import make_partition, prepare_material
    from fedsdg.models.backbones import load_backbone

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    config = load_config(files, settings)
    full = config.trainable == "full"
    backbone = None if full else load_backbone(f"{BACKBONES}/{config.backbone}.safetensors")
    for dataset in config.datasets:
        data = load_images(config.source(dataset))
        material = prepare_material(data, backbone, "cpu")
        for setting, method, seed in itertools.product(
            config.settings, config.methods, config.seeds
        ):
            name = f"{setting}/{method.label}/{seed}"
            if not fnmatch(name, only):
                continue
            run = config.run(dataset, setting, method, seed)
            partition = make_partition(data, run.skew, seed, run.federation.clients, run.partition)
            try:
                found = outcome(run, material, partition, beside)
            except ValueError as error:
                found = {"refused": str(error)}
            torch.save(found, folder / f"{dataset} {name.replace('/', ' ')}.pt")
            print(name, flush=True)


def outcome(run: Any, material: Any, partition: Any, beside: bool) -> dict[str, Any]:
    """All rounds of a run, by either engine."""
    place = "fedsdg.next_federation.building" if beside else "fedsdg.experiment.building"
    built = import_module(place).build(run, material, partition)
    if hasattr(built, "initial"):
        room = "fedsdg.next_federation" if beside else "fedsdg.federation"
        server, store = built.initial()
        rounds, clients = [], []
        steps = list(import_module(f"{room}.rounds").run(built, server, store))
        for _, record in steps:
            rounds.append(record.round)
            clients += record.clients
        for observer in built.observers:
            observer.complete(rounds, clients)
        private = store.read("private", np.arange(built.num_clients))
        private[torch.from_numpy(store.counts.trained == 0)] = 0
        models = steps[-1][0].models
        return {"models": models, "private": private, "rounds": rounds, "clients": clients}
    built.run()
    everybody = torch.arange(built.num_clients)
    own = "own" in built.bank.names  # Ditto's model and the running mix.
    private = built.bank.kept("own", everybody) if own else built.bank.private(everybody)
    private[~built.bank.trained] = 0
    rows = {"rounds": built.records.rounds, "clients": built.records.clients}
    return {"models": built.models, "private": private, **rows}


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """What differs between two dumps of a run, and by how much."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            if old.shape != new.shape:
                yield f"{name} {list(old.shape)} {list(new.shape)}", np.inf
            elif not torch.equal(old, new):
                yield name, float((old - new).abs().max())
        elif isinstance(old, list) and isinstance(new, list):
            yield from _of_rows(name, old, new)
        elif old != new:  # One of them is refused, or for another reason.
            yield f"{name} {old!r:.200} {new!r:.200}", np.inf


def _of_rows(
    table: str, old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> Iterator[tuple[str, float]]:
    if len(old) != len(new):
        yield f"{table}: {len(old)} and {len(new)} rows", np.inf
        return
    gaps: dict[str, float] = {}
    for one, other in zip(old, new, strict=True):
        for key in one.keys() | other.keys():
            a, b = (np.ravel(np.array(row.get(key), dtype=float)) for row in (one, other))
            if not np.array_equal(a, b, equal_nan=True):
                gap = float(np.abs(a - b).max()) if a.shape == b.shape else np.inf
                gaps[key] = max(gaps.get(key, 0.0), np.nan_to_num(gap, nan=np.inf))
    yield from ((f"{table}.{key}", gap) for key, gap in sorted(gaps.items()))


def compare(folders: Sequence[Path], tolerance: float) -> int:
    """Print what differs, run by run; 1 where anything differs by more than the tolerance."""
    names = sorted({file.name for folder in folders for file in folder.glob("*.pt")})
    equal = within = 0
    for name in names:
        there = [folder / name for folder in folders if (folder / name).exists()]
        if len(there) < 2:
            print(f"{name}: in {there[0].parent} alone")
            continue
        before, after = (torch.load(file, weights_only=False) for file in there)
        found = dict(differences(before, after))
        equal += not found
        within += all(gap <= tolerance for gap in found.values())
        if found:
            print(f"{name}: " + ", ".join(f"{what} {gap:.2g}" for what, gap in found.items()))
    print(f"{len(names)} runs, {equal} with the same bits, {within} within {tolerance:g}")
    return int(within < len(names))


def main() -> int:
    """Dump or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("dump")
    make.add_argument("folder", type=Path)
    make.add_argument("files", nargs="*")
    make.add_argument("--set", dest="settings", action="append", default=[])
    make.add_argument("--only", default="*")
    make.add_argument("--beside", action="store_true", help="the engine in next_federation")
    make.add_argument("--at", help="a commit; else what stands here")
    two = commands.add_parser("compare")
    two.add_argument("folders", nargs=2, type=Path)
    two.add_argument("--tolerance", type=float, default=0.0)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.folders, given.tolerance)
    if given.at is None:
        dump(given.folder, given.files, given.settings, given.only, given.beside)
        return 0
    from benchmarks.compare import checked_out

    words = [word for word in sys.argv[1:] if word not in ("--at", given.at, str(given.folder))]
    command = [sys.executable, __file__, words[0], str(given.folder.absolute()), *words[1:]]
    with checked_out(given.at) as checkout:
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        return subprocess.run(command, cwd=checkout, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
