"""Metrics of hand-made rows, whose numbers follow from their definitions."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedsdg.analysis import metric
from fedsdg.analysis.metrics import METRICS, relative_weights, values
from fedsdg.analysis.records import record as recorded
from tests.analysis.conftest import LEVELS, ROUNDS


def number(name, **columns):
    return METRICS[name].number(pd.DataFrame(columns))


def by_seed(record, name, method="fedsdg", at="selected"):
    found = values(record, name, at=at)
    return found[found["method"] == method].set_index("seed")["value"]


@pytest.mark.parametrize("at", ["selected", "end"])
def test_stored_metrics_are_columns_in_percent(record, at):
    found = values(record, "accuracy", at=at)
    assert list(found) == ["experiment", "cell", "method", "seed", "metric", "value"]
    assert found.groupby("method")["value"].min().to_dict() == pytest.approx(LEVELS)
    some = record.runs[record.runs["seed"] == 3]
    assert by_seed(record, "accuracy")[3] == values(record, "accuracy", some)["value"].max()
    assert values(record, "worst_decile", at=at).empty


def test_failed_runs_have_no_metric(record):
    lost = record.runs.assign(status="failed")
    assert values(record, "accuracy", lost).empty


def test_regret_is_a_metric_like_others(record):
    assert by_seed(record, "regret", "fedavg").to_dict() == pytest.approx(
        dict.fromkeys(range(5), 10)
    )
    assert by_seed(record, "regret", at="end").tolist() == pytest.approx([0] * 5)
    one = record.runs[(record.runs["method"] == "fedavg") & (record.runs["seed"] == 2)]
    assert values(record, "regret", one)["value"].tolist() == pytest.approx([10])


def test_the_change_of_twice_the_rounds_is_from_the_end_of_the_first_half(record):
    # Accuracy grows in proportion to the round: the mean of rounds 7, 8, and round 4.
    expected = [(90 + seed) * (7.5 - 4) / ROUNDS for seed in range(5)]
    assert by_seed(record, "doubled").tolist() == pytest.approx(expected)


def test_gates_are_means_over_clients_of_the_last_quarter(record):
    at_seed = {name: by_seed(record, name)[0] for name in METRICS if name.startswith("gate")
               and not by_seed(record, name).empty}  # fmt: skip
    expected = {
        **{"gate": 0.2625, "gate_a": 0.025, "gate_b": 0.5},
        **{"gate_spread": 0.475, "gate_spread_a": 0.05, "gate_spread_b": 0.9},
        **{"gates_closed": 75, "gates_closed_a": 100, "gates_closed_b": 50},
        **{"gates_open": 25, "gates_open_a": 0, "gates_open_b": 50},
        **{"gates_middle": 0, "gates_middle_a": 0, "gates_middle_b": 0},
    }
    assert at_seed == pytest.approx(expected, rel=2**-16), "a record has 16 bits"
    assert by_seed(record, "gate", "fedavg").empty


def test_gates_before_the_last_quarter_do_not_count():
    gates = [[0.9], [0.9], [0.2], [0.6], None]
    columns = {"round": [1, 6, 7, 8, 8], "client": [0, 0, 0, 0, 1], "gates": gates}
    assert number("gate", val_accuracy=[1, 1, 1, 1, 1], **columns) == pytest.approx(0.4)
    assert number("gate", val_accuracy=[1, 1, 1, None, 1], **columns) == pytest.approx(0.2)
    assert np.isnan(number("gate", val_accuracy=[1, 1, None, None, 1], **columns))


def test_penalties_late_and_largest():
    columns = {"round": [1, 2, 3, 4], "private_penalty": [1.0, 9.0, 3.0, 5.0]}
    assert number("private_penalty_late", **columns) == 5
    assert number("private_penalty_largest", **columns) == 9


def test_weights_are_relative_to_the_cohort(record):
    rows = pd.DataFrame({"round": [1, 1, 2, 2, 2], "weight": [0.25, 0.75, 1.0, np.nan, 0.0]})
    assert relative_weights(rows).tolist() == pytest.approx([0.5, 1.5, 2, np.nan, 0], nan_ok=True)
    assert by_seed(record, "weight_b").tolist() == pytest.approx([1.5] * 5)
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    expected = 50 * np.exp(entropy)
    assert by_seed(record, "effective_clients").tolist() == pytest.approx([expected] * 5)


def test_credit_is_spearmans_over_means_of_clients():
    rng = np.random.default_rng(1)
    noise = np.array([0.0, 0.2, 0.2, 0.4, 0.8, 0.6])
    weight = rng.random((4, 6))
    columns = {"round": np.repeat(range(1, 5), 6), "client": np.tile(range(6), 4)}
    found = number("weight_by_noise_rate", weight=weight.ravel(), noise_rate=np.tile(noise, 4),
                   **columns)  # fmt: skip
    assert found == pytest.approx(stats.spearmanr(weight.mean(axis=0), noise).statistic)
    alike = number("weight_by_noise_rate", weight=weight.ravel(), noise_rate=np.ones(24), **columns)
    assert np.isnan(alike)


def detection(name):
    """Of clients 0 to 4 the first three attack; client 2 never takes part."""
    blocked = {
        1: [False, False, False, False, False],
        2: [True, False, False, False, True],
        3: [None, False, False, True, False],
    }
    rows = [
        {"round": t, "client": k, "participated": k != 2, "attacker": k < 3, "blocked": own[k]}
        for t, own in blocked.items()
        for k in range(5)
        if own[k] is not None
    ]
    return METRICS[name].number(pd.DataFrame(rows))


def test_detection_by_hand():
    # Blocked in the end: attacker 0 since round 2, and client 3, which does not attack.
    assert detection("precision") == 50
    assert detection("recall") == 50
    assert detection("delay") == 1
    assert detection("wrongly_blocked") == 1


def test_nobody_blocked_is_no_precision():
    columns = {"round": [1, 1], "client": [0, 1], "participated": [True, True]}
    columns |= {"attacker": [True, False], "blocked": [False, False]}
    assert np.isnan(number("precision", **columns))
    assert number("recall", **columns) == 0
    assert np.isnan(number("delay", **columns))


def test_costs(record):
    assert by_seed(record, "megabytes").tolist() == [3] * 5
    assert METRICS["megabytes"].exact
    assert by_seed(record, "aggregation_ms").tolist() == pytest.approx([2] * 5, rel=2**-15)
    assert by_seed(record, "wall_seconds").tolist() == [3] * 5
    assert values(record, "simulated_seconds").empty


def test_readings():
    assert METRICS["accuracy"].readings == METRICS["regret"].readings == ("selected", "end")
    assert METRICS["gate"].readings == ("selected",)


@pytest.fixture
def mine():
    @metric("rounds seen", "rounds", table="rounds", reads="unrecorded accuracy")
    def never(rows):
        return 1.0

    @metric("highest weight", reads="weight", groups=True)
    def highest_weight(rows):
        return rows["weight"].max()

    @metric("evaluations", table="rounds")
    def evaluations(rows):
        return len(rows)

    yield
    for name in ("never", "evaluations", "highest_weight", "highest_weight_a", "highest_weight_b"):
        del METRICS[name]


@pytest.mark.usefixtures("mine")
def test_a_metric_of_ones_own_is_a_function_of_a_runs_rows(record):
    assert by_seed(record, "highest_weight").tolist() == [0.75] * 5
    assert by_seed(record, "evaluations").tolist() == [8] * 5
    assert by_seed(record, "highest_weight_a").tolist() == [0.25] * 5
    assert METRICS["highest_weight_b"].title == "highest weight, clients that differ (B)"
    assert values(record, "never").empty, "it needs a column that no run has"


def test_wrong_names_are_refused(record):
    with pytest.raises(ValueError, match="no metric 'acuracy'; did you mean 'accuracy'"):
        values(record, "acuracy")
    with pytest.raises(ValueError, match="no reading 'last'"):
        values(record, "accuracy", at="last")
    with pytest.raises(ValueError, match="a metric 'gate' already"):
        metric("mine", name="gate")(len)
    with pytest.raises(ValueError, match=r"write columns with blanks between: reads='a b'"):
        metric("mine", reads=["round", "client"])
    with pytest.raises(ValueError, match="'mine' has table 'round'; did you mean 'rounds'?"):
        metric("mine", table="round")


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("of", [lambda rows: 1 / 0, lambda rows: rows["loss"], lambda rows: None])
def test_a_metric_that_fails_is_one_sentence(record, of):
    METRICS["evaluations"] = replace(METRICS["evaluations"], number=of)
    with pytest.raises(ValueError, match="the metric 'evaluations' fails: .*return a number"):
        values(record, "evaluations")


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("byzantine", ["precision", "recall", "delay", "wrongly_blocked"]),
        ("label-noise", ["weight_by_noise_rate", "credibility_by_noise_rate"]),
        ("verification", ["gate_b", "private_share_a", "private_penalty_largest"]),
    ],
)
def test_committed_records_have_what_their_tables_show(reference, name, metrics):
    opened = recorded(reference / name)
    for one in metrics:
        assert len(values(opened, one)) > 0
    if name == "byzantine":
        # FedAvg blocks nobody, so that it has no recall either.
        assert set(values(opened, "recall")["method"]) == {"screened"}
