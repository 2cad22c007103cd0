"""Synthetic run folders: plausible numbers from known distributions, written as training writes."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from fedsdg.analysis import plots
from fedsdg.analysis.plots import FIGURES
from fedsdg.analysis.plots.style import styled
from fedsdg.analysis.record import write_record_hashes
from fedsdg.analysis.summarise import summarise
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES, to_markdown
from fedsdg.cli import main
from fedsdg.files import sha256_json, write_json
from fedsdg.files.places import run_below
from fedsdg.files.records import CLIENTS_SCHEMA, ROUNDS_SCHEMA, TIMINGS_SCHEMA, write_parquet

#: Method → (personal accuracy at α = 0.1, gain per decade of α, global accuracy at α = 0.1).
LEVELS = {
    "fedsdg": (0.92, 0.02, 0.72),
    "fedavg": (0.77, 0.13, 0.74),
    "fedavg-uniform": (0.84, 0.08, 0.76),
    "fedavg-sgd": (0.80, 0.09, 0.71),
    "fine-tune": (0.90, 0.02, 0.74),
    "fedprox": (0.78, 0.12, 0.75),
    "scaffold": (0.82, 0.09, 0.73),
    "krum": (0.55, 0.26, 0.50),
    "multikrum": (0.71, 0.17, 0.66),
    "geometric-median": (0.76, 0.13, 0.70),
    "coordinate-median": (0.68, 0.17, 0.62),
    "trimmed-mean": (0.72, 0.15, 0.66),
    "cgsv": (0.79, 0.10, 0.73),
    "local-only": (0.87, -0.12, None),
}
METHODS = tuple(LEVELS)
BLOCKS = 6


@dataclass(frozen=True)
class Plan:
    """What to write; ``failed`` and ``absent`` are (skew, method, seed)."""

    methods: tuple[str, ...] = ("fedsdg", "fedavg", "fedavg-uniform", "krum", "local-only")
    skews: tuple[str, ...] = ("dirichlet~0.1", "dirichlet~1.0")
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    datasets: tuple[str, ...] = ("digits",)
    clients: int = 12
    cohort: int = 4
    rounds: int = 6
    evaluate_every: int = 2
    failed: frozenset[tuple[str, str, int]] = frozenset()
    empty: frozenset[tuple[str, str, int]] = frozenset()
    seconds: float = 1.0
    #: Expected accuracies, half of the clients differing, and the last quarter's means.
    quarters: bool = False


@dataclass
class Written:
    """Where the runs are, and the numbers that were put into them."""

    runs: Path
    plan: Plan
    #: (dataset, skew, method, seed) → {"last" | "selected": {metric: value}}
    truth: dict[tuple[str, str, str, int], dict[str, dict[str, float | None]]] = field(
        default_factory=dict
    )

    def values(self, skew: str, method: str, metric: str, at: str = "last") -> np.ndarray:
        found = [
            entry[at].get(metric)
            for (_, s, m, _), entry in self.truth.items()
            if (s, m) == (skew, method)
        ]
        return np.array(found, dtype=float)


def write_runs(runs: Path, plan: Plan) -> Written:
    written = Written(runs, plan)
    for at in product(plan.datasets, plan.skews, plan.methods, plan.seeds):
        run, place = _synthetic(plan, *at), at[1:]
        if place in plan.empty:
            run_folder(runs, run).mkdir(parents=True)
            continue
        if place in plan.failed:
            run.error = "FloatingPointError: client 3: the loss is not finite in round 2"
        else:
            written.truth[at] = {"last": run.last, "selected": run.selected or {}}
            if run.quarter:
                written.truth[at]["quarter"] = run.quarter
        write_run(runs, run)
    return written


def _synthetic(plan: Plan, dataset: str, skew: str, method: str, seed: int) -> "Run":
    rng = np.random.default_rng([seed, len(skew), *skew.encode(), *method.encode()])
    shared = np.random.default_rng([seed, *skew.encode()])  # partition and cohorts
    rounds, clients = _records(plan, skew, method, rng, shared)
    evaluated = [row for row in rounds if row["evaluated"]]
    selected = max(evaluated, key=lambda row: (row["val_accuracy"], -row["round"]))
    counts = ("train_loss", "bytes_up", "bytes_down", "evaluated")
    last, chosen = (
        {name: value for name, value in row.items() if name not in counts}
        for row in (evaluated[-1], selected)
    )
    quarter = None
    if plan.quarters:
        rows = [row for row in evaluated if row["round"] > 0.75 * plan.rounds]
        quarter = {"round": plan.rounds, "evaluations": len(rows)} | {
            name: float(np.mean([row[name] for row in rows])) for name in last if name != "round"
        }
    total, local = sum(row["bytes_up"] for row in rounds), method == "local-only"
    private = local or method == "fedsdg"
    result = {
        "bytes_up": total,
        "bytes_down": total,
        "client_storage_bytes": 98304 if private else 0,
        "communicated_parameters": 0 if local else 24_000,
        "private_parameters": 24_576 if private else 0,
        "degenerate_rounds": 0,
    }
    timings = [
        {"round": row["round"], "train_seconds": plan.seconds}
        | {"aggregate_seconds": 0.01 * plan.seconds}
        | {"evaluate_seconds": 0.2 * plan.seconds if row["evaluated"] else None}
        for row in rounds
    ]
    wall = {"wall_seconds": 1.3 * plan.seconds * plan.rounds, "peak_rss_mb": 800.0}
    return Run(method, seed, skew=skew, clients=plan.clients, dataset=dataset,
               config=_config(plan, method), result=result, last=last, selected=chosen,
               quarter=quarter, rounds=rounds, rows=clients, timings=timings,
               provenance=wall)  # fmt: skip


def _config(plan: Plan, method: str) -> dict:
    own = {
        "fedsdg": {"lambda1": 1e-4, "lambda2": 1e-4, "gate": "block"},
        "fedprox": {"mu": 0.1},
        "krum": {"f": 1},
        "cgsv": {"gamma0": 0.5, "floor": 0.001},
    }
    sgd = method in ("scaffold", "fedavg-sgd")
    return {
        "federation": {"clients": plan.clients, "clients_per_round": plan.cohort}
        | {"rounds": plan.rounds},
        "training": {"epochs": 2, "batch_size": 16, "eta_p": 0.003, "eta_m": 0.005}
        | {"eta_g": 0.1 if sgd else 0.003, "optimiser": "sgd" if sgd else "adam"},
        "adapters": {"rank": 8, "alpha": 16.0, "targets": "outputs"},
        "parameters": own.get(method, {}),
    }


def write_records(folder: Path, rounds: list[dict], clients: list[dict]) -> None:
    """Records hold a column beyond the schema only where a row has it."""
    for name, rows, schema in (
        ("rounds", rounds, ROUNDS_SCHEMA),
        ("clients", clients, CLIENTS_SCHEMA),
    ):
        columns = {name: [row.get(name) for row in rows] for row in rows for name in row}
        more = pa.table(columns).schema
        extra = [column for column in more if column.name not in schema.names]
        write_parquet(folder / f"{name}.parquet", rows, pa.schema([*schema, *extra]))


def _records(
    plan: Plan, skew: str, method: str, rng: np.random.Generator, shared: np.random.Generator
) -> tuple[list[dict], list[dict]]:
    personal, gain, overall = LEVELS[method if method in LEVELS else "fedsdg"]
    _, _, text = skew.partition("~")
    decades = math.log10(float(text or 10.0) / 0.1)
    luck = shared.normal(0, 0.015)  # common to all methods of the seed: why pairing helps
    level = personal + gain * decades + luck + rng.normal(0, 0.006)
    spread = 0.10 - 0.04 * decades
    difficulty = np.sort(shared.normal(0, spread, plan.clients))
    gates = np.full((plan.clients, BLOCKS), np.nan)
    trained = np.zeros(plan.clients, dtype=bool)
    rounds, clients = [], []
    for number in range(1, plan.rounds + 1):
        progress = 1 - math.exp(-4 * number / plan.rounds)
        cohort = shared.choice(plan.clients, plan.cohort, replace=False)
        weights, scores = _weights(method, plan.cohort, rng)
        trained[cohort] = True
        if method == "fedsdg":
            depth = np.linspace(-0.8, 1.0, BLOCKS)[None, :] * progress
            noise = rng.normal(0, 0.25, (plan.cohort, BLOCKS))
            gates[cohort] = 1 / (1 + np.exp(-(depth + 3 * difficulty[cohort, None] + noise)))
        evaluated = number % plan.evaluate_every == 0 or number == plan.rounds
        row: dict = {
            "round": number,
            "train_loss": 2.3 * (1 - 0.9 * progress),
            "bytes_up": 0 if method == "local-only" else plan.cohort * 96_512,
            "bytes_down": 0 if method == "local-only" else plan.cohort * 96_512,
            "evaluated": evaluated,
        }
        accuracy = 0.1 + (level + difficulty - difficulty.mean() - 0.1) * progress
        accuracy = np.clip(accuracy, 0.0, 1.0)
        if evaluated:
            accuracy = np.clip(accuracy + rng.normal(0, 0.01), 0, 1)
            lowest = np.sort(accuracy)[: math.ceil(plan.clients / 10)]
            over = {"accuracy": accuracy.mean(), "std": accuracy.std()}
            over["worst_decile"] = lowest.mean()
            row |= {f"personal_{name}": float(value) for name, value in over.items()}
            row["personal_accuracy_weighted"] = float(accuracy.mean())
            row["val_accuracy"] = float(accuracy.mean() + rng.normal(0, 0.01))
            if plan.quarters:
                halves = np.split(accuracy, 2)
                over |= {"accuracy_a": halves[0].mean(), "accuracy_b": halves[1].mean()}
                row |= {f"expected_{name}": float(value) for name, value in over.items()}
            if overall is not None:
                share = overall + 0.10 * decades + luck
                row["global_accuracy"] = float(0.1 + (share - 0.1) * progress + rng.normal(0, 0.01))
                row["global_loss"] = 1.0
                if plan.quarters:
                    row["global_val_accuracy"] = row["global_accuracy"]
        rounds.append(row)
        for client in range(plan.clients):
            took_part = client in cohort
            if not (took_part or evaluated):
                continue
            place = int(np.flatnonzero(cohort == client)[0]) if took_part else 0
            has_gates = method == "fedsdg" and trained[client]
            differs = client >= plan.clients // 2
            own = {"expected_accuracy": float(accuracy[client]), "drawn": bool(trained[client])}
            own |= {"conflicts": differs, "group": client % 2 if differs else -1}
            clients.append(
                {
                    "round": number,
                    "client": client,
                    "participated": took_part,
                    "weight": float(weights[place]) if took_part and weights is not None else None,
                    "alignment": float(scores[place]) if took_part and scores is not None else None,
                    "test_accuracy": float(accuracy[client]) if evaluated else None,
                    **(own if plan.quarters and evaluated else {}),
                    "gates": gates[client].tolist() if has_gates else None,
                }
            )
    return rounds, clients


def _weights(
    method: str, size: int, rng: np.random.Generator
) -> tuple[np.ndarray | None, np.ndarray | None]:
    if method in ("local-only", "coordinate-median", "trimmed-mean"):
        return None, None
    if method == "fedsdg":
        scores = rng.normal(0.35, 0.3, size)
        positive = np.clip(scores, 0, None)
        return (positive / positive.sum() if positive.sum() else np.full(size, 1 / size)), scores
    if method == "krum":
        return np.eye(size)[rng.integers(size)], None
    return np.full(size, 1 / size), None


def write_partitions(folder: Path, plan: Plan, classes: int = 10) -> list[Path]:
    """Partition files with the columns and metadata that training's data room writes."""
    paths = []
    for dataset, skew, seed in product(plan.datasets, plan.skews, plan.seeds):
        path = folder / dataset / f"clients~{plan.clients}" / skew / f"seed~{seed}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_partition(plan, dataset, skew, seed, classes), path)
        paths.append(path)
    return paths


