"""Sweeps, found from the configs of runs, and searches, from their own file."""

import io
import json
from itertools import product

import numpy as np
import pandas as pd
import pytest

from fedsdg.analysis.plots import write_figure
from fedsdg.analysis.summarise import search_file, summarise
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES, to_csv
from fedsdg.analysis.views.sweeps import budgets, panels, search_curves, sweeps
from fedsdg.experiment.search_space import expected_best

from ..conftest import Run, make_record, markdown


def run(label, kind, seed, value, scenario="", clients_per_round=5, eta_m=0.005, **parameters):
    config = {
        "parameters": parameters,
        "training": {"eta_m": eta_m},
        "federation": {"clients": 10, "clients_per_round": clients_per_round},
    }
    last = {"personal_accuracy": value + 0.01 * seed, "global_accuracy": value - 0.1}
    return Run(label, seed, scenario, type=kind, config=config, last=last)


def grid(a, b):
    return 0.5 + 100 * a - 10 * b


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = [
        run(f"fedsdg-{a}-{b}", "fedsdg", seed, grid(a, b), lambda1=a, lambda2=b, epsilon=1e-8)
        for a, b, seed in product((1e-4, 5e-4, 1e-3), (1e-4, 1e-3), (0, 1))
    ]
    default = {"lambda1": 1e-4, "lambda2": 1e-4, "epsilon": 1e-8}
    for seed in (0, 1):
        runs += [
            # The default stands in the grid and alone: one run under two labels.
            run("fedsdg", "fedsdg", seed, grid(1e-4, 1e-4), **default),
            run("fedsdg-eps", "fedsdg", seed, 0.3, **default | {"epsilon": 0.01}),
            run("fedsdg", "fedsdg", seed, 0.6, "few", clients_per_round=2, **default),
            run("fedavg", "fedavg", seed, 0.4),
            run("fedavg", "fedavg", seed, 0.45, "few", clients_per_round=2),
            run("krum", "krum", seed, 0.1, f=1),
        ]
    return make_record(tmp_path_factory.mktemp("sweeps"), "arena", runs)


@pytest.fixture(scope="module")
def rows(folder):
    return sweeps(Summary(folder))


def test_a_grid_gives_a_line_for_each_combination_of_the_others(rows) -> None:
    own = rows[(rows["key"] == "parameters.lambda1") & (rows["metric"] == "personal_accuracy")]
    assert set(own["others"]) == {"λ₂ = 0.0001", "λ₂ = 0.001"}
    for _, row in own.iterrows():
        a, b = float(row["value"]), float(row["others"].split(" = ")[1])
        values = [grid(a, b), grid(a, b) + 0.01]
        assert row["mean"] == pytest.approx(np.mean(values))
        assert row["n"] == 2, "the same run under two labels counts once"
    line = own[own["others"] == "λ₂ = 0.001"]
    assert line["value"].tolist() == ["0.0001", "0.0005", "0.001"]


def test_a_single_sweep_is_one_line(rows) -> None:
    own = rows[(rows["key"] == "parameters.epsilon") & (rows["metric"] == "global_accuracy")]
    assert own["value"].tolist() == ["1e-08", "0.01"]
    assert own["mean"].to_numpy() == pytest.approx([grid(1e-4, 1e-4) - 0.1, 0.2])
    assert set(own["others"]) == {""}


def test_scenarios_sweep_the_federation_for_every_method(folder, rows) -> None:
    listed = [(key, set(part["type"])) for _, key, part in panels(rows)]
    assert listed[0] == ("federation.clients_per_round", {"fedsdg", "fedavg"})
    parameters = [f"parameters.{name}" for name in ("epsilon", "lambda1", "lambda2")]
    assert [key for key, _ in listed[1:]] == parameters
    assert "krum" not in set(rows["type"]), "nothing of it varies"
    text = markdown(folder, "sensitivity")
    assert "clients per round**" in text and "λ₁**" in text


