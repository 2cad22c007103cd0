"""Whole runs under conditions: what befalls clients does what it says, and comes again."""

import dataclasses
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedsdg.data.partition import GLOBAL_TEST, TEST, TRAIN, VAL
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.federation import round_evaluation
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.evaluation import global_metrics
from fedsdg.federation.messages import serialise
from fedsdg.federation.objectives.term import Term
from fedsdg.federation.own_models.ditto import Ditto
from fedsdg.federation.together import step_together
from fedsdg.methods.families import METHODS
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
CLIENTS = 9
UNEVEN = {"slowest": 1.0, "fastest": 8.0}


def raw_config():
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": CLIENTS, "clients_per_round": CLIENTS, "rounds": 4}
    raw["federation"] |= {"evaluate_every": 2}
    raw["partition"] |= {"test": "fixed"}
    raw["training"] |= {"epochs": 1}
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    return raw


@pytest.fixture(scope="module")
def material():
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    return prepare_material(
        "digits", freeze(build_backbone(architecture), architecture, "tiny", {}), "cpu"
    )


@pytest.fixture(scope="module")
def partition():
    config = parse_config(raw_config())
    return make_partition("digits", SKEW, 0, CLIENTS, config.partition)


@pytest.fixture
def make(material, partition):
    """A federation under conditions, before its first round."""

    def make(method="fedavg", seed=0, federation=None, **conditions):
        raw = raw_config() | {"conditions": conditions}
        raw["federation"] |= federation or {}
        run = parse_config(raw).run("digits", SKEW, method_entry(method), 0)
        return build(dataclasses.replace(run, seed=seed), material, partition)

    return make


def column(one, table, name):
    return [row.get(name) for row in getattr(one.records, table)]


# --- Attacks ------------------------------------------------------------------------------------


def test_a_sign_flip_moves_the_mean_as_the_formula_says(make):
    peaceful, attacked = make(), make(attack={"type": "sign-flip", "share": 0.34, "scale": 3.0})
    start = peaceful.theta.clone()
    cohort = attacked.cohort(1)
    asked = attacked.clients(1, cohort)
    local = attacked.passes.train(
        attacked.model, attacked.layout, attacked.samples, asked, attacked.work
    )
    update = (local.theta - start).double()
    attackers = torch.from_numpy(attacked.circumstances.attackers[cohort])
    assert int(attackers.sum()) == 3  # 0.34 * 9, rounded
    weights = torch.from_numpy(attacked.train_sizes[cohort] / attacked.train_sizes[cohort].sum())
    signs = torch.where(attackers, -3.0, 1.0)
    expected = start + ((weights * signs)[:, None] * update).sum(0)
    record = attacked.step(1)
    assert torch.allclose(attacked.theta.double(), expected, atol=1e-6)
    assert record["attackers"] == 3
    mean = update[~attackers].mean(0)
    far = float((attacked.theta.double() - start.double() - mean).norm())
    assert record["honest_distance"] == pytest.approx(far, rel=1e-4)
    peaceful.step(1)
    assert "attackers" not in peaceful.records.rounds[0]


@pytest.mark.parametrize("method, by_samples", [("fedavg", True), ("fedavg-uniform", False)])
def test_a_replacement_makes_the_mean_what_it_wants(make, method, by_samples):
    """The step becomes minus the honest clients' mean, in the weights of the rule."""
    one = make(method, attack={"type": "replacement", "share": 0.34})
    start = one.theta.clone()
    cohort = one.cohort(1)
    asked = one.clients(1, cohort)
    local = one.passes.train(one.model, one.layout, one.samples, asked, one.work)
    honest = ~one.circumstances.attackers[cohort]
    shares = one.train_sizes[cohort] if by_samples else np.ones(len(cohort))
    update = (local.theta - start)[torch.from_numpy(honest)].double()
    wanted = -torch.from_numpy(shares[honest] / shares[honest].sum()) @ update
    one.step(1)
    found = (one.theta - start).double()
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


def test_honest_clients_alone_are_evaluated(make):
    attack = {"type": "gaussian", "share": 0.34, "scale": 0.0}
    one = make(attack=attack)
    one.run()
    attackers = one.circumstances.attackers
    judged = [row for row in one.records.clients if row["round"] == 4]
    assert {row["client"] for row in judged if row["attacker"]} == set(np.flatnonzero(attackers))
    right = [row["test_accuracy"] for row in judged if not row["attacker"]]
    assert all(row.get("test_accuracy") is None for row in judged if row["attacker"])
    assert one.records.rounds[-1]["personal_accuracy"] == pytest.approx(np.mean(right))


