"""A search in two stages: equal by dimensions, widened once, chosen on four seeds, resumable."""

import json
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import yaml

from fedsdg.data.partition import TRAIN
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.runs import execute
from fedsdg.experiment.search import scores as scoring
from fedsdg.experiment.search import search, tuned_file
from fedsdg.experiment.search.trials import resolved, trials_of
from fedsdg.experiment.search_space import (
    Choices,
    Interval,
    parse_axis,
    points,
    points_beyond,
    trial_count,
    widened,
)
from fedsdg.models import load_backbone
from fedsdg.parts import Declared, Range
from tests.experiment.test_search import backbone as backbone_file
from tests.experiment.test_search import scored, small

backbone = backbone_file  # the fixture
RATES = [0.001, 0.1, "log"]
SEEDS = [50, 51, 52, 53]


def two_stage(**space):
    return small(trials="two-stage", seeds=SEEDS, space=space)


# --- The points -----------------------------------------------------------------------------------


def test_the_number_of_points_follows_from_the_dimensions_and_begins_with_the_same_twelve():
    axes = {name: Interval(0.001, 0.1, "log") for name in "abcd"}
    counts = {d: trial_count("two-stage", dict(list(axes.items())[:d])) for d in (1, 2, 3, 4)}
    assert counts == {1: 12, 2: 12, 3: 18, 4: 24}
    assert trial_count(8, axes) == 8 and trial_count(None, axes) is None
    raw = two_stage(
        fedprox={"mu": [0.01, 1.0, "log"], "eta_g": RATES, "eta_p": RATES},
        fedavg={"eta_g": RATES},
    )
    tried = defaultdict(list)
    for trial in trials_of(parse_config(raw)):
        tried[trial.method.label].append(trial.values)
    assert {label: len(values) for label, values in tried.items()} == {"fedavg": 12, "fedprox": 18}
    raw["search"]["trials"] = 12
    for trial in trials_of(parse_config(raw)):
        assert tried[trial.method.label][trial.number] == trial.values


def test_a_range_grows_by_a_third_of_its_width_within_what_the_parameter_allows():
    rate = Interval(0.001, 1.0, "log")
    assert rate.widened("high", Range(0)) == Interval(0.001, 10.0, "log")
    assert rate.widened("low", Range(0)) == Interval(0.0001, 1.0, "log")
    assert rate.widened("high", Range(0, 3)) == Interval(0.001, 3.0, "log")
    share = Interval(0.0, 0.6, "linear")
    assert share.widened("high", Range(0, 1)) == Interval(0.0, 0.8, "linear")
    assert share.widened("low", Range(0, 1)) == share
    assert Interval(0.4, 1.0, "linear").widened("high", Range(0, 1)).high == 1.0
    epochs = Interval(1, 16, "log", integer=True)
    assert epochs.widened("high", Range(1)) == Interval(1, 40, "log", integer=True)
    assert epochs.widened("low", Range(1)) == epochs
    assert epochs.widened("low", Range(0)) == epochs, "0 has no logarithm"
    # Gates that cannot move are not tried, however well they do.
    assert replace(rate, bound=True).widened("low", Range(0)) == replace(rate, bound=True)


@pytest.mark.parametrize("edges", [("a",), ("a", "b"), ("a", "b", "c")])
def test_six_points_lie_in_the_part_that_was_added(edges):
    space = {name: Interval(0.001, 0.1, "log") for name in "abc"} | {"d": Choices((1, 2, 3))}
    best = {name: 0.1 if name in edges else 0.01 for name in "abc"} | {"d": 3}
    declared = dict.fromkeys(space, Declared("x", float, range=Range(0)))
    wider = widened(space, best, declared)
    assert [name for name in space if wider[name] != space[name]] == list(edges)
    drawn = points_beyond(space, wider, 100, "m")
    assert len(drawn) == len({tuple(p.values()) for p in drawn}) == 6
    for point in drawn:
        assert any(point[name] > 0.1 for name in edges)
        assert all(point[name] in wider[name] for name in "abc")
    # Another draw than the first stage's, and the same each time.
    assert drawn == points_beyond(space, wider, 100, "m")
    assert not [point for point in points(space, 12, 100, "m") if point in drawn]


