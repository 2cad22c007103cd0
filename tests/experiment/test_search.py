"""The search tries equally much of every method, off the grid, and ranks by validation accuracy."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from fedsdg.cli import main
from fedsdg.experiment import search as searching
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.machine.processes import Failed
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.runs import execute
from fedsdg.experiment.search import found_entries, scores, search, summary_lines
from fedsdg.experiment.search.trials import trial_runs, trials_of
from fedsdg.models import Architecture, build_backbone, load_backbone, save_backbone
from tests.suited import facts_of

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SEARCH = {
    "seeds": [50],
    "space": {"fedprox": {"mu": [0.0, 5.0]}, "fedavg": {"eta_g": [0.001, 0.01]}},
}


def small(**search_section):
    raw = yaml.safe_load(CONFIG.read_text())
    raw["training"]["kernel"] = "torch"
    raw["skews"] = ["dirichlet~1.0", "iid"]
    raw["federation"] |= {"clients": 6, "clients_per_round": 5, "rounds": 2}
    # Entries without values of their own, which a trial would keep.
    raw["methods"] = ["fedavg", "fedprox"]
    raw["search"] = SEARCH | search_section
    return raw


@pytest.fixture
def config():
    return parse_config(small())


@pytest.fixture
def backbone(tmp_path):
    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.3,), (0.4,))
    torch.manual_seed(0)
    file = tmp_path / "letters.safetensors"
    recipe = {k: v for k, v in small()["backbones"]["letters"].items() if k != "source"}
    save_backbone(build_backbone(architecture), architecture, file, facts_of(recipe))
    return file


# --- What is tried --------------------------------------------------------------------------------


def test_trials_are_every_candidate_everywhere_and_keep_the_rest(config, tmp_path):
    tried = trials_of(config)
    assert [(t.method.label, t.number) for t in tried] == [
        ("fedavg", 0), ("fedprox", 0), ("fedavg", 1), ("fedprox", 1),
    ]  # fmt: skip
    runs = list(trial_runs(config, tried, tmp_path, None))
    assert len(runs) == 4 * 2
    for run in runs:
        assert run.config.seed == 50
        values = dict(run.trial.values)
        assert run.config.training == replace(
            config.training, eta_g=values.pop("eta_g", config.training.eta_g)
        )
        assert run.config.parameters == {"weights": "samples", **values}


def test_a_method_keeps_its_other_settings_and_is_known_by_its_label(tmp_path):
    raw = small(space={"mine": {"eta_g": [0.1], "head": ["shared", "private"]}}, skews=["iid"])
    raw["methods"][0] = {"type": "fedsdg", "name": "mine", "lambda1": 0.5, "eta_m": 0.25}
    runs = list(trial_runs(config := parse_config(raw), trials_of(config), tmp_path, None))
    assert [run.skew for run in runs] == ["iid", "iid"]
    for run in runs:
        assert run.config.parameters["lambda1"] == 0.5
        assert (run.config.training.eta_g, run.config.training.eta_m) == (0.1, 0.25)
    # As an entry of a config with these values: a run of it would be the same one.
    entry = {"type": "fedsdg", "lambda1": 0.5, "eta_m": 0.25, "eta_g": 0.1}
    assert runs[0].config == config.run("digits", "iid", method_entry(entry), 50)
    other = method_entry({**entry, "head": "private"})
    assert runs[1].config == config.run("digits", "iid", other, 50)


def test_every_method_gets_the_same_number_of_points_of_its_own_space():
    raw = small(
        trials=5,
        space={
            "fedprox": {"mu": [0.01, 1.0, "log"], "eta_g": [0.001, 0.1, "log"]},
            "fedavg": {"eta_g": [0.001, 0.1, "log"]},
        },
    )
    tried = trials_of(parse_config(raw))
    assert [t.number for t in tried] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    rates = {label: [t.values["eta_g"] for t in tried if t.method.label == label]
             for label in ("fedprox", "fedavg")}  # fmt: skip
    assert not set(rates["fedprox"]) & set(rates["fedavg"])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"space": {"fedproxx": {"mu": [1]}}}, "no method 'fedproxx'; did you mean 'fedprox'"),
        ({"space": {"fedprox": {"nu": [1]}}}, "search.space.fedprox: no parameter 'nu'"),
        ({"space": {"fedprox": {"mu": [-1]}}}, "search.space.fedprox.mu is -1"),
        ({"space": {"fedprox": {}}}, "names no parameter"),
        ({"trials": 0}, "search.trials is 0"),
        ({"seeds": [3]}, "seed 3 belongs to the grid"),
        ({"grids": {}}, "search: unknown key 'grids'"),
    ],
)
def test_what_is_wrong_in_the_section_is_named(section, message):
    with pytest.raises(ValueError, match=message):
        parse_config(small(**section))


def test_a_skew_that_the_experiment_lacks_is_named_when_a_search_begins(tmp_path):
    config = parse_config(small(skews=["dirichlet~9.0"]))
    with pytest.raises(ValueError, match=r"search.skews: 'dirichlet~9.0' is no skew"):
        search(config, tmp_path, None, tmp_path / "out.json")


def test_a_config_laid_over_another_may_leave_out_what_that_searches(config, tmp_path):
    raw = small()
    raw["methods"] = ["fedavg"]
    assert {t.method.label for t in trials_of(parse_config(raw))} == {"fedavg"}
    raw["methods"] = ["local-only"]
    with pytest.raises(ValueError, match="nothing to search; say under search.space"):
        search(parse_config(raw), tmp_path, None, tmp_path / "out.json")


@pytest.mark.parametrize(
    "names", [("paper",), ("paper", "cifar100"), ("extended/full",), ("cross-needs",)]
)
def test_what_another_config_searches_is_not_mixed_in(names):
    """A file's section replaces an earlier one whole: no axis of the default config comes along."""
    files = [CONFIG.parent / f"{name}.yaml" for name in names]
    own = yaml.safe_load(files[-1].read_text())["search"]
    section = load_config(files).search
    assert {label: set(axes) for label, axes in section.space.items()} == {
        label: set(axes) for label, axes in own["space"].items()
    }
    assert section.trials == own.get("trials")
    assert list(section.skews) == own.get("skews", [])


