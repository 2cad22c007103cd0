"""A method of one's own beside the published rows, by the command: a real run, a real record."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import fedsdg
from fedsdg.cli import main
from fedsdg.experiment.comparing.pairing import bring_backbone, paired, read_record
from fedsdg.experiment.config_files import load_config

ROOT = Path(__file__).parents[3]
#: FedAvg under another name: beside the record's it can only differ by rounding.
TWIN = """
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.method import Method

METHODS = {"twin": Method("Twin of FedAvg", rule=Mean(weights="uniform"))}
"""
#: Points by which rounding alone may move a run: another processor adds in another order.
ROUNDING = 6.0


def rate() -> float:
    """That of FedAvg (uniform) in the arena."""
    return (
        load_config([ROOT / "config/cross-needs.yaml"]).method("fedavg-uniform").overrides["eta_g"]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The twin with one seed beside three rows of the record, in its folder."""
    work = tmp_path_factory.mktemp("compared")
    (work / "twin.py").write_text(TWIN)
    (work / "twin.yaml").write_text(
        f"plugins: [twin.py]\nmethods: [{{type: twin, eta_g: {rate()}}}]\n"
    )
    patch = pytest.MonkeyPatch()
    patch.chdir(work)
    patch.setenv("FEDSDG_STORE", str(work / "store"))
    # A process has one working directory: another thread would find itself elsewhere.
    patch.setattr(os, "chdir", lambda _: pytest.fail("the working directory was changed"))
    against = ["fedavg-uniform", "fedsdg", "ditto"]
    try:
        found = fedsdg.compare("twin.yaml", seeds=1, against=against)
    finally:
        patch.undo()
    assert found.page == Path("compare/cross-needs-twin/index.html")
    return work / "compare" / "cross-needs-twin"


@pytest.mark.slow
def test_a_twin_of_a_published_row_reaches_what_it_reaches(folder):
    """The same rule on the same clients, cohorts, first values and backbone: the same accuracy."""
    runs = pd.read_parquet(folder / "records/runs.parquet").set_index("method")
    assert set(runs.index) == {"twin", "fedavg-uniform", "fedsdg", "ditto"}
    assert set(runs["seed"]) == {3}
    twin, published = runs.loc["twin"], runs.loc["fedavg-uniform"]
    assert twin["partition_hash"] == published["partition_hash"]
    assert twin["backbone_hash"] == published["backbone_hash"]
    assert twin["bytes_up"] == published["bytes_up"]
    paired = json.loads((folder / "comparison.json").read_text())["paired"]["paired"]
    off = 100 * abs(twin["quarter_expected_accuracy"] - published["quarter_expected_accuracy"])
    assert off == 0 if paired == "exactly" else off < ROUNDING


@pytest.mark.slow
def test_the_folder_stands_by_itself(folder):
    names = {file.name for file in folder.iterdir()}
    assert {"index.html", "comparison.json", "methods.yaml", "twin.py", "records"} <= names
    page = (folder / "index.html").read_text()
    assert "Twin of FedAvg" in page and "Checked: " in page and "was not tuned" in page
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    loaded = re.findall(r"(?:src|href)=[\"'](?!#)([^\"']+)", text)
    assert loaded == ["data:,"], "the page loads what is not in it"
    facts = json.loads((folder / "comparison.json").read_text())
    assert facts["arena"] == "cross-needs" and facts["seeds"] == [3]
    assert set(facts["plugins"]) == {"twin.py"}


@pytest.mark.slow
def test_again_nothing_is_trained_and_json_goes_to_stdout_alone(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parents[1])
    monkeypatch.setenv("FEDSDG_STORE", str(folder.parents[1] / "store"))
    page = (folder / "index.html").read_bytes()
    against = ["fedavg-uniform", "fedsdg", "ditto"]
    command = ["compare", "twin.yaml", "--seeds", "1", "--jobs", "1", "--json", "--against"]
    assert main([*command, *against]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)["ranking"]
    assert {row["method"] for row in rows} == {"twin", *against}
    assert {"accuracy", "accuracy_a", "accuracy_b"} <= {row["metric"] for row in rows}
    assert "1 of them finished before" in said.err
    assert (folder / "index.html").read_bytes() == page


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            ["--arena", "cross-need"],
            "no record of an arena 'cross-need'; did you mean 'cross-needs'?",
        ),
        (["--seeds", "99"], "--seeds is 99, but the record of 'needs' has"),
        (["--arena", "cross-needs", "--seeds", "0"], "record of 'cross-needs' has"),
        (["--seeds", "0"], "--seeds is 0, but the record"),
        (["--against", "dito"], "the record has no row 'dito'; did you mean 'ditto'?"),
    ],
)
def test_a_wrong_word_is_one_sentence_and_leaves_nothing(
    more, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("twin.py").write_text(TWIN)
    assert main(["compare", "twin.py", *more]) == 2
    assert sentence in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["twin.py"]


def test_a_name_of_the_record_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("methods: [{type: fedavg, eta_g: 0.01}]\n")
    assert main(["compare", "mine.yaml"]) == 2
    assert "has a row 'fedavg' already; give the entry a 'name'" in capsys.readouterr().err
    Path("mine.yaml").write_text("methods: [{type: fedavg, name: FedAvg, eta_g: 0.01}]\n")
    assert main(["compare", "mine.yaml"]) == 2
    assert "'fedavg' and 'FedAvg' differ in upper and lower case alone" in capsys.readouterr().err
    assert not Path("compare").exists()


def test_other_partitions_are_no_pairs(tmp_path, monkeypatch):
    """A federation of other clients is refused before anything is trained."""
    monkeypatch.chdir(tmp_path)
    config = load_config([ROOT / "config/cross-needs.yaml"], ["partition.min_test=4"])
    config = replace(config, root=tmp_path / "below")
    bring_backbone(config)
    found = paired(config, read_record("cross-needs"), (3, 4), "fedavg")
    assert found.paired is None and found.largest is None
    assert "2 partitions are not those of the record: digits iid seed 3 is" in found.sentence
    assert [file.name for file in tmp_path.iterdir()] == ["below"]


def test_another_federation_is_no_pair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config([ROOT / "config/cross-needs.yaml"], ["federation.clients_per_round=5"])
    bring_backbone(config)
    found = paired(config, read_record("cross-needs"), (3,), "fedavg")
    assert "federation.clients_per_round is 10 in it, but 5 here" in found.sentence


@pytest.mark.slow
def test_rows_of_the_record_can_be_run_here_instead(folder, monkeypatch, capsys):
    """Both by the same machine: the twin of FedAvg then reaches the same to the last bit."""
    monkeypatch.chdir(folder.parents[1])
    monkeypatch.setenv("FEDSDG_STORE", str(folder.parents[1] / "store"))
    command = ["compare", "twin.yaml", "--seeds", "1", "--jobs", "1", "--baselines-here"]
    assert main([*command, "--output", "here", "--against", "fedavg-uniform"]) == 0
    runs = pd.read_parquet("here/records/runs.parquet").set_index("method")
    assert set(runs.index) == {"twin", "fedavg-uniform"}
    columns = [name for name in runs if name.startswith("quarter_")]
    assert runs.loc["twin", columns].equals(runs.loc["fedavg-uniform", columns])
    assert json.loads(Path("here/comparison.json").read_text())["paired"] is None
    assert "All rows were run on this machine" in Path("here/index.html").read_text()
    made = pd.read_parquet("here/results/summary/cross-needs/runs.parquet")
    assert set(made["method"]) == {"twin", "fedavg-uniform"}, "none is taken from the record"