def test_where_the_parameter_leaves_no_room_there_are_as_many_points_as_fit():
    space = {"n": Interval(1, 4, "linear", integer=True)}
    wider = {"n": Interval(1, 5, "linear", integer=True)}
    assert {point["n"] for point in points_beyond(space, wider, 100, "m")} == {5}


# --- The bound on the rate of gates ---------------------------------------------------------------


def test_the_bound_is_the_least_rate_with_which_gates_move_in_every_cell():
    raw = two_stage(fedsdg={"eta_m": ["bound", 10.0, "log"], "eta_g": RATES})
    raw["methods"] = ["fedsdg"]
    config = parse_config(raw)
    axis = resolved(config).search.space["fedsdg"]["eta_m"]
    steps = []
    for skew in config.skews:
        made = make_partition("digits", skew, 50, 6, config.partition)
        sizes = made.counts(made.split, 3)[:, TRAIN]
        batches = np.median([math.ceil(n / config.training.batch_size) for n in sizes])
        steps.append(2 * 5 / 6 * config.training.epochs * batches)
    assert axis.low * min(steps) >= 3 > (axis.low - 0.001 * axis.low) * min(steps)
    assert axis.high == 10.0 and axis.to_dict()["bound"] is True
    assert all(trial.values["eta_m"] >= axis.low for trial in trials_of(resolved(config)))
    raw["search"]["space"]["fedsdg"]["eta_m"] = ["bound", axis.low, "log"]
    with pytest.raises(ValueError, match=r"space\.fedsdg\.eta_m ends at .* raise the end"):
        resolved(parse_config(raw))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("eta_g", ["bound", 0.1, "log"], "eta_m alone has one; write a number"),
        ("eta_m", ["bound", 0.1, "linear"], r"from the bound a range is \[bound, high, log\]"),
        ("eta_m", ["bound", 0.0, "log"], "must end above the bound"),
        ("eta_m", ["bound", -1, "log"], "at least 0"),
    ],
)
def test_a_wrong_bound_is_named(name, value, message):
    with pytest.raises(ValueError, match=f"space.x.*{message}"):
        parse_axis(value, Declared(name, float, 0.1, range=Range(0)), "space.x")


def test_a_second_stage_needs_further_seeds():
    with pytest.raises(ValueError, match=r"search.seeds is \[50\].*name further seeds"):
        parse_config(small(trials="two-stage", seeds=[50]))
    with pytest.raises(ValueError, match="search.trials is"):
        parse_config(small(trials="two-stages"))


# --- The search -----------------------------------------------------------------------------------


def hilly(run):
    """A score that is best at eta_g 0.02, and depends on the seed and the cell besides."""
    values = run.trial.values
    noise = math.sin(1e4 * values["eta_g"] * run.seed) / 10 + (run.skew == "iid") / 30
    if "mu" in values:
        noise -= 0.4 * math.log10(values["mu"])  # the lower the better: the edge
    return {
        "score": 0.3 - 0.1 * abs(math.log(values["eta_g"] / 0.02)) + noise,
        "error": None,
        "test": {"round": 2, "personal_accuracy": 0.5},
    }


SPACE = {"fedavg": {"eta_g": RATES}, "fedprox": {"mu": [0.01, 1.0, "log"], "eta_g": RATES}}


def means(trials, seeds):
    """number → mean over all runs of these seeds, from a file's runs alone."""
    found = {}
    for trial in trials:
        scores = [run["score"] for run in trial["runs"] if run["seed"] in seeds]
        assert len(scores) == 2 * len(seeds)  # every cell once a seed
        found[trial["number"]] = sum(scores) / len(scores)
    return found


