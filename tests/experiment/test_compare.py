"""A method of one's own beside the published rows; runs of the record, done again."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

from fedsdg.config.layers import load
from fedsdg.experiment import compare
from fedsdg.experiment.recheck import (
    SAME_LOSS,
    compared,
    recheck,
    recheck_record,
    recorded_runs,
)
from fedsdg.experiment.runs import task_of
from fedsdg.files.records import read_parquet

ROOT = Path(__file__).parents[2]
NEEDS = ROOT / "results/reference/needs"
#: FedAvg under another name: beside the record's it can only differ by rounding.
TWIN = """
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.method import Method

METHODS = {"NAME": Method("Twin of FedAvg", rule=Mean(weights="uniform"))}
"""
#: Points by which rounding alone may move a run: another processor adds in another order.
ROUNDING = 6.0
RIVALS = ("fedavg-uniform", "fedsdg", "ditto")


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """The twin with one seed beside three rows of the record."""
    work = tmp_path_factory.mktemp("compared")
    patch = pytest.MonkeyPatch()
    patch.chdir(work)
    patch.setenv("FEDSDG_STORE", str(work / "store"))
    Path("twin.py").write_text(TWIN.replace("NAME", "twin"))
    rate = load(["needs"]).method("fedavg-uniform").training["eta_g"]
    Path("twin.yaml").write_text(f"plugins: [twin.py]\nmethods: [{{type: twin, eta_g: {rate}}}]\n")
    yield compare.compare(["twin.yaml"], seeds=1, against=RIVALS)
    patch.undo()


@pytest.mark.slow
def test_a_twin_of_a_published_row_reaches_what_it_reaches(twin):
    runs = pd.read_parquet(twin.records / "runs.parquet").set_index("method")
    assert set(runs.index) == {"twin", *RIVALS} and set(runs["seed"]) == {3}
    own, published = runs.loc["twin"], runs.loc["fedavg-uniform"]
    for name in ("partition_hash", "backbone_hash", "bytes_up"):
        assert own[name] == published[name]
    off = 100 * abs(own["end_accuracy"] - published["end_accuracy"])
    assert off == 0 if twin.paired == "exactly" else off < ROUNDING
    assert {row["method"] for row in twin.tables[0].numbers.to_dict("records")} == set(runs.index)


@pytest.mark.slow
def test_the_folder_stands_by_itself(twin):
    assert twin.page == Path("compare/needs-twin/index.html")
    names = {file.name for file in twin.page.parent.iterdir()}
    assert {"index.html", "records", "ranking-twin.md"} <= names
    page = twin.page.read_text()
    assert "Twin of FedAvg" in page and "was not tuned" in page
    assert "paired " in page
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=[\"'](?!#)([^\"']+)", text) == ["data:,"]


@pytest.mark.slow
def test_again_nothing_is_trained_and_rows_can_be_run_here(twin, capsys):
    found = compare.compare(
        ["twin.yaml"], seeds=1, against=["fedavg-uniform"], baselines_here=True, output=Path("here")
    )
    assert "twin seed 3: stored before" in capsys.readouterr().err
    assert found.paired is None
    runs = pd.read_parquet(found.records / "runs.parquet").set_index("method")
    columns = [name for name in runs if name.startswith("end_")]
    assert runs.loc["twin", columns].equals(runs.loc["fedavg-uniform", columns])
    assert set(runs.index) == {"twin", "fedavg-uniform"}
    assert "All rows were run on this machine" in found.page.read_text()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"arena": "need"}, "no record of an arena 'need'; did you mean 'needs'?"),
        ({"seeds": 99}, "--seeds is 99, but the record of 'needs' has 10"),
        ({"seeds": 0}, "--seeds is 0, but the record"),
        ({"against": ["dito"]}, "the record has no row 'dito'; did you mean 'ditto'?"),
    ],
)
def test_a_wrong_word_is_one_sentence_and_leaves_nothing(more, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        compare.compare(["mine.yaml"], **more)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("methods: [fedavg]", "has a row 'fedavg' already; give the entry a 'name'"),
        ("methods: [{type: fedavg, name: FedAvg}]", "differ in upper and lower case alone"),
        ("federation: {rounds: 3}", "'federation' is the arena's to say"),
        ("methods: []", "there is nothing to compare"),
        ("", "the config file mine.yaml is None, but must be a mapping"),
        ("plugins: my.py", "mine.yaml: plugins is 'my.py', but must be a list"),
        ("search: 3", "mine.yaml: search is 3, but must be a mapping"),
        (
            "methods: [{type: fedavg, name: mine}]\nsearch: {space: {mien: {eta_g: [0.1]}}}",
            "search.space names no method of yours: 'mien'; did you mean 'mine'?",
        ),
        ("methods: [fedagv]", "or of 'plugins': 'fedagv'; did you mean 'fedavg'?"),
    ],
)
def test_newcomers_bring_methods_of_other_names(content, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(content)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        compare.compare(["mine.yaml"])
    assert not Path("compare").exists()


def test_a_search_of_a_newcomer_is_that_of_the_rows(tmp_path, monkeypatch):
    """The range of the rate is the arena's for its optimiser, and the number of trials too."""
    searched = []

    def stop(config, output, results, *, jobs):
        searched.append(config)
        raise InterruptedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "search", stop)
    Path("mine.py").write_text(TWIN.replace("NAME", "untuned"))
    with pytest.raises(InterruptedError):
        compare.compare(["mine.py"], seeds=1, tune=True, baselines_here=True)
    arena = load(["needs"])
    (config,) = searched
    assert config.search.replaced(space={}) == arena.search.replaced(space={})
    assert config.space["untuned"] == arena.space["fedavg"]


