"""A whole grid without Snakemake: the same files in the same places, byte for byte.

For machines that have PyTorch and little else, and may be taken away at any moment: runs are done
seed by seed, so that the first seed of every method is complete before the second begins; what is
finished is never done again; and what was not run stands in the tables as such.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsdg import files
from fedsdg.experiment.config import Config, PartitionConfig, RunConfig
from fedsdg.experiment.continuing import take_from_record
from fedsdg.experiment.machine.devices import WORKSPACE, named_devices
from fedsdg.experiment.machine.processes import Failed, Workers
from fedsdg.experiment.machine.progress import GridProgress
from fedsdg.experiment.reach import source_hash
from fedsdg.experiment.store import MODELS, Address
from fedsdg.files import hint
from fedsdg.files.places import (
    BACKBONE,
    CLAIMS,
    FIGURE,
    RUN_FILES,
    RUNS,
    SUMMARY,
    TABLE,
    VERIFIED,
    filled,
    partition_of,
    run_below,
)

if TYPE_CHECKING:
    from fedsdg.data.datasets import ImageData
    from fedsdg.data.partition_record import Partition
    from fedsdg.experiment.loading import Source
    from fedsdg.experiment.runs import Material

Note = Callable[[Any], None]

#: As in workflow/rules/common.smk, which says why; threads are those of a process.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class GridError(ValueError):
    """The grid cannot go on: what all of its runs, or many, depend on cannot be had."""


@dataclass(frozen=True)
class Run:
    """One run of the grid, and where its files are."""

    config: RunConfig
    source: Source
    identity: dict[str, Any]
    backbone: Path | None
    partition: Path
    folder: Path
    store: Path
    checkpoint_seconds: float

    @property
    def title(self) -> str:
        named = self.identity
        return f"{named['dataset']} {named['skew']} {named['label']} seed {named['seed']}"


@dataclass(frozen=True)
class Division:
    """One partition to be made; ``source`` is what its data set is loaded by."""

    dataset: str
    source: Source
    clients: int
    skew: str
    seed: int
    settings: PartitionConfig
    file: Path


@dataclass(frozen=True)
class Page:
    """One table, figure or the claims, made from the summary."""

    kind: str
    name: str
    summary: Path
    stem: Path
    partitions: tuple[Path, ...] = ()


# --- What there is to do --------------------------------------------------------------------------


def backbone_file(config: Config) -> Path | None:
    """Where the backbone of an experiment lies; None where all parameters are trained."""
    if config.trainable == "full":
        return None
    return filled(BACKBONE, backbone=config.backbone)


def grid_runs(config: Config, store: Path, only: Sequence[str] = ()) -> list[Run]:
    """The runs in the order in which they are done: by seed, method (the config's order), cell.

    ``only`` keeps those that it names: data sets, skews, labels of methods, ``seed~0``. Names of
    one kind are alternatives, kinds restrict each other. Raises ``ValueError`` for other words.
    """
    clients = config.federation.clients
    folder = filled(RUNS, experiment=config.experiment)
    named = _kinds(config, only)
    runs = []
    for seed, method, dataset, setting in itertools.product(
        config.seeds, config.methods, config.datasets, config.settings
    ):
        place = (dataset, setting, method.label, f"seed~{seed}")
        identity = config.identity(dataset, setting, method, seed)
        if all(not words or part in words for part, words in zip(place, named, strict=True)):
            runs.append(
                Run(
                    config=config.run(dataset, setting, method, seed),
                    source=config.source(dataset),
                    identity=identity,
                    backbone=backbone_file(config),
                    partition=partition_of(dataset, clients, setting, seed),
                    folder=folder / run_below({**identity, "method": method.label}),
                    store=store,
                    checkpoint_seconds=config.checkpoint_seconds,
                )
            )
    return runs


def _kinds(config: Config, only: Sequence[str]) -> list[set[str]]:
    """The words of ``only`` by kind: data sets, skews, labels, seeds."""
    kinds = [
        list(config.datasets),
        list(config.settings),
        [method.label for method in config.methods],
        [f"seed~{seed}" for seed in config.seeds],
    ]
    known = [word for kind in kinds for word in kind]
    for word in only:
        if word not in known:
            raise ValueError(f"--only: {word!r} names nothing of the grid{hint(word, known)}")
    return [{word for word in only if word in kind} for kind in kinds]


def grouped(runs: Sequence[Run], size: int) -> list[tuple[Run, ...]]:
    """Runs that differ in their seed alone, ``size`` at a time, in the order of each first one."""
    cells: dict[Path, list[Run]] = {}
    for run in runs:
        cells.setdefault(run.folder.parent, []).append(run)
    groups = [
        tuple(cell[begin : begin + size])
        for cell in cells.values()
        for begin in range(0, len(cell), size)
    ]
    place = {run.folder: number for number, run in enumerate(runs)}
    return sorted(groups, key=lambda group: place[group[0].folder])


def is_finished(run: Run, partition: str, backbone: str | None) -> bool:
    """Whether the records of this very run are in place: config, data, backbone and code."""
    records = (*RUN_FILES, *((MODELS,) if run.config.training.save else ()))
    if not all((run.folder / file).is_file() for file in records):
        return False
    try:
        found = files.read_json(run.folder / "result.json")
    except ValueError:
        return False
    wanted = {**run.identity, "status": "ok", **asdict(_address(run, partition, backbone))}
    return all(found.get(key) == value for key, value in wanted.items())


def _address(run: Run, partition: str, backbone: str | None) -> Address:
    return Address(run.config.hash, partition, backbone, source_hash(run.config))


# --- The way through it ---------------------------------------------------------------------------


def run_grid(
    config: Config,
    store: Path,
    *,
    jobs: int = 1,
    only: Sequence[str] = (),
    minutes: float | None = None,
    seeds_together: int = 1,
    continue_record: bool = False,
) -> list[str]:
    """Do what is not done yet, and write summary, tables, figures and claims of what there is.

    ``jobs`` runs side by side; no run is started after ``minutes``. ``seeds_together`` many seeds
    of a cell are trained in one pass. ``continue_record``: runs that the committed record holds
    count as done. Returns the failed runs, one line each. Raises ``GridError``
    when the backbone, a data set or a partition cannot be had, and ``ValueError`` for a table or
    figure that there is not.
    """
    begun = time.monotonic()
    shown_pages(config)
    runs = grid_runs(config, store, only)
    devices = named_devices() if config.training.device == "cuda" else ()
    if 0 < len(devices) < jobs:
        raise ValueError(
            f"--jobs is {jobs}, but FEDSDG_DEVICES names {len(devices)} device(s), and no two runs "
            "share one; lower --jobs, or unset FEDSDG_DEVICES to let runs share the first device"
        )
    with GridProgress(config.experiment, config.federation.rounds) as progress:
        backbone = _make_backbone(config, store, progress)
        with Workers(jobs, _surroundings(config, jobs, bool(devices))) as workers:
            partitions = _make_partitions(config, runs, workers, progress)
            left = [
                run for run in runs if not is_finished(run, partitions[run.partition], backbone)
            ]
            if continue_record:
                wanted = [_address(run, partitions[run.partition], backbone) for run in left]
                taken = take_from_record(config.experiment, wanted, store)
                progress.say(f"{taken} of {len(left)} runs are in the record")
            progress.start(len(runs), len(runs) - len(left))
            deadline = None if minutes is None else begun + 60 * minutes
            _train(grouped(left, seeds_together), workers, progress, deadline)
            return _write_pages(config, workers, progress)


def _surroundings(config: Config, jobs: int, apart: bool) -> dict[str, str]:
    """What the processes that train find in their environment; ``apart``: each has its own GPU."""
    found = {**ALLOCATOR, **{name: str(config.training.threads) for name in THREADS}}
    if config.training.device == "cuda":
        found |= WORKSPACE
        if not apart:
            found["FEDSDG_SHARING"] = str(jobs)  # read in federation/passes.py
    return found


def shown_pages(config: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the tables and figures to be made; ``ValueError`` where there is none such."""
    from fedsdg.analysis.plots import USUAL_FIGURES, known_figure
    from fedsdg.analysis.tables import USUAL_TABLES, known_table

    tables = USUAL_TABLES if config.tables is None else config.tables
    figures = USUAL_FIGURES if config.figures is None else config.figures
    for name in tables:
        known_table(name)
    for name in figures:
        known_figure(name)
    return tables, figures


def _make_backbone(config: Config, store: Path, progress: GridProgress) -> str | None:
    """The backbone's hash, None where there is none."""
    file = backbone_file(config)
    if file is None:
        return None
    options = config.backbones[config.backbone]
    keeping = {
        "checkpoints": store.parent / "checkpoints",
        "checkpoint_seconds": config.checkpoint_seconds,
    }
    threads = {name: str(options.get("threads", 1)) for name in THREADS}
    with Workers(1, {**ALLOCATOR, **threads}) as workers:
        for _, outcome in workers.map(_backbone, [(options, file, keeping)]):
            made = _needed(outcome, f"backbone {config.backbone}")
    progress.say(f"backbone {config.backbone}: {made[:8]}")
    return str(made)


def _make_partitions(
    config: Config, runs: Sequence[Run], workers: Workers, progress: GridProgress
) -> dict[Path, str]:
    """File -> hash of every partition that the runs need."""
    needed = {run.partition: run for run in runs}
    divisions = [division_of(run.config, run.source, file) for file, run in needed.items()]
    # One data set after another: a process keeps the images of one.
    divisions.sort(key=lambda division: config.datasets.index(division.dataset))
    found = {}
    for division, outcome in workers.map(_partition, divisions):
        found[division.file] = str(_needed(outcome, f"partition {division.file}"))
    progress.say(f"{len(found)} partitions")
    return found


def _train(
    groups: Sequence[tuple[Run, ...]],
    workers: Workers,
    progress: GridProgress,
    deadline: float | None,
) -> None:
    def in_time() -> Iterator[tuple[Run, ...]]:
        for group in groups:
            if deadline is not None and time.monotonic() >= deadline:
                return
            yield group

    def noted(group: tuple[Run, ...], seen: tuple[int, Any]) -> None:
        number, record = seen
        progress.round(group[number].title, record)

    done = 0
    for group, outcome in workers.map(_execute, in_time(), noted):
        if isinstance(outcome, Failed):
            if outcome.kind != "killed":
                raise GridError(f"{group[0].title}: {outcome}")
            from fedsdg.experiment.runs import record_failure

            error = RuntimeError(outcome.message)
            outcome = [record_failure(run.config, error, run.folder, run.identity) for run in group]
        done += len(group)
        for run, failure in zip(group, outcome, strict=True):
            progress.finished(run.title, failure)
    progress.stop()
    if done < (wanted := sum(map(len, groups))):
        progress.say(f"time is up: {wanted - done} of the runs are left; call again to go on")


def _write_pages(config: Config, workers: Workers, progress: GridProgress) -> list[str]:
    """Summary, tables, figures, claims; the failed runs."""
    from fedsdg.analysis.names import NOT_RUN
    from fedsdg.analysis.plots import known_figure
    from fedsdg.analysis.summarise import failed_runs, search_file, summarise

    name = config.experiment
    summary, verified = filled(SUMMARY, experiment=name), filled(VERIFIED, experiment=name)
    verified.unlink(missing_ok=True)
    runs = filled(RUNS, experiment=name)
    primary = [comparison.to_dict() for comparison in config.primary]
    summarise(runs, summary, config.run_folders(), search_file(name), primary)
    first = min(config.seeds)
    places = itertools.product(config.datasets, config.skews)
    clients = config.federation.clients
    shares = [partition_of(dataset, clients, skew, first) for dataset, skew in places]
    shares = [file for file in shares if file.is_file()]
    tables, figures = shown_pages(config)
    pages = [
        Page("table", table, summary, filled(TABLE, experiment=name, table=table))
        for table in tables
    ]
    pages += [
        Page("figure", figure, summary, filled(FIGURE, experiment=name, figure=figure), (*shares,))
        for figure in figures
        if shares or not known_figure(figure).needs_partitions
    ]
    pages.append(Page("claims", name, summary, filled(CLAIMS, experiment=name)))
    for page, outcome in workers.map(_page, pages):
        _needed(outcome, f"{page.kind} {page.name}")
    missing = failed_runs(summary)
    failed = [run for run in missing if run.error != NOT_RUN]
    if not missing:
        with files.atomic_path(verified) as temporary:
            temporary.write_text("all runs succeeded\n")
    tables_in = filled(TABLE, experiment=name, table="").as_posix()
    figures_in = filled(FIGURE, experiment=name, figure="").as_posix()
    progress.say(f"tables in {tables_in}, figures in {figures_in}")
    if len(missing) > len(failed):
        progress.say(f"{len(missing) - len(failed)} runs of the grid were not run")
    return [str(run) for run in failed]


def _needed(outcome: Any, what: str) -> Any:
    if isinstance(outcome, Failed):
        raise GridError(f"{what}: {outcome}")
    return outcome


# --- What the processes do ------------------------------------------------------------------------


def _backbone(task: tuple[Mapping[str, Any], Path, Mapping[str, Any]], note: Note) -> str:
    from fedsdg.experiment.backbones import pretraining

    options, file, keeping = task
    if not pretraining.is_made(options, file):
        pretraining.pretrain(options, file, **keeping)
    return str(files.read_json(file.with_suffix(".json"))["sha256"])


def _partition(task: Division, note: Note) -> str:
    return kept_or_made(task).sha256


def division_of(run: RunConfig, source: Source, file: Path) -> Division:
    """The partition that a run needs, in the file that it belongs to."""
    return Division(
        run.dataset, source, run.federation.clients, run.skew, run.seed, run.partition, file
    )


def kept_or_made(task: Division, load: Callable[[Source], ImageData] | None = None) -> Partition:
    """The partition in its file where it is this one, else made anew and written there.

    One's own data are looked at: they may have changed, as may what the config says of them.
    ``load`` gives the images, ``loaded_images`` where it is left out.
    """
    from fedsdg.data.partition_files import read_partition, write_partition
    from fedsdg.experiment.runs import make_partition

    load = load or loaded_images
    with contextlib.suppress(FileNotFoundError, ValueError):  # none, or a damaged one
        there = read_partition(task.file)
        facts = (there.dataset, there.num_clients, there.skew, there.seed)
        spec = replace(there.spec, **asdict(task.settings))
        same = facts == (task.dataset, task.clients, task.skew, task.seed) and spec == there.spec
        if same and not isinstance(task.source, str):
            same = there.dataset_sha256 == load(task.source).sha256
        if same:
            return there
    made = make_partition(load(task.source), task.skew, task.seed, task.clients, task.settings)
    write_partition(made, task.file)
    return made


def _execute(group: tuple[Run, ...], note: Note) -> list[str | None]:
    """For each run None, or the sentence of its failure, which is recorded."""
    from fedsdg.data.partition_files import read_partition
    from fedsdg.experiment.runs import Assignment, execute_together

    def progress(number: int, round_: int, record: Any) -> None:
        shown = ("evaluated", "train_loss", "personal_accuracy", "global_accuracy")
        note((number, {"round": round_, **{key: record.get(key) for key in shown}}))

    first = group[0]
    return execute_together(
        [
            Assignment(run.config, read_partition(run.partition), run.folder, run.identity)
            for run in group
        ],
        loaded_material(first.source, first.backbone, first.config.training.device),
        store=first.store,
        progress=progress,
        checkpoint_seconds=first.checkpoint_seconds,
    )


def _page(page: Page, note: Note) -> None:
    from fedsdg.analysis import plots, tables
    from fedsdg.analysis.claims import write_claims

    if page.kind == "table":
        tables.write_table(page.summary, page.name, page.stem)
    elif page.kind == "figure":
        plots.write_figure(page.summary, page.name, page.stem, page.partitions)
    else:
        write_claims(page.summary, page.stem)


@lru_cache(maxsize=1)
def loaded_images(source: Source) -> ImageData:
    """A data set, which a process keeps until it needs another."""
    from fedsdg.experiment.loading import load_images

    return load_images(source)


@lru_cache(maxsize=1)
def loaded_material(source: Source, backbone: Path | None, device: str) -> Material:
    """Prepared images and backbone, which a process keeps until it needs others."""
    from fedsdg.experiment.runs import prepare_material
    from fedsdg.models.backbones import load_backbone

    frozen = load_backbone(backbone) if backbone else None
    return prepare_material(loaded_images(source), frozen, device)
