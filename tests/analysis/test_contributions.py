"""Credits of clients against noise and Shapley values, with SciPy as the oracle."""

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.contributions import correlations, measures
from fedsdg.analysis.inference import pearson, spearman
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table

from .conftest import Run

CLIENTS, ROUNDS = 10, 3


@pytest.fixture
def numbers():
    rng = np.random.default_rng(4)
    return {
        seed: {
            "noise_rate": rng.uniform(0, 0.8, CLIENTS),
            "weight": rng.dirichlet(np.ones(CLIENTS), ROUNDS),
            "credibility": rng.uniform(0, 1, (ROUNDS, CLIENTS)),
            "shapley": rng.normal(0, 0.02, CLIENTS),
        }
        for seed in (0, 1)
    }


@pytest.fixture
def summary(summary_of, numbers):
    runs = []
    for seed, of in numbers.items():
        rows = [
            {"round": r + 1, "client": c, "participated": True}
            | {"weight": of["weight"][r, c], "credibility": of["credibility"][r, c]}
            | {"noise_rate": of["noise_rate"][c]}
            | ({"shapley": of["shapley"][c]} if r == ROUNDS - 1 else {})
            for r in range(ROUNDS)
            for c in range(CLIENTS)
        ]
        runs.append(Run("cgsv", seed, rows=rows))
        even = [row | {"weight": 1 / CLIENTS, "credibility": None} for row in rows]
        runs.append(Run("fedavg-uniform", seed, rows=even))
    return summary_of(runs)


def test_measures_are_means_over_the_rounds(summary, numbers) -> None:
    rows = measures(Summary(summary))
    assert len(rows) == 2 * 2 * CLIENTS
    own = rows[(rows["method"] == "cgsv") & (rows["seed"] == 1)].sort_values("client")
    of = numbers[1]
    assert own["weight"].to_numpy() == pytest.approx(CLIENTS * of["weight"].mean(axis=0))
    assert own["credibility"].to_numpy() == pytest.approx(of["credibility"].mean(axis=0))
    assert own["noise_rate"].to_numpy() == pytest.approx(of["noise_rate"])
    assert own["shapley"].to_numpy() == pytest.approx(100 * of["shapley"])


def test_correlations_are_within_a_run_and_averaged(summary, numbers, tmp_path) -> None:
    rows = correlations(measures(Summary(summary)))
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
    _, markdown, _ = write_table(summary, "label_noise", tmp_path / "label_noise")
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