# --- Runs of the record, done again ---------------------------------------------------------------


@pytest.fixture(scope="module")
def row():
    """The run of FedSDG with the first seed in the arena needs, as its record has it."""
    return next(row for row in recorded_runs(NEEDS) if row["method"] == "fedsdg")


def task(row, *settings, seed=None):
    config = load(["needs"], settings)
    run = config.run(row["dataset"], row["skew"], config.method("fedsdg"), seed or row["seed"])
    backbone = ROOT / "results/reference/backbones/letters.safetensors"
    return replace(task_of(config, run), backbone=backbone)


def test_a_published_run_is_paired_with_its_record(row):
    found = recheck(task(row), NEEDS, row, 2)
    assert found.paired is not None, found.sentence


def test_the_other_kernel_makes_a_pair(row):
    found = recheck(task(row, "training.kernel=torch"), NEEDS, row, 1)
    assert found.paired == "by federation"


@pytest.mark.parametrize(
    ("settings", "seed", "sentence"),
    [
        (["federation.clients_per_round=5"], None, "clients_per_round is 10 in it, but 5 here"),
        ([], 4, "partition_hash is '"),
        (["partition.min_test=4"], None, "partition.min_test is 3 in it, but 4 here"),
    ],
)
def test_another_federation_is_no_pair(row, settings, seed, sentence):
    found = recheck(task(row, *settings, seed=seed), NEEDS, row)
    assert found.paired is None
    assert sentence in found.sentence


def tables(row):
    """The recorded rows of the first two rounds."""
    found = {}
    for name in ("rounds", "clients"):
        chosen = pc.field("round") <= 2
        keys = ["dataset", "skew", "method", "seed"]
        for key in keys:
            chosen &= pc.field(key) == row[key]
        table = read_parquet(NEEDS / f"{name}.parquet").filter(chosen)
        found[name] = table.drop_columns(keys).to_pylist()
    return found


def test_a_last_bit_of_a_round_is_a_difference(row):
    here = tables(row)
    loss = here["rounds"][0]["train_loss"]
    here["rounds"][0]["train_loss"] = float(np.nextafter(np.float32(loss), np.float32(9)))
    found = compared(NEEDS, row, here)
    assert found.paired == "by federation" and "its losses agree to" in found.sentence


@pytest.mark.parametrize(
    ("change", "paired", "sentence"),
    [
        (lambda client: {}, "exactly", "comes out as recorded"),
        (
            # Of losses from 2 to 4 the record has multiples of 6.1e-5: it may be 0.9e-4 in truth.
            lambda client: {"train_loss": client["train_loss"] + 1.2 * SAME_LOSS},
            "by federation",
            "its losses agree to",
        ),
        (
            lambda client: {"train_loss": client["train_loss"] + 2 * SAME_LOSS},
            None,
            "training losses of the first round differ by",
        ),
        (lambda client: {"participated": False}, None, "participated is True in the record, but F"),
    ],
)
def test_rows_are_pairs_if_losses_of_the_first_round_agree(row, change, paired, sentence):
    here = tables(row)
    trained = [one for one in here["clients"] if one["participated"] and one["round"] == 1]
    client = next(one for one in trained if one["train_loss"] > 2)
    client |= change(client)
    found = compared(NEEDS, row, here)
    assert found.paired == paired
    assert sentence in found.sentence


def test_a_missing_client_is_named(row):
    here = tables(row)
    here["clients"].pop()
    found = compared(NEEDS, row, here)
    assert found.paired is None and "clients.parquet has other rounds or clients" in found.sentence


@pytest.mark.slow
def test_the_commit_alone_says_which_runs_are_done_again():
    first, again, other = (
        [agreement.run for _, agreement in recheck_record(ROOT, 1, salt)]
        for salt in ("a1b2", "a1b2", "c3d4")
    )
    assert first == again != other
