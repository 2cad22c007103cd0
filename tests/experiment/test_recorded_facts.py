"""What the records of a run say of its steps, its groups of clients, and what they keep."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.experiment.small import do, setup_of, small_run
from tests.federation.small import run

CLIENTS, ROUNDS = 6, 4
FEDERATION = {"clients": CLIENTS, "clients_per_round": 3, "rounds": ROUNDS, "evaluate_every": 2}


def finished(entry, federation=None, **sections):
    """A run after its last round, with two local epochs."""
    given = {"federation": {**FEDERATION, **(federation or {})}, "training": {"epochs": 2}}
    return run(setup_of(small_run(entry, **given, **sections)))


def batches(one, t):
    """Batches of an epoch of all clients that trained in round t."""
    rows = [row for row in one.clients if row["round"] == t and row["participated"]]
    clients = np.array([row["client"] for row in rows])
    return int(one.setup.batches_per_epoch(clients).sum())


@pytest.mark.parametrize(
    ("entry", "of_the_common"),
    [
        ("fedavg", 0),
        ("fedsdg", 0),
        ("fedper", 0),
        ("local-only", 0),
        ("ditto", 1),  # as long as the model for the server
        ("apfl", 1),
        ("fed-rod", 1),
        ({"type": "fedrep", "head_epochs": 3}, 3 / 2),  # beside two epochs
        ({"type": "feddpa", "personal_epochs": 1}, 1 / 2),
    ],
)
def test_personal_steps_of_training_in_figures(entry, of_the_common):
    one = finished(entry)
    for row in one.rounds:
        common = 2 * batches(one, row["round"])
        assert row["personal_steps"] == of_the_common * common
        assert row["local_steps"] == common + row["personal_steps"]
        assert row.get("evaluation_steps", 0) == 0
        assert ("evaluation_steps" in row) == row["evaluated"]


@pytest.mark.parametrize("kind", ["tuned", "refreshed", "held out"])
def test_steps_before_an_evaluation_are_personal_and_no_local_steps(kind):
    one = {
        "tuned": lambda: finished({"type": "fine-tune", "personal_epochs": 3}),
        "refreshed": lambda: finished({"type": "fedsdg", "refresh": 2}),
        "held out": lambda: finished("ditto", {"held_out": 0.3}),
    }[kind]()
    per_epoch = one.setup.batches_per_epoch(np.arange(CLIENTS))
    for row in one.rounds:
        expected = 0
        if row["evaluated"]:
            trained = [
                r["client"] for r in one.clients if r["round"] == row["round"] and r["drawn"]
            ]
            expected = {
                "tuned": 3 * per_epoch.sum(),  # everybody is evaluated
                "refreshed": 2 * per_epoch[trained].sum(),
                # Two epochs of their own models, in the last quarter of the rounds.
                "held out": 2 * per_epoch[one.setup.held_out].sum() * (row["round"] == ROUNDS),
            }[kind]
        beside = 2 * batches(one, row["round"]) * (kind == "held out")
        assert row.get("evaluation_steps", 0) == expected
        assert row["personal_steps"] == expected + beside
        assert row["local_steps"] == 2 * batches(one, row["round"]) + beside


@pytest.mark.parametrize("name", ["fedsdg", "ditto"])
def test_an_optimiser_s_memory_may_stay_with_its_client(name):
    """Its steps are all that the client has taken in what it keeps to itself."""
    kept, plain = finished({"type": name, "private_optimiser": "keep"}), finished(name)
    memory = {"private.mean", "private.square", "private.steps"}
    assert set(kept.setup.kept_widths) - set(plain.setup.kept_widths) == memory
    steps = kept.store.read("private.steps", np.arange(CLIENTS)).flatten().tolist()
    assert steps == (kept.store.counts.steps / (2 if name == "ditto" else 1)).tolist()
    assert not torch.equal(kept.private, plain.private)
    by_sgd = {"type": "fedsdg", "optimiser": "sgd", "private_optimiser": "keep"}
    assert not finished(by_sgd).setup.kept_widths


def test_means_over_those_who_agree_differ_and_are_new_are_those_of_their_rows(tmp_path):
    federation = {**FEDERATION, "clients": 8, "held_out": 0.25}
    conflict = {"label_conflict": {"share": 0.5, "classes": 4}}
    one = small_run(skew="iid", federation=federation, conditions=conflict)
    assert do(one, tmp_path, tmp_path / "store") is None
    rounds = pq.read_table(tmp_path / "rounds.parquet").to_pandas().set_index("round")
    clients = pq.read_table(tmp_path / "clients.parquet").to_pandas()
    evaluated = rounds[rounds.evaluated]
    assert evaluated.index.tolist() == [2, 4]
    for number, row in evaluated.iterrows():
        rows = clients[(clients["round"] == number) & clients.test_accuracy.notna()]
        # In the last quarter of the rounds alone.
        assert rows.held_out.sum() == (2 if number == 4 else 0)
        regular = rows[~rows.held_out]
        agree, differ = regular[~regular.conflicts], regular[regular.conflicts]
        assert len(agree) and len(differ)
        for name, some in (("", regular), ("_a", agree), ("_b", differ)):
            mean = some.expected_accuracy.mean()
            assert row[f"expected_accuracy{name}"] == pytest.approx(mean, abs=1e-15)
        new = rows[rows.held_out].expected_accuracy.mean()
        assert row["expected_accuracy_new"] == pytest.approx(new, abs=1e-15, nan_ok=True)
        assert row["personal_accuracy"] == pytest.approx(regular.test_accuracy.mean(), abs=1e-15)
        worst = regular[regular.drawn.astype(bool)]
        assert row["expected_worst_decile"] == worst.expected_accuracy.min()
        # Gates are recorded at evaluations, of those who have trained.
        assert (rows.gates.notna() == rows.drawn.astype(bool)).all()
    assert clients[~clients["round"].isin([2, 4])].gates.isna().all()
