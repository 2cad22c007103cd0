"""Gates, credits and trajectories of clients, against loops over the rows and SciPy."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.inference import pearson, spearman
from fedsdg.analysis.plots.style import KIND_A, KIND_B
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views import clients

from ..conftest import Run, drawn, markdown

CLIENTS, BLOCKS = 8, 5


def parted(seed, method="fedsdg", parted=True):
    """Clients 0–7; the odd ones conflict. Client 6 was never drawn. Rounds 2 and 3 are judged."""
    rng = np.random.default_rng([seed, 11])
    rows = []
    for number, client in product((1, 2, 3), range(CLIENTS)):
        drawn = client != 6
        row = {"round": number, "client": client, "participated": drawn}
        row["local_steps"] = 5 + client if drawn else None
        if parted:
            row |= {"conflicts": client % 2 == 1, "steps": number * (5 + client) if drawn else 0}
            row["private_shares"] = rng.uniform(0, 1, BLOCKS).tolist() if drawn else None
            row["private_ratio"] = float(rng.uniform(0.1, 2)) if drawn else None
            row |= {"gate_penalty": 1.0, "private_penalty": 0.01} if drawn else {}
        if drawn:
            row["gates"] = rng.choice([0.02, 0.45, 0.6, 0.7, 0.95], BLOCKS).tolist()
        rows.append(row)
    judged = [{"round": r, "evaluated": r > 1, "personal_accuracy": 0.5} for r in (1, 2, 3)]
    ends = {"expected_accuracy": 0.8, "expected_accuracy_a": 0.9, "expected_accuracy_b": 0.7}
    return Run(method, seed, rounds=judged, rows=rows, clients=CLIENTS, last=ends)


def test_measures_are_taken_within_clients_first(summary_of) -> None:
    runs = [parted(0), parted(1)]
    rows = clients.gate_dynamics(Summary(summary_of(runs)))
    assert set(rows["round"]) == {2, 3}, "rounds that were judged"
    found = rows.set_index(["seed", "round", "group", "measure"])["value"].sort_index()
    for run, number in product(runs, (2, 3)):
        drawn = [row for row in run.rows if row["round"] == number and "gates" in row]
        for group, odd in (("A", 0), ("B", 1)):
            own = [row for row in drawn if row["client"] % 2 == odd]
            gates = np.array([row["gates"] for row in own])
            assert found[run.seed, number, group].to_dict() == pytest.approx(
                {
                    "gate": gates.mean(),
                    "closed": (gates < 0.1).mean(),
                    "middle": ((gates >= 0.4) & (gates <= 0.6)).mean(),
                    "open": (gates > 0.9).mean(),
                    "private_share": np.mean([row["private_shares"] for row in own]),
                    "private_ratio": np.mean([row["private_ratio"] for row in own]),
                    "gate_penalty": 1.0,
                    "private_penalty": 0.01,
                }
            )
        rho = stats.spearmanr([np.mean(r["gates"]) for r in drawn], [r["steps"] for r in drawn])
        assert found[run.seed, number, :, clients.CORRELATION].item() == pytest.approx(
            rho.statistic
        )


def test_a_gate_on_a_border_is_neither_closed_nor_open_but_in_the_middle(summary_of) -> None:
    run = parted(0)
    for row in run.rows:
        if "gates" in row:
            row["gates"] = [0.1, 0.4, 0.6, 0.9]
    rows = clients.gate_dynamics(Summary(summary_of([run])))
    means = rows.groupby("measure")["value"].unique()
    assert [means[name].tolist() for name in ("closed", "middle", "open")] == [[0.0], [0.5], [0.0]]


def test_steps_of_old_records_are_counted(summary_of) -> None:
    """Of old records the steps of the rounds in which a client took part add up."""
    run = parted(0, parted=False)
    rows = clients.gate_dynamics(Summary(summary_of([run])))
    assert set(rows["group"]) == {""}
    last = [row for row in run.rows if row["round"] == 3 and "gates" in row]
    steps = [sum(r["local_steps"] for r in run.rows if r["client"] == c["client"]) for c in last]
    rho = stats.spearmanr([np.mean(row["gates"]) for row in last], steps).statistic
    found = rows[(rows["measure"] == clients.CORRELATION) & (rows["round"] == 3)]["value"].item()
    assert found == pytest.approx(rho)
    assert "private_share" not in set(rows["measure"])


def test_gates_of_a_stand_above_those_of_b_in_a_panel_for_each_variant(summary_of) -> None:
    """Grey where a client has none; a method without gates has no panel."""
    run = parted(0)
    runs = [run, parted(0, "fedsdg-fast"), Run("fedavg", 0, clients=CLIENTS)]
    runs[2].rounds.append({"round": 1, "evaluated": True})
    figure = drawn(summary_of(runs), "gates")
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["FedSDG", "FedSDG (fast)"]
    mesh = panels[0].collections[0]
    shown = mesh.get_array().reshape(CLIENTS, BLOCKS)
    last = {row["client"]: row.get("gates") for row in run.rows if row["round"] == 3}
    for place, client in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        if client == 6:
            assert shown[place].mask.all()
        else:
            assert np.asarray(shown[place]) == pytest.approx(np.asarray(last[client]))
    assert [text.get_text() for text in panels[0].get_yticklabels()] == ["A", "B"]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [(True, {"A": 1.5, "B": 0.5}), (False, {"lowest": 0.5, "median": 1.0, "highest": 1.5})],
)
def test_weights_are_in_units_of_an_equal_share(summary_of, kinds, expected) -> None:
    """Two clients have three times the weight of the two others, which conflict or do not."""
    rows = [
        {"round": r, "client": c, "participated": True, "weight": 0.375 if c < 2 else 0.125}
        | ({"conflicts": c >= 2} if kinds else {})
        for r, c in product((1, 2), range(4))
    ]
    runs = [Run("fedsdg", seed, rows=rows, clients=4) for seed in (0, 1)]
    shares = clients.weight_shares(Summary(summary_of(runs)))
    assert shares["n"].eq(2).all() and set(shares["round"]) == {1, 2}
    assert shares[shares["round"] == 1].set_index("group")["mean"].to_dict() == expected


def test_accuracy_of_a_and_b_stands_beside_each_other(summary_of) -> None:
    runs = [parted(*both) for both in product((0, 1), ("fedsdg", "fedavg"))]
    axes = drawn(summary_of(runs), "groups").axes[0]
    points = {(round(float(line.get_xdata()[0]), 6), line.get_color()) for line in axes.lines}
    assert points == {(90.0, KIND_A), (70.0, KIND_B)}
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert sorted(labels) == ["FedAvg (samples)", "FedSDG"]


NOISY, ROUNDS = 10, 3


@pytest.fixture
def numbers():
    rng = np.random.default_rng(4)
    return {
        seed: {
            "noise_rate": rng.uniform(0, 0.8, NOISY),
            "weight": rng.dirichlet(np.ones(NOISY), ROUNDS),
            "credibility": rng.uniform(0, 1, (ROUNDS, NOISY)),
            "shapley": rng.normal(0, 0.02, NOISY),
        }
        for seed in (0, 1)
    }


@pytest.fixture
def noisy(summary_of, numbers):
    runs = []
    for seed, of in numbers.items():
        rows = [
            {"round": r + 1, "client": c, "participated": True}
            | {"weight": of["weight"][r, c], "credibility": of["credibility"][r, c]}
            | {"noise_rate": of["noise_rate"][c]}
            | ({"shapley": of["shapley"][c]} if r == ROUNDS - 1 else {})
            for r, c in product(range(ROUNDS), range(NOISY))
        ]
        even = [row | {"weight": 1 / NOISY, "credibility": None} for row in rows]
        runs += [Run("cgsv", seed, rows=rows), Run("fedavg-uniform", seed, rows=even)]
    return summary_of(runs)


def test_measures_are_means_over_the_rounds(noisy, numbers) -> None:
    rows = clients.credits(Summary(noisy))
    assert len(rows) == 2 * 2 * NOISY
    own = rows[(rows["method"] == "cgsv") & (rows["seed"] == 1)].sort_values("client")
    of = numbers[1]
    assert own["weight"].to_numpy() == pytest.approx(NOISY * of["weight"].mean(axis=0))
    assert own["credibility"].to_numpy() == pytest.approx(of["credibility"].mean(axis=0))
    assert own["noise_rate"].to_numpy() == pytest.approx(of["noise_rate"])
    assert own["shapley"].to_numpy() == pytest.approx(100 * of["shapley"])


def test_a_printed_correlation_has_the_interval_of_fishers_z(summary_of) -> None:
    """Credits of four clients follow their noise but for one swap (ρ = 0.8) or two (0.6)."""
    orders = ([1, 0, 2, 3], [1, 0, 3, 2]) * 2 + ([1, 0, 2, 3],)
    runs = [
        Run("cgsv", seed, rows=[
            {"round": 1, "client": client, "participated": True, "weight": 0.1 * (1 + place)}
            | {"noise_rate": 0.1 * client}
            for client, place in enumerate(order)
        ])
        for seed, order in enumerate(orders)
    ]  # fmt: skip
    z = np.arctanh([0.8, 0.6, 0.8, 0.6, 0.8])
    half = stats.t.ppf(0.975, 4) * stats.sem(z)
    low, mean, high = np.tanh([z.mean() - half, z.mean(), z.mean() + half])
    # Ranks and values are both evenly spaced, so that Pearson's is Spearman's.
    shown = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}] ({mean:+.2f})"
    assert shown in markdown(summary_of(runs), "label_noise")


def test_correlations_are_within_a_run_and_averaged(noisy, numbers) -> None:
    rows = clients.correlations(clients.credits(Summary(noisy)))
    table = rows.set_index(["method", "measure", "yardstick"])
    assert set(rows["method"]) == {"cgsv"}, "equal weights follow nothing"
    assert len(rows) == 2 * 2
    for measure, yardstick in product(("weight", "credibility"), ("noise_rate", "shapley")):
        pairs = [(of[measure].mean(axis=0), of[yardstick]) for of in numbers.values()]
        z = np.arctanh([stats.spearmanr(x, y).statistic for x, y in pairs])
        linear = np.arctanh([stats.pearsonr(x, y).statistic for x, y in pairs])
        row = table.loc[("cgsv", measure, yardstick)]
        assert row["spearman"] == pytest.approx(np.tanh(z.mean()))
        assert row["pearson"] == pytest.approx(np.tanh(linear.mean()))
        ends = np.tanh(z.mean() + stats.t.ppf(0.975, 1) * stats.sem(z) * np.array([-1, 1]))
        assert row[["low", "high"]].tolist() == pytest.approx(ends.tolist())
    text = markdown(noisy, "label_noise")
    assert "credibility" in text and "the mean of 2 seeds, fewer than 5" in text


@pytest.mark.parametrize("seed", range(4))
def test_correlation_is_scipys_also_with_ties(seed) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 4, 12).astype(float), rng.normal(size=12)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    z = np.round(y, 0)
    assert spearman(x, z) == pytest.approx(stats.spearmanr(x, z).statistic)


def test_correlation_leaves_out_pairs_with_a_gap_and_refuses_what_says_nothing() -> None:
    x, y = [1.0, 2.0, np.nan, 4.0, 8.0], [3.0, 5.0, 9.0, np.nan, 4.0]
    assert pearson(x, y) == pytest.approx(stats.pearsonr([1, 2, 8], [3, 5, 4]).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr([1, 2, 8], [3, 5, 4]).statistic)
    assert pearson([1.0, 2.0], [2.0, 1.0]) is None
    assert spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


def case(scenario, seed, shift):
    rows = [
        {"round": r, "client": client, "participated": True}
        | {"path_x": [shift + r + 0.1 * step for step in range(3)]}
        | {"path_y": [client - 0.1 * step for step in range(3)]}
        for r, client in product((1, 2), (0, 1))
    ]
    rounds = [
        {"round": r, "evaluated": True, "model_x": shift + r, "model_y": 0.5, "plane_share": 0.9}
        for r in (1, 2)
    ]
    return Run("fedavg", seed, scenario, clients=2, rows=rows, rounds=rounds)


def test_rows_are_points_in_order(summary_of, summary_dir) -> None:
    summary = summary_of([case("equal", 0, 0.0), case("equal", 1, 50.0), case("other", 0, 9.0)])
    rows = clients.trajectories(Summary(summary))
    assert list(rows.columns) == clients.TRAJECTORY
    assert set(rows["seed"]) == {0}, "a case is one run"
    own = rows[(rows["scenario"] == "other") & (rows["kind"] == "local")]
    assert len(own) == 2 * 2 * 3
    way = own[(own["round"] == 2) & (own["client"] == 1)]
    assert way["step"].tolist() == [0, 1, 2]
    assert way["x"].to_numpy() == pytest.approx([11.0, 11.1, 11.2])
    assert way["y"].to_numpy() == pytest.approx([1.0, 0.9, 0.8])
    models = rows[(rows["scenario"] == "equal") & (rows["kind"] == "aggregate")]
    assert models["x"].tolist() == [1.0, 2.0] and models["client"].isna().all()
    assert np.all(rows["plane_share"] == 0.9)
    assert clients.trajectories(Summary(summary_dir)).empty, "these runs kept no way"
