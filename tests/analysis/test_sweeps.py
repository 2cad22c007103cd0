"""Sweeps: which runs differ in one setting only, found from their configs."""

import numpy as np
import pytest

from fedsdg.analysis.summary import Summary
from fedsdg.analysis.sweeps import panels, sweeps
from fedsdg.analysis.tables import write_table

from .conftest import Run


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


@pytest.fixture
def summary(summary_of):
    runs = [
        run(f"fedsdg-{a}-{b}", "fedsdg", seed, grid(a, b), lambda1=a, lambda2=b, epsilon=1e-8)
        for a in (1e-4, 5e-4, 1e-3)
        for b in (1e-4, 1e-3)
        for seed in (0, 1)
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
    return summary_of(runs)


def test_a_grid_gives_a_line_for_each_combination_of_the_others(summary) -> None:
    rows = sweeps(Summary(summary))
    own = rows[(rows["key"] == "parameters.lambda1") & (rows["metric"] == "personal_accuracy")]
    assert set(own["others"]) == {"λ₂ = 0.0001", "λ₂ = 0.001"}
    for _, row in own.iterrows():
        a, b = float(row["value"]), float(row["others"].split(" = ")[1])
        values = [grid(a, b), grid(a, b) + 0.01]
        assert row["mean"] == pytest.approx(np.mean(values))
        assert row["n"] == 2, "the same run under two labels counts once"
    line = own[own["others"] == "λ₂ = 0.001"]
    assert line["value"].tolist() == ["0.0001", "0.0005", "0.001"]


def test_a_single_sweep_is_one_line(summary) -> None:
    rows = sweeps(Summary(summary))
    own = rows[(rows["key"] == "parameters.epsilon") & (rows["metric"] == "global_accuracy")]
    assert own["value"].tolist() == ["1e-08", "0.01"]
    assert own["mean"].to_numpy() == pytest.approx([grid(1e-4, 1e-4) - 0.1, 0.2])
    assert set(own["others"]) == {""}


def test_scenarios_sweep_the_federation_for_every_method(summary, tmp_path) -> None:
    rows = sweeps(Summary(summary))
    own = rows[rows["key"] == "federation.clients_per_round"]
    assert set(own["type"]) == {"fedsdg", "fedavg"}
    listed = [(key, set(part["type"])) for _, key, part in panels(rows)]
    assert listed[0] == ("federation.clients_per_round", {"fedsdg", "fedavg"})
    assert [key for key, _ in listed[1:]] == [
        "parameters.epsilon",
        "parameters.lambda1",
        "parameters.lambda2",
    ]
    assert "krum" not in set(rows["type"]), "nothing of it varies"
    _, markdown, _ = write_table(summary, "sensitivity", tmp_path / "sensitivity")
    text = markdown.read_text("utf-8")
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


def test_without_sweeps_the_table_says_so(summary_of, tmp_path) -> None:
    summary = summary_of([run("fedavg", "fedavg", 0, 0.5), run("krum", "krum", 0, 0.4, f=1)])
    _, markdown, _ = write_table(summary, "sensitivity", tmp_path / "sensitivity")
    assert "No setting varies" in markdown.read_text("utf-8")
