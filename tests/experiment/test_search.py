"""A search: the same trials for every row, by validation accuracy, resumed by the store."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from fedsdg.experiment import search as module
from fedsdg.experiment.grid import Runner
from fedsdg.experiment.material import get_or_make
from fedsdg.experiment.points import points
from fedsdg.experiment.runs import tasks_of
from fedsdg.experiment.search import read_search, search, summary_lines
from fedsdg.experiment.store import store_folder
from tests.experiment.conftest import tiny

OUTPUT = Path("results/search/tiny.json")
AXIS = "{eta_g: [0.002, 0.2, log]}"
TWIN = f"search.space={{fedavg: {AXIS}, twin: {AXIS}}}"


@pytest.fixture
def ran(monkeypatch):
    """The tasks that a search runs, which are scored by a formula rather than trained."""
    done = []
    stored.clear()
    run_as(monkeypatch, done, lambda k, task: None)
    monkeypatch.setattr(Runner, "keys", lambda _, tasks: [t.key("", "") for t in tasks])
    monkeypatch.setattr(module, "_outcome", outcome)
    return done


stored: dict[str, float] = {}


def outcome(key, known):
    return stored.get(key) or known.get(key)


def failed(trial):
    return any(isinstance(one, str) for one in trial["runs"].values())


def run_as(monkeypatch, done, failure_of):
    """Stand for workers: runs that succeed are stored, with a score that rises with eta_g."""

    def run_all(_, tasks):
        for k, task in enumerate(tasks):
            done.append(task)
            run = task.run
            failure = failure_of(k, task)
            if failure is None:
                score = 0.5 + run.training.eta_g * 5 + run.federation.rounds / 1e4
                stored[task.key("", "")] = score
            yield task, failure

    monkeypatch.setattr(Runner, "run", run_all)


def test_rows_have_the_same_number_of_trials_at_the_same_places(folder, ran):
    found = search(tiny("search.trials=24"), OUTPUT)["methods"]
    assert [len(row["trials"]) for row in found.values()] == [24, 24]
    rates = [[t["parameters"]["eta_g"] for t in row["trials"]] for row in found.values()]
    assert rates[0] == rates[1] and len(set(rates[0])) == 24


def test_a_row_s_label_and_the_other_rows_change_no_point(folder, ran):
    before = search(tiny(), OUTPUT)["methods"]["fedavg"]["trials"]
    named = tiny(
        "methods=[{type: fedavg, name: another}]",
        "search.space={another: {eta_g: [0.001, 0.1, log]}, fedavg: {eta_g: [0.1, 0.2, log]}}",
    )
    after = search(named, OUTPUT)["methods"]
    assert list(after) == ["another"]
    assert after["another"]["trials"] == before


def test_trials_run_half_of_the_rounds_and_finalists_all_of_them_on_other_seeds(folder, ran):
    found = search(tiny(), OUTPUT)["methods"]
    trials = [task for task in ran if task.run.seed == 100]
    finals = [task for task in ran if task.run.seed != 100]
    assert len(trials) == 10 and {task.run.federation.rounds for task in trials} == {2}
    assert len(finals) == 2 * 3 * 2 and {task.run.federation.rounds for task in finals} == {4}
    assert {task.run.seed for task in finals} == {101, 102}
    assert {task.identity["skew"] for task in ran} == {"iid"}
    assert {task.run.federation.evaluate for task in ran} == {"validation"}
    for row in found.values():
        best = sorted(row["trials"], key=lambda trial: -trial["score"])[:3]
        assert [t["number"] for t in row["finalists"]] == [t["number"] for t in best]
        assert row["best"]["trial"] == best[0]["number"]
        assert row["best"]["score"] == row["finalists"][0]["score"]


def test_a_trial_has_an_address_of_its_own(folder, ran):
    search(tiny(), OUTPUT)
    keys = [task.key("", "") for task in ran]
    assert len(set(keys)) == len(keys)
    assert all(task.folder is None for task in ran)


def test_what_is_stored_is_not_run_again(folder, ran):
    first = search(tiny(), OUTPUT)
    ran.clear()
    assert search(tiny(), OUTPUT) == first and ran == []
    search(tiny("search.trials=6"), OUTPUT)
    assert {task.run.seed for task in ran} == {100} or len(ran) > 2
    assert sum(task.run.seed == 100 for task in ran) == 2


def test_a_search_goes_on_from_its_file_without_a_store(folder, ran):
    search(tiny(), OUTPUT, only=["fedavg"])
    half = OUTPUT.read_bytes()
    whole = search(tiny(), OUTPUT)
    stored.clear()
    ran.clear()
    OUTPUT.write_bytes(half)
    assert search(tiny(), OUTPUT) == whole
    assert {task.identity["label"] for task in ran} == {"fedsdg"}


def test_a_failed_trial_counts_0_and_is_not_tried_again(folder, ran, monkeypatch):
    sentence = "FloatingPointError: the loss is nan"
    run_as(monkeypatch, ran, lambda _, t: sentence if t.run.training.eta_g > 0.05 else None)
    found = search(tiny(), OUTPUT)["methods"]["fedavg"]
    assert found["failed"] > 0
    for trial in found["trials"]:
        assert failed(trial) == (trial["parameters"]["eta_g"] > 0.05)
        assert (trial["score"] == 0) == failed(trial)
    ran.clear()
    assert search(tiny(), OUTPUT, only=["fedsdg"])["methods"]["fedavg"] == found and ran == []


def test_a_trial_that_the_machine_failed_stays_open(folder, ran, monkeypatch):
    failures = {0: "MemoryError: ", 1: "RuntimeError: its process ended by signal 9"}
    run_as(monkeypatch, ran, lambda k, _: failures.get(k))
    rows = search(tiny(), OUTPUT)["methods"]
    assert sum(t["score"] is None for row in rows.values() for t in row["trials"]) == 2
    assert all(row["best"] is None for row in rows.values())


def test_a_search_is_made_on_skews_of_the_grid(folder, ran):
    with pytest.raises(ValueError, match="search.skews names no skew .*: 'ii'; did you mean 'iid'"):
        search(tiny("search.skews=ii"), OUTPUT)


def test_only_starts_runs_of_the_rows_that_it_names(folder, ran):
    search(tiny(), OUTPUT, only=["fedsdg"])
    assert {task.identity["label"] for task in ran} == {"fedsdg"}
    found = json.loads(OUTPUT.read_text())["methods"]
    assert found["fedavg"]["best"] is None and found["fedsdg"]["best"] is not None
    found = search(tiny(), OUTPUT, only=["fedavg"])["methods"]
    assert all(row["best"] for row in found.values())
    ran.clear()
    twin = tiny("methods=[fedavg, {type: fedavg, name: twin}]", "search.seeds=[100]", TWIN)
    search(twin, OUTPUT, only=["fedavg"])
    assert len(ran) == 5  # The same runs as the twin's, whose label is not named.
    with pytest.raises(ValueError, match="the search has no row 'fedagv'; did you mean 'fedavg'"):
        search(tiny(), OUTPUT, only=["fedagv"])


def test_a_winner_at_an_edge_is_reported(folder, ran):
    found = search(tiny("search.trials=24"), OUTPUT)
    best = found["methods"]["fedavg"]["best"]["parameters"]["eta_g"]
    assert best > 0.08  # the formula rises with eta_g
    assert found["methods"]["fedavg"]["edges"] == {"eta_g": "high"}
    [line] = [line for line in summary_lines(found) if line.startswith("fedavg:")]
    assert "eta_g lies at the high edge of its range: widen it" in line and "24 of 24" in line


def test_winners_are_written_as_a_config_reads_them(folder, ran):
    found = search(tiny(), OUTPUT)["methods"]
    values = yaml.safe_load(OUTPUT.with_suffix(".tuned.yaml").read_text())
    assert values == {label: row["best"]["parameters"] for label, row in found.items()}
    config = tiny("tuned=results/search/tiny.tuned.yaml")
    run = config.run("digits", "iid", config.method("fedavg"), 0)
    assert run.training.eta_g == values["fedavg"]["eta_g"]


def test_one_seed_has_no_second_stage(folder, ran):
    found = search(tiny("search.seeds=[100]"), OUTPUT)["methods"]
    assert {task.run.seed for task in ran} == {100}
    for row in found.values():
        assert row["best"]["score"] == max(trial["score"] for trial in row["trials"])


def test_choices_are_all_tried_without_a_number(folder, ran):
    choices = "search.space.fedavg.eta_g=[0.001, 0.01, 0.1]"
    found = search(tiny(choices, "search.trials=null", "methods=[fedavg]"), OUTPUT)["methods"]
    rates = [trial["parameters"]["eta_g"] for trial in found["fedavg"]["trials"]]
    assert rates == [0.001, 0.01, 0.1]


def test_choices_may_be_parts(folder, ran):
    choices = "search.space={fedavg: {eta_g: null, optimiser: [adam, {type: sgd, momentum: 0.5}]}}"
    search(tiny(choices, "search.trials=null", "methods=[fedavg]"), OUTPUT)
    config = tiny("tuned=results/search/tiny.tuned.yaml", "methods=[fedavg]")
    assert config.methods[0].training["optimiser"].registered_as in ("adam", "sgd")


def test_a_range_from_the_bound_begins_where_gates_can_move(folder, ran):
    for task in tasks_of(tiny("seeds=[100]", "search.seeds=[1]")):
        get_or_make(task)
    space = "search.space.fedsdg={eta_m: [bound, 100.0, log]}"
    row = search(tiny(space), OUTPUT)["methods"]["fedsdg"]
    low = row["space"]["eta_m"]["low"]
    assert low > 0
    assert row["trials"][0]["parameters"]["eta_m"] >= low
    with pytest.raises(ValueError, match="but gates need"):
        search(tiny(space.replace("100.0", "0.0001")), OUTPUT)


def test_nothing_to_search_is_an_error(folder):
    with pytest.raises(ValueError, match="nothing to search"):
        search(tiny("methods=[local-only]"), OUTPUT)


# --- Real runs ------------------------------------------------------------------------------------


def require_no_test_accuracy(run: Path) -> None:
    """Raise AssertionError if the records of a run hold an accuracy on test images."""
    for table in ("rounds", "clients"):
        frame = pd.read_parquet(run / f"{table}.parquet")
        names = [name for name in frame if "accuracy" in name or name.startswith("expected")]
        assert frame["val_accuracy"].notna().any()
        assert frame[names].drop(columns="val_accuracy").isna().all(axis=None)
    quarter = json.loads((run / "result.json").read_text())["end"]
    measured = {name for name, value in quarter.items() if value is not None}
    assert measured == {"val_accuracy", "round", "evaluations"}


def test_a_small_search(folder, forked, capsys):
    settings = ["search.trials=3", "search.seeds=[100, 101]"]
    wild = "search.space={fedavg: {eta_g: [0.01, 1.0e+30, log]}}"

    config_settings = "training.clip_norm=1.0e+30"
    config = tiny(*settings, wild, "methods=[{type: fedavg, optimiser: sgd}]", config_settings)
    found = search(config, OUTPUT, jobs=2)
    row = found["methods"]["fedavg"]
    assert 0 < row["best"]["score"] < 1
    assert row["failed"] > 0
    for trial in row["trials"]:
        assert (trial["score"] == 0) == failed(trial)
    values = points(config.space["fedavg"], 3)
    assert [trial["parameters"] for trial in row["trials"]] == values
    good = [*store_folder("runs").iterdir()]
    for run in good:
        require_no_test_accuracy(run)
    assert search(config, OUTPUT, jobs=2) == found
    assert [*store_folder("runs").iterdir()] == good


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_the_device_fails_no_trial(folder, forked):
    found = search(tiny("training.device=cuda", "search.trials=1"), OUTPUT)["methods"]
    assert all(row["failed"] == 0 and row["best"] is None for row in found.values())
    assert all(trial["runs"] == {} for row in found.values() for trial in row["trials"])


def test_where_every_run_failed_there_is_no_winner(folder, forked):
    wild = "search.space={fedavg: {eta_g: [1.0e+30, 1.0e+31]}}"
    options = ["search.seeds=[100]", "search.trials=null", "training.clip_norm=1.0e+30"]
    config = tiny(wild, *options, "methods=[{type: fedavg, optimiser: sgd}]")
    found = search(config, OUTPUT)
    row = found["methods"]["fedavg"]
    assert (row["failed"], row["best"], row["trials"][0]["score"]) == (2, None, 0)
    assert summary_lines(found) == ["fedavg: all finalists failed (2 of 2 trials, 2 failed)"]


def test_failures_of_a_search_that_is_broken_off_are_kept(folder, ran, monkeypatch):
    def fail_then_stop(k, task):
        if k == 2:
            raise KeyboardInterrupt
        return "FloatingPointError: the loss is nan"

    run_as(monkeypatch, ran, fail_then_stop)
    with pytest.raises(KeyboardInterrupt):
        search(tiny(), OUTPUT)
    failing = [t.key("", "") for t in ran[:2]]
    run_as(monkeypatch, ran, lambda k, task: None)
    ran.clear()
    search(tiny(), OUTPUT)
    assert not {*failing} & {t.key("", "") for t in ran}


def test_a_search_that_cannot_begin_writes_nothing(folder, monkeypatch):
    def refuse(*_):
        raise ValueError("no draw")

    monkeypatch.setattr(Runner, "keys", refuse)
    with pytest.raises(ValueError, match="no draw"):
        search(tiny(), OUTPUT)
    assert not OUTPUT.exists()


@pytest.mark.parametrize("text", ["3", "{}", '{"methods": {"fedavg": 3}}'])
def test_another_json_is_no_file_of_a_search(folder, text):
    OUTPUT.parent.mkdir(parents=True)
    OUTPUT.write_text(text)
    with pytest.raises(ValueError, match=r"tiny\.json is not the file of a search; name another"):
        search(tiny(), OUTPUT)
    with pytest.raises(ValueError, match=r"tiny\.json is not the file of a search"):
        read_search(OUTPUT)


def test_a_search_that_ran_out_of_time_says_so(folder, forked, capsys):
    found = search(tiny("search.trials=1"), OUTPUT, minutes=0.0)
    assert "2 runs are left; give the same command to go on" in capsys.readouterr().err
    assert all(row["best"] is None for row in found["methods"].values())
    assert "the search is not complete (0 of 1 trials)" in summary_lines(found)[0]
