"""Gates, credits and trajectories of clients, against loops over the rows and SciPy."""

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.inference import pearson, spearman
from fedsdg.analysis.plots import FIGURES, write_figure
from fedsdg.analysis.plots.style import KIND_A, KIND_B, styled
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table
from fedsdg.analysis.views.clients import (
    CORRELATION,
    TRAJECTORY,
    correlations,
    credits,
    gate_dynamics,
    trajectories,
    weight_shares,
)

from ..conftest import Run

CLIENTS, BLOCKS = 8, 5


def drawn(name, folder):
    """A figure of a summary, not written."""
    with styled():
        return FIGURES[name].drawn(FIGURES[name].frame(Summary(folder)))


def parted(seed, method="fedsdg", parted=True, rounds=(1, 2, 3)):
    """Clients 0–7; the odd ones conflict. Client 6 was never drawn. Rounds 2 and 3 are judged."""
    rng = np.random.default_rng([seed, 11])
    rows = []
    for number in rounds:
        for client in range(CLIENTS):
            row = {"round": number, "client": client, "participated": client != 6}
            row |= {"local_steps": 5 + client if client != 6 else None}
            if parted:
                row["conflicts"] = client % 2 == 1
                drawn = client != 6
                row |= {"steps": number * (5 + client) if drawn else 0}
                row |= {"private_shares": rng.uniform(0, 1, BLOCKS).tolist() if drawn else None}
                row |= {"private_ratio": float(rng.uniform(0.1, 2)) if drawn else None}
                row |= {"gate_penalty": 1.0, "private_penalty": 0.01} if drawn else {}
            if client != 6:
                row["gates"] = rng.choice([0.02, 0.45, 0.6, 0.7, 0.95], BLOCKS).tolist()
            rows.append(row)
    judged = [{"round": r, "evaluated": r > 1, "personal_accuracy": 0.5} for r in rounds]
    ends = {"expected_accuracy": 0.8, "expected_accuracy_a": 0.9, "expected_accuracy_b": 0.7}
    return Run(method, seed, rounds=judged, rows=rows, clients=CLIENTS, last=ends)


def test_measures_are_taken_within_clients_first(summary_of) -> None:
    runs = [parted(0), parted(1)]
    rows = gate_dynamics(Summary(summary_of(runs)))
    assert set(rows["round"]) == {2, 3}, "rounds that were judged"
    for run in runs:
        for number in (2, 3):
            here = rows[(rows["seed"] == run.seed) & (rows["round"] == number)]
            for group, odd in (("A", 0), ("B", 1)):
                own = [
                    row
                    for row in run.rows
                    if row["round"] == number and row["client"] % 2 == odd and "gates" in row
                ]
                found = here[here["group"] == group].set_index("measure")["value"]
                gates = [np.array(row["gates"]) for row in own]
                expected = {
                    "gate": np.mean([m.mean() for m in gates]),
                    "closed": np.mean([(m < 0.1).mean() for m in gates]),
                    "middle": np.mean([((m >= 0.4) & (m <= 0.6)).mean() for m in gates]),
                    "open": np.mean([(m > 0.9).mean() for m in gates]),
                    "private_share": np.mean([np.mean(row["private_shares"]) for row in own]),
                    "private_ratio": np.mean([row["private_ratio"] for row in own]),
                    "gate_penalty": 1.0,
                    "private_penalty": 0.01,
                }
                assert found.to_dict() == pytest.approx(expected)
            drawn = [row for row in run.rows if row["round"] == number and "gates" in row]
            rho = stats.spearmanr([np.mean(r["gates"]) for r in drawn], [r["steps"] for r in drawn])
            value = here[here["measure"] == CORRELATION]["value"].item()
            assert value == pytest.approx(rho.statistic)


def test_a_gate_on_a_border_is_neither_closed_nor_open_but_in_the_middle(summary_of) -> None:
    run = parted(0)
    for row in run.rows:
        if "gates" in row:
            row["gates"] = [0.1, 0.4, 0.6, 0.9]
    rows = gate_dynamics(Summary(summary_of([run])))
    means = rows.groupby("measure")["value"].unique()
    assert [means[name].tolist() for name in ("closed", "middle", "open")] == [[0.0], [0.5], [0.0]]


