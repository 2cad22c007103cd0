"""Under attack: accuracy over the share of attackers, the trade-off, and who was caught."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsdg.analysis.names import GLOBAL
from fedsdg.analysis.plots import FIGURES
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES
from fedsdg.analysis.views import attacks

from ..conftest import Run, drawn, make_record, markdown

ATTACKS = {
    "flip": {"type": "sign-flip", "scale": 3.0},
    "small": {"type": "gaussian", "scale": 0.1},
    "large": {"type": "gaussian", "scale": 10.0},
}
TITLES = {
    "flip": "Sign flip",
    "small": "Gaussian noise, scale = 0.1",
    "large": "Gaussian noise, scale = 10",
}


def accuracy(method, attack, share, seed):
    """Numbers that no two runs share."""
    harm = {"flip": 0.9, "small": 0.1, "large": 1.2}.get(attack, 0.0)
    return 0.7 - share * harm * (1.0 if method == "fedavg" else 0.2) + 0.01 * seed


def distance(method, attack, share, seed, round_):
    return round_ * (0.1 + share) * (3.0 if attack == "large" else 1.0) + 0.01 * seed


def run(method, seed, scenario, attack="none", share=0.0):
    rounds = [
        {"round": r, "evaluated": False}
        | {"honest_distance": distance(method, attack, share, seed, r)}
        for r in (1, 2, 9)
    ]
    seconds = 0.1 * (1 + seed) * (2.0 if method == "krum" else 1.0)
    return Run(
        method,
        seed,
        scenario,
        config={"conditions": {"attack": ATTACKS[attack] | {"share": share}}} if share else {},
        last={GLOBAL.key: accuracy(method, attack, share, seed)},
        rounds=rounds,
        timings=[{"round": r, "aggregate_seconds": seconds} for r in (1, 2, 3)],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two rules and seeds without attackers and under three attacks by two shares."""
    runs = [run(*both, "clean") for both in product(("fedavg", "krum"), (0, 1))]
    runs += [
        run(method, seed, f"{attack}-{share}", attack, share)
        for method, attack, share, seed in product(("fedavg", "krum"), ATTACKS, (0.2, 0.4), (0, 1))
    ]
    return make_record(tmp_path_factory.mktemp("attacks"), "arena", runs)


@pytest.fixture(scope="module")
def summary(folder):
    return Summary(folder)


def cells(*shares):
    """Attack, its title, share and method, of all that was run."""
    yield from product(TITLES.items(), shares, ("fedavg", "krum"))


def test_where_nobody_attacks_lines_begin(summary_of) -> None:
    """A clean scenario may name any attack with share 0, and is shown by it where it is alone.

    Runs under other conditions are no beginning, though their scenario comes first by its name.
    """
    idle = {"attack": {"type": "sign-flip", "scale": 1.0, "share": 0.0}}
    clean = replace(run("fedavg", 0, "clean"), config={"conditions": idle})

    def lines(*runs):
        rows = attacks.accuracy_by_share(Summary(summary_of(runs)))
        return [*zip(rows["attack"], rows["share"], rows["mean"], strict=True)]

    start, end = ("Sign flip", 0.0, pytest.approx(0.7)), ("Sign flip", 0.2, pytest.approx(0.52))
    assert lines(clean) == [start]
    assert lines(run("fedavg", 0, "flip", "flip", 0.2)) == [start, end]
    slow = {"conditions": {"compute": {"slowest": 1.0, "fastest": 16.0}}}
    assert lines(replace(run("fedavg", 0, "a-slow"), config=slow, last={GLOBAL.key: 0.1})) == [
        start,
        end,
    ]


def test_accuracy_is_the_mean_over_seeds_and_share_zero_is_everywhere(summary) -> None:
    rows = attacks.accuracy_by_share(summary).set_index(["attack", "share", "method"])
    assert len(rows) == 3 * 3 * 2
    for (attack, title), share, method in cells(0.0, 0.2, 0.4):
        values = [accuracy(method, attack if share else "none", share, seed) for seed in (0, 1)]
        row = rows.loc[(title, share, method)]
        assert row["mean"] == pytest.approx(np.mean(values))
        half = stats.t.ppf(0.975, 1) * stats.sem(values)
        assert row["high"] - row["mean"] == pytest.approx(half)
        assert row["skew"] == "dirichlet~0.3" and row["n"] == 2


def test_an_attack_that_differs_in_nothing_else_needs_only_its_name(summary_of) -> None:
    runs = [run("fedavg", 0, "a", "large", 0.2), run("fedavg", 0, "b", "large", 0.4)]
    rows = attacks.accuracy_by_share(Summary(summary_of(runs)))
    assert rows["attack"].tolist() == ["Gaussian noise"] * 2