def test_flipped_labels_are_the_attackers_training_labels_alone(make, partition):
    one = make(attack={"type": "label-flip", "share": 0.34})
    plain = make()
    changed = np.flatnonzero((one.samples.labels != plain.samples.labels).numpy())
    held = {
        int(i)
        for client in np.flatnonzero(one.circumstances.attackers)
        for i in partition.shards(TRAIN)[client]
    }
    assert set(changed.tolist()) == held  # 9 - y never equals y
    assert torch.equal(one.samples.labels[changed], 9 - plain.samples.labels[changed])


# --- Labels -------------------------------------------------------------------------------------


def test_label_noise_leaves_every_test_alone(make, partition):
    one, plain = make(label_noise={"low": 0.3, "high": 0.9}), make()
    changed = (one.samples.labels != plain.samples.labels).numpy()
    for shards in (partition.shards(TEST), [partition.global_test()]):
        assert not changed[np.concatenate(shards)].any()
    rates = one.circumstances.facts["noise_rate"]
    assert ((rates >= 0.3) & (rates <= 0.9)).all() and len(set(rates)) == CLIENTS
    held = [
        np.concatenate([a, b]) for a, b in zip(*map(partition.shards, (TRAIN, VAL)), strict=True)
    ]
    found = np.array([changed[own].mean() for own in held])
    sizes = np.array([len(own) for own in held])
    # Binomial: five standard deviations.
    assert (abs(found - rates) < 5 * np.sqrt(rates * (1 - rates) / sizes)).all()
    one.step(1)
    assert column(one, "clients", "noise_rate") == rates.tolist()


def test_the_benchmark_of_the_server_is_no_part_of_what_is_evaluated(make, partition):
    one = make(benchmark_images=100, label_noise={"low": 0.9, "high": 0.9})
    benchmark = one.shards.benchmark
    assert len(benchmark) == 100
    assert np.array_equal(one.shards.global_test, partition.global_test())
    held = (*one.shards.train, *one.shards.val, *one.shards.test, one.shards.global_test)
    assert sorted(np.concatenate([benchmark, *held])) == list(range(1797)), "each is somewhere once"
    true = partition.label[benchmark]
    assert np.array_equal(one.samples.labels[benchmark], true), "no client names the server's"
    turned = make(benchmark_images=100, feature_shift={"share": 1.0, "kind": "invert"})
    assert np.array_equal(turned.shards.benchmark, benchmark)
    assert torch.equal(turned.samples.images[benchmark], make().samples.images[benchmark])


def test_by_seed_the_benchmark_of_the_server_comes_from_the_test_set(material):
    raw = raw_config() | {"conditions": {"benchmark_images": 100}}
    raw["partition"] |= {"test": "by-seed"}
    raw["federation"] |= {"global_images": 150}
    run = parse_config(raw).run("digits", SKEW, method_entry("focus"), 0)
    partition = make_partition("digits", SKEW, 0, CLIENTS, run.partition)
    shards = build(run, material, partition).shards
    assert (partition.split[shards.benchmark] == GLOBAL_TEST).all()
    assert (partition.split[shards.global_test] == GLOBAL_TEST).all()
    assert len(set(shards.benchmark) | set(shards.global_test)) == 250
    raw["federation"] |= {"global_images": 150000}
    run = parse_config(raw).run("digits", SKEW, method_entry("focus"), 0)
    with pytest.raises(ValueError, match="150000, .* images beside the benchmark set"):
        build(run, material, partition)


def test_as_many_global_images_are_evaluated_as_are_asked_for(make):
    one = make(benchmark_images=100, federation={"global_images": 150})
    assert len(one.shards.global_test) == 150
    assert not set(one.shards.global_test) & set(one.shards.benchmark)
    with pytest.raises(ValueError, match="150000, but the global test set of digits has 360 "):
        make(benchmark_images=100, federation={"global_images": 150000})


# --- Dropout ------------------------------------------------------------------------------------


def test_who_drops_out_sends_nothing(make):
    one = make(dropout={"probability": 0.5})
    one.run()
    for row in one.records.rounds:
        there = [r for r in one.records.clients if r["round"] == row["round"] and r["participated"]]
        assert len(there) + row["dropped"] == CLIENTS
    assert 0 < sum(column(one, "rounds", "dropped")) < 4 * CLIENTS
    whole = len(serialise({"": one.models[0]}, one.layout))
    assert column(one, "rounds", "bytes_down") == [CLIENTS * whole] * 4, "who leaves had the model"


