"""byzfl as an oracle, for the rules that it computes exactly, where it is installed."""

import numpy as np
import pytest

from benchmarks import rivals
from fedsdg.aggregation import aggregate

byzfl = rivals.byzfl()
pytestmark = pytest.mark.skipif(byzfl is None, reason="byzfl is not installed")


@pytest.mark.parametrize(
    ("rule", "oracle"),
    [
        ("fedavg-uniform", lambda: byzfl.Average()),
        ("coordinate-median", lambda: byzfl.Median()),
        ({"type": "trimmed-mean", "f": 2}, lambda: byzfl.TrMean(f=2)),
    ],
)
def test_rules_agree_with_byzfl(rule, oracle):
    updates = np.random.default_rng(0).normal(size=(9, 40))
    made = aggregate(rule, np.zeros(40), updates)
    assert made.parameters == pytest.approx(oracle()(updates), abs=1e-12)