def test_steps_of_old_records_are_counted(summary_of) -> None:
    """Of old records the steps of the rounds in which a client took part add up."""
    run = parted(0, parted=False)
    rows = gate_dynamics(Summary(summary_of([run])))
    assert set(rows["group"]) == {""}
    last = [row for row in run.rows if row["round"] == 3 and "gates" in row]
    steps = [sum(r["local_steps"] for r in run.rows if r["client"] == c["client"]) for c in last]
    rho = stats.spearmanr([np.mean(row["gates"]) for row in last], steps).statistic
    found = rows[(rows["measure"] == CORRELATION) & (rows["round"] == 3)]["value"].item()
    assert found == pytest.approx(rho)
    assert "private_share" not in set(rows["measure"])


def test_gates_of_a_stand_above_those_of_b(summary_of) -> None:
    run = parted(0)
    figure = drawn("gates", summary_of([run]))
    mesh = figure.axes[0].collections[0]
    shown = mesh.get_array().reshape(CLIENTS, BLOCKS)
    last = {row["client"]: row.get("gates") for row in run.rows if row["round"] == 3}
    for place, client in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        if client == 6:
            assert shown[place].mask.all()
        else:
            assert np.asarray(shown[place]) == pytest.approx(np.asarray(last[client]))
    assert (mesh.norm.vmin, mesh.norm.vmax) == (shown.min(), shown.max())
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["A", "B"]


@pytest.mark.parametrize("parted_clients", [True, False])
def test_weights_are_in_units_of_an_equal_share(summary_of, parted_clients) -> None:
    """Two clients have three times the weight of the two others, which conflict or do not."""
    rows = [
        {"round": r, "client": c, "participated": True, "weight": 0.375 if c < 2 else 0.125}
        | ({"conflicts": c >= 2} if parted_clients else {})
        for r in (1, 2)
        for c in range(4)
    ]
    runs = [Run("fedsdg", seed, rows=rows, clients=4) for seed in (0, 1)]
    shares = weight_shares(Summary(summary_of(runs)))
    assert shares["n"].eq(2).all() and set(shares["round"]) == {1, 2}
    first = shares[shares["round"] == 1].set_index("group")["mean"].to_dict()
    alike = {"lowest": 0.5, "median": 1.0, "highest": 1.5}
    assert first == ({"A": 1.5, "B": 0.5} if parted_clients else alike)


def test_every_variant_with_gates_has_a_panel(summary_of) -> None:
    runs = [parted(0), parted(0, "fedsdg-fast"), Run("fedavg", 0, clients=CLIENTS)]
    runs[2].rounds.append({"round": 1, "evaluated": True})
    figure = drawn("gates", summary_of(runs))
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["FedSDG", "FedSDG (fast)"]


@pytest.mark.parametrize("seeds", [2, 3])
def test_bands_need_three_seeds(summary_of, seeds) -> None:
    figure = drawn("gate_dynamics", summary_of([parted(s) for s in range(seeds)]))
    bands = [c for axes in figure.axes for c in axes.collections]
    assert bool(bands) == (seeds == 3)


def test_accuracy_of_a_and_b_stands_beside_each_other(summary_of, tmp_path) -> None:
    folder = summary_of([parted(0), parted(1), parted(0, "fedavg"), parted(1, "fedavg")])
    figure = drawn("groups", folder)
    axes = figure.axes[0]
    points = {(round(float(line.get_xdata()[0]), 6), line.get_color()) for line in axes.lines}
    assert points == {(90.0, KIND_A), (70.0, KIND_B)}
    assert sorted(text.get_text() for text in axes.get_yticklabels()) == [
        "FedAvg (samples)",
        "FedSDG",
    ]
    assert write_figure(folder, "groups", tmp_path / "groups")


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
            for r in range(ROUNDS)
            for c in range(NOISY)
        ]
        runs.append(Run("cgsv", seed, rows=rows))
        even = [row | {"weight": 1 / NOISY, "credibility": None} for row in rows]
        runs.append(Run("fedavg-uniform", seed, rows=even))
    return summary_of(runs)


