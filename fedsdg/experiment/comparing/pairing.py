"""Whether runs made here are pairs of those of a record: same clients, same start, same sums."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsdg.experiment.config import Config
from fedsdg.experiment.grid import backbone_file, division_of, kept_or_made
from fedsdg.experiment.grid.loaded import loaded_images, loaded_material
from fedsdg.experiment.replay import Agreement, RecordedRun, recorded_runs, replay
from fedsdg.files import atomic_path
from fedsdg.files.places import RECORD as PLACE
from fedsdg.files.places import RECORDS, filled, partition_of, shipped, split_setting


@dataclass(frozen=True)
class Record:
    """The published runs of an arena that went well, in the record's order."""

    folder: Path
    runs: tuple[RecordedRun, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        """The labels, each once."""
        return tuple(dict.fromkeys(run.row["method"] for run in self.runs))

    def seeds(self) -> tuple[int, ...]:
        """The seeds of which there is a run, ascending."""
        return tuple(sorted({run.row["seed"] for run in self.runs}))


def read_record(arena: str) -> Record:
    """The record of an arena, as it came with the package."""
    folder = shipped(filled(PLACE, experiment=arena))
    return Record(folder, tuple(recorded_runs(folder)))


def bring_backbone(config: Config) -> None:
    """Put the record's backbone where runs look for it, so that all start from the same weights."""
    target = backbone_file(config)
    if target is None:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    for file in (target, target.with_suffix(".json")):
        with atomic_path(file) as temporary:
            shutil.copyfile(shipped(f"{RECORDS}/backbones/{file.name}"), temporary)


def paired(config: Config, record: Record, seeds: Sequence[int], method: str) -> Agreement:
    """Whether runs of ``config`` with these seeds are pairs of the record's.

    Every partition is drawn here and compared by its hash; then the first rounds of the recorded
    run of ``method`` with the first seed are done again, in the first setting.
    """
    moved = _other_partitions(config, record, seeds)
    if moved:
        return Agreement("", (f"{len(moved)} partitions are not those of the record: {moved[0]}",))
    wanted = (config.datasets[0], config.settings[0], method, seeds[0])
    names = ("dataset", "skew", "method", "seed")
    for one in record.runs:
        if tuple(one.row[name] for name in names) == wanted:
            break
    else:
        raise ValueError(
            f"the record {record.folder} has no run {wanted}, which others are tried by"
        )
    dataset, setting, _, seed = wanted
    run = config.run(dataset, setting, config.method(method), seed)
    file = config.root / partition_of(dataset, config.federation.clients, setting, seed)
    source = config.source(dataset)
    material = loaded_material(source, backbone_file(config), config.training.device)
    return replay(run, one, material, kept_or_made(division_of(run, source, file), loaded_images))


def _other_partitions(config: Config, record: Record, seeds: Sequence[int]) -> list[str]:
    known: Mapping[tuple[str, str, int], str] = {
        (run.row["dataset"], split_setting(run.row["skew"])[0], run.row["seed"]): run.row[
            "partition_hash"
        ]
        for run in record.runs
    }
    found = []
    method = config.methods[0]
    for dataset in config.datasets:
        source = config.source(dataset)
        for setting in {split_setting(one)[0]: one for one in config.settings}.values():
            for seed in seeds:
                run = config.run(dataset, setting, method, seed)
                file = config.root / partition_of(dataset, config.federation.clients, setting, seed)
                made = kept_or_made(division_of(run, source, file), loaded_images)
                there = known.get((dataset, run.skew, seed))
                if there is not None and there != made.sha256:
                    found.append(
                        f"{dataset} {run.skew} seed {seed} is {made.sha256[:12]} here and "
                        f"{there[:12]} there"
                    )
    return found
