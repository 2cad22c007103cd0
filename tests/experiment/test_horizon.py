"""What can be known of a config's rounds before they are run."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from fedsdg.cli import main
from fedsdg.data.partition_record import TRAIN
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.horizon import (
    EVALUATIONS,
    evaluations,
    findings,
    learns_gates,
    median_steps,
    training_sizes,
    unreachable,
)
from fedsdg.experiment.material import make_partition
from fedsdg.experiment.sections import FederationConfig

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


def config(**sections):
    raw = yaml.safe_load(CONFIG.read_text())
    for key, value in sections.items():
        raw[key] = raw[key] | value if isinstance(value, dict) and key in raw else value
    return parse_config(raw)


def test_steps_of_a_median_client_in_a_case_that_is_counted_by_hand():
    """60 rounds, half of the clients each: 30 times 2 epochs of 1, 2 and 3 batches."""
    federation = FederationConfig(clients=3, clients_per_round=3, rounds=60)
    half = replace(federation, clients=4, clients_per_round=2)
    assert median_steps(np.array([16, 17, 48]), federation, 2, 16) == 60 * 2 * 2
    assert median_steps(np.array([16, 17, 32, 48]), half, 2, 16) == 30 * 2 * 2
    assert median_steps(np.array([16, 17, 48]), federation, 2, None) == 60 * 2


def test_of_digits_the_sizes_are_those_of_the_runs(tmp_path, monkeypatch):
    some = config()
    made = make_partition("digits", "dirichlet~0.1", 0, 20, some.partition)
    sizes = training_sizes(some, "digits", "dirichlet~0.1")
    assert sizes.tolist() == made.sizes()[:, TRAIN].tolist()


def test_of_stored_sets_it_is_an_equal_share_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    some = config(datasets=["cifar100"])
    (line,) = [line for line in findings(some) if "dirichlet~0.1" in line]
    assert "not known here: there is no train.parquet of 'cifar100'" in line
    (tmp_path / "cifar100").mkdir()
    for number, rows in enumerate((1500, 500)):
        file = tmp_path / "cifar100" / f"train-{number:05d}-of-00002.parquet"
        pq.write_table(pa.table({"fine_label": np.zeros(rows)}), file)
    shutil.copy(file, file.with_name("test.parquet"))
    assert training_sizes(some, "cifar100", "iid").tolist() == pytest.approx([50.0] * 20)


def test_learned_gates_are_told_from_fixed_ones_and_from_none():
    some = config(
        methods=[
            "fedsdg",
            {"type": "fedsdg", "name": "half", "gate_fixed": 0.5},
            "fedsdg-official",
            "fedavg",
            "ditto",
        ]
    )
    assert [learns_gates(method) for method in some.methods] == [True, False, True, False, False]


def test_gates_that_cannot_move_are_warned_of_with_the_methods_own_rate(tmp_path, capsys):
    """A pen-and-paper product: eta_m times the steps that the line before names."""
    some = config(
        skews=["iid"],
        federation={"rounds": 60, "clients_per_round": 10, "evaluate_every": 5},
        training={"eta_m": 0.005},
        methods=["fedsdg", {"type": "fedsdg", "name": "fast", "eta_m": 0.1}, "fedavg"],
    )
    cell, slow, fast = findings(some)
    batches = np.median(np.ceil(training_sizes(some, "digits", "iid") / 16))
    steps = 30 * 2 * batches
    assert (
        f"about {steps:.0f} local steps (60 rounds x 10/20 x 2 epochs x {batches:g} batches)"
        in (cell)
    )
    assert slow.startswith("warning: digits, iid, fedsdg: ") and "below 3 gates cannot" in slow
    assert 0.005 * steps < 3 < 0.1 * steps
    assert fast.startswith("digits, iid, fast: eta_m x steps = 0.1 x ") and "below" not in fast
    check = ["check", "--config", str(CONFIG)]
    warning = "warning: digits, dirichlet~0.1, fedsdg: eta_m x steps"
    (tmp_path / "slow.yaml").write_text("methods: [{type: fedsdg, eta_m: 0.005}]\n")
    assert main([*check, str(tmp_path / "slow.yaml")]) == 0
    printed = capsys.readouterr()
    assert warning in printed.out + printed.err
    assert main(check) == 0
    printed = capsys.readouterr()
    assert warning not in printed.out + printed.err, "in the config as it is they can move"


def test_evaluations_are_those_of_a_run():
    """Of 60 rounds evaluated every 5: 35, 40, 45 and 50, 55, 60."""
    assert evaluations(60, 5) == (3, 3)
    assert evaluations(20, 2) == (2, 3)  # 12, 14 and 16, 18, 20
    assert evaluations(10, 4) == (0, 2)  # none of 6, 7, and 8, 10: the last round always
    for rounds, every, begin in itertools.product(range(1, 30), range(1, 35), (0, 1, 9, 40)):
        at = {r for r in range(begin, rounds + 1) if r and r % every == 0} | {rounds}
        before = sum(rounds / 2 < r <= 3 * rounds / 4 for r in at)
        assert evaluations(rounds, every, begin) == (before, sum(r > 3 * rounds / 4 for r in at))


def test_a_late_first_evaluation_leaves_no_quarter_before_the_last():
    assert evaluations(60, 5, 46) == (0, 3)
    late = FederationConfig(rounds=60, evaluate_every=5, evaluate_from=46)
    assert unreachable(late).endswith("of the 60 rounds: set it to at most 31")
    assert unreachable(replace(late, evaluate_from=31)) is None


def test_named_rounds_are_counted_in_both_quarters():
    seven = (32, 112, 128, 144, 160, 176, 192)
    named = FederationConfig(rounds=192, evaluate_every=1, evaluate_at=seven)
    assert unreachable(named) is None
    # The last round is evaluated whether it is named or not; round 144 is in the quarter before.
    assert unreachable(replace(named, evaluate_at=seven[:-1])) is None
    fewer = unreachable(replace(named, evaluate_at=(96, 112, 128, 160, 176)))
    assert "leave 3 evaluations in rounds 145 to 192 and 2 in rounds 97 to 144" in fewer
    late = unreachable(replace(named, evaluate_from=145))
    assert "leave 3 evaluations in rounds 145 to 192 and 0 in" in late


@pytest.mark.parametrize("at", [(4, 2), (2, 2), (2, 7)], ids=str)
def test_named_rounds_rise_and_do_not_lie_beyond_the_last(at):
    with pytest.raises(ValueError, match="evaluate_at is .* up to rounds = 6, rising"):
        FederationConfig(rounds=6, evaluate_at=at)


@pytest.mark.parametrize(
    ("rounds", "every"), list(itertools.product((1, 7, 20, 60), (1, 2, 5, 30)))
)
def test_the_remedy_is_enough_and_the_least(rounds, every):
    warning = unreachable(FederationConfig(rounds=rounds, evaluate_every=every))
    assert (warning is None) == (min(evaluations(rounds, every)) >= EVALUATIONS)
    if warning is None:
        return
    words = warning.split()
    longer = int(words[-1])
    assert min(evaluations(longer, every)) >= EVALUATIONS
    assert longer % every == 0 and longer >= rounds
    shorter = [r for r in range(every, longer, every) if r >= rounds]
    assert all(min(evaluations(r, every)) < EVALUATIONS for r in shorter)
    if "federation.evaluate_every" in words:
        denser = int(words[words.index("federation.evaluate_every") + 2])
        assert min(evaluations(rounds, denser)) >= EVALUATIONS and rounds % denser == 0
    else:
        assert min(evaluations(rounds, 1)) < EVALUATIONS
