"""Methods of one's own beside the published rows of an arena: only the newcomers are run.

They meet the partitions, cohorts, backbone and seeds of the record, and are paired with its runs
seed by seed. Whether that is allowed on this machine is tried first (``replay``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedsdg.analysis import records
from fedsdg.analysis.compare import ranking, sentences
from fedsdg.analysis.gather import join
from fedsdg.analysis.page import write_page
from fedsdg.analysis.tables import Table
from fedsdg.experiment.comparing.folder import RECORDS, write_facts, write_methods
from fedsdg.experiment.comparing.newcomers import Newcomers, read_newcomers, settle
from fedsdg.experiment.comparing.pairing import Record, bring_backbone, paired, read_record
from fedsdg.experiment.comparing.tuning import tune
from fedsdg.experiment.config import Config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.consistency import check_folders
from fedsdg.experiment.grid import run_grid
from fedsdg.experiment.possible import require_possible
from fedsdg.experiment.replay import Agreement
from fedsdg.files import hint, read_json, write_json
from fedsdg.files.places import ARENAS, SEARCH, SHORT_NAMES, SUMMARY, filled, run_below, shipped
from fedsdg.files.places import RECORDS as PUBLISHED
from fedsdg.files.records import read_parquet

__all__ = ["PAGE", "Compared", "Request", "compare"]

#: The page of a comparison, in its folder.
PAGE = "index.html"


@dataclass(frozen=True)
class Request:
    """What is to be compared with what.

    ``places``: files or installed plugins that bring methods (``newcomers``). ``seeds``: the first
    so many of the record. ``against``: the rows to compare with, all where it names none.
    ``tuned``: every newcomer gets the search that the record's rows had. ``baselines_here``: those
    rows are run here too, and none is taken from the record.
    """

    places: tuple[str, ...]
    arena: str = "needs"
    seeds: int = 5
    against: tuple[str, ...] = ()
    tuned: bool = False
    baselines_here: bool = False


@dataclass(frozen=True)
class Compared:
    """A finished comparison.

    ``tables``: the ranking with each newcomer; ``sentences``: where they stand; ``agreement``: how
    runs made here are paired with the record's, None where all were made here.
    """

    tables: tuple[Table, ...]
    sentences: tuple[str, ...]
    agreement: Agreement | None
    folder: Path


def compare(
    request: Request, store: Path, *, jobs: int = 1, output: Path | None = None
) -> Compared:
    """Run the newcomers and set them beside the record, in the folder ``output``.

    The folder, ``compare/{arena}-{name of the first file}`` where none is named, holds the page,
    the runs of both as tables, the sources of the newcomers and all hashes. ``store`` keeps
    finished runs, so that only what is new is trained.

    Raises ``ValueError`` where runs made here would be no pairs of the record's, and says what
    differs; and where a run fails.
    """
    arena = SHORT_NAMES.get(request.arena, request.arena)
    if arena not in ARENAS:
        known = [*ARENAS, *SHORT_NAMES]
        raise ValueError(f"there is no record of an arena {arena!r}{hint(arena, known)}")
    record = read_record(arena)
    seeds = _seeds(request, record)
    newcomers = read_newcomers(request.places)
    _check_names(request, record, newcomers)
    folder = output or Path("compare") / f"{arena}-{Path(request.places[0]).stem}"
    folder.mkdir(parents=True, exist_ok=True)
    newcomers = settle(newcomers, folder)
    rivals = [m for m in record.methods if m in (request.against or record.methods)]
    published = replace(load_config([shipped(ARENAS[arena])]), root=folder)
    config = _config(folder, arena, newcomers, seeds)
    require_possible(config)
    bring_backbone(config)
    agreement = None if request.baselines_here else _require_pairs(published, record, seeds)
    if request.tuned:
        newcomers = tune(newcomers, config, published, store, jobs)
        config = _config(folder, arena, newcomers, seeds)
    here = [m for m in published.methods if request.baselines_here and m.label in rivals]
    grid = replace(config, methods=(*config.methods, *here))
    if failed := run_grid(grid, store, jobs=jobs):
        raise ValueError(f"{len(failed)} run(s) failed, the first is {failed[0]}")
    _combine(record, grid, rivals)
    write_facts(record, config, agreement)
    both = records.Record(folder / RECORDS)
    tables = tuple(ranking(both, label) for label in newcomers.labels)
    for label, table in zip(newcomers.labels, tables, strict=True):
        replace(table, name=f"{table.name}-{label}").write(folder)
    lines = [line for label in newcomers.labels for line in sentences(both, label)]
    remark = " ".join([_checked(agreement, record), *lines])
    write_page(folder / PAGE, [both], root=folder, compared=tables, remark=remark)
    return Compared(tables, tuple(lines), agreement, folder)


def _seeds(request: Request, record: Record) -> tuple[int, ...]:
    known = record.seeds()
    if not 1 <= request.seeds <= len(known):
        raise ValueError(
            f"--seeds is {request.seeds}, but the record of {request.arena!r} has {len(known)}; "
            f"ask for 1 to {len(known)}"
        )
    return known[: request.seeds]


def _check_names(request: Request, record: Record, newcomers: Newcomers) -> None:
    for label in newcomers.labels:
        if label in record.methods:
            raise ValueError(
                f"the record of {request.arena!r} has a row {label!r} already; give the entry a "
                "'name' of its own"
            )
    check_folders("methods", [*record.methods, *newcomers.labels])
    for label in request.against:
        if label not in record.methods:
            close = hint(label, record.methods)
            raise ValueError(f"--against: the record has no row {label!r}{close}")


def _config(folder: Path, arena: str, newcomers: Newcomers, seeds: Sequence[int]) -> Config:
    """The arena with the newcomers in place of its methods, as it is kept in the folder."""
    file = write_methods(folder, arena, newcomers, seeds)
    plugins = [str(folder / name) if name.endswith(".py") else name for name in newcomers.plugins]
    loaded = load_config([shipped(ARENAS[arena]), file], [f"plugins={json.dumps(plugins)}"])
    return replace(loaded, root=folder)


def _require_pairs(published: Config, record: Record, seeds: Sequence[int]) -> Agreement:
    """Tried by FedAvg, the plainest of all: what it needs, every method needs."""
    plain = (m for m in record.methods if m.partition("-")[0] == "fedavg")
    tried = next(plain, record.methods[0])
    agreement = paired(published, record, seeds, tried)
    if agreement.paired is None:
        raise ValueError(
            f"{agreement.sentence}; --baselines-here runs the rows of the record on this machine "
            "instead of taking theirs"
        )
    print(f"fedsdg: {agreement.sentence}{_moved(agreement, record)}", file=sys.stderr)
    return agreement


def _checked(agreement: Agreement | None, record: Record) -> str:
    """The sentence on top of the page: whether runs made here are pairs of the record's."""
    if agreement is None:
        return "All rows were run on this machine."
    if agreement.paired == "exactly":
        return (
            f"Checked: this machine reproduces the record exactly; {agreement.run} comes out bit "
            "for bit."
        )
    return f"Checked: {agreement.sentence}{_moved(agreement, record)}."


