"""Runs of a committed record that are the very ones count as done, byte for byte."""

import dataclasses
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from fedsdg.analysis.record import keep_record, write_record_hashes
from fedsdg.analysis.summarise import summarise
from fedsdg.cli import main
from fedsdg.experiment.conditions import parse_conditions
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.continuing import take_from_record
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.run_files import address
from fedsdg.experiment.runs import execute
from fedsdg.files import write_json
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

ROOT = Path(__file__).parents[2]
SETTINGS = [
    "federation.rounds=2",
    "federation.evaluate_every=1",
    "federation.clients=8",
    "federation.clients_per_round=5",
]
SETTINGS += ["training.epochs=1", "adapters.rank=2", "experiment=tried", "tables=[main]"]
SAME = ("rounds.parquet", "clients.parquet", "result.json", "timings.parquet")
# With columns that only some runs have.
CASES = (
    ("fedsdg", {}, 0),
    ("fedavg", {"attack": {"type": "sign-flip", "share": 0.2}, "dropout": {"probability": 0.3}}, 0),
    ("cgsv", {"compute": {"deadline": 60}}, 1),
    ("local-only", {}, 0),
)


@dataclasses.dataclass
class Computed:
    """What is needed to do the runs, once more or not."""

    runs: list
    material: object
    partitions: dict

    def execute(self, number, folder, store):
        method, run = self.runs[number]
        identity = {"experiment": "tried", "dataset": "digits", "clients": 8, "skew": "iid"}
        identity |= {"method": run.method, "label": method, "seed": run.seed}
        outcome = execute(
            run, self.material, self.partitions[run.seed], folder, store=store, identity=identity
        )
        assert outcome is None

    def addresses(self):
        return [address(run, self.material, self.partitions[run.seed]) for _, run in self.runs]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Real runs of a tiny backbone, their summary and their record."""
    place = tmp_path_factory.mktemp("computed")
    config = load_config([ROOT / "config/config.yaml"], SETTINGS)
    torch.manual_seed(0)
    shape = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    backbone = freeze(build_backbone(shape), shape, "tiny", {})
    runs = [
        (
            method,
            dataclasses.replace(
                config.run("digits", "iid", method_entry(method), seed),
                conditions=parse_conditions(conditions),
            ),
        )
        for method, conditions, seed in CASES
    ]
    partitions = {n: make_partition("digits", "iid", n, 8, config.partition) for n in (0, 1)}
    made = Computed(runs, prepare_material("digits", backbone, "cpu"), partitions)
    folders = [f"digits/clients~8/iid/{method}/seed~{seed}" for method, _, seed in CASES]
    for number, folder in enumerate(folders):
        made.execute(number, place / "results/runs/tried" / folder, place / "store/runs")
    summarise(place / "results/runs/tried", place / "results/summary/tried")
    write_json(place / "results/backbones/letters.json", {})
    keep_record("tried", place / "results")
    return place, made, folders


@pytest.fixture
def here(computed, tmp_path, monkeypatch):
    """A folder with the record alone."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(computed[0] / "results/reference", "results/reference")
    return tmp_path


def no_training(*_, **__):
    raise AssertionError("this run was to be taken from the record")


def test_what_comes_back_is_what_was_computed(computed, here, monkeypatch):
    place, made, folders = computed
    assert take_from_record("tried", made.addresses(), here / "runs") == len(CASES)
    monkeypatch.setattr("fedsdg.experiment.runs._train", no_training)
    extras = set()
    for number, folder in enumerate(folders):
        made.execute(number, here / folder, here / "runs")
        for name in SAME:
            original = place / "results/runs/tried" / folder / name
            assert (here / folder / name).read_bytes() == original.read_bytes(), (folder, name)
        extras |= set(pq.read_schema(here / folder / "rounds.parquet").names)
        facts = json.loads((here / folder / "provenance.json").read_text())
        original = json.loads(original.with_name("provenance.json").read_text())
        assert facts.pop("taken_from") == "results/reference/tried"
        assert facts == {name: original[name] for name in facts} and facts["wall_seconds"] > 0
        clients = pq.read_table(here / folder / "clients.parquet", columns=["answers"])
        assert clients["answers"].null_count < len(clients)
    assert {"attackers", "dropped", "simulated_seconds", "personal_steps"} <= extras


