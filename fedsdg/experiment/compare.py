"""A user's own methods beside the published rows of an arena: only the newcomers are run.

They meet the partitions, cohorts, backbone and seeds of the record, and are paired with its runs
seed by seed. Whether that is allowed on this machine is tried first (``recheck``).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedsdg import files
from fedsdg.analysis.compare import ranking, sentences
from fedsdg.analysis.gather import join
from fedsdg.analysis.page import write_page
from fedsdg.analysis.records import Record
from fedsdg.analysis.tables import Table
from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.config.layers import merged, read_layer
from fedsdg.config.values import require_folders
from fedsdg.errors import ConfigError, remark, require_one_of, shortened
from fedsdg.experiment.backbones import backbone
from fedsdg.experiment.grid import run_grid
from fedsdg.experiment.material import get_or_make
from fedsdg.experiment.recheck import Agreement, recheck, recorded_runs
from fedsdg.experiment.runs import task_of
from fedsdg.experiment.search import search
from fedsdg.experiment.summary import write_summary
from fedsdg.files.places import ARENAS, RECORDS, run_below, shipped

KEYS = ("experiment", "methods", "plugins", "search")
"""What a config of newcomers may say; all else is the arena's."""


class Comparison(NamedTuple):
    """A finished comparison."""

    tables: list[Table]
    "the ranking with each newcomer"
    sentences: list[str]
    "where newcomers stand"
    paired: str | None
    "how runs made here are pairs of the record's, as `Agreement` says; None: all were run here"
    page: Path
    "in the folder of the tables"
    records: Path
    "the runs of newcomers and rivals, as one record"


def compare(
    places: Sequence[str],
    arena: str = "needs",
    seeds: int = 5,
    *,
    against: Sequence[str] = (),
    tune: bool = False,
    baselines_here: bool = False,
    jobs: int = 1,
    output: Path | None = None,
) -> Comparison:
    """Run newcomers, and set them beside the record of an arena.

    Runs are kept in the store, so that only what is new is trained.

    Args:
        places: Plugins, all of whose methods are compared with their defaults; or configs that name
            plugins, entries of ``methods``, and maybe a space to search.
        arena: A name of ``ARENAS``.
        seeds: The first so many of the record.
        against: Labels of the record's rows; none: all.
        tune: Give every newcomer the search that the rows of the record had.
        baselines_here: Run the record's rows here too, and take none of its runs.
        jobs: The number of runs side by side.
        output: The folder of page, tables and records; None:
            ``compare/{arena}-{name of the first file}``.

    Raises:
        ValueError: A name is unknown or taken; runs made here are no pairs of the record's; a run
            failed.
    """
    require_one_of(ARENAS, arena, "there is no record of an arena")
    record = shipped(f"{RECORDS}/{arena}")
    published = recorded_runs(record)
    rows = list(dict.fromkeys(row["method"] for row in published))
    known = sorted({row["seed"] for row in published})
    if not 1 <= seeds <= len(known):
        raise ValueError(
            f"--seeds is {seeds}, but the record of {arena!r} has {len(known)}; ask for 1 to "
            f"{len(known)}"
        )
    for label in against:
        require_one_of(rows, label, "--against: the record has no row")
    arena_raw = merged([shipped(f"config/{arena}.yaml")])
    arena_config = Config.read(arena_raw)
    newcomers = _newcomers(places)
    own_space = newcomers.pop("search", {}).get("space") or {}
    raw = {**arena_raw, **newcomers, "seeds": known[:seeds], "tuned": [], "search": {}}
    config = Config.read(raw)
    labels = [entry.label for entry in config.methods]
    for label in own_space:
        require_one_of(labels, label, f"{places[0]}: search.space names no method of yours:")
    for label in {*labels} & {*rows}:
        raise ValueError(
            f"the record of {arena!r} has a row {label!r} already; give the entry a 'name'"
        )
    require_folders("methods", [*rows, *labels])
    folder = output or Path("compare") / f"{arena}-{Path(places[0]).stem}"
    results = folder / "results"
    paired = None
    checked = "All rows were run on this machine"
    if not baselines_here:
        agreement = _require_pairs(arena_config, config, record, published, results)
        paired = agreement.paired
        checked = agreement.sentence
        remark(checked)
    if tune:
        space = {}
        for entry in config.methods:
            usual = "fedavg-sgd" if entry.row.optimiser == "sgd" else "fedavg-uniform"
            space[entry.label] = own_space.get(entry.label) or arena_config.search.space[usual]
        raw["search"] = {**arena_raw["search"], "space": space}
        found = results / f"search/{arena}.json"
        search(Config.read(raw), found, results, jobs=jobs)
        raw["tuned"] = [str(found.with_suffix(".tuned.yaml"))]
        config = Config.read(raw)
    rivals = [label for label in rows if label in (against or rows)]
    if baselines_here:
        entries = [*config.methods, *map(arena_config.method, rivals)]
        config = Config.read({**raw, "methods": entries, "tuned": []})
        rivals = []
    failed = run_grid(config, results, jobs=jobs)
    if failed:
        raise ValueError(f"{len(failed)} run(s) failed, the first is {failed[0]}")
    both = _combine(record, folder, config, rivals)
    tables = []
    lines = []
    for label in labels:
        table = ranking(both, label)
        replace(table, name=f"{table.name}-{label}").write(folder)
        tables.append(table)
        lines += sentences(both, label)
    said = " ".join([f"{checked}.", *lines])
    page = write_page(folder / "index.html", [both], root=folder, compared=tables, remark=said)
    return Comparison(tables, lines, paired, page, both.folder)