def test_the_winner_is_the_best_of_the_three_best_over_all_seeds(tmp_path, monkeypatch):
    found = scored(parse_config(two_stage(**SPACE)), hilly, tmp_path, monkeypatch)
    assert found == json.loads((tmp_path / "out.json").read_text())
    for label, row in found["methods"].items():
        assert row["planned"] == len(row["trials"]) == len(row["expected_best"]) == 12
        every = [*row["trials"], *(row["beyond"] or {"trials": []})["trials"]]
        first = means(every, [50])
        best = sorted(first, key=lambda number: -first[number])[:3]
        assert [trial["number"] for trial in row["finalists"]] == best
        final = means(row["finalists"], SEEDS)
        winner = max(final, key=lambda number: final[number])
        values = {trial["number"]: trial["parameters"] for trial in every}
        assert row["best"]["trial"] == winner and row["best"]["parameters"] == values[winner]
        assert row["best"]["score"] == pytest.approx(final[winner], abs=1e-6)
        twelve = max(range(12), key=lambda number: first[number])
        assert row["best_of_12"]["trial"] == twelve and row["best_of_all"]["trial"] == best[0]
        assert label == "fedavg" or row["best_of_12"]["score"] < row["best_of_all"]["score"]
    # The seeds of the second stage matter: what was first on one seed is not first on four.
    assert any(r["best"]["trial"] != r["best_of_all"]["trial"] for r in found["methods"].values())
    beyond = found["methods"]["fedprox"]["beyond"]
    assert found["methods"]["fedavg"]["beyond"] is None
    factor = 100 ** (1 / 3)
    assert beyond["space"]["mu"]["low"] == pytest.approx(0.01 / factor, rel=1e-3)
    assert len(beyond["trials"]) == 6
    assert all(trial["parameters"]["mu"] < 0.01 for trial in beyond["trials"])


def test_the_file_alone_is_enough_to_go_on_from(tmp_path, monkeypatch, capsys):
    config = parse_config(two_stage(**SPACE))
    whole = scored(config, hilly, tmp_path, monkeypatch)
    file = tmp_path / "out.json"
    tuned = tuned_file(file).read_text()
    ran = []

    def noted(run):
        ran.append(run)
        return hilly(run)

    # On another machine there is only the file.
    tuned_file(file).unlink()
    assert scored(config, noted, tmp_path, monkeypatch) == whole and not ran
    assert tuned_file(file).read_text() == tuned
    # A row that was cut short in its second stage goes on there, and ends as if it had not been.
    cut = json.loads(file.read_text())
    finalists = cut["methods"]["fedprox"]["finalists"]
    for trial in finalists:
        trial["runs"] = [run for run in trial["runs"] if run["seed"] in SEEDS[:2]]
    cut["methods"]["fedprox"]["best"] = None
    file.write_text(json.dumps(cut))
    assert scored(config, noted, tmp_path, monkeypatch) == whole
    assert {(run.trial.method.label, run.seed) for run in ran} == {("fedprox", 52), ("fedprox", 53)}
    assert len(ran) == 3 * 2 * 2
    # Other cells are another search of all rows; another space one of its own row.
    ran.clear()
    capsys.readouterr()
    other = {**SPACE, "fedavg": {"eta_g": [0.002, 0.1, "log"]}}
    found = scored(parse_config(two_stage(**other)), noted, tmp_path, monkeypatch)
    assert {run.trial.method.label for run in ran} == {"fedavg"}
    assert found["methods"]["fedprox"] == whole["methods"]["fedprox"]
    assert "fedavg: its space changed, so what was found of it" in capsys.readouterr().err


def test_a_backbone_of_another_recipe_begins_anew(tmp_path, monkeypatch, capsys):
    raw = two_stage(fedavg={"eta_g": RATES})
    scored(parse_config(raw), hilly, tmp_path, monkeypatch)
    raw["backbones"]["letters"]["seed"] = 7
    ran = []
    scored(parse_config(raw), lambda run: ran.append(run) or hilly(run), tmp_path, monkeypatch)
    assert len(ran) >= 12 * 2 and "backbone of another recipe" in capsys.readouterr().err


