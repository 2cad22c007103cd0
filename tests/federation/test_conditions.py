"""Conditions: attacks, clocks, dropouts, few bits, wrong and other labels, other images."""

from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.neighbours import Pens
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.federation import rounds
from fedsdg.federation.conditions.attack import (
    Attack,
    Attackers,
    AttackView,
    BlindReplacement,
    Corruption,
    Gaussian,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Replacement,
    Scaling,
    SignFlip,
)
from fedsdg.federation.conditions.compute import Compute, in_proportion
from fedsdg.federation.conditions.condition import Participation
from fedsdg.federation.conditions.difference import FeatureShift, LabelConflict
from fedsdg.federation.conditions.dropout import Dropout
from fedsdg.federation.conditions.label_noise import LabelNoise
from fedsdg.federation.conditions.quantisation import Quantisation
from fedsdg.federation.data_sharing import Central, SharedSamples
from fedsdg.federation.observers.observer import Observer
from fedsdg.federation.personalisation import OwnHead
from fedsdg.federation.server import upload
from fedsdg.federation.stopping import Inexactness
from fedsdg.federation.terms import ControlVariates, Curvature, Proximal, Term
from fedsdg.models import block_views
from tests.federation.small import federation, run, stored, trained, vit

CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def rows_of(done, name, **wanted):
    """A column of the clients' record, of the rows with these values."""
    rows = [row for row in done.clients if wanted.items() <= row.items()]
    return [row.get(name) for row in rows]


# --- Attacks --------------------------------------------------------------------------------------

WEIGHTS = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
ATTACKING = np.array([False, True, False, False, True])


def view(seed=0, d=50):
    updates = torch.from_numpy(np.random.default_rng(1).normal(1, 2, (5, d)))
    start = torch.ones(5, d, dtype=torch.float64)
    return AttackView(updates, ATTACKING, WEIGHTS, start, np.random.default_rng(seed))


def means():
    """The mean of the honest updates, weighted or not, and that of the attackers' own."""
    seen = view()
    honest, weights = seen.updates[~ATTACKING], torch.from_numpy(WEIGHTS[~ATTACKING])
    return weights @ honest / weights.sum(), honest.mean(0), seen.updates[ATTACKING].mean(0)


def after(attack):
    """All updates as they arrive."""
    updates = view().updates.clone()
    updates[torch.from_numpy(ATTACKING)] = attack.tamper(view())
    return updates


def test_attacks_by_their_formulas():
    _, mean, _ = means()
    mine, honest = view().updates[ATTACKING], view().updates[~ATTACKING]
    for attack, expected in (
        (SignFlip(scale=3), -3 * mine),
        (Scaling(scale=7), 7 * mine),
        (InnerProduct(epsilon=0.5), -0.5 * mean),
        (LittleIsEnough(z=1.5), mean + 1.5 * honest.std(0, unbiased=False)),
        # Three of five are a majority: one supporter is needed beside two attackers.
        (LittleIsEnough(), mean + 0.4307273 * honest.std(0, unbiased=False)),
    ):
        expected = expected.expand(2, -1)
        torch.testing.assert_close(after(attack)[ATTACKING], expected, rtol=1e-6, atol=1e-9)


def test_replacement_decides_what_the_weighted_mean_becomes():
    weighted, _, own = means()
    total = torch.from_numpy(WEIGHTS) @ after(Replacement(scale=0.7))
    torch.testing.assert_close(total, -0.7 * weighted, **CLOSE)
    blind = after(BlindReplacement(scale=0.7))[ATTACKING].sum(0) / 5
    torch.testing.assert_close(blind, -0.7 * own, **CLOSE)


def test_noise_is_as_long_as_a_median_honest_update_and_new_for_each_attacker():
    sent = after(Gaussian(scale=2))[ATTACKING]
    lengths = view().updates[~ATTACKING].norm(dim=1)
    torch.testing.assert_close(sent.norm(dim=1), (2 * lengths.median()).expand(2), **CLOSE)
    assert abs(torch.cosine_similarity(sent[0], sent[1], 0)) < 0.5


@pytest.mark.parametrize("damage", ["noise", "bits"])
def test_corruption_damages_a_share_of_the_numbers(damage):
    changed = after(Corruption(entries=0.3, damage=damage))[ATTACKING] != view().updates[ATTACKING]
    assert changed.sum(1).tolist() == [15, 15]
    assert changed[0].tolist() != changed[1].tolist()


