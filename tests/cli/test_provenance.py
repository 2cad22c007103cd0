"""From a committed number to its runs, as a person asks for it."""

import json
from pathlib import Path

import pytest

from fedsdg.cli import main
from fedsdg.experiment.replay import recorded_runs

ROOT = Path(__file__).parents[2]
KEY = "cross-needs/iid@half/fedsdg"


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = [run.row for run in recorded_runs(ROOT / "results/reference/cross-needs")]
    return [row for row in found if row["method"] == "fedsdg"]


def test_trace_prints_value_runs_hashes_machine_and_command(runs, capsys):
    assert main(["trace", KEY, "accuracy_b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = {line[:12].strip(): line[12:] for line in lines}
    for run in runs:
        assert f"{run['seed']}: {100 * run['selected_expected_accuracy_b']:.6g}" in said["by seed"]
        assert f"{run['seed']}: {run['config_hash'][:12]}" in said["config"]
        assert f"{run['seed']}: {run['partition_hash'][:12]}" in said["partition"]
    assert said["backbone"] == runs[0]["backbone_hash"][:12]
    assert "commit " in said["made"]
    assert said["again"].startswith("fedsdg run --grid config/cross-needs.yaml --only fedsdg")


def test_trace_as_json_has_all_of_it(runs, capsys):
    assert main(["trace", KEY, "accuracy_b", "--at", "end", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["runs"]) == len(facts["seeds"]) == len(runs)
    assert facts["runs"][0]["config_hash"] == runs[0]["config_hash"]
    assert facts["again"]["cross-needs"]["differs"] == []


def test_one_command_makes_the_runs_of_both_sides_of_a_claim_again(runs, capsys):
    assert main(["trace", "gated-b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (command,) = [line[12:] for line in lines if line.startswith("again")]
    assert command.startswith("fedsdg run --grid config/cross-needs.yaml --only ")
    assert {"fedsdg", "gated-head"} <= set(command.split())


def test_trace_says_what_has_changed_since_a_run(runs, capsys):
    assert main(["trace", "label-noise/dirichlet~1.0/cgsv", "accuracy_shared"]) == 0
    said = capsys.readouterr().out
    assert "federation.evaluate_every is 5 in it, but 3 here" in said


def test_a_misspelt_row_is_one_sentence(runs, capsys):
    assert main(["trace", f"{KEY[:-6]}fedsgd", "accuracy"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "fedsgd" in error


def test_the_check_for_failed_runs_ends_with_one_where_there_are_any(tmp_path, monkeypatch, capsys):
    """The workflow reads the exit code alone."""
    monkeypatch.chdir(tmp_path)
    failed = {"digits/iid/krum/seed~0": "not finite"}
    monkeypatch.setattr("fedsdg.analysis.gather.failed_runs", lambda summary: failed)
    assert main(["summarise", "--succeeded", "summary", "--output", "flag"]) == 1
    assert "krum/seed~0: not finite" in capsys.readouterr().err and not Path("flag").exists()
    failed.clear()
    assert main(["summarise", "--succeeded", "summary", "--output", "flag"]) == 0
    assert Path("flag").read_text() == "all runs succeeded\n"
