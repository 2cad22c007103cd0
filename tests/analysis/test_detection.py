"""Precision, recall and delay of the blocks of a run, counted by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.analysis.detection import Detection, detection, detection_of_run


def test_by_hand():
    """Attackers 0, 1, 2; 0 is blocked at once, 1 two rounds late, 2 not; honest 3 is blocked."""
    attackers = np.array([True, True, True, False, False])
    participated = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 1, 1], [1, 0, 1, 0, 1], [0, 1, 0, 0, 0]])
    blocked = np.array([[1, 0, 0, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 0], [1, 1, 0, 1, 0]])
    found = detection(blocked.astype(bool), attackers, participated.astype(bool))
    assert found == Detection(
        precision=2 / 3, recall=2 / 3, delay=(0 + 2) / 2, blocked=3, wrongly=1
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_against_counting(seed, rounds, clients):
    rng = np.random.default_rng(seed)
    attackers = rng.random(clients) < 0.4
    participated = rng.random((rounds, clients)) < 0.5
    # Blocks last, and only those who take part are blocked.
    blocked = np.logical_or.accumulate(participated & (rng.random((rounds, clients)) < 0.3))
    found = detection(blocked, attackers, participated)
    at_end = {k for k in range(clients) if blocked[-1, k]}
    bad = {k for k in range(clients) if attackers[k]}
    seen = {k for k in bad if participated[:, k].any()}
    assert found.blocked == len(at_end) and found.wrongly == len(at_end - bad)
    assert found.precision == (len(at_end & bad) / len(at_end) if at_end else None)
    assert found.recall == (len(at_end & seen) / len(seen) if seen else None)
    delays = []
    for k in at_end & bad:
        first = next(t for t in range(rounds) if participated[t, k])
        delays.append(next(t for t in range(rounds) if blocked[t, k]) - first)
    assert found.delay == (pytest.approx(np.mean(delays)) if delays else None)
    order = rng.permutation(clients)
    assert detection(blocked[:, order], attackers[order], participated[:, order]) == found


def test_from_the_rows_of_a_run():
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
    expected = Detection(precision=2 / 3, recall=2 / 3, delay=1.0, blocked=3, wrongly=1)
    assert detection_of_run(reversed(rows)) == expected


def test_a_run_without_rows():
    with pytest.raises(ValueError, match="at least one round"):
        detection_of_run([])


def test_attackers_that_were_never_drawn_cannot_be_missed():
    none = np.zeros((3, 2), dtype=bool)
    found = detection(none, np.array([True, False]), none)
    assert (found.precision, found.recall, found.delay) == (None, None, None)


def test_shapes_must_belong_together():
    flags = np.zeros((3, 2), dtype=bool)
    with pytest.raises(ValueError, match="must both be"):
        detection(flags, flags[0], flags[1:])
    with pytest.raises(ValueError, match="must both be"):
        detection(flags[:0], flags[0], flags[:0])
    with pytest.raises(ValueError, match="one per client"):
        detection(flags, flags[0, 1:], flags)