@pytest.mark.parametrize(
    ("attack", "wrong"),
    [(LabelFlip(), lambda y: 3 - y), (LabelFlip(to="next"), lambda y: (y + 1) % 4)],
)
def test_flipped_labels_are_on_what_attackers_train_on_alone(attack, wrong):
    setup = federation(conditions=[Attackers(attack=attack, share=0.34)], clients=6)
    labels, true = setup.samples.labels.numpy(), stored()[1]
    assert setup.data.facts["attacker"].sum() == 2
    for client, attacks in enumerate(setup.data.facts["attacker"]):
        train = setup.data.train[client]
        assert (labels[train] == (wrong(true[train]) if attacks else true[train])).all()
    kept = np.concatenate([*setup.data.val, *setup.data.test, setup.data.global_test])
    assert (labels[kept] == true[kept]).all()


def test_attackers_are_the_same_in_all_rounds_and_are_not_evaluated():
    honest = run(federation())
    done = run(
        federation(conditions=[Attackers(attack=SignFlip(scale=5), share=0.34)], rounds=4, cohort=4)
    )
    attackers = {row["client"] for row in done.clients if row["attacker"]}
    assert len(attackers) == 2
    for row in done.clients:
        assert row["attacker"] == (row["client"] in attackers)
        assert ("accuracy_own_test" in row) == (row["client"] not in attackers)
    few = run(federation(conditions=[Attackers(attack=SignFlip(scale=5), share=0.17)]))
    assert {row["client"] for row in few.clients if row["attacker"]} < attackers
    sent = next(row for row in few.clients if row["attacker"])
    alone = next(r for r in honest.clients if r["client"] == sent["client"])
    assert sent["update_norm"] == pytest.approx(5 * alone["update_norm"])


def test_a_run_goes_on_where_its_rule_leaves_an_update_without_numbers_out():
    class NoNumbers(Attack, name="no-numbers"):  # Within the test: the next file must not know it.
        """An attacker sends NaN."""

        def tamper(self, view):
            return torch.full_like(view.own, torch.nan)

    rule = Screened(inner=Mean())
    attack = Attackers(attack=NoNumbers(), share=0.17)
    done = run(federation(rule=rule, conditions=[attack]))
    assert all(np.isfinite(row["update_norm_max"]) for row in done.rounds)
    assert done.rounds[0]["weight_zeros"] == 1 and done.theta.isfinite().all()


class Benchmark(Observer):
    """Compares what the rule is told of the server's samples with a loss computed here."""

    def observe(self, view):
        theta = view.tasks.start + view.arrived.update
        samples = torch.from_numpy(view.setup.data.benchmark)
        scores = view.setup.model.forward(
            view.setup.samples.images[samples].repeat(len(theta), 1, 1, 1),
            [len(samples)] * len(theta),
            block_views(theta, view.setup.layout.communicated),
        )
        labels = view.setup.samples.labels[samples].repeat(len(theta))
        losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
        expected = losses.view(len(theta), -1).mean(1, keepdim=True)
        torch.testing.assert_close(view.arrived.rows["benchmark_loss"], expected, **CLOSE)
        self.state = {"seen": torch.ones(1)}


def test_the_server_measures_the_models_that_arrive():
    conditions = [Attackers(attack=SignFlip(scale=10), share=0.34)]
    observer = Benchmark()
    parts = {"benchmark_images": 20}
    run(federation(rule=Focus(), conditions=conditions, observers=[observer], parts=parts))
    assert observer.state


# --- Clocks ---------------------------------------------------------------------------------------


def timed(compute, **given):
    return federation(conditions=[compute], rounds=6, cohort=4, clients=8, **given)


def test_speeds_lie_between_slowest_and_fastest_and_a_round_lasts_as_long_as_its_slowest():
    done = run(timed(Compute(slowest=2, fastest=20)))
    speeds = done.setup.data.facts["speed"]
    assert 2 <= speeds.min() < speeds.max() <= 20
    now = 0.0
    for row in done.rounds:
        there = [r for r in done.clients if r["round"] == row["round"] and r["participated"]]
        needed = [r["local_steps"] / speeds[r["client"]] for r in there]
        now += max(needed)
        assert row["simulated_seconds"] == pytest.approx(now)
        assert row["idle_seconds"] == pytest.approx(sum(max(needed) - one for one in needed))
        assert (row["arrived"], row["late"], row["discarded"]) == (4, 0, 0)