def _newcomers(places: Sequence[str]) -> dict[str, Any]:
    """Return plugins, methods and search of newcomers, as a config has them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It brings no method, or says what only an arena says.
    """
    found: dict[str, Any] = {"plugins": [], "methods": [], "search": {}}
    for place in places:
        if Path(place).suffix in (".yaml", ".yml"):
            given = read_layer(Path(place))
            for key in given.keys() - KEYS:
                raise ConfigError(
                    f"{place}: {key!r} is the arena's to say; a comparison takes methods, plugins "
                    "and search alone"
                )
            for key, kind in (("methods", "list"), ("plugins", "list"), ("search", "mapping")):
                if not isinstance(given.get(key) or found[key], type(found[key])):
                    fault = f"is {shortened(given[key])}, but must be a {kind}"
                    raise ConfigError(fault, f"{place}: {key}")
        else:
            names = sorted(plugins.load(place).names)
            given = {"plugins": [place], "methods": [n for kind, n in names if kind == "method"]}
        found["plugins"] += given.get("plugins") or []
        found["methods"] += given.get("methods") or []
        found["search"] |= given.get("search") or {}
    if not found["methods"]:
        raise ConfigError(
            f"{', '.join(places)}: no METHODS and no entry of 'methods', so there is nothing to "
            "compare; see docs/add-a-method.md"
        )
    return found


def _require_pairs(
    arena: Config, config: Config, record: Path, rows: list[dict[str, Any]], results: Path
) -> Agreement:
    """Draw every partition and compare its hash; do rounds of FedAvg's first run again.

    FedAvg is the plainest of all: what it needs, every method needs.
    """
    hashes = {row["partition_hash"] for row in rows if row["seed"] in config.seeds}
    for run in config.runs():
        if get_or_make(task_of(config, run, results)).sha256 not in hashes:
            raise ValueError(
                f"the partition {run.dataset} {run.skew} seed {run.seed} is not that of the "
                "record; --baselines-here runs the rows of the record on this machine"
            )
    first = next(row for row in rows if row["method"].startswith("fedavg"))
    entry = arena.method(first["method"])
    task = task_of(arena, arena.run(first["dataset"], first["skew"], entry, first["seed"]), results)
    backbone(arena.backbone, task.recipe, task.backbone)
    agreement = recheck(task, record, first)
    if agreement.paired is None:
        raise ValueError(
            f"{agreement.sentence}; --baselines-here runs the rows of the record on this machine"
        )
    return agreement


def _combine(record: Path, folder: Path, config: Config, rivals: Sequence[str]) -> Record:
    """Return the runs made here and those of rivals in the record, as one record."""
    results = folder / "results"
    made = results / f"summary/{config.experiment}"
    write_summary(results / f"runs/{config.experiment}", made, config)
    rows = [row for row in recorded_runs(record) if row["method"] in rivals]
    runs = [run_below(row) for row in rows if row["seed"] in config.seeds]
    here = [run_below(row) for row in recorded_runs(made)]
    join([(made, here), (record, runs)], folder / "records")
    searches = (record / "search.json", results / f"search/{config.experiment}.json")
    found = [files.read_json(file) for file in searches if file.is_file()]
    if found:
        methods = {label: row for one in found for label, row in one["methods"].items()}
        files.write_json(folder / "records/search.json", {**found[0], "methods": methods})
    return Record(folder / "records")
