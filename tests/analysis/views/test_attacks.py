"""Under attack: accuracy over the share of attackers, the trade-off, and who was caught."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsdg.analysis.names import GLOBAL
from fedsdg.analysis.plots import write_figure
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table
from fedsdg.analysis.views.attacks import (
    accuracy_by_share,
    detection,
    detection_of_run,
    detections,
    losses,
    over_attacks,
    shared_accuracy_by_round,
    trade_off,
)

from ..conftest import Run

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
    conditions = {"attack": ATTACKS[attack] | {"share": share}} if attack != "none" else {}
    return Run(
        method,
        seed,
        scenario,
        config={"conditions": conditions} if conditions else {},
        last={GLOBAL.key: accuracy(method, attack, share, seed)},
        rounds=[
            {
                "round": round_,
                "evaluated": False,
                "honest_distance": distance(method, attack, share, seed, round_),
            }
            for round_ in (1, 2, 9)
        ],
        aggregate_seconds=0.1 * (1 + seed) * (2.0 if method == "krum" else 1.0),
    )


@pytest.fixture
def summary(summary_of):
    runs = [run(method, seed, "clean") for method in ("fedavg", "krum") for seed in (0, 1)]
    runs += [
        run(method, seed, f"{attack}-{share}", attack, share)
        for method in ("fedavg", "krum")
        for attack in ATTACKS
        for share in (0.2, 0.4)
        for seed in (0, 1)
    ]
    return summary_of(runs)


def test_an_attack_that_nobody_carries_out_is_no_attack(summary_of) -> None:
    """A clean scenario may name any attack with share 0: it begins the others' lines alone."""
    idle = {"attack": {"type": "sign-flip", "scale": 1.0, "share": 0.0}}
    clean = replace(run("fedavg", 0, "clean"), config={"conditions": idle})
    rows = accuracy_by_share(Summary(summary_of([clean, run("fedavg", 0, "flip", "flip", 0.2)])))
    assert list(zip(rows["attack"], rows["share"], strict=True)) == [
        ("Sign flip", 0.0),
        ("Sign flip", 0.2),
    ]


def test_where_nobody_attacks_at_all_the_attack_that_was_named_is_shown(summary_of) -> None:
    rows = accuracy_by_share(Summary(summary_of([run("fedavg", 0, "clean", "flip", 0.0)])))
    assert list(zip(rows["attack"], rows["share"], strict=True)) == [("Sign flip", 0.0)]


def test_accuracy_is_the_mean_over_seeds_and_share_zero_is_everywhere(summary) -> None:
    rows = accuracy_by_share(Summary(summary)).set_index(["attack", "share", "method"])
    assert len(rows) == 3 * 3 * 2
    for attack, title in TITLES.items():
        for share in (0.0, 0.2, 0.4):
            for method in ("fedavg", "krum"):
                values = [
                    accuracy(method, attack if share else "none", share, seed) for seed in (0, 1)
                ]
                row = rows.loc[(title, share, method)]
                assert row["mean"] == pytest.approx(np.mean(values))
                half = stats.t.ppf(0.975, 1) * stats.sem(values)
                assert row["high"] - row["mean"] == pytest.approx(half)
                assert row["skew"] == "dirichlet~0.3" and row["n"] == 2


def test_an_attack_that_differs_in_nothing_else_needs_only_its_name(summary_of) -> None:
    summary = summary_of([run("fedavg", 0, "a", "large", 0.2), run("fedavg", 0, "b", "large", 0.4)])
    rows = accuracy_by_share(Summary(summary))
    assert rows["attack"].tolist() == ["Gaussian noise"] * 2


def test_a_loss_is_paired_with_the_same_seed_without_attackers(summary) -> None:
    rows = losses(Summary(summary)).set_index(["attack", "share", "method"])
    assert len(rows) == 3 * 2 * 2
    for attack, title in TITLES.items():
        for share in (0.2, 0.4):
            for method in ("fedavg", "krum"):
                pairs = [
                    accuracy(method, attack, share, seed) - accuracy(method, "none", 0.0, seed)
                    for seed in (0, 1)
                ]
                row = rows.loc[(title, share, method)]
                assert row["n"] == 2 and row["mean"] == pytest.approx(np.mean(pairs))
                # Both seeds lose the same: pairing takes the seeds' own luck away.
                assert row["high"] - row["low"] == pytest.approx(0.0, abs=1e-12)


def test_a_seed_without_a_clean_run_has_no_loss(summary_of) -> None:
    runs = [run("krum", 0, "clean"), *(run("krum", s, "flip", "flip", 0.2) for s in (0, 1))]
    assert losses(Summary(summary_of(runs)))["n"].tolist() == [1]