@pytest.mark.parametrize("end", [{"arrivals": 2}, {"deadline": 2.0}])
def test_late_updates_join_the_round_in_which_they_arrive_and_weigh_less(end):
    """θ += Σ w_k Δ_k with w_k ∝ n_k / (1 + τ_k); an update counts once, or is thrown away."""
    setup = timed(Compute(slowest=1, fastest=8, max_age=3, **end))
    done = run(setup)
    speeds, sizes = setup.data.facts["speed"], setup.sizes
    flying: dict[int, tuple[int, float]] = {}
    now, late = 0.0, 0
    for row in done.rounds:
        t = row["round"]
        rows = [r for r in done.clients if r["round"] == t]
        for r in rows:
            if r["participated"]:
                assert r["client"] not in flying  # who is busy is passed over
                flying[r["client"]] = (t, now + r["local_steps"] / speeds[r["client"]])
        due = sorted(when for _, when in flying.values())
        ends = [due[-1]]
        ends += [due[min(2, len(due)) - 1]] if "arrivals" in end else [now + 2.0]
        now = max(now, min(ends))
        assert row["simulated_seconds"] == pytest.approx(now)
        came = {k: t - born for k, (born, when) in flying.items() if when <= now + 1e-9}
        old = {k for k, (born, _) in flying.items() if t - born > 3}
        flying = {k: one for k, one in flying.items() if k not in came.keys() | old}
        came = {k: age for k, age in came.items() if k not in old}
        assert row["arrived"] == len(came)
        last = len(flying) if t == 6 else 0
        assert row["discarded"] == len(old) + last
        shares = {k: sizes[k] / (1 + age) for k, age in came.items()}
        for r in rows:
            assert ("weight" in r) == (r["client"] in came)
            if r["client"] in came:
                assert r["weight"] == pytest.approx(shares[r["client"]] / sum(shares.values()))
                assert r.get("age", 0) == came[r["client"]]
                late += came[r["client"]] > 0
    assert late


def test_discarded_updates_never_arrive():
    done = run(timed(Compute(slowest=1, fastest=30, arrivals=2, late="discard")))
    assert all(row["arrived"] == 2 for row in done.rounds)
    assert sum(row["discarded"] for row in done.rounds) == sum(row["late"] for row in done.rounds)
    assert not any("age" in row for row in done.clients)


@pytest.mark.parametrize("late", ["discard", "compensate"])
def test_what_terms_keep_follows_what_arrives(late):
    clock = Compute(slowest=1, fastest=30, arrivals=2, late=late)
    done = run(timed(clock, rule=Scaffold(), terms=(ControlVariates(),)))
    arrived = np.zeros(8, dtype=int)
    for row in done.clients:
        if "weight" in row:
            arrived[row["client"]] = row["round"]
    assert done.store.counts.arrived.tolist() == arrived.tolist()
    if late == "discard":  # c is the mean of all c_i
        kept = done.store.read("control", np.arange(8))
        torch.testing.assert_close(kept.mean(0), done.server.state["control"], **CLOSE)


def test_of_updates_thrown_away_nothing_is_kept_that_a_probe_measured():
    given_ = {"rule": FedCurv(), "terms": (Curvature(strength=0.1),)}
    slow = Compute(slowest=1, fastest=30, arrivals=2, late="discard")
    done, all_arrive = (run(timed(one, **given_), 1) for one in (slow, Compute(deadline=1e6)))
    run(timed(slow, **given_))
    arrived = done.store.counts.arrived > 0
    kept, expected = (one.store.read("fisher", np.arange(8)) for one in (done, all_arrive))
    assert arrived.sum() == 2 and expected[arrived].any(1).all()
    assert torch.equal(kept, expected * torch.from_numpy(arrived)[:, None])


def test_updates_of_both_phases_of_pens_can_be_under_way_at_once():
    clock = Compute(slowest=1, fastest=30, arrivals=2)
    with pytest.raises(ValueError, match="late updates cannot be compensated with Pens"):
        run(timed(clock, rule=Pens(phase_one=1, sample=3, top=1)))