def test_a_loss_is_paired_with_the_same_seed_without_attackers(summary, summary_of) -> None:
    frame = attacks.losses(summary)
    rows = frame.set_index(["attack", "share", "method"])
    assert len(rows) == 3 * 2 * 2
    for (attack, title), share, method in cells(0.2, 0.4):
        pairs = [
            accuracy(method, attack, share, seed) - accuracy(method, "none", 0.0, seed)
            for seed in (0, 1)
        ]
        row = rows.loc[(title, share, method)]
        assert row["n"] == 2 and row["mean"] == pytest.approx(np.mean(pairs))
        # Both seeds lose the same: pairing takes the seeds' own luck away.
        assert row["high"] - row["low"] == pytest.approx(0.0, abs=1e-12)
    assert FIGURES["byzantine"].frame(summary)["mean"].tolist() == frame["mean"].tolist()
    runs = [run("krum", 0, "clean"), *(run("krum", s, "flip", "flip", 0.2) for s in (0, 1))]
    unpaired = attacks.losses(Summary(summary_of(runs)))
    assert unpaired["n"].tolist() == [1], "the second seed has no run without attackers"


def test_the_shared_model_is_shown_by_the_share_of_attackers(summary_of) -> None:
    """The order is that of the shares, whatever the scenarios are called."""
    runs = [run("krum", 0, "a", "flip", 0.4), run("krum", 0, "b", "flip", 0.2), run("krum", 0, "c")]
    for each in runs:
        each.rounds[0].update(evaluated=True, global_accuracy=0.5)
    rows = attacks.shared_accuracy_by_round(Summary(summary_of(runs)))
    assert rows["share"].tolist() == [0.0, 0.2, 0.4]
    assert rows["skew"].str.partition("@")[2].tolist() == ["c", "b", "a"]


def test_trade_off_takes_medians_over_rounds_means_over_seeds_and_the_worst_attack(summary) -> None:
    frame = attacks.trade_off(summary)
    rows = frame.set_index(["attack", "share", "method"])
    for attack, title in TITLES.items():
        row = rows.loc[(title, 0.4, "krum")]
        middle = [distance("krum", attack, 0.4, seed, 2) for seed in (0, 1)]
        assert row["distance"] == pytest.approx(np.mean(middle))
        assert row["seconds"] == pytest.approx(np.mean([0.2, 0.4]))
        values = [accuracy("krum", attack, 0.4, seed) for seed in (0, 1)]
        assert row["accuracy"] == pytest.approx(np.mean(values))
    over = attacks.over_attacks(frame).set_index(["share", "method"])
    for share in (0.2, 0.4):
        means = {a: np.mean([accuracy("fedavg", a, share, s) for s in (0, 1)]) for a in ATTACKS}
        row = over.loc[(share, "fedavg")]
        assert row["accuracy_worst"] == pytest.approx(min(means.values()))
        assert row["accuracy_median"] == pytest.approx(means["flip"])
        far = np.mean([distance("fedavg", "large", share, s, 2) for s in (0, 1)])
        assert row["distance_worst"] == pytest.approx(far)


def test_table_and_figure_have_a_block_and_a_column_for_each_attack(folder, summary) -> None:
    text = markdown(folder, "byzantine")
    for title in TITLES.values():
        assert f"**Dirichlet α = 0.3, {title}**" in text
    mean = np.mean([accuracy("krum", "large", 0.4, seed) for seed in (0, 1)])
    assert f"**{100 * mean:.1f}**" in text, "Krum is best where FedAvg has fallen"
    assert len(TABLES["byzantine"](summary).raw) == 18
    names = drawn(folder, "byzantine").axes[0].get_xticklabels()
    assert len(names) == len(ATTACKS)
    assert {name.get_rotation() for name in names} == {35.0}, "long names stand aslant"


def test_a_printed_interval_is_that_of_students_t_from_five_seeds_on(summary_of) -> None:
    """0.5, 0.6, …: of five s = √0.025, and t(0.975, 4) · s / √5 = 0.1963."""
    for seeds, shown in ((4, "65.0"), (5, "70.0 ± 19.6")):
        runs = [
            replace(run("krum", seed, "flip", "flip", 0.2), last={GLOBAL.key: 0.5 + 0.1 * seed})
            for seed in range(seeds)
        ]
        assert f"| Krum | **{shown}** |" in markdown(summary_of(runs), "byzantine")