def test_the_figure_holds_the_numbers_it_draws(summary, tmp_path) -> None:
    *_, sidecar = write_figure(summary, "byzantine", tmp_path / "byzantine")
    numbers = json.loads(sidecar.read_text("utf-8"))["numbers"]
    frame = losses(Summary(summary))
    assert [row["mean"] for row in numbers] == pytest.approx(frame["mean"].tolist())


def test_the_shared_model_is_shown_by_the_share_of_attackers(summary_of) -> None:
    """The order is that of the shares, whatever the scenarios are called."""
    runs = [run("krum", 0, "a", "flip", 0.4), run("krum", 0, "b", "flip", 0.2), run("krum", 0, "c")]
    for each in runs:
        each.rounds[0].update(evaluated=True, global_accuracy=0.5)
    rows = shared_accuracy_by_round(Summary(summary_of(runs)))
    assert rows["share"].tolist() == [0.0, 0.2, 0.4]
    assert rows["skew"].str.partition("@")[2].tolist() == ["c", "b", "a"]


def test_trade_off_takes_medians_over_rounds_and_means_over_seeds(summary) -> None:
    rows = trade_off(Summary(summary)).set_index(["attack", "share", "method"])
    for attack, title in TITLES.items():
        row = rows.loc[(title, 0.4, "krum")]
        middle = [distance("krum", attack, 0.4, seed, 2) for seed in (0, 1)]
        assert row["distance"] == pytest.approx(np.mean(middle))
        assert row["seconds"] == pytest.approx(np.mean([0.2, 0.4]))
        values = [accuracy("krum", attack, 0.4, seed) for seed in (0, 1)]
        assert row["accuracy"] == pytest.approx(np.mean(values))


def test_the_worst_attack_is_worst_for_that_rule_and_share(summary) -> None:
    rows = over_attacks(trade_off(Summary(summary))).set_index(["share", "method"])
    for share in (0.2, 0.4):
        means = {a: np.mean([accuracy("fedavg", a, share, s) for s in (0, 1)]) for a in ATTACKS}
        row = rows.loc[(share, "fedavg")]
        assert row["accuracy_worst"] == pytest.approx(min(means.values()))
        assert row["accuracy_median"] == pytest.approx(means["flip"])
        far = np.mean([distance("fedavg", "large", share, s, 2) for s in (0, 1)])
        assert row["distance_worst"] == pytest.approx(far)


def test_the_table_has_a_block_for_each_attack(summary, tmp_path) -> None:
    csv, markdown, _ = write_table(summary, "byzantine", tmp_path / "byzantine")
    text = markdown.read_text("utf-8")
    for title in TITLES.values():
        assert f"**Dirichlet α = 0.3, {title}**" in text
    mean = np.mean([accuracy("krum", "large", 0.4, seed) for seed in (0, 1)])
    assert f"**{100 * mean:.1f}**" in text, "Krum is best where FedAvg has fallen"
    assert len(csv.read_text("utf-8").splitlines()) == 1 + 18


@pytest.mark.parametrize(("seeds", "shown"), [(4, "65.0"), (5, "70.0 ± 19.6")])
def test_a_printed_interval_is_that_of_students_t_from_five_seeds_on(
    summary_of, tmp_path, seeds, shown
) -> None:
    """0.5, 0.6, …: of five s = √0.025, and t(0.975, 4) · s / √5 = 0.1963."""
    runs = [
        replace(run("krum", seed, "flip", "flip", 0.2), last={GLOBAL.key: 0.5 + 0.1 * seed})
        for seed in range(seeds)
    ]
    _, markdown, _ = write_table(summary_of(runs), "byzantine", tmp_path / "byzantine")
    (line,) = [text for text in markdown.read_text("utf-8").splitlines() if "| Krum" in text]
    assert line.split("|")[2].strip() == f"**{shown}**"


def screened(seed, blocks, attackers, clients=6, rounds=5, first=None):
    """``blocks`` maps a client to the rounds after which it is blocked."""
    rows = [
        {
            "round": round_,
            "client": client,
            "participated": round_ >= (first or {}).get(client, 1),
            "attacker": client in attackers,
            "blocked": round_ in blocks.get(client, ()),
        }
        for round_ in range(1, rounds + 1)
        for client in range(clients)
    ]
    return Run("screened", seed, "flip-0.4", clients=clients, rows=rows)