def test_variants_of_a_method_are_told_apart_under_scenarios(summary_of) -> None:
    runs = [
        run(label, "fedsdg", 0, value + 0.01 * n, f"share~{n}", clients_per_round=n, smoothing=s)
        for label, s, value in (("fedsdg", 0.0, 0.5), ("uniform-weights", 1.0, 0.7))
        for n in (2, 5)
    ]
    rows = sweeps(Summary(summary_of(runs)))
    assert set(rows["key"]) == {"parameters.smoothing", "federation.clients_per_round"}
    own = rows[rows["key"].str.endswith("round") & rows["metric"].str.startswith("personal")]
    assert dict(zip(own["type"] + own["value"], own["mean"], strict=True)) == pytest.approx(
        {"fedsdg2": 0.52, "fedsdg5": 0.55, "uniform-weights2": 0.72, "uniform-weights5": 0.75}
    )
    assert set(own["others"]) == {""}


def trials_of(scores, **more):
    trials = [
        {"number": number, "parameters": {"eta_g": 0.001 * (number + 1)}, "score": score}
        for number, score in enumerate(scores)
    ]
    known = [score for score in scores if score is not None]
    best = max((t for t in trials if t["score"] is not None), key=lambda t: t["score"], default={})
    return {
        "failed": 0,
        "edges": {},
        "best": {key: best[key] for key in ("parameters", "score")} if best else None,
        "expected_best": expected_best(known),
        "trials": trials,
    } | more


@pytest.fixture
def found():
    return {
        "experiment": "synthetic",
        "criterion": "personal validation accuracy",
        "seeds": [100, 101],
        "skews": ["iid"],
        "methods": {
            "local-only": trials_of([0.5, None, 0.25], failed=1),
            "fedsdg": trials_of([0.8125, 0.90625], edges={"eta_g": "high"}),
            "fedavg": trials_of([None, None]),
        },
    }


@pytest.fixture
def searched(written, found, tmp_path):
    file = tmp_path / "made" / "synthetic.json"
    file.parent.mkdir()
    file.write_text(json.dumps(found))
    summarise(written.runs, tmp_path / "summary", None, file)
    return tmp_path / "summary"


def test_curves_are_of_complete_trials_alone_in_the_order_of_methods(searched):
    rows = search_curves(Summary(searched))
    assert rows.to_dict("list") == {
        "method": ["fedsdg", "fedsdg", "local-only", "local-only"],
        "trials": [1, 2, 1, 2],
        "score": [0.8125, 0.90625, 0.5, 0.25],
        "expected_best": [(0.8125 + 0.90625) / 2, 0.90625, 0.375, 0.5],
    }


def test_the_table_names_best_values_failures_and_edges(searched):
    table = TABLES["tuning"](Summary(searched))
    raw = pd.read_csv(io.StringIO(to_csv(table))).set_index("method")
    assert raw.loc["fedsdg"].to_dict() == {
        "trials": 2,
        "failed": 0,
        "best": "η_g = 0.002",
        "score (share)": 0.90625,
        "mean (share)": 0.859375,
        "edges": "η_g high",
    }
    text = markdown(searched, "tuning")
    assert "2 (1 failed)" in text and "Seeds 100, 101" in text


def test_the_figure_depends_on_the_search_until_it_is_gone(searched, written, tmp_path):
    def figure():
        *_, sidecar = write_figure(searched, "tuning", tmp_path / "tuning")
        facts = json.loads(sidecar.read_text())
        return any("search.json" in file for file in facts["inputs"]), facts["numbers"]

    depends, numbers = figure()
    assert depends and [row["method"] for row in numbers] == ["fedsdg", "local-only"]
    summarise(written.runs, searched)
    assert not (searched / "search.json").exists(), "that of a former call"
    assert figure() == (False, [])


def test_budgets_are_a_few_trials_and_all_of_them(searched, found):
    """Methods with few trials have no row for budgets that they do not reach."""
    scores = [i / 32 for i in range(16)]
    found["methods"]["local-only"] = trials_of(scores)
    (searched / "search.json").write_text(json.dumps(found))
    rows = budgets(Summary(searched))
    assert rows["budget"].tolist() == ["all trials", "4 trials", "12 trials", "all trials"]
    best = expected_best(scores)
    assert rows["mean"].tolist()[1:] == [best[3], best[11], best[15]]
    assert rows["trials"].tolist() == [2, 4, 12, 16]


def test_the_search_made_here_goes_before_the_committed_one(tmp_path):
    committed = tmp_path / "reference" / "needs" / "search.json"
    made = tmp_path / "search" / "needs.json"
    assert search_file("needs", tmp_path) is None
    for file in (committed, made):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        assert search_file("needs", tmp_path) == file
