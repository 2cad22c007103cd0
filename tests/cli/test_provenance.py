"""From a committed number to its runs, as a person asks for it."""

import json
from pathlib import Path

import pytest

from fedsdg.analysis.summary import Summary
from fedsdg.cli import main

ROOT = Path(__file__).parents[2]
ASKED = [
    "trace",
    "results/reference/cross-needs/groups.md",
    "--row",
    "fedsdg",
    "--column",
    "half, B",
]


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    return [
        run
        for run in Summary(ROOT / "results/reference/cross-needs").runs
        if run["method"] == "fedsdg" and run["status"] == "ok"
    ]


def test_trace_prints_value_runs_hashes_machine_and_command(runs, capsys):
    assert main(ASKED) == 0
    lines = capsys.readouterr().out.splitlines()
    said = {line[:12].strip(): line[12:] for line in lines}
    mean = sum(run["selected_expected_accuracy_b"] for run in runs) / len(runs)
    assert said["number"].startswith(f"{100 * mean:.1f} ±")
    assert f" {100 * mean:.6g} for" in said["is"] and said["recomputed"].endswith(": the same")
    for run in runs:
        assert f"{run['seed']}: {100 * run['selected_expected_accuracy_b']:.6g}" in said["by seed"]
        assert f"{run['seed']}: {run['config_hash'][:12]}" in said["config"]
        assert f"{run['seed']}: {run['partition_hash'][:12]}" in said["partition"]
    assert said["backbone"] == f"letters {runs[0]['backbone_hash'][:12]}"
    assert said["data"].startswith("digits ") and "commit " in said["made"]
    assert said["again"].startswith("fedsdg run --grid config/cross-needs.yaml --only fedsdg")


def test_trace_as_json_has_all_of_it(runs, capsys):
    assert main([*ASKED, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["runs"]) == len(facts["seeds"]) == len(runs)
    assert facts["runs"][0]["config_hash"] == runs[0]["config_hash"]
    assert facts["again"]["cross-needs"]["differs"] == []


def test_one_command_makes_the_runs_of_both_sides_of_a_claim_again(runs, capsys):
    assert main(["trace", "docs/claims.md", "--row", "private-head-suffices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    again = [line[12:] for line in lines if line.startswith("again")]
    (command,) = again
    assert command.startswith("fedsdg run --grid config/cross-needs.yaml --only fedper fedsdg")


def test_trace_says_what_has_changed_since_a_run(runs, capsys):
    table = "results/reference/label-noise/main.csv"
    asked = ["trace", table, "--row", "cgsv, global_accuracy", "--column", "last round mean"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "federation.evaluate_every is 5 in it, but 3 here" in said


def test_a_misspelt_row_is_one_sentence(runs, capsys):
    assert main(["trace", ASKED[1], "--row", "fedsgd"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "did you mean 'fedsdg'?" in error


def test_the_check_for_failed_runs_ends_with_one_where_there_are_any(tmp_path, monkeypatch, capsys):
    """The workflow reads the exit code alone."""
    monkeypatch.chdir(tmp_path)
    failed = {"digits/iid/krum/seed~0": "not finite"}
    monkeypatch.setattr("fedsdg.analysis.summarise.failed_runs", lambda summary: failed)
    assert main(["summarise", "--succeeded", "summary", "--output", "flag"]) == 1
    assert "krum/seed~0: not finite" in capsys.readouterr().err and not Path("flag").exists()
    failed.clear()
    assert main(["summarise", "--succeeded", "summary", "--output", "flag"]) == 0
    assert Path("flag").read_text() == "all runs succeeded\n"