def test_measures_are_means_over_the_rounds(noisy, numbers) -> None:
    rows = credits(Summary(noisy))
    assert len(rows) == 2 * 2 * NOISY
    own = rows[(rows["method"] == "cgsv") & (rows["seed"] == 1)].sort_values("client")
    of = numbers[1]
    assert own["weight"].to_numpy() == pytest.approx(NOISY * of["weight"].mean(axis=0))
    assert own["credibility"].to_numpy() == pytest.approx(of["credibility"].mean(axis=0))
    assert own["noise_rate"].to_numpy() == pytest.approx(of["noise_rate"])
    assert own["shapley"].to_numpy() == pytest.approx(100 * of["shapley"])


def test_a_printed_correlation_has_the_interval_of_fishers_z(summary_of, tmp_path) -> None:
    """Credits of four clients follow their noise but for one swap (ρ = 0.8) or two (0.6)."""
    orders = ([1, 0, 2, 3], [1, 0, 3, 2]) * 2 + ([1, 0, 2, 3],)
    rhos = [0.8, 0.6, 0.8, 0.6, 0.8]
    runs = [
        Run(
            "cgsv",
            seed,
            rows=[
                {"round": 1, "client": client, "participated": True, "weight": 0.1 * (1 + place)}
                | {"noise_rate": 0.1 * client}
                for client, place in enumerate(order)
            ],
        )
        for seed, order in enumerate(orders)
    ]
    z = np.arctanh(rhos)
    half = stats.t.ppf(0.975, 4) * stats.sem(z)
    low, mean, high = np.tanh([z.mean() - half, z.mean(), z.mean() + half])
    _, markdown, _ = write_table(summary_of(runs), "label_noise", tmp_path / "label_noise")
    # Ranks and values are both evenly spaced, so that Pearson's is Spearman's.
    assert f"{mean:+.2f} [{low:+.2f}, {high:+.2f}] ({mean:+.2f})" in markdown.read_text("utf-8")


def test_correlations_are_within_a_run_and_averaged(noisy, numbers, tmp_path) -> None:
    rows = correlations(credits(Summary(noisy)))
    table = rows.set_index(["method", "measure", "yardstick"])
    assert set(rows["method"]) == {"cgsv"}, "equal weights follow nothing"
    assert len(rows) == 2 * 2
    for measure in ("weight", "credibility"):
        for yardstick in ("noise_rate", "shapley"):
            ranks, linear = [], []
            for of in numbers.values():
                x, y = of[measure].mean(axis=0), of[yardstick]
                ranks.append(stats.spearmanr(x, y).statistic)
                linear.append(stats.pearsonr(x, y).statistic)
            row = table.loc[("cgsv", measure, yardstick)]
            z = np.arctanh(ranks)
            assert row["spearman"] == pytest.approx(np.tanh(z.mean()))
            assert row["pearson"] == pytest.approx(np.tanh(np.arctanh(linear).mean()))
            ends = np.tanh(z.mean() + stats.t.ppf(0.975, 1) * stats.sem(z) * np.array([-1, 1]))
            assert row[["low", "high"]].tolist() == pytest.approx(ends.tolist())
    _, markdown, _ = write_table(noisy, "label_noise", tmp_path / "label_noise")
    text = markdown.read_text("utf-8")
    assert "credibility" in text and "the mean of 2 seeds, fewer than 5" in text


def test_without_noise_the_table_says_so(summary_dir, tmp_path) -> None:
    _, markdown, _ = write_table(summary_dir, "label_noise", tmp_path / "label_noise")
    assert "has label noise" in markdown.read_text("utf-8")


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
        {
            "round": round_,
            "client": client,
            "participated": True,
            "path_x": [shift + round_ + 0.1 * step for step in range(3)],
            "path_y": [client - 0.1 * step for step in range(3)],
        }
        for round_ in (1, 2)
        for client in (0, 1)
    ]
    rounds = [
        {"round": r, "evaluated": True, "model_x": shift + r, "model_y": 0.5, "plane_share": 0.9}
        for r in (1, 2)
    ]
    return Run("fedavg", seed, scenario, clients=2, rows=rows, rounds=rounds)


def test_rows_are_points_in_order(summary_of) -> None:
    summary = summary_of([case("equal", 0, 0.0), case("equal", 1, 50.0), case("other", 0, 9.0)])
    rows = trajectories(Summary(summary))
    assert list(rows.columns) == TRAJECTORY
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


def test_runs_that_kept_no_way_have_no_rows(summary_dir) -> None:
    assert trajectories(Summary(summary_dir)).empty