def test_test_scores_choose_nothing(tmp_path, monkeypatch):
    """With the opposite test scores in the file, and no choice, the same choices are made."""
    config = parse_config(two_stage(**SPACE))
    whole = scored(config, hilly, tmp_path, monkeypatch)
    file = tmp_path / "out.json"
    spoilt = json.loads(file.read_text())
    for row in spoilt["methods"].values():
        for trial in (*row["trials"], *(row["beyond"] or {"trials": []})["trials"]):
            for run in trial["runs"]:
                assert run["test"]["personal_accuracy"] == 0.5
                run["test"]["personal_accuracy"] = 1 - run["score"]
        row |= {"finalists": [], "best": None, "best_of_all": None}
    file.write_text(json.dumps(spoilt))
    again = scored(config, hilly, tmp_path, monkeypatch)
    for label, row in again["methods"].items():
        assert row["best"] == whole["methods"][label]["best"]
        numbers = [trial["number"] for trial in row["finalists"]]
        assert numbers == [t["number"] for t in whole["methods"][label]["finalists"]]


def test_failed_trials_are_the_worst_and_are_no_finalists(tmp_path, monkeypatch):
    def scores(run):
        if run.trial.number in (3, 7):
            return {"score": 0.0, "error": "the training loss is nan"}
        return hilly(run)

    config = parse_config(two_stage(fedavg={"eta_g": RATES}))
    row = scored(config, scores, tmp_path, monkeypatch)["methods"]["fedavg"]
    assert row["failed"] == 2 and row["trials"][3]["score"] == 0
    assert {run["error"] for run in row["trials"][7]["runs"]} == {"the training loss is nan"}
    assert not {3, 7} & {trial["number"] for trial in row["finalists"]}


def test_a_search_of_some_rows_says_what_is_left_and_tunes_those(tmp_path, monkeypatch, capsys):
    config = parse_config(two_stage(**SPACE))
    scored(config, hilly, tmp_path, monkeypatch)
    whole = yaml.safe_load(tuned_file(tmp_path / "out.json").read_text())
    for file in tmp_path.iterdir():
        file.unlink()
    # Time is up before anything is begun.
    search(config, tmp_path, None, tmp_path / "out.json", only=["fedavg"], minutes=0)
    assert f"search: {12 * 2 + 3 * 3 * 2} of {12 * 2 + 3 * 3 * 2} runs" in capsys.readouterr().err
    assert not yaml.safe_load(tuned_file(tmp_path / "out.json").read_text())
    search(config, tmp_path, None, tmp_path / "out.json", only=["fedavg"], jobs=1)
    tuned = yaml.safe_load(tuned_file(tmp_path / "out.json").read_text())
    assert tuned == {"fedavg": whole["fedavg"]}


def test_test_scores_are_those_that_a_run_has():
    selected = {"round": 9, "val_accuracy": 0.9, "global_val_accuracy": 0.8, "global_loss": 1.0}
    selected |= {"global_accuracy": None, "personal_accuracy": 2 / 3, "expected_accuracy_b": 0.5}
    kept = {"round": 9, "personal_accuracy": 0.666667, "expected_accuracy_b": 0.5}
    assert scoring.test_scores(selected) == kept


@pytest.mark.slow
def test_scores_of_real_runs_are_those_of_their_records(
    backbone,
    tmp_path,
    forked,
):
    """Score and test scores of a finalist once more, from runs of their own."""
    raw = two_stage(fedavg={"eta_g": RATES})
    raw["skews"] = ["iid"]
    config = parse_config(raw)
    output = tmp_path / "search.json"
    row = search(config, tmp_path / "store", backbone, output, jobs=1)["methods"]["fedavg"]
    material = prepare_material("digits", load_backbone(backbone), "cpu")
    entry = method_entry({"type": "fedavg", **row["best"]["parameters"]})
    (winner,) = [t for t in row["finalists"] if t["number"] == row["best"]["trial"]]
    for run in winner["runs"]:
        shares = make_partition("digits", "iid", run["seed"], 6, config.partition)
        execute(
            config.run("digits", "iid", entry, run["seed"]), material, shares, tmp_path / "own",
            store=tmp_path / "other", identity={},
        )  # fmt: skip
        result = json.loads((tmp_path / "own" / "result.json").read_text())
        assert run["score"] == pytest.approx(result["quarter"]["val_accuracy"], abs=1e-6)
        assert run["test"]["round"] == 2
        for name in ("personal_accuracy", "expected_accuracy", "global_accuracy"):
            assert run["test"][name] == pytest.approx(result["last"][name], abs=1e-6)
    assert yaml.safe_load(tuned_file(output).read_text()) == {"fedavg": row["best"]["parameters"]}