def _partition(plan: Plan, dataset: str, skew: str, seed: int, classes: int) -> pa.Table:
    rng = np.random.default_rng([7, seed, *skew.encode()])
    alpha = float(skew.partition("~")[2] or 100)
    labels = np.repeat(np.arange(classes), 140)
    shares = [rng.dirichlet([alpha] * plan.clients) for _ in range(classes)]
    client = np.concatenate([rng.choice(plan.clients, 140, p=share) for share in shares])
    names = np.array(["train", "val", "test"])
    split = names[rng.choice(3, len(labels), p=[0.5, 0.2, 0.3])]
    rest = np.arange(classes).repeat(35)
    facts = {"dataset": dataset, "skew": skew, "num_clients": plan.clients, "seed": seed}
    return pa.table(
        {
            "sample": pa.array(np.arange(len(labels) + len(rest))),
            "label": pa.array(np.concatenate([labels, rest]).astype(np.int32)),
            "client": pa.array(np.concatenate([client, np.full(len(rest), -1)]).astype(np.int32)),
            "split": pa.array([*split, *["global_test"] * len(rest)]).dictionary_encode(),
        }
    ).replace_schema_metadata({b"fedsdg": json.dumps(facts | {"num_classes": classes}).encode()})


@dataclass
class Run:
    """A run whose records a test writes row by row, in a scenario where it names one.

    What it has in the round ``selected`` on validation data is, where nothing else is given, what
    it has in the last quarter, or else in the last round.
    """

    method: str
    seed: int = 0
    scenario: str = ""
    skew: str = "dirichlet~0.3"
    type: str | None = None
    clients: int = 10
    dataset: str = "digits"
    config: dict = field(default_factory=dict)
    result: dict = field(default_factory=dict)
    last: dict = field(default_factory=dict)
    quarter: dict | None = None
    selected: dict | None = None
    rounds: list[dict] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)
    timings: list[dict] = field(default_factory=list)
    provenance: dict = field(default_factory=dict)
    error: str | None = None