def test_detection_counts_who_stays_blocked(summary_of, tmp_path) -> None:
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
    rows = detections(Summary(summary)).set_index("seed")
    one, two, three = (rows.loc[seed].to_dict() for seed in (0, 1, 2))
    assert (one["attackers"], one["blocked"]) == (2, 2)
    assert (one["precision"], one["recall"], one["delay"]) == (0.5, 0.5, 1.0)
    assert (two["precision"], two["recall"]) == (1.0, 1.0)
    assert two["delay"] == pytest.approx((1 + 0) / 2)
    assert np.isnan([three[name] for name in ("precision", "recall", "delay")]).all()
    _, markdown, _ = write_table(summary, "detection", tmp_path / "detection")
    (line,) = [x for x in markdown.read_text("utf-8").splitlines() if x.startswith("| flip-0.4")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2:] == ["3", "1.3", "1.3", "0.3", "75", "75", "0.8"]


def test_without_attacks_and_blocks_tables_say_so(summary_dir, tmp_path) -> None:
    for name, note in (("byzantine", "was attacked"), ("detection", "blocks clients")):
        _, markdown, _ = write_table(summary_dir, name, tmp_path / name)
        assert note in markdown.read_text("utf-8")


def test_runs_without_attackers_but_under_other_conditions_are_no_beginning(summary_of):
    """Scenarios in alphabetical order: one with slow clients comes before the clean one."""
    slow = replace(
        run("krum", 0, "a-slow"),
        config={"conditions": {"compute": {"slowest": 1.0, "fastest": 16.0}}},
        last={GLOBAL.key: 0.123},
    )
    runs = [slow, run("krum", 0, "clean"), run("krum", 0, "flip-0.2", "flip", 0.2)]
    rows = accuracy_by_share(Summary(summary_of(runs)))
    assert rows["share"].tolist() == [0.0, 0.2]
    assert rows["mean"].tolist() == pytest.approx(
        [accuracy("krum", "none", 0.0, 0), accuracy("krum", "flip", 0.2, 0)]
    )


BY_HAND = {"precision": 2 / 3, "recall": 2 / 3, "delay": (0 + 2) / 2, "blocked": 3, "wrongly": 1}


def test_detection_by_hand():
    """Attackers 0, 1, 2; 0 is blocked at once, 1 two rounds late, 2 not; honest 3 is blocked."""
    attackers = np.array([True, True, True, False, False])
    participated = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 1, 1], [1, 0, 1, 0, 1], [0, 1, 0, 0, 0]])
    blocked = np.array([[1, 0, 0, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 0], [1, 1, 0, 1, 0]])
    assert detection(blocked.astype(bool), attackers, participated.astype(bool)) == BY_HAND


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_detection_against_counting(seed, rounds, clients):
    rng = np.random.default_rng(seed)
    attackers = rng.random(clients) < 0.4
    participated = rng.random((rounds, clients)) < 0.5
    # Blocks last, and only those who take part are blocked.
    blocked = np.logical_or.accumulate(participated & (rng.random((rounds, clients)) < 0.3))
    found = detection(blocked, attackers, participated)
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
    assert detection(blocked[:, order], attackers[order], participated[:, order]) == found


def test_detection_from_the_rows_of_a_run():
    """Those of the example by hand: rows of participants alone, and one of evaluation."""
    attackers = [True, True, True, False, False]
    participated = [[0, 2, 3], [1, 3, 4], [0, 2, 4], [1]]
    blocked = [{0}, {0, 3}, {0, 3}, {0, 1, 3}]
    rows = [
        {
            "round": t + 1,
            "client": k,
            "participated": True,
            "attacker": attackers[k],
            "blocked": k in blocked[t],
        }
        for t, cohort in enumerate(participated)
        for k in cohort
    ]
    rows.append({"round": 4, "client": 0, "participated": False, "attacker": None, "blocked": None})
    assert detection_of_run(pd.DataFrame(rows[::-1])) == BY_HAND


def test_attackers_that_were_never_drawn_cannot_be_missed():
    none = np.zeros((3, 2), dtype=bool)
    found = detection(none, np.array([True, False]), none)
    assert (found["precision"], found["recall"], found["delay"]) == (None, None, None)


def test_shapes_of_a_detection_must_belong_together():
    flags = np.zeros((3, 2), dtype=bool)
    with pytest.raises(ValueError, match="must both be"):
        detection(flags, flags[0], flags[1:])
    with pytest.raises(ValueError, match="must both be"):
        detection(flags[:0], flags[0], flags[:0])
    with pytest.raises(ValueError, match="one per client"):
        detection(flags, flags[0, 1:], flags)