@pytest.mark.parametrize("name", ["config_hash", "partition_hash", "backbone_hash", "source_hash"])
def test_another_address_is_another_run(computed, here, name):
    made = computed[1]
    others = [dataclasses.replace(one, **{name: "0" * 64}) for one in made.addresses()]
    assert take_from_record("tried", others, here / "runs") == 0
    assert not (here / "runs").exists()


def test_without_a_record_nothing_is_taken(computed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert take_from_record("tried", computed[1].addresses(), tmp_path / "runs") == 0


def change_runs(**columns):
    file = Path("results/reference/tried/runs.parquet")
    table = pq.read_table(file)
    rows = [row | {name: f(row) for name, f in columns.items()} for row in table.to_pylist()]
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), file)
    write_record_hashes(file.parent)


def traced(row):
    config = json.loads(row["config"])
    config["federation"]["trace_every"] = 5
    return json.dumps(config)


def saved(row):
    config = json.loads(row["config"])
    config["training"]["save"] = "last"
    return json.dumps(config)


@pytest.mark.parametrize(
    "change",
    [
        {"result": lambda _: None},  # a record from before
        {"config": traced},  # what a run has traced is in no record
        {"config": saved},  # nor are the models that it has kept
        {"status": lambda _: "failed"},
    ],
)
def test_what_the_record_holds_in_part_is_not_taken(computed, here, change):
    change_runs(**change)
    assert take_from_record("tried", computed[1].addresses(), here / "runs") == 0


def test_a_damaged_record_is_named(computed, here):
    file = Path("results/reference/tried/clients.parquet")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"clients.parquet is damaged .*; restore it"):
        take_from_record("tried", computed[1].addresses(), here / "runs")


def test_runs_made_in_company_come_back_as_such(computed, here):
    """Their rounding is their own: made alone they would not be found."""
    file = Path("results/reference/tried/provenance.json")
    entries = json.loads(file.read_text())
    write_json(file, [entry | {"seeds_together": [0, 1]} for entry in entries])
    write_record_hashes(file.parent)
    made = computed[1].addresses()
    assert take_from_record("tried", made, here / "runs") == len(CASES)
    names = {folder.name for folder in (here / "runs").iterdir()}
    assert names == {f"{one.key}.seeds~0-1" for one in made}


FILES = [str(ROOT / "config/extended/full.yaml"), "laid.yaml"]
LAID = """
federation: {clients: 8, clients_per_round: 2, rounds: 2, evaluate_every: 1}
training: {epochs: 1}
skews: [iid]
seeds: [0]
methods: [fedavg]
tables: [main]
figures: [convergence]
"""


@pytest.mark.slow
def test_a_grid_goes_on_where_the_record_ends_if_it_is_asked_to(tmp_path, monkeypatch, forked):
    """And so does the pipeline's command, by the environment; neither by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSDG_CONFIG", str(ROOT / "config/config.yaml"))
    monkeypatch.setenv("FEDSDG_STORE", str(tmp_path / "store/runs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("laid.yaml").write_text(LAID)
    grid = ["run", "--grid", *FILES]
    assert main(grid) == 0
    assert main(["record", "full"]) == 0
    cell = Path("results/runs/full/digits/clients~8/iid/fedavg")
    kept = shutil.copytree(cell / "seed~0", tmp_path / "kept")

    def lost():
        shutil.rmtree("store")
        shutil.rmtree("results/runs")

    def taken():
        return "taken_from" in json.loads((cell / "seed~0/provenance.json").read_text())

    lost()
    assert main(grid) == 0
    assert not taken()
    lost()
    further = ["run", "--grid", *FILES, "--continue-record"]
    assert main([*further, "--set", "methods=[fedavg, local-only]"]) == 0
    assert taken()
    for name in SAME:
        assert (cell / "seed~0" / name).read_bytes() == (kept / name).read_bytes()
    assert main(["record", "full", "--merge"]) == 0
    rows = pq.read_table("results/reference/full/runs.parquet").to_pylist()
    assert {row["method"] for row in rows} == {"fedavg", "local-only"}
    for asked, answer in (("0", False), ("1", True)):
        monkeypatch.setenv("FEDSDG_CONTINUE", asked)
        lost()
        assert main(grid) == 0
        assert taken() is answer
