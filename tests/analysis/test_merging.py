"""A record made in pieces is the record made at once; what does not fit together is refused."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.claims import write_claims
from fedsdg.analysis.summarise import read_summary, summarise, write_summary
from fedsdg.analysis.summary import usual_roles
from fedsdg.analysis.tables import write_table
from fedsdg.cli import main
from fedsdg.files import sha256_json, write_json
from fedsdg.files.records import CLIENTS_SCHEMA, ROUNDS_SCHEMA, more, write_parquet

from .conftest import Plan, write_partitions, write_runs

TABLES = ("main", "bytes", "seconds")
METHODS = ("fedsdg", "fedavg", "krum", "local-only")
SUMMARY = ("runs", "rounds", "clients", "timings", "differences")
OLD = ("fedsdg", "fedavg")
LATER = {"personal_steps": 12, "gate_travel": 3.5, "gates_a": 0.25}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs of four methods and two seeds with their partitions; a test computes some of them."""
    folder = tmp_path_factory.mktemp("made")
    plan = Plan(methods=METHODS, seeds=(1, 2))
    runs = write_runs(folder / "tried", plan).runs
    write_partitions(folder / "partitions", plan)
    for number, file in enumerate(sorted(runs.rglob("result.json")), 1):
        change(file, config={"backbone": "letters"})
        days = {"started": f"2026-01-{number:02}", "finished": f"2026-02-{number:02}"}
        change(file.with_name("provenance.json"), machine="one", **days)
    # Columns that only some runs have, and not those that are first in the order.
    for folder in runs.glob("*/*/*/krum/*"):
        for name, schema, added in (
            ("rounds", ROUNDS_SCHEMA, lambda row: {"attackers": 1}),
            ("clients", CLIENTS_SCHEMA, lambda row: {"answers": bytes([row["client"], 255])}),
        ):
            file = folder / f"{name}.parquet"
            rows = [row | added(row) for row in pq.read_table(file).to_pylist()]
            write_parquet(file, rows, schema, more(name))
        change(folder / "result.json", **LATER)
    return runs.parent