# --- What is found --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_score_is_the_mean_of_the_runs_validation_accuracies(
    config, backbone, tmp_path, forked
):
    """Each score is computed once more by hand, from a run of its own."""
    output = tmp_path / "search.json"
    first = search(config, tmp_path / "store", backbone, output, jobs=1, only=["fedprox"])
    assert first["methods"]["fedavg"]["best"] is None
    written = json.loads(output.read_text())
    assert written == first
    method = written["methods"]["fedprox"]
    material = prepare_material("digits", load_backbone(backbone), "cpu")
    for row in method["trials"]:
        entry = method_entry({"type": "fedprox", **row["parameters"]})
        scores = []
        for skew in config.skews:
            shares = make_partition("digits", skew, 50, 6, config.partition)
            execute(
                config.run("digits", skew, entry, 50), material, shares, tmp_path / "again",
                store=tmp_path / "other-store", identity={},
            )  # fmt: skip
            result = json.loads((tmp_path / "again" / "result.json").read_text())
            at = result.get("quarter") or result["last"]
            scores.append(at["val_accuracy"])
            assert row["by_skew"][skew] == pytest.approx(scores[-1], abs=1e-6)
        assert row["score"] == row["by_seed"]["50"] == pytest.approx(sum(scores) / 2, abs=1e-6)
    best = max(method["trials"], key=lambda row: row["score"])
    assert method["best"]["parameters"] == best["parameters"]
    ends = [sum(row["score"] for row in method["trials"]) / 2, best["score"]]
    assert method["expected_best"] == pytest.approx(ends, abs=1e-6)

    # Time is up at once: nothing is started, and what was known stays.
    again = search(config, tmp_path / "store", backbone, output, jobs=1, minutes=0)
    assert again == first == json.loads(output.read_text())
    whole = search(config, tmp_path / "store", backbone, output, jobs=1)
    assert whole["methods"]["fedprox"] == first["methods"]["fedprox"]
    assert len(whole["methods"]["fedavg"]["expected_best"]) == 2
    # Another range is another search: what no longer is planned is forgotten.
    raw = small(space={"fedprox": {"mu": [0.0, 7.0]}})
    other = search(parse_config(raw), tmp_path / "store", backbone, output, jobs=1, minutes=0)
    assert [len(row["runs"]) for row in other["methods"]["fedprox"]["trials"]] == [2, 0]


def scored(config, scores, tmp_path, monkeypatch):
    """A search whose runs score as told, or raise: by (label, trial, skew)."""

    class Here:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def map(self, function, tasks):
            for run in tasks:
                yield run, scores(run)

    monkeypatch.setattr(searching, "Workers", Here)
    return search(config, tmp_path, None, tmp_path / "out.json", jobs=1)


def test_more_workers_than_devices_are_refused_and_by_default_there_are_as_many(
    tmp_path, monkeypatch
):
    """A run that finds no device would wait for ever."""
    monkeypatch.setenv("FEDSDG_DEVICES", "0,1")
    raw = small() | {"training": {"device": "cuda"}}
    config = parse_config(raw)
    started = []

    class Counted:
        def __init__(self, count, environment):
            started.append((count, environment))
            raise KeyboardInterrupt

    monkeypatch.setattr(searching, "Workers", Counted)
    with pytest.raises(ValueError, match=r"--jobs is 3, but FEDSDG_DEVICES names 2 device\(s\)"):
        search(config, tmp_path, None, tmp_path / "out.json", jobs=3)
    assert not started
    with pytest.raises(KeyboardInterrupt):
        search(config, tmp_path, None, tmp_path / "out.json")
    ((count, environment),) = started
    assert count == 2 and "CUBLAS_WORKSPACE_CONFIG" in environment