def test_a_round_that_everybody_leaves_changes_nothing(make):
    one = make("fedsdg", dropout={"probability": 1.0})
    before = one.theta.clone()
    one.run()
    assert torch.equal(one.theta, before)
    assert column(one, "rounds", "bytes_up") == [0] * 4
    assert column(one, "rounds", "dropped") == [CLIENTS] * 4


def test_who_left_for_good_is_never_back(make):
    one = make(dropout={"probability": 0.4, "lasting": True})
    one.run()
    seen = {}
    for row in one.records.clients:
        if row["participated"]:
            seen.setdefault(row["client"], []).append(row["round"])
    for rounds in seen.values():
        assert rounds == list(range(1, len(rounds) + 1))
    assert len({len(rounds) for rounds in seen.values()}) > 1


# --- Time ---------------------------------------------------------------------------------------


def test_a_clock_that_limits_nothing_changes_nothing_but_what_it_says(make):
    plain, timed = make("fedsdg"), make("fedsdg", compute=UNEVEN)
    plain.run()
    timed.run()
    assert torch.equal(plain.theta, timed.theta)
    speeds = timed.circumstances.clock.speeds
    assert (speeds >= 1).all() and (speeds <= 8).all()
    steps = -(-timed.train_sizes // timed.schedule.batch_size)
    longest = (steps / speeds).max()
    assert column(timed, "rounds", "simulated_seconds") == pytest.approx(
        [longest * n for n in range(1, 5)]
    )
    assert column(timed, "rounds", "idle_seconds") == pytest.approx(
        [(longest - steps / speeds).sum()] * 4
    )
    assert "simulated_seconds" not in plain.records.rounds[0]


def test_late_updates_are_weighed_by_their_age(make):
    one = make("fedavg-uniform", compute={**UNEVEN, "arrivals": 4, "max_age": 9})
    one.run()
    late = 0
    for round_ in range(1, 5):
        rows = [r for r in one.records.clients if r["round"] == round_ and "weight" in r]
        ages = np.array([r.get("age", 0) for r in rows])
        shares = 1 / (1 + ages)
        assert [r["weight"] for r in rows] == pytest.approx(list(shares / shares.sum()))
        late += int((ages > 0).sum())
    assert late > 0
    arrived, discarded = (sum(column(one, "rounds", name)) for name in ("arrived", "discarded"))
    assert arrived + discarded == sum(column(one, "clients", "participated"))


def test_a_late_update_is_the_one_that_was_trained(make):
    """Three clients, one slow: the server adds its update a round later, from where it began."""
    one = make("fedavg-uniform", compute={**UNEVEN, "arrivals": 8, "max_age": 9})
    start = one.theta.clone()
    cohort = one.cohort(1)
    asked = one.clients(1, cohort)
    local = one.passes.train(one.model, one.layout, one.samples, asked, one.work)
    one.step(1)
    (slow,) = one.pending.clients
    place = cohort.tolist().index(slow)
    assert torch.equal(one.pending.update[0], local.theta[place] - start)
    assert slow not in one.cohort(2)


def test_fixed_time_gives_each_client_the_steps_it_can_take(make):
    one = make(compute={**UNEVEN, "local_seconds": 4.0, "max_epochs": 3})
    one.step(1)
    speeds = one.circumstances.clock.speeds
    most = 3 * -(-one.train_sizes // one.schedule.batch_size)
    expected = np.minimum(most, np.maximum(1, np.floor(4.0 * speeds)))
    assert column(one, "clients", "local_steps") == expected.tolist()
    assert one.records.rounds[0]["simulated_seconds"] <= 4.0 + 1e-9


def steps_in_time(one, seconds, epochs):
    """⌊seconds · speed⌋ of every client, at most the batches of so many epochs."""
    speeds = one.circumstances.clock.speeds
    per_epoch = -(-one.train_sizes // (one.schedule.batch_size or one.train_sizes))
    return np.minimum(np.floor(seconds * speeds), epochs * per_epoch)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_keeps_to_its_time_and_misses_no_deadline_as_long(make, name):
    server = {"benchmark_images": 100} if name == "focus" else {}
    compute = {**UNEVEN, "local_seconds": 5.0, "deadline": 5.0, "late": "discard", "max_epochs": 2}
    one = make(name, compute=compute, federation={"rounds": 2}, **server)
    one.run()
    everybody = 1 if one.pooling.central else CLIENTS
    assert column(one, "rounds", "arrived") == [everybody] * 2
    assert column(one, "rounds", "late") == column(one, "rounds", "discarded") == [0, 0]
    assert "out_of_time" not in one.records.rounds[0]
    budget = steps_in_time(one, 5.0, 2)
    if one.pooling.central:  # one place trains as much as all of them
        budget = np.floor(5.0 * one.circumstances.clock.speeds)
    for row in one.records.clients:
        if row["participated"]:
            assert 1 <= row["local_steps"] <= budget[row["client"]]
            most = one.schedule.batch_size or row["n_train"]
            assert row["samples_processed"] <= budget[row["client"]] * most
    assert one.records.rounds[-1]["simulated_seconds"] <= 10


@pytest.mark.parametrize("name", ["fedavg", "fedprox-inexact", "fedrep", "ditto", "apfl", "feddpa"])
def test_one_epoch_of_time_is_one_epoch_of_steps(make, name):
    one = make(name, compute={**UNEVEN, "local_seconds": 1e6, "max_epochs": 1})
    one.step(1)
    per_epoch = steps_in_time(one, 1e6, 1)
    taken = np.array(column(one, "clients", "local_steps"))
    # Two models in equal shares leave the odd step; nothing else is lost.
    assert (taken <= per_epoch).all() and (taken >= per_epoch - 1).all()


def test_an_update_arrives_when_all_its_gradients_are_taken(make, monkeypatch):
    """Fisher information and the gradients of a stopping rule take time as steps do."""
    per_epoch = None
    for name in ("fedavg", "fedcurv", "fedprox-inexact"):
        one = make(name, compute=UNEVEN)
        one.step(1)
        speeds = one.circumstances.clock.speeds
        per_epoch = one.batches_of(one.train_sizes)
        rows = one.records.clients
        gradients = np.array([row["local_steps"] for row in rows])
        if name == "fedcurv":
            gradients = gradients + per_epoch
        if name == "fedprox-inexact":
            gradients = np.array([r["samples_processed"] // r["n_train"] for r in rows]) * per_epoch
        assert one.records.rounds[0]["simulated_seconds"] == pytest.approx(
            (gradients / speeds).max()
        )


#: Half of the clients have one step a round: too few where two things are trained.
SCARCE = {"slowest": 1.0, "fastest": 4.0, "local_seconds": 1.0, "max_epochs": 4}


@pytest.mark.parametrize("name", ["fedrep", "apfl", "feddpa", "ditto", "fedcurv"])
def test_a_client_without_time_for_an_update_sends_none(make, name):
    one = make(name, compute=SCARCE, federation={"rounds": 1})
    start, everyone = one.theta.clone(), torch.arange(CLIENTS)
    before, _ = one.bank.gather(everyone)
    lacking = one.circumstances.clock.speeds < 2
    assert 0 < lacking.sum() < CLIENTS
    one.run()
    record, rows = one.records.rounds[0], {row["client"]: row for row in one.records.clients}
    assert record["out_of_time"] == lacking.sum()
    assert record["arrived"] == CLIENTS - lacking.sum() and record["late"] == 0
    private, kept = one.bank.gather(everyone)
    message = len(serialise({"": start}, one.layout))
    if name != "fedcurv":
        assert record["bytes_up"] == record["arrived"] * message
        assert record["bytes_down"] == CLIENTS * message
    for client, row in rows.items():
        # FedCurv has nothing private, so these do not train at all.
        trains = not lacking[client] or name != "fedcurv"
        assert row["participated"] == trains == bool(one.bank.trained[client])
        assert (row.get("weight") is None) == lacking[client]
        if lacking[client] and trains:
            assert row["out_of_time"] and row["local_steps"] == 1
            changed = (private if one.layout.d_private else kept["own"])[client]
            assert not torch.equal(changed, before[client] if one.layout.d_private else changed * 0)
        assert row.get("out_of_time", False) == (lacking[client] and trains)
    weights = np.array([row["weight"] for row in rows.values() if "weight" in row])
    assert weights.sum() == pytest.approx(1)
    assert not torch.equal(one.theta, start)


class Counts(Term):
    """Keeps how often a client has finished a round, and tells the server."""

    keeps = ("counted",)

    def finish(self, rows, steps, rate):
        return {"counted": rows.theta * 0 + 1}, {"counted": rows.state["counted"] + 1}


def test_what_terms_keep_is_not_ahead_of_what_the_server_knows(make):
    one = make("fedrep", compute=SCARCE)
    one = dataclasses.replace(one, work=dataclasses.replace(one.work, terms=(Counts(),)))
    one.step(1)
    counted = one.bank.kept("counted", torch.arange(CLIENTS))
    lacking = torch.from_numpy(one.circumstances.clock.speeds < 2)
    assert (counted[lacking] == 0).all() and (counted[~lacking] == 1).all()


class Undeclared(Ditto):
    """Trains a model of its own without saying so."""

    trains = 0


def test_a_model_that_nobody_declared_gets_no_time(make):
    one = dataclasses.replace(make("ditto"), own=Undeclared())
    one.step(1)
    timed = dataclasses.replace(make("ditto", compute=SCARCE), own=Undeclared())
    with pytest.raises(ValueError, match="let its `trains` say how many it trains"):
        timed.step(1)


def test_a_round_in_which_nobody_has_time_for_an_update_passes_without_one(make):
    one = make("fedrep", compute=SCARCE, federation={"rounds": 6, "clients_per_round": 1})
    lacking = one.circumstances.clock.speeds < 2
    empty = 0
    for round_ in range(1, 7):
        (client,) = one.attendance(round_).present
        theta, now = one.theta.clone(), one.now
        record = one.step(round_)
        if lacking[client]:
            empty += 1
            assert torch.equal(one.theta, theta)
            assert (record["arrived"], record["bytes_up"], record["out_of_time"]) == (0, 0, 1)
            assert record["simulated_seconds"] == now + 1.0, "the second that it had"
        else:
            assert not torch.equal(one.theta, theta)
    assert 0 < empty < 6


def test_no_time_for_a_single_step_is_no_time_for_anything(make):
    """A client below one step trains nothing, whatever the method."""
    one = make(compute={**UNEVEN, "local_seconds": 0.4})
    speeds = one.circumstances.clock.speeds
    assert (0.4 * speeds < 1).any()
    one.step(1)
    trained = {row["client"] for row in one.records.clients if row["participated"]}
    assert trained == set(np.flatnonzero(0.4 * speeds >= 1).tolist())


@pytest.mark.parametrize("name, seconds", [("fedavg", 0.12), ("fedrep", 0.2), ("fedcurv", 0.2)])
def test_a_budget_that_suffices_for_nobody_is_refused(make, name, seconds):
    most, needs = int(seconds * 8), 1 if name == "fedavg" else 2
    said = (
        rf"^conditions\.compute\.local_seconds = {seconds} gives each client at most {most} local "
        rf"steps in a round, but an update takes {needs} or more; raise it, max_epochs or"
    )
    with pytest.raises(ValueError, match=said):
        make(name, compute={**UNEVEN, "local_seconds": seconds})
    make(name, compute={**UNEVEN, "local_seconds": 2 * needs / 8 * 4})


def test_central_training_takes_the_steps_of_its_time(make):
    one = make("centralised", compute={**UNEVEN, "local_seconds": 5.0, "max_epochs": 3})
    one.run()
    fit = int(5.0 * one.circumstances.clock.speeds[0])
    assert column(one, "rounds", "local_steps") == [fit] * 4


@pytest.mark.parametrize("name", ["fedrep", "ditto", "fedcurv", "fedprox-inexact"])
def test_a_run_short_of_time_goes_on_from_any_checkpoint(make, tmp_path, name):
    conditions = {"compute": SCARCE, "dropout": {"probability": 0.2}}
    whole = make(name, **conditions)
    whole.run()
    for stop in (1, 3):
        first, again = make(name, **conditions), make(name, **conditions)
        for round_ in range(1, stop + 1):
            first.step(round_)
        with closing(Checkpoints(tmp_path / f"{stop}", {})) as checkpoints:
            checkpoints.save(first, {})
        with closing(Checkpoints(tmp_path / f"{stop}", {})) as checkpoints:
            checkpoints.restore(again)
        again.run()
        assert torch.equal(again.theta, whole.theta)
        assert tables(again) == tables(whole)


@pytest.mark.parametrize("name", ["fedrep", "ditto"])
def test_seeds_together_are_short_of_time_as_they_are_alone(make, name):
    alone = [make(name, seed, compute=SCARCE) for seed in (0, 1)]
    both = [make(name, seed, compute=SCARCE) for seed in (0, 1)]
    for round_ in (1, 2):
        step_together(both, round_)
        for one in alone:
            one.step(round_)
    for one, other in zip(alone, both, strict=True):
        assert torch.allclose(one.theta, other.theta, rtol=0, atol=1e-5)
        for name in ("local_steps", "out_of_time", "participated"):
            assert column(one, "clients", name) == column(other, "clients", name)


def test_a_deadline_that_nobody_meets_is_refused_before_training(make):
    with pytest.raises(ValueError, match=r"deadline is 0.01 simulated seconds, but the soonest"):
        make(compute={**UNEVEN, "deadline": 0.01})


def test_late_updates_need_a_rule_with_weights(make):
    with pytest.raises(ValueError, match="weights"):
        make("coordinate-median", compute={**UNEVEN, "arrivals": 4}).run()


# --- All of them --------------------------------------------------------------------------------

HARD = {
    "attack": {"type": "alie", "share": 0.3},
    "dropout": {"probability": 0.2},
    "label_noise": {"low": 0.0, "high": 0.3},
    "compute": {**UNEVEN, "arrivals": 4},
}


def tables(one):
    return {n: getattr(one.records, n) for n in ("rounds", "clients")}


@pytest.mark.parametrize("method", ["fedsdg", "scaffold"])
def test_a_run_under_all_conditions_goes_on_from_any_checkpoint(make, tmp_path, method):
    whole = make(method, **HARD)
    whole.run()
    assert len(whole.pending)
    for stop in (1, 2, 3):
        first = make(method, **HARD)
        for round_ in range(1, stop + 1):
            first.step(round_)
        with closing(Checkpoints(tmp_path / f"{stop}", {})) as checkpoints:
            checkpoints.save(first, {})
        again = make(method, **HARD)
        with closing(Checkpoints(tmp_path / f"{stop}", {})) as checkpoints:
            checkpoints.restore(again)
        assert again.rounds_done == stop
        again.run()
        assert torch.equal(again.theta, whole.theta)
        assert tables(again) == tables(whole)


def test_a_round_that_is_broken_off_leaves_what_is_on_its_way(make):
    one = make("fedsdg", **HARD)
    one.step(1)
    pending, now, theta = one.pending, one.now, one.theta
    rule, one.rule = one.rule, None
    with pytest.raises(AttributeError):
        one.step(2)
    one.rule = rule
    assert one.pending is pending and one.now == now and one.theta is theta
    whole = make("fedsdg", **HARD)
    whole.run()
    for round_ in (2, 3, 4):
        one.step(round_)
    assert tables(one) == tables(whole)


def test_seeds_meet_different_conditions_and_the_same_seed_the_same(make):
    conditions = [make(seed=seed, **HARD).circumstances for seed in (0, 0, 1)]
    speeds = [one.clock.speeds.tolist() for one in conditions]
    assert speeds[0] == speeds[1] != speeds[2]
    rates = [one.facts["noise_rate"].tolist() for one in conditions]
    assert rates[0] == rates[1] != rates[2]


# --- The config ---------------------------------------------------------------------------------


def test_a_run_without_conditions_says_nothing_of_them():
    run = parse_config(raw_config()).run("digits", SKEW, method_entry("fedavg"), 0)
    assert "conditions" not in run.to_dict()
    raw = raw_config() | {"conditions": {}}
    assert parse_config(raw).run("digits", SKEW, method_entry("fedavg"), 0).hash == run.hash


def test_scenarios_multiply_the_grid_and_change_what_they_name():
    raw = raw_config() | {
        "skews": [SKEW, "iid"],
        "seeds": [0],
        "methods": ["fedavg", {"type": "krum", "f": 1}],
        "scenarios": {
            "plain": {},
            "flip~0.2": {
                "conditions": {"attack": {"type": "sign-flip", "share": 0.2}},
                "parameters": {"f": 2},
                "federation": {"rounds": 7},
            },
        },
    }
    config = parse_config(raw)
    assert config.settings == (f"{SKEW}@plain", f"{SKEW}@flip~0.2", "iid@plain", "iid@flip~0.2")
    assert f"digits/clients~{CLIENTS}/iid@flip~0.2/krum/seed~0" in config.run_folders()
    krum = config.methods[1]
    hard = config.run("digits", "iid@flip~0.2", krum, 0)
    easy = config.run("digits", "iid@plain", krum, 0)
    assert (hard.skew, hard.parameters["f"], hard.federation.rounds) == ("iid", 2, 7)
    assert (easy.skew, easy.parameters["f"], easy.federation.rounds) == ("iid", 1, 4)
    assert hard.conditions.attack.count(10) == 2 and not easy.conditions
    assert config.identity("digits", "iid@flip~0.2", krum, 0)["scenario"] == "flip~0.2"


@pytest.mark.parametrize(
    "scenario, sentence",
    [
        ({"x": {"conditons": {}}}, "scenarios.x: unknown key 'conditons'; did you mean 'condi"),
        ({"a@b": {}}, "the name 'a@b' must be made of letters"),
        ({"x": {"federation": {"clients": 3}}}, "scenarios share their clients"),
        ({"x": {"parameters": {"gamma": 1}}}, "scenarios.x.parameters: no method has a parameter"),
        (
            {"x": {"conditions": {"compute": {"arrivals": 40}}}},
            "conditions.compute.arrivals is 40, but a round has only 9 clients",
        ),
    ],
)
def test_a_scenario_that_cannot_be_is_refused_by_its_place(scenario, sentence):
    raw = raw_config() | {"methods": ["fedavg", "krum"], "scenarios": scenario}
    with pytest.raises(ValueError, match=sentence):
        parse_config(raw)


# --- What is measured ----------------------------------------------------------------------------


def test_the_worth_of_all_updates_is_what_their_mean_gains(make):
    one = make("fedavg-uniform", federation={"shapley": True})
    for round_ in (1, 2, 3):
        one.step(round_)
    before = one.theta.clone()
    one.step(4)
    index = np.concatenate(one.shards.val)

    def accuracy(theta):
        return global_metrics(one.model, one.layout, one.samples, index, theta, one.private)[0]

    rows = {row["client"]: row for row in one.records.clients if row["round"] == 4}
    worth = [rows[client]["shapley"] for client in range(CLIENTS)]
    assert sum(worth) == pytest.approx(accuracy(one.theta) - accuracy(before), abs=1e-9)
    assert all("shapley" not in row for row in one.records.clients if row["round"] < 4)


def test_too_many_players_are_refused_before_training():
    raw = raw_config()
    raw["federation"] |= {"clients": 12, "clients_per_round": 11, "shapley": True}
    with pytest.raises(ValueError, match="1 to 10 players, got 11.*shapley: estimated"):
        parse_config(raw)
    raw["federation"]["shapley"] = "estimated"
    assert parse_config(raw).federation.shapley == "estimated"


def test_an_estimate_of_the_worth_is_recorded_alone_where_it_is_asked_for(make):
    one = make("fedavg-uniform", federation={"shapley": "estimated", "rounds": 1})
    one.run()
    rows = {row["client"]: row for row in one.records.clients}
    assert all("shapley" not in row and "shapley_estimate" in row for row in rows.values())


@pytest.mark.parametrize("shapley", [True, "estimated"])
def test_when_nobody_sends_an_update_in_the_last_round_nobody_has_a_shapley_value(make, shapley):
    left = make(federation={"shapley": shapley, "rounds": 2}, dropout={"probability": 1.0})
    late = make(federation={"shapley": shapley, "rounds": 2}, compute={**UNEVEN, "arrivals": 1})
    late.step(1)
    clock = dataclasses.replace(late.circumstances.clock, arrivals=None, deadline=1e-6)
    late.circumstances = dataclasses.replace(late.circumstances, clock=clock)
    for one in (left, late):
        one.run()
        assert one.rounds_done == 2 and one.records.rounds[-1]["evaluated"]
        assert not any(name.startswith("shapley") for row in one.records.clients for name in row)
    assert late.records.rounds[-1]["arrived"] == 0


def test_late_updates_may_be_more_players_than_exact_values_are_enumerated_for(make, monkeypatch):
    """Then the last round keeps the estimate, and the run its records."""
    monkeypatch.setattr(round_evaluation, "MAX_PLAYERS", CLIENTS - 1)
    one = make("fedavg-uniform", federation={"shapley": True, "rounds": 1})
    one.run()
    assert all("shapley" not in row and "shapley_estimate" in row for row in one.records.clients)


def test_whoever_gives_data_away_says_how_much(make):
    one = make("data-sharing", federation={"rounds": 1})
    one.run()
    own = np.array([row["n_train"] for row in one.records.clients])
    shares = {row["disclosed"] for row in one.records.clients}
    assert all(0.05 <= share < 0.05 + 1 / 3 for share in shares) and len(own) == CLIENTS


def test_the_way_of_models_changes_nothing_and_survives_a_checkpoint(make, tmp_path):
    plain, followed = make(), make(federation={"trajectory": "shared"})
    plain.run()
    followed.run()
    assert torch.equal(plain.theta, followed.theta)
    ways = [row for row in followed.records.clients if row["participated"]]
    starts = {round(row["path_x"][0], 9) for row in ways if row["round"] == 1}
    assert len(starts) == 1, "all begin at the server's model"
    for row in ways:
        if row["round"] > 1:
            model = followed.records.rounds[row["round"] - 2]
            assert row["path_x"][0] == pytest.approx(model["model_x"], abs=1e-6)
    first, again = (make(federation={"trajectory": "shared"}) for _ in range(2))
    first.step(1)
    first.step(2)
    with closing(Checkpoints(tmp_path / "way", {})) as checkpoints:
        checkpoints.save(first, {})
    with closing(Checkpoints(tmp_path / "way", {})) as checkpoints:
        checkpoints.restore(again)
    again.run()
    assert tables(again) == tables(followed)


def test_clients_may_begin_at_initialisations_of_their_own(make):
    one = make(federation={"trajectory": "own"})
    one.run()
    ways = [row for row in one.records.clients if row["participated"]]
    for round_, places in ((1, CLIENTS), (2, 1)):
        starts = {round(row["path_x"][0], 9) for row in ways if row["round"] == round_}
        assert len(starts) == places


def test_a_run_that_measures_nothing_more_says_nothing_of_it():
    run = parse_config(raw_config()).run("digits", SKEW, method_entry("fedavg"), 0)
    said = run.to_dict()["federation"]
    assert "trajectory" not in said and said["shapley"] is False


# --- Weak clients ---------------------------------------------------------------------------------


def test_weak_clients_send_few_bits_and_these_are_counted(make):
    one, plain = make(quantisation={"share": 4 / 9, "bits": 4}), make()
    weak = one.circumstances.facts["weak"]
    everybody = np.arange(CLIENTS)
    asked = plain.clients(1, everybody)
    local = plain.passes.train(plain.model, plain.layout, plain.samples, asked, plain.work)
    update = (local.theta - asked.start).double()
    start = plain.theta.clone()
    few, whole = one.step(1)["bytes_up"], plain.step(1)["bytes_up"]
    assert weak.sum() == 4
    length = one.circumstances.quantisation.length(one.layout)
    assert few == whole // CLIENTS * 5 + 4 * length and length < whole // CLIENTS / 4
    # Each weak client errs by less than its step, and counts by its samples.
    steps = (update.max(1).values - update.min(1).values) / 15
    shares = one.train_sizes / one.train_sizes.sum()
    bound = float((steps.numpy() * shares)[weak].sum())
    apart = float((one.theta - plain.theta).abs().max())
    assert 0 < apart <= bound * (1 + 1e-4) < float((plain.theta - start).abs().max())
    assert [row["weak"] for row in one.records.clients] == weak.tolist()


def test_who_is_weak(make):
    """Those of a smaller share among those of a larger; the slowest where asked; no attacker."""

    def weak(**more):
        return make(**more).circumstances.facts["weak"]

    some, more = (weak(quantisation={"share": share}) for share in (0.3, 0.6))
    assert (some.sum(), more.sum()) == (3, 5) and not (some & ~more).any()
    slowest = make(compute=UNEVEN, quantisation={"share": 0.3, "who": "slowest"}).circumstances
    order = np.argsort(slowest.clock.speeds)
    assert set(np.flatnonzero(slowest.facts["weak"])) == set(order[:3])
    attack = {"type": "sign-flip", "share": 0.3}
    attacked = make(attack=attack, quantisation={"share": 1.0}).circumstances.facts
    assert np.array_equal(attacked["weak"], ~attacked["attacker"])


def test_who_sends_nothing_is_not_quantised(make):
    for method in ("centralised", "local-only"):
        one, plain = make(method, quantisation={"share": 1.0, "bits": 1}), make(method)
        assert one.step(1)["bytes_up"] == 0
        plain.step(1)
        assert torch.equal(one.theta, plain.theta)