def test_clusters_that_are_known_stay_known_with_a_clock():
    rule = Clustered(clusters=2, assignment="known")
    done = run(timed(Compute(deadline=1000.0), rule=rule))
    assert {*done.server.state["assignment"].tolist()} == {0, 1}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 200))
def test_steps_are_divided_in_proportion_and_each_part_has_one(nominal, more):
    steps = len(nominal) + more
    shares = in_proportion(nominal, steps)
    assert min(shares) >= 1 and sum(shares) <= steps
    most = [max(1, steps * part // sum(nominal)) for part in nominal]
    assert all(share <= bound for share, bound in zip(shares, most, strict=True))
    if steps >= sum(nominal):
        assert shares == nominal


def test_clients_take_the_steps_for_which_they_have_time():
    compute = Compute(slowest=1, fastest=8, local_seconds=3, max_epochs=2)
    done = run(timed(compute))
    speeds = done.setup.data.facts["speed"]
    for row in done.clients:
        if row["participated"]:
            batches = int(done.setup.batches_per_epoch(np.array([row["client"]]))[0])
            assert row["local_steps"] == min(int(3 * speeds[row["client"]]), 2 * batches)


class Visits(Term):
    """Counts the rounds in which a client has sent something."""

    keeps: ClassVar = ("visits",)

    def finish(self, rows, steps, rate):
        return {}, {"visits": rows.kept["visits"] + 1}


def test_who_has_no_time_for_an_update_trains_what_is_private_and_sends_nothing():
    personalisation = OwnHead()
    model, first, private = vit(**personalisation.adapters)
    compute = Compute(slowest=0.5, fastest=8, local_seconds=2, max_epochs=2)
    parts = {"model": model, "first": first, "private": private}
    done = run(timed(compute, personalisation=personalisation, terms=(Visits(),), **parts))
    short = [row for row in done.clients if row.get("out_of_time")]
    assert short and all(row["local_steps"] == 1 and "weight" not in row for row in short)
    for row in short[:1]:
        assert not torch.equal(done.private[row["client"]], private)
    visits = done.store.read("visits", np.arange(done.setup.num_clients))[:, 0]
    rows = [row for row in done.clients if row["participated"] and not row.get("out_of_time")]
    sent = np.bincount([row["client"] for row in rows], minlength=len(visits))
    assert visits.tolist() == sent.tolist()


# --- Stopping -------------------------------------------------------------------------------------


def test_a_round_without_clients_has_nobody_who_could_stop():
    parts = {"stopping": Inexactness()}
    done = run(federation(parts=parts, conditions=[Dropout(probability=1.0)]))
    assert not done.theta.any()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.999])
def test_clients_stop_when_their_solution_is_inexact_enough(gamma):
    """After as many epochs as it takes until ‖∇h(θ)‖ <= γ ‖∇h(θ_t)‖, at most 6."""
    setup = federation(
        eta=0.05,
        terms=(Proximal(mu=0.5),),
        parts={"stopping": Inexactness(gamma=(gamma,), most_epochs=6)},
        rounds=1,
    )
    done = run(setup)

    def norm(theta, shard, start):
        theta = theta.clone().requires_grad_()
        weight, bias = theta[:-4].view(4, -1), theta[-4:]
        scores = setup.samples.images[shard].flatten(1) @ weight.T + bias
        loss = torch.nn.functional.cross_entropy(scores, setup.samples.labels[shard])
        loss = loss + 0.25 * (theta - start).square().sum()
        return float(torch.autograd.grad(loss, theta)[0].norm())

    tasks, results = trained(setup)
    epochs = []
    for k in range(6):
        shard = torch.from_numpy(setup.data.train[k])
        begin = norm(tasks.start[k], shard, tasks.start[k])
        per_epoch = len(tasks.batches[k][0])
        taken = results.counts["steps"][k] / per_epoch
        assert taken == int(taken)
        small = norm(results.theta[k], shard, tasks.start[k]) <= gamma * begin
        assert small == (taken < 6) or taken == 6
        epochs.append(taken)
    assert max(epochs) == {0.0: 6, 0.3: max(epochs), 0.999: 1}[gamma]
    assert {row["gamma"] for row in done.clients} == {gamma}


# --- Dropout, quantisation, labels, images --------------------------------------------------------


