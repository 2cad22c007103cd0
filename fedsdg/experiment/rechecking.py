"""A sample of the published runs of the arenas, their first rounds done again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedsdg.experiment.config import Config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.loading import load_images
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.replay import Agreement, RecordedRun, recorded_runs, replay
from fedsdg.files import sha256_json
from fedsdg.files.places import ARENAS, RECORDS
from fedsdg.models import load_backbone


def sampled(runs: Sequence[RecordedRun], number: int, salt: str) -> list[RecordedRun]:
    """So many of the runs: those whose folders, hashed together with ``salt``, come first.

    ``salt``, the hash of a commit, decides: nobody can choose, and every commit tries others.
    """
    return sorted(runs, key=lambda run: sha256_json([salt, run.folder]))[:number]


def rechecked(root: Path, number: int | None, salt: str) -> Iterator[tuple[str, Agreement]]:
    """(arena, agreement) of ``number`` runs of every arena with a record below ``root``.

    None stands for all of its runs that went well. Nothing is written: partitions are drawn in
    memory, and the backbone is the record's.
    """
    for arena, file in ARENAS.items():
        folder = root / RECORDS / arena
        if not (folder / "runs.parquet").is_file():
            continue
        done = recorded_runs(folder)
        config = load_config([root / file])
        for run in sampled(done, len(done) if number is None else number, salt):
            yield arena, _again(root, config, run)


def _again(root: Path, config: Config, recorded: RecordedRun) -> Agreement:
    row = recorded.row
    try:
        method = config.method(row["method"])
    except ValueError as error:
        return Agreement(recorded.folder, (str(error),))
    run = config.run(row["dataset"], row["skew"], method, row["seed"])
    images = load_images(config.source(row["dataset"]))
    backbone = load_backbone(root / RECORDS / "backbones" / f"{config.backbone}.safetensors")
    clients, seed = run.federation.clients, row["seed"]
    partition = make_partition(images, run.skew, seed, clients, run.partition)
    return replay(run, recorded, prepare_material(images, backbone, "cpu"), partition)