def _moved(agreement: Agreement, record: Record) -> str:
    """By how much rounding alone moved runs of the arena: ``tests/tools/rounding.py``."""
    if agreement.paired == "exactly":
        return ""
    measured = read_json(shipped(f"{PUBLISHED}/rounding.json"))["arenas"][record.folder.name]
    largest = measured["expected_accuracy"]["largest"]
    return (
        f"; rounding alone moved the personal accuracy of {measured['runs']} runs of this arena by "
        f"up to {largest:g} points"
    )


def _combine(record: Record, grid: Config, rivals: Sequence[str]) -> None:
    """Put the runs made here, and the record's of the other rivals, into one folder."""
    arena = grid.experiment
    here = {one.label for one in grid.methods}
    made = grid.root / filled(SUMMARY, experiment=arena)
    rows = {part: read_parquet(part / "runs.parquet").to_pylist() for part in (made, record.folder)}
    beside = [
        run_below(row)
        for row in rows[record.folder]
        if row["method"] in set(rivals) - here
        and row["seed"] in grid.seeds
        and row["status"] == "ok"
    ]
    folder = grid.root / RECORDS
    join([(made, [run_below(row) for row in rows[made]]), (record.folder, beside)], folder)
    searches = (record.folder / "search.json", grid.root / filled(SEARCH, experiment=arena))
    found = [read_json(file) for file in searches if file.is_file()]
    if found:
        rows = {label: row for one in found for label, row in one["methods"].items()}
        write_json(folder / "search.json", {**found[0], "methods": rows})