def run_folder(runs: Path, run: Run) -> Path:
    skew = f"{run.skew}@{run.scenario}" if run.scenario else run.skew
    identity = {"dataset": run.dataset, "clients": run.clients, "skew": skew}
    return runs / run_below(identity | {"method": run.method, "seed": run.seed})


def write_run(runs: Path, run: Run) -> None:
    folder = run_folder(runs, run)
    kind = run.type or run.method
    named = {"dataset": run.dataset, "skew": run.skew, "seed": run.seed, "method": kind}
    config = named | run.config
    last = {"round": len(run.rounds)} | run.last
    result = {
        **named,
        "experiment": runs.name,
        "clients": run.clients,
        "label": run.method,
        "status": "ok",
        "error": None,
        "config": config,
        "config_hash": sha256_json(config),
        "partition_hash": sha256_json([run.skew, run.seed]),
        "backbone_hash": sha256_json("letters"),
        "source_hash": sha256_json("source"),
    }
    if run.error is not None:
        write_json(folder / "result.json", result | {"status": "failed", "error": run.error})
        return
    result |= {"last": last, "selected": run.selected or run.quarter or last}
    result |= {"quarter": run.quarter} if run.quarter is not None else {}
    result |= {"communicated_parameters": 100, "rounds": len(run.rounds)} | run.result
    write_json(folder / "result.json", result)
    write_records(folder, run.rounds, run.rows)
    write_parquet(folder / "timings.parquet", run.timings, TIMINGS_SCHEMA)
    if run.provenance:
        write_json(folder / "provenance.json", run.provenance)