def test_a_failed_run_counts_nought_and_says_why(config, tmp_path, monkeypatch):
    def scores(run):
        if run.trial.number == 1 and run.skew == "iid" and run.trial.method.label == "fedprox":
            return {"score": 0.0, "error": "the training loss is nan"}
        return {"score": 0.75, "error": None}

    found = scored(config, scores, tmp_path, monkeypatch)
    trial = found["methods"]["fedprox"]["trials"][1]
    assert trial["score"] == pytest.approx(0.375) and trial["by_skew"]["iid"] == 0
    assert [run["error"] for run in trial["runs"]] == [None, "the training loss is nan"]
    assert found["methods"]["fedprox"]["failed"] == 1 and found["methods"]["fedavg"]["failed"] == 0
    assert summary_lines(found) == [
        "fedavg: eta_g = 0.001 with 75.0 % (2 of 2 trials)",
        "fedprox: mu = 0.0 with 75.0 % (2 of 2 trials, 1 failed)",
    ]


def test_a_killed_process_leaves_its_trial_open(config, tmp_path, monkeypatch, capsys):
    def scores(run):
        if run.trial.method.label == "fedavg" and run.seed == 50 and run.trial.number == 0:
            return Failed("killed", "its process ended by signal 9")
        return {"score": 0.5 + run.trial.number / 10, "error": None}

    found = scored(config, scores, tmp_path, monkeypatch)
    assert found["methods"]["fedavg"]["trials"][0]["score"] is None
    assert found["methods"]["fedavg"]["expected_best"] == [0.6]
    assert "2 of 8 runs are left, 2 of them because their process was ended" in (
        capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="no such data set"):
        scored(config, lambda run: Failed("X", "no such data set"), tmp_path, monkeypatch)


def test_optima_at_an_edge_are_reported_and_values_can_be_pasted(tmp_path, monkeypatch):
    raw = small(
        trials=8,
        space={"fedprox": {"mu": [0.01, 1.0, "log"], "eta_g": [0.001, 0.1, "log"]}},
    )
    raw["methods"] = [{"type": "fedprox", "name": "fedprox", "optimiser": "sgd"}]
    config = parse_config(raw)
    highest = max(t.values["mu"] for t in trials_of(config))
    found = scored(
        config,
        lambda run: {"score": run.trial.values["mu"] / 2, "error": None},
        tmp_path,
        monkeypatch,
    )
    method = found["methods"]["fedprox"]
    assert method["best"]["parameters"]["mu"] == highest
    near = highest > 10 ** (-2 + 0.95 * 2)
    assert ("mu" in method["edges"]) == near
    # Pasted into a config, the values are those of the best trial.
    (entry,) = yaml.safe_load(found_entries(found))["methods"]
    assert entry == {"type": "fedprox", "optimiser": "sgd", **method["best"]["parameters"]}
    assert main(["search", "--found", str(tmp_path / "out.json")]) == 0


def test_the_command_says_what_is_wrong(config, backbone, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDSDG_PRETRAIN", "1")  # the record's is of this recipe
    with pytest.raises(FileNotFoundError, match="make it with 'fedsdg pretrain"):
        search(config, tmp_path, tmp_path / "none.safetensors", tmp_path / "out.json")
    other = load_config([CONFIG], ["backbones.letters.seed=7"])
    sentence = f"another recipe than .* 'fedsdg pretrain --backbone letters --output {backbone}'"
    with pytest.raises(ValueError, match=sentence):
        search(other, tmp_path, backbone, tmp_path / "out.json")
    with pytest.raises(ValueError, match="--only 'fedsdgg': no method of the search"):
        search(config, tmp_path, backbone, tmp_path / "out.json", only=["fedsdgg"])
    assert main(["search", "--found", str(tmp_path / "none.json")]) == 2
    assert "there is no search in" in capsys.readouterr().err
    other = tmp_path / "other.json"
    other.write_text('{"methods": {}}')
    assert main(["search", "--config", str(CONFIG), "--output", str(other), "--show"]) == 2
    assert "is not the outcome of a search" in capsys.readouterr().err


def test_without_validation_samples_there_is_nothing_to_search_by(
    config, backbone, tmp_path, monkeypatch
):
    from fedsdg.data.partition import TRAIN, VAL

    (run, *_) = trial_runs(config, trials_of(config), tmp_path, backbone)
    made = make_partition("digits", "iid", 50, 6, config.partition)
    split = made.split.copy()
    split[split == VAL] = TRAIN
    monkeypatch.setattr(scores, "partition_of", lambda *_: replace(made, split=split))
    with pytest.raises(ValueError, match="no client of digits has a validation sample"):
        scores.score(run, lambda _: None)