@given(st.integers(0, 50), st.booleans())
def test_clients_leave_with_their_probability_and_for_good_where_it_lasts(seed, lasting):
    dropout = Dropout(probability=0.3, lasting=lasting)
    setup = SimpleNamespace(data=SimpleNamespace(seed=seed))
    everyone = Participation(np.arange(60))
    rounds = [dropout.select_participants(setup, t, everyone) for t in range(1, 9)]
    present = np.array([np.isin(everyone.present, round_.present) for round_ in rounds])
    left = np.array([round_.left for round_ in rounds])
    if lasting:
        assert (present[1:] <= present[:-1]).all()
        assert (np.diff(present.sum(1), prepend=60) == -left).all()
    tried = left + present.sum(1)
    assert abs(left.sum() / tried.sum() - 0.3) < 0.13


def test_who_leaves_has_downloaded_the_model_and_sends_nothing():
    whole, some = run(federation()), run(federation(conditions=[Dropout(probability=0.4)]))
    dropped = sum(row["dropped"] for row in some.rounds)
    assert dropped
    for row, usual in zip(some.rounds, whole.rounds, strict=True):
        sent = [r for r in some.clients if r["round"] == row["round"] and r["participated"]]
        assert len(sent) == 6 - row["dropped"]
        assert row["bytes_down"] == usual["bytes_down"]
        assert row["bytes_up"] * 6 == usual["bytes_up"] * len(sent)


@given(st.integers(1, 8), st.integers(0, 99))
def test_few_bits_are_right_on_average_and_within_a_level(bits, seed):
    draw = np.random.default_rng(seed)
    values = draw.normal(size=40)
    arrived = np.array([Quantisation(bits=bits).quantised(values, draw) for _ in range(300)])
    level = (values.max() - values.min()) / (2**bits - 1)
    assert np.abs(arrived - values).max() <= level * (1 + 1e-9)
    assert len(np.unique(np.round((arrived - values.min()) / level, 6))) <= 2**bits
    assert np.abs(arrived.mean(0) - values).max() < 6 * level / np.sqrt(300)


def test_weak_clients_are_no_attackers_and_have_numbers_of_their_own():
    conditions = [Attackers(attack=SignFlip(), share=0.25), Quantisation(share=0.5, bits=1)]
    done = run(federation(conditions=conditions, clients=8, rounds=1))
    weak, attacker = done.setup.data.facts["weak"], done.setup.data.facts["attacker"]
    assert weak.sum() and not (weak & attacker).any()
    setup = federation(conditions=conditions[1:], clients=8)
    tasks, results = trained(setup)
    some = np.array([5, 2, 7])
    whole, _ = upload(setup, setup.initial()[0], 1, tasks, results)
    part, _ = upload(setup, setup.initial()[0], 1, tasks.take(some), results.take(some))
    assert torch.equal(part.update, whole.update[torch.from_numpy(some)])
    slow = Compute(slowest=1, fastest=9), Quantisation(share=0.5, who="slowest")
    setup = federation(conditions=slow, clients=8)
    speeds = setup.data.facts["speed"]
    assert speeds[setup.data.facts["weak"]].max() < speeds[~setup.data.facts["weak"]].min()


def test_wrong_labels_at_each_client_s_rate_and_never_on_tests():
    setup = federation(conditions=[LabelNoise(low=0.2, high=0.9)], clients=4)
    higher = federation(conditions=[LabelNoise(low=0.5, high=1.0)], clients=4)
    labels, true = setup.samples.labels.numpy(), stored()[1]
    hit = labels != true
    more = higher.samples.labels.numpy() != true
    assert (hit <= more).all() and hit.sum() < more.sum()
    for k, rate in enumerate(setup.data.facts["noise_rate"]):
        held = np.concatenate([setup.data.train[k], setup.data.val[k]])
        assert 0.2 <= rate <= 0.9
        assert abs(hit[held].mean() - rate) < 3 * np.sqrt(rate * (1 - rate) / len(held)) + 1e-9
    assert not hit[np.concatenate([*setup.data.test, setup.data.global_test])].any()