def screened(seed, blocks, attackers, clients=6, first=None):
    """``blocks`` maps a client to the rounds after which it is blocked."""
    rows = [
        {"round": r, "client": k, "participated": r >= (first or {}).get(k, 1)}
        | {"attacker": k in attackers, "blocked": r in blocks.get(k, ())}
        for r, k in product(range(1, 6), range(clients))
    ]
    return Run("screened", seed, "flip-0.4", clients=clients, rows=rows)


def test_detection_counts_who_stays_blocked(summary_of) -> None:
    """By hand: 0 and 1 attack; 0 comes in round 2 and is blocked from round 3 on, 1 never; honest 4
    is blocked from round 1 on, and honest 5 is let go again. In the second run 0 is let go once."""
    blocks = {0: {3, 4, 5}, 4: {1, 2, 3, 4, 5}, 5: {2, 3}}
    summary = summary_of(
        [
            screened(0, blocks, {0, 1}, first={0: 2}),
            screened(1, {0: {2, 4, 5}, 1: {1, 2, 3, 4, 5}}, {0, 1}),
            screened(2, {}, set()),
        ]
    )
    rows = attacks.detections(Summary(summary))
    counts = ["attackers", "blocked", "precision", "recall", "delay"]
    assert rows[counts].to_numpy().tolist() == pytest.approx(
        np.array([[2, 2, 0.5, 0.5, 1.0], [2, 2, 1.0, 1.0, 0.5], [0, 0, *[np.nan] * 3]]),
        nan_ok=True,
    )
    text = markdown(summary, "detection")
    assert re.search(r"\| flip-0.4 .*\| 3 \| 1.3 \| 1.3 \| 0.3 \| 75 \| 75 \| 0.8 \|", text), text


BY_HAND = {"precision": 2 / 3, "recall": 2 / 3, "delay": (0 + 2) / 2, "blocked": 3, "wrongly": 1}


def test_detection_by_hand():
    """Attackers 0, 1, 2; 0 is blocked at once, 1 two rounds late, 2 not; honest 3 is blocked.

    The same from the rows of a run: those of participants alone, and one of evaluation.
    """
    attackers = np.array([True, True, True, False, False])
    participated = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 1, 1], [1, 0, 1, 0, 1], [0, 1, 0, 0, 0]])
    blocked = np.array([[1, 0, 0, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 0], [1, 1, 0, 1, 0]])
    found = attacks.detection(blocked.astype(bool), attackers, participated.astype(bool))
    assert found == BY_HAND
    rows = [
        {"round": t + 1, "client": k, "participated": True}
        | {"attacker": bool(attackers[k]), "blocked": bool(blocked[t, k])}
        for t, k in np.argwhere(participated)
    ]
    rows.append({"round": 4, "client": 0, "participated": False, "attacker": None, "blocked": None})
    assert attacks.detection_of_run(pd.DataFrame(rows[::-1])) == BY_HAND


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_detection_against_counting(seed, rounds, clients):
    rng = np.random.default_rng(seed)
    attackers = rng.random(clients) < 0.4
    participated = rng.random((rounds, clients)) < 0.5
    # Blocks last, and only those who take part are blocked.
    blocked = np.logical_or.accumulate(participated & (rng.random((rounds, clients)) < 0.3))
    found = attacks.detection(blocked, attackers, participated)
    at_end = {k for k in range(clients) if blocked[-1, k]}
    bad = {k for k in range(clients) if attackers[k]}
    seen = {k for k in bad if participated[:, k].any()}
    assert found["blocked"] == len(at_end) and found["wrongly"] == len(at_end - bad)
    assert found["precision"] == (len(at_end & bad) / len(at_end) if at_end else None)
    assert found["recall"] == (len(at_end & seen) / len(seen) if seen else None)
    delays = []
    for k in at_end & bad:
        first = next(t for t in range(rounds) if participated[t, k])
        delays.append(next(t for t in range(rounds) if blocked[t, k]) - first)
    assert found["delay"] == (pytest.approx(np.mean(delays)) if delays else None)
    order = rng.permutation(clients)
    assert attacks.detection(blocked[:, order], attackers[order], participated[:, order]) == found


def test_attackers_that_were_never_drawn_cannot_be_missed():
    none = np.zeros((3, 2), dtype=bool)
    found = attacks.detection(none, np.array([True, False]), none)
    assert (found["precision"], found["recall"], found["delay"]) == (None, None, None)


def test_shapes_of_a_detection_must_belong_together():
    flags = np.zeros((3, 2), dtype=bool)
    for arguments, said in (
        ((flags, flags[0], flags[1:]), "must both be"),
        ((flags[:0], flags[0], flags[:0]), "must both be"),
        ((flags, flags[0, 1:], flags), "one per client"),
    ):
        with pytest.raises(ValueError, match=said):
            attacks.detection(*arguments)