# --- What was found, laid over a config -----------------------------------------------------------


def tuned_config(tmp_path, content, methods=("fedavg", "fedprox")):
    raw = two_stage(**SPACE)
    raw["methods"] = list(methods)
    file = tmp_path / "tuned.yaml"
    if content is not None:
        file.write_text(yaml.safe_dump(content))
    raw["tuned"] = str(file)
    return parse_config(raw)


VALUES = {"fedavg": {"eta_g": 0.01234}, "fedprox": {"eta_g": 1e-05, "mu": 0.5}}


def test_tuned_values_make_the_runs_that_entries_with_these_values_make(tmp_path):
    config = tuned_config(tmp_path, {**VALUES, "ditto": {"strength": 1.0}})
    for label, values in VALUES.items():
        entry = method_entry({"type": label, **values})
        run = config.run("digits", "iid", config.method(label), 0)
        assert run == config.run("digits", "iid", entry, 0)
        assert run.hash == replace(config, tuned=()).run("digits", "iid", entry, 0).hash


def test_of_several_files_the_later_has_the_last_word_and_must_hold_what_is_searched(tmp_path):
    first, last = tmp_path / "first.yaml", tmp_path / "last.yaml"
    first.write_text(yaml.safe_dump({"fedprox": {"eta_g": 0.02, "mu": 0.5}}))
    raw = two_stage(fedprox={"eta_g": [0.001, 0.01], "mu": None})
    raw["methods"], raw["tuned"] = ["fedprox"], [str(first), str(last)]
    assert list(parse_config(raw).search.space["fedprox"]) == ["eta_g"]
    assert parse_config(raw).untuned == {"fedprox"}  # the first file's rate is another search's
    last.write_text(yaml.safe_dump({"fedprox": {"eta_g": 0.01}}))
    config = parse_config(raw)
    entry = method_entry({"type": "fedprox", "eta_g": 0.01, "mu": 0.5})
    run = config.run("digits", "iid", config.method("fedprox"), 0)
    assert not config.untuned and run == config.run("digits", "iid", entry, 0)


@pytest.mark.parametrize(
    "content",
    [None, {}, {"fedavg": VALUES["fedavg"]}, {**VALUES, "fedprox": {"eta_g": 0.1}}],
)
def test_a_row_without_tuned_values_is_named_with_the_command(tmp_path, content):
    config = tuned_config(tmp_path, content)
    sentence = r"'fedprox' has no tuned values in .*tuned.yaml; .*'fedsdg search --only fedprox'"
    with pytest.raises(ValueError, match=sentence):
        config.run("digits", "iid", config.method("fedprox"), 0)
    # A search tunes it, and needs nothing.
    assert resolved(config).run("digits", "iid", config.method("fedprox"), 0)


def test_a_row_with_a_rate_of_its_own_needs_no_tuning(tmp_path):
    methods = [{"type": "fedprox", "name": "mine", "eta_g": 0.5}]
    config = tuned_config(tmp_path, {}, methods)
    assert config.run("digits", "iid", config.method("mine"), 0).training.eta_g == 0.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"fedavg": {"eta_q": 1}}, "tuned.yaml: fedavg has no parameter 'eta_q'; did you mean"),
        ({"fedavg": {"eta_g": -1}}, "tuned.yaml: fedavg.eta_g is -1"),
        ({"fedavg": 3}, "tuned.yaml: fedavg"),
    ],
)
def test_wrong_tuned_values_are_named(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        tuned_config(tmp_path, content)