@pytest.mark.parametrize("per", [{"per": "client"}, {"per": "group", "groups": 2}])
def test_clients_in_conflict_permute_names_in_a_cycle_in_all_their_labels(per):
    setup = federation(conditions=[LabelConflict(share=0.5, classes=3, **per)], clients=8)
    labels, true = setup.samples.labels.numpy(), stored()[1]
    conflicts, group = setup.data.facts["conflicts"], setup.data.facts["group"]
    assert conflicts.sum() == 4 and ((group >= 0) == conflicts).all()
    cycles = {}
    for k in range(8):
        held = np.concatenate([s[k] for s in (setup.data.train, setup.data.val)])
        names = setup.test_views.labels[k]
        table = dict(zip(true[setup.data.global_test], names, strict=True))
        assert [table[y] for y in true[held]] == labels[held].tolist()
        moved = {a: b for a, b in table.items() if a != b}
        assert len(moved) == 3 * conflicts[k] and set(moved) == set(moved.values())
        cycles.setdefault(int(group[k]), []).append(moved)
    assert len(cycles) == (5 if per["per"] == "client" else 3)
    assert all(one == own[0] for own in cycles.values() for one in own)


def test_inverted_images_are_inverted_for_those_who_differ_in_training_and_tests():
    plain = federation(clients=4)
    setup = federation(conditions=[FeatureShift(share=0.5)], clients=4)
    images, usual = setup.samples.images, plain.samples.images
    for k, differs in enumerate(setup.data.facts["conflicts"]):
        held = torch.from_numpy(np.concatenate([setup.data.train[k], setup.data.test[k]]))
        expected = -usual[held] if differs else usual[held]  # pixels are scaled to [-1, 1]
        torch.testing.assert_close(images[held], expected, rtol=0, atol=1e-6)
        seen = images[torch.from_numpy(setup.test_views.index[k])]
        test = usual[torch.from_numpy(setup.data.global_test)]
        torch.testing.assert_close(seen, -test if differs else test, rtol=0, atol=1e-6)


def test_a_share_that_leaves_nobody_honest_who_trains_is_refused():
    attack = Attackers(attack=SignFlip(), share=0.5)
    federation(clients=4, parts={"held_out": 0.25}, conditions=[attack])
    with pytest.raises(ValueError, match=r"no honest client trains; lower conditions.attack"):
        for seed in range(20):
            federation(clients=4, parts={"held_out": 0.5}, conditions=[attack], seed=seed)


# --- Data that leave their clients ----------------------------------------------------------------


def test_shared_samples_go_to_everybody():
    plain, setup = federation(), federation(parts={"sharing": SharedSamples(share=0.3)})
    given_ = set.intersection(*(set(own) for own in setup.data.train))
    for own, before, share in zip(
        setup.data.train, plain.data.train, setup.data.facts["disclosed"], strict=True
    ):
        assert set(own) == set(before) | given_
        assert len(given_ & set(before)) == round(share * len(before)) == -(-3 * len(before) // 10)


def test_a_share_of_samples_is_rounded_up_and_not_by_rounding():
    data = federation().data
    shards = np.split(np.arange(600), 6)
    shared = SharedSamples(share=0.07).prepare(replace(data, train=shards))
    assert set(shared.facts["disclosed"]) == {0.07}  # 0.07 · 100 is 7.000000000000001


def test_central_training_stands_for_a_client_that_trains():
    done = run(
        federation(parts={"sharing": Central(), "held_out": 0.5}, cohort=3, rounds=1, seed=4)
    )
    assert done.setup.held_out[0]
    assert rows_of(done, "held_out", participated=True) == [False]


def test_central_training_visits_all_samples_before_it_visits_one_again():
    setup = federation(parts={"sharing": Central()}, epochs=1, cohort=2, rounds=8)
    server, store = setup.initial()
    seen = []
    for t in range(1, 9):
        _, tasks = rounds.begin(setup, server, store, t)
        (epochs,) = tasks.batches
        seen += np.concatenate([batch for batches in epochs for batch in batches]).tolist()
    pool = sorted(np.concatenate(setup.data.train).tolist())
    assert sorted(seen[: len(pool)]) == pool
    done = run(setup)
    assert all((row["bytes_up"], row["bytes_down"]) == (0, 0) for row in done.rounds)
    befalling = [Attackers(attack=SignFlip(), share=0.4), Dropout(probability=0.9)]
    for seed in (2, 3):  # In the second, client 0 is an attacker.
        made = [
            run(federation(parts={"sharing": Central()}, conditions=conditions, seed=seed)).theta
            for conditions in ([], befalling)
        ]
        assert torch.equal(*made), "nothing is sent that could be lost or changed"