@pytest.fixture
def grid(made, tmp_path, monkeypatch):
    """A working folder beside those runs, which lie aside."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "partitions", "results/partitions")
    write_json("results/backbones/letters.json", {"accuracy": 0.5})
    return shutil.copytree(made / "tried", tmp_path / "tried")


def change(file, config=None, **facts):
    """Change facts of a file, and keys of the config in it."""
    known = json.loads(file.read_text())
    write_json(file, known | ({"config": known["config"] | config} if config else {}) | facts)


def compute(grid, *places, missing=()):
    """As if the runs in these folders had been computed here, and no others."""
    runs, summary = Path("results/runs/tried"), Path("results/summary/tried")
    shutil.rmtree("results/runs", ignore_errors=True)
    folders = [f for place in places for f in sorted(grid.glob(f"digits/clients~12/*/{place}"))]
    names = [str(folder.relative_to(grid)) for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        shutil.copytree(folder, runs / name, dirs_exist_ok=True)
    summarise(runs, summary, [*names, *missing])
    shutil.rmtree("results/tables", ignore_errors=True)
    for table in TABLES:
        write_table(summary, table, Path("results/tables/tried", table))
    write_claims(summary, Path("results/claims/tried"))


def recorded():
    return {run.folder: run for run in read_summary("results/reference/tried")}


def contents(folder=Path("results/reference/tried")):
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def record(*options):
    return main(["record", "tried", *options])


def test_a_summary_that_is_read_and_written_is_the_same_to_the_byte(grid, tmp_path):
    compute(grid, "*/seed~*", missing=["digits/clients~12/dirichlet~0.1/scaffold/seed~1"])
    before = Path("results/summary/tried")
    write_summary(reversed(read_summary(before)), tmp_path / "again", usual_roles())
    for name in SUMMARY:
        file = f"{name}.parquet"
        assert (tmp_path / "again" / file).read_bytes() == (before / file).read_bytes(), name


@pytest.mark.parametrize(
    "pieces",
    [
        (["*/*"],),  # without a record it is just a record
        (["*/seed~2"], ["*/seed~1"]),
        (["fedavg/*", "krum/*"], ["fedsdg/seed~1", "krum/seed~2"], ["fedsdg/*", "local-only/*"]),
    ],
)
def test_pieces_make_the_record_that_is_made_at_once(grid, pieces):
    """In whatever order they come, and where they overlap."""
    compute(grid, "*/seed~*")
    assert record() == 0
    whole = contents()
    shutil.rmtree("results/reference")
    for piece in pieces:
        compute(grid, *piece)
        assert record("--merge") == 0
    merged = contents()
    origins, expected = (json.loads(files.pop("provenance.json")) for files in (merged, whole))
    for files in (merged, whole):
        lines = files["SHA256SUMS"].splitlines()
        files["SHA256SUMS"] = [line for line in lines if not line.endswith(b"provenance.json")]
    assert merged == whole
    assert [sorted(one.pop("runs")) for one in origins] == [
        sorted(one.pop("runs")) for one in expected
    ]
    assert origins == expected == [{"machine": "one", "first": "2026-01-01", "last": "2026-02-16"}]


def test_without_merge_the_record_is_replaced(grid):
    for methods in (METHODS, OLD):
        compute(grid, *(f"{method}/*" for method in methods))
        assert record() == 0
    assert {run.row["method"] for run in recorded().values()} == set(OLD)


def test_a_run_computed_here_replaces_the_recorded_one_and_the_others_stay(grid):
    compute(grid, "*/seed~*")
    record()
    before = recorded()
    file = next(grid.rglob("krum/seed~1/result.json"))
    change(file, last=json.loads(file.read_text())["last"] | {"personal_accuracy": 0.125})
    compute(grid, "krum/seed~1")
    assert record("--merge") == 0
    after = recorded()
    assert after.keys() == before.keys()
    changed = [name for name in after if after[name].row != before[name].row]
    assert changed == [str(file.parent.relative_to(grid))]
    assert after[changed[0]].row["last_personal_accuracy"] == 0.125


def test_a_run_that_was_not_run_here_replaces_none(grid):
    compute(grid, "krum/*", "fedavg/*")
    record()
    place = "digits/clients~12/dirichlet~0.1"
    compute(grid, "fedavg/*", missing=[f"{place}/krum/seed~1", f"{place}/scaffold/seed~1"])
    record("--merge")
    runs = {folder: run.row["status"] for folder, run in recorded().items()}
    assert runs[f"{place}/krum/seed~1"] == "ok"
    assert runs[f"{place}/scaffold/seed~1"] == "not run"


def test_every_machine_and_commit_has_an_entry_with_its_runs(grid):
    compute(grid, "fedsdg/*", "fedavg/*")
    record()
    for file in grid.rglob("provenance.json"):
        change(file, machine="two")
    compute(grid, "fedavg/seed~1", "krum/*")
    record("--merge")
    entries = json.loads(Path("results/reference/tried/provenance.json").read_text())
    methods = {entry["machine"]: {run.split("/")[3] for run in entry["runs"]} for entry in entries}
    assert methods == {"one": {"fedsdg", "fedavg"}, "two": {"fedavg", "krum"}}
    every = [run for entry in entries for run in entry["runs"]]
    assert len(every) == len(set(every)) == 12


def test_a_record_from_before_is_joined(grid):
    """One entry of provenance, no results and no quarters."""
    compute(grid, "fedsdg/*", "fedavg/*")
    record()
    kept = Path("results/reference/tried")
    write_json(kept / "provenance.json", {"machine": "old", "wall_seconds": 3.0})
    table = pq.read_table(kept / "runs.parquet")
    assert not {*LATER} & {*table.column_names}
    late = [name for name in table.column_names if name == "result" or name.startswith("quarter_")]
    pq.write_table(table.drop_columns(late), kept / "runs.parquet")
    (kept / "SHA256SUMS").unlink()
    compute(grid, "krum/*")
    assert record("--merge") == 0
    for run in recorded().values():
        old, clients = run.row["method"] in OLD, run.table("clients")
        assert (run.row["result"] is None) == old
        assert {name: run.row[name] for name in LATER} == (dict.fromkeys(LATER) if old else LATER)
        assert ("answers" in clients.column_names) == (not old)
        for row in [] if old else clients.to_pylist():
            assert row["answers"] == bytes([row["client"], 255])
    entries = json.loads((kept / "provenance.json").read_text())
    assert [(entry["machine"], len(entry["runs"])) for entry in entries] == [("old", 8), ("one", 4)]
    assert json.loads((kept / "pages.json").read_text())["tables"] == sorted(TABLES)


def edit(part, **changes):
    def apply(file):
        known = json.loads(file.read_text())["config"]
        change(file, config=changes if part == "config" else {part: known[part] | changes})

    return apply


def rehash(name):
    return lambda file: change(file, **{name: sha256_json("another")})


def spoilt(grid, method, spoil):
    for file in grid.rglob(f"{method}/seed~*/result.json"):
        spoil(file)


@pytest.mark.parametrize(
    ("method", "spoil", "message"),
    [
        ("krum", edit("federation", rounds=60), "federation.rounds is 6 in it, but 60 here"),
        ("krum", edit("training", clip_norm=9), "training.clip_norm is None in it, but 9 here"),
        ("krum", edit("config", conditions={}), "conditions is None in it, but {} here"),
        ("fedavg", edit("training", eta_g=9), "training.eta_g is 0.003 in it, but 9 here"),
        ("fedavg", edit("config", parameters={"f": 2}), "parameters.f is None in it, but 2 here"),
        ("fedavg", rehash("source_hash"), "source_hash is "),
        ("krum", rehash("backbone_hash"), "backbone_hash is "),
        ("krum", rehash("partition_hash"), "partition_hash is "),
    ],
)
def test_runs_that_cannot_stand_beside_those_of_the_record_are_refused(
    grid, refused, method, spoil, message
):
    compute(grid, "fedsdg/seed~2", "fedavg/seed~1")
    record()
    before = contents()
    spoilt(grid, method, spoil)
    compute(grid, f"{method}/seed~2")
    said = refused("record", "tried", "--merge")
    assert f"cannot join the record of 'tried': {message}" in said
    assert f"{method}/seed~2 of those here" in said and "record without --merge" in said
    assert contents() == before
    assert record() == 0


def test_runs_of_code_that_computes_the_same_may_stand_beside_each_other(grid):
    """The stamp of the run that is computed anew goes; those of the runs that stay stay."""
    compute(grid, "fedavg/*")
    record()
    kept = Path("results/reference/tried")
    place = "digits/clients~12/dirichlet~0.1/fedavg/seed~"
    new, other = sha256_json("another"), sha256_json("a third")
    sources = {new: [f"{place}1", f"{place}2"], other: [f"{place}1"]}
    spoilt(grid, "fedavg", rehash("source_hash"))
    compute(grid, "fedavg/seed~2")
    assert record("--merge") == 2
    sources[new] += recorded()
    stamps = [{"old": "a", "new": "b", "gate": ["the same"], "sources": sources}]
    write_json(kept / "restamped.json", stamps)
    assert record("--merge") == 0
    (entry,) = json.loads((kept / "restamped.json").read_text())
    assert all("seed~1" in folder for folder in entry["sources"][new])
    assert entry["sources"][other] == [f"{place}1"] and entry["gate"] == ["the same"]
    assert "restamped.json" in (kept / "SHA256SUMS").read_text()


@pytest.mark.parametrize(
    ("method", "spoil", "here"),
    [
        ("krum", edit("training", eta_g=9), "krum/*"),  # a rate of its own
        ("krum", rehash("source_hash"), "krum/*"),  # other methods go through other code
        ("*", edit("federation", rounds=60), "*/*"),  # all recorded runs are replaced
    ],
)
def test_what_a_method_has_for_itself_and_what_replaces_all_is_no_contradiction(
    grid, method, spoil, here
):
    compute(grid, "fedsdg/*", "fedavg/*")
    record()
    spoilt(grid, method, spoil)
    compute(grid, here)
    assert record("--merge") == 0


def truncated(file):
    file.write_bytes(file.read_bytes()[:-40])


def without_run(file):
    table = pq.read_table(file)
    pq.write_table(table.filter(pa.compute.not_equal(table["method"], "fedavg")), file)


def shuffled(file):
    table = pq.read_table(file)
    pq.write_table(table.take([*range(1, len(table)), 0]), file)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("clients", truncated, "clients.parquet is damaged ("),
        ("runs", truncated, "runs.parquet is damaged ("),
        ("timings", Path.unlink, "timings.parquet is damaged ("),
        ("rounds", without_run, "it has no rows of the run digits/"),
        ("runs", without_run, "is none of runs.parquet"),
        ("rounds", shuffled, "do not stand together"),
    ],
)
def test_a_damaged_record_is_named_and_stays(grid, refused, name, damage, message):
    compute(grid, "fedsdg/*", "fedavg/*")
    record()
    damage(Path(f"results/reference/tried/{name}.parquet"))
    Path("results/reference/tried/SHA256SUMS").unlink()  # A record of before it had hashes.
    before = contents()
    compute(grid, "krum/seed~1")
    said = refused("record", "tried", "--merge")
    assert message in said and "restore it" in said
    assert contents() == before
    assert record() == 0