def make_record(folder: Path, name: str, runs: Iterable[Run], **options) -> Path:
    """Write runs below ``folder/runs/name``, and the summary of all there to ``records/name``."""
    for run in runs:
        write_run(folder / "runs" / name, run)
    summarise(folder / "runs" / name, folder / "records" / name, **options)
    return folder / "records" / name


@pytest.fixture
def summary_of(tmp_path: Path) -> Callable[..., Path]:
    """The folder of a summary of runs that a test wrote itself."""

    def make(runs: Iterable[Run], primary: Iterable[dict] = (), roles: dict | None = None) -> Path:
        return make_record(tmp_path, "arena", runs, primary=list(primary), roles=roles)

    return make


def markdown(folder: Path, table: str) -> str:
    """A table of a summary in Markdown, with single spaces."""
    return re.sub(" +", " ", to_markdown(TABLES[table](Summary(folder))))


def drawn(folder: Path, name: str, partitions: Iterable[Path] = ()) -> Figure:
    """A figure of a summary, not written."""
    summary = Summary(folder)
    with styled(summary.roles):
        return FIGURES[name].drawn(FIGURES[name].frame(summary, partitions))


@pytest.fixture
def as_svg(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure is drawn for each format anew; where it is the drawing that is tested, one does."""
    monkeypatch.setattr(plots, "_FORMATS", {"svg": plots._FORMATS["svg"]})


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line with which a command ends that cannot do what it was asked."""

    def sentence(*words: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return sentence


@pytest.fixture
def make_runs(tmp_path: Path) -> Callable[..., Written]:
    """``make_runs(methods=…, …)`` writes the runs of a ``Plan`` below a folder of its own."""

    def make(name: str = "synthetic", **changes: object) -> Written:
        return write_runs(tmp_path / "runs" / name, Plan(**changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_partitions(tmp_path: Path) -> Callable[..., list[Path]]:
    def make(**changes: object) -> list[Path]:
        return write_partitions(tmp_path / "partitions", Plan(**changes))  # type: ignore[arg-type]

    return make


FAILED = frozenset({("dirichlet~0.1", "krum", 1)})
EMPTY = frozenset({("dirichlet~1.0", "fedavg", 2)})


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The small grid with one failed run and one folder without a result."""
    folder = tmp_path_factory.mktemp("grid")
    return write_runs(folder / "runs" / "synthetic", Plan(failed=FAILED, empty=EMPTY))


@pytest.fixture(scope="session")
def summary_dir(written: Written) -> Path:
    folder = written.runs.parent.parent / "summary" / "synthetic"
    summarise(written.runs, folder)
    return folder


@pytest.fixture(scope="session")
def with_quarters(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A grid as runs record it today: expected accuracies, two kinds of clients, last quarters."""
    folder = tmp_path_factory.mktemp("quarters")
    methods = ("fedsdg", "fedavg", "fedavg-uniform", "fedavg-sgd", "local-only")
    plan = Plan(methods=methods, quarters=True, rounds=16, evaluate_every=1, skews=("iid",))
    written = write_runs(folder / "runs" / "quarters", plan)
    summarise(written.runs, folder / "summary" / "quarters")
    return written


@pytest.fixture(scope="session")
def quarters_dir(with_quarters: Written) -> Path:
    return with_quarters.runs.parent.parent / "summary" / "quarters"


@pytest.fixture(scope="session")
def partitions(written: Written) -> Iterable[Path]:
    return write_partitions(written.runs.parent.parent / "partitions", written.plan)


@pytest.fixture(scope="session")
def in_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A summary of a grid of which the second seed and a whole method are yet to come."""
    folder = tmp_path_factory.mktemp("in-part")
    written = write_runs(folder / "runs", Plan(methods=("fedsdg", "fedavg"), seeds=(0,)))
    methods = ("fedsdg", "fedavg", "scaffold")
    cells = [f"{skew}/{method}" for skew in written.plan.skews for method in methods]
    wanted = [f"digits/clients~12/{cell}/seed~{seed}" for cell in cells for seed in (0, 1)]
    summarise(written.runs, folder / "summary", wanted)
    return folder / "summary"


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One seed, no FedSDG, no Dirichlet, two settings."""
    folder = tmp_path_factory.mktemp("bare")
    plan = Plan(
        methods=("krum", "local-only"), skews=("iid",), seeds=(0,), datasets=("usps", "digits")
    )
    summarise(write_runs(folder / "runs", plan).runs, folder / "summary")
    return folder / "summary"


def first_seeds_alone(record: Path, target: Path, method: str, count: int) -> Path:
    """A copy of a record, below `target`, with the first `count` seeds of one of its methods."""
    copy = target / record.name
    shutil.copytree(record, copy)
    wanted = pq.read_table(record / "runs.parquet", columns=["seed"])["seed"]
    last = sorted(wanted.unique().to_pylist())[count - 1]
    for file in copy.glob("*.parquet"):
        table = pq.read_table(file)
        if {"method", "seed"} <= set(table.column_names):
            later = pc.and_(pc.equal(table["method"], method), pc.greater(table["seed"], last))
            pq.write_table(table.filter(pc.invert(later)), file)
    write_record_hashes(copy)
    return copy
