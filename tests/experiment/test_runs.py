"""Whole runs on real digits with a tiny frozen backbone: methods, equalities, bytes, failures."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedsdg.data.partition import TRAIN
from fedsdg.experiment.building import build
from fedsdg.experiment.conditions import Conditions
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.machine.gpu import repeatable
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.runs import execute
from fedsdg.federation.cohorts import cohort_batches, draw_cohort
from fedsdg.federation.evaluation import global_metrics
from fedsdg.federation.local_work import Samples
from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.files import changed_file
from fedsdg.methods.families import METHODS
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze
from tests.pretended_cuda import DISORDERLY, pretended_cuda
from tests.suited import suited

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
OWN_WORK = {
    *("fedsgd", "fedprox-inexact", "fedrep", "ditto", "fedsdg-official", "fedsdg-official-aligned"),
    *("apfl", "feddpa", "fed-rod"),
}
BYTE_IDENTICAL = ("rounds.parquet", "clients.parquet", "result.json")


@pytest.fixture(scope="module")
def config():
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": 8, "clients_per_round": 5, "rounds": 2, "evaluate_every": 1}
    raw["training"] |= {"epochs": 1}
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    return parse_config(raw)


@pytest.fixture(scope="module")
def material():
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    return prepare_material(
        "digits", freeze(build_backbone(architecture), architecture, "tiny", {}), "cpu"
    )


@pytest.fixture(scope="module")
def partition(config):
    return make_partition("digits", SKEW, 0, config.federation.clients, config.partition)


@pytest.fixture(scope="module")
def finished(config, material, partition):
    """A method entry -> the federation after its rounds; each is run once."""
    cache = {}

    def run(entry, **federation):
        key = json.dumps([entry, federation], sort_keys=True)
        if key not in cache:
            kind = entry if isinstance(entry, str) else entry["type"]
            changed = dataclasses.replace(
                config,
                federation=dataclasses.replace(config.federation, **federation),
                conditions=Conditions(benchmark_images=20 if kind == "focus" else None),
            )
            one = build(changed.run("digits", SKEW, method_entry(entry), 0), material, partition)
            one.start = one.theta.clone()
            one.run()
            cache[key] = one
        return cache[key]

    return run


def test_terms_that_the_personalisation_brings_come_first(config, material, partition, monkeypatch):
    """In another order gradients would round otherwise."""
    row = dataclasses.replace(METHODS["fedsdg"], objective=(Proximal(0.5),))
    monkeypatch.setattr("fedsdg.experiment.building.find_method", lambda *_: row)
    entry = method_entry({"type": "fedsdg", "lambda1": 0.25, "private_norm": "residual"})
    made = build(config.run("digits", SKEW, entry, 0), material, partition)
    brought = (GatePenalty(0.25), PrivatePenalty(1e-4, "residual"))
    assert made.work.terms == (*brought, Proximal(0.5))


@pytest.mark.parametrize("test", ["fixed", "by-seed"])
def test_global_images_are_a_part_of_the_test_set_the_same_for_all_methods(config, material, test):
    settings = dataclasses.replace(config.partition, test=test)
    clients = config.federation.clients
    partition = make_partition("digits", SKEW, 0, clients, settings)

    def shards(method, seed=0, **federation):
        changed = dataclasses.replace(
            config,
            federation=dataclasses.replace(config.federation, **federation),
            partition=settings,
        )
        run = changed.run("digits", SKEW, method_entry(method), seed)
        return build(run, material, partition).shards

    whole = partition.global_test()
    assert np.array_equal(shards("fedavg").global_test, whole)
    part = shards("fedavg", global_images=100)
    assert len(set(part.global_test)) == 100 and set(part.global_test) < set(whole)
    assert np.array_equal(shards("fedsdg", global_images=100).global_test, part.global_test)
    other = make_partition("digits", SKEW, 0, clients, settings)
    assert np.array_equal(other.global_test(), whole)
    same = np.array_equal(shards("fedavg", seed=1, global_images=100).global_test, part.global_test)
    assert same == (test == "fixed")
    if test == "fixed":
        partition = make_partition("digits", "iid", 1, 5, settings)
        assert np.array_equal(
            shards("fedavg", seed=1, clients=5, global_images=100).global_test, part.global_test
        )
        counts = np.bincount(material.samples.labels[whole], minlength=10)
        drawn = np.bincount(material.samples.labels[part.global_test], minlength=10)
        assert np.abs(drawn - 100 * counts / len(whole)).max() < 1
        return
    assert np.array_equal(shards("fedavg", global_images=len(whole)).global_test, whole)
    for mine, theirs in zip(part.test, shards("fedavg").test, strict=True):
        assert np.array_equal(mine, theirs), "personal accuracy is measured on all samples"
    with pytest.raises(
        ValueError, match=f"is 5000, but the global test set of digits has {len(whole)}"
    ):
        shards("fedavg", global_images=5000)


def test_global_images_change_nothing_but_what_is_measured_on_them(finished):
    whole, part = finished("fedsdg"), finished("fedsdg", global_images=100)
    measured = {"global_accuracy", "global_loss"}
    measured |= {"expected_accuracy", "expected_std", "expected_worst_decile"}
    for mine, theirs in zip(whole.records.rounds, part.records.rounds, strict=True):
        assert {k: v for k, v in mine.items() if k not in measured} == {
            k: v for k, v in theirs.items() if k not in measured
        }
        assert mine["global_loss"] != theirs["global_loss"]
    assert torch.equal(whole.theta, part.theta)


def distance(a, b):
    """Between two server models, relative to how far the second one has moved."""
    return float((a.theta - b.theta).norm() / (b.theta - b.start).norm())


#: Those that need everybody in every round, and the one in which nobody takes part.
WHOLE, NOBODY = ("cgsv-xu",), ("centralised",)
LEARNERS = [name for name in METHODS if name not in NOBODY]


def everybody(name):
    return {"clients_per_round": 8} if name in WHOLE else {}


@pytest.mark.parametrize("name", LEARNERS)
def test_every_method_trains_and_records(finished, name):
    one = finished(name, **everybody(name))
    size = one.schedule.clients_per_round
    records = one.records
    assert [row["round"] for row in records.rounds] == [1, 2]
    for row in records.rounds:
        assert np.isfinite(row["train_loss"])
        mine = [r for r in records.clients if r["round"] == row["round"] and r["drawn"]]
        # Of at most eight clients the worst tenth is one.
        assert row["personal_worst_decile"] == min(r["test_accuracy"] for r in mine)
        assert 0 <= row["personal_accuracy"] <= 1
        assert row["bytes_up"] % size == 0
        everything = one.rule.partial(one.state, np.arange(8), one.layout.d) is None
        if everything and not one.layout.turns:
            assert row["bytes_down"] % size == 0
    participants = [row for row in records.clients if row["participated"]]
    assert len(participants) == 2 * size
    assert len(records.clients) == 2 * 8
    if one.layout.d:
        assert not torch.equal(one.theta, one.start), "the server model moved"
        sent = one.layout.of_round(2).communicated
        numbers = sum(spec.size for spec in sent if spec.trainable)
        assert records.rounds[-1]["bytes_up"] >= size * 4 * numbers
    for row in participants:
        sizes = len(one.shards.train[row["client"]])
        # The others say themselves how much they train: see test_local_systems.py.
        if name not in OWN_WORK:
            assert row["samples_processed"] == sizes
            assert row["local_steps"] == -(-sizes // 16)


def test_cohorts_are_equal_for_all_methods_and_evaluation_does_not_touch_them(finished):
    expected = [draw_cohort(0, r, 8, 5).tolist() for r in (1, 2)]
    for name in LEARNERS:
        if name in WHOLE:
            continue
        rows = finished(name).records.clients
        for round_ in (1, 2):
            drawn = [r["client"] for r in rows if r["round"] == round_ and r["participated"]]
            assert drawn == expected[round_ - 1]


def test_every_client_keeps_its_power_and_the_records_say_which(finished):
    one = finished("fedprox-inexact")
    assert {row["gamma"] for row in one.records.clients} <= {0.9, 0.7, 0.5}
    for row in one.records.clients:
        assert row["gamma"] == one.gammas[row["client"]]


def test_central_training_processes_as_many_samples_as_the_cohort_and_sends_nothing(finished):
    one = finished("centralised")
    for row in one.records.rounds:
        cohort = draw_cohort(0, row["round"], 8, 5)
        assert row["samples_processed"] == one.train_sizes[cohort].sum()
        assert row["bytes_up"] == row["bytes_down"] == 0
    assert not torch.equal(one.theta, one.start)


def test_a_method_that_judges_on_the_server_says_what_it_needs(config, material, partition):
    with pytest.raises(ValueError, match="set conditions.benchmark_images"):
        build(config.run("digits", SKEW, method_entry("focus"), 0), material, partition)


def test_clusters_start_with_heads_of_their_own(finished):
    from fedsdg.models.parameters import offsets

    start = finished("clustered").start
    places = offsets(finished("clustered").layout.communicated)
    for name, place in places.items():
        apart = name == "head.weight"
        assert torch.equal(start[0, place], start[1, place]) != apart
        assert torch.equal(start[0, place], finished("fedavg").start[place])


def test_alignment_over_the_adapters_alone_leaves_the_head_out(config, material, partition):
    run = config.run("digits", SKEW, method_entry({"type": "fedsdg", "scope": "adapters"}), 0)
    one = build(run, material, partition)
    start, cohort = one.theta.clone(), one.cohort(1)
    asked = one.clients(1, cohort)
    local = one.passes.train(one.model, one.layout, one.samples, asked, one.work)
    head = 10 * 32 + 10  # classes times width, and biases
    update = (local.theta - start)[:, :-head].double().numpy()
    mean = update.mean(0)
    norms = np.linalg.norm(update, axis=1) * np.linalg.norm(mean)
    alignment = np.maximum(0, update @ mean / (norms + 1e-8))
    one.step(1)
    weights = [row["weight"] for row in one.records.clients if row["participated"]]
    assert weights == pytest.approx(list(alignment / alignment.sum()), rel=1e-4)


def test_alignment_over_the_adapters_compares_their_mean_with_their_own_rounding(
    config, material, partition
):
    """A head so large that its rounding is above all updates: weights are still Eq. 10's."""
    run = config.run("digits", SKEW, method_entry({"type": "fedsdg", "scope": "adapters"}), 0)
    one = build(run, material, partition)
    columns = one.layout.before_head
    one.theta[columns:] *= 1e9
    start, cohort = one.theta.clone(), one.cohort(1)
    asked = one.clients(1, cohort)
    local = one.passes.train(one.model, one.layout, one.samples, asked, one.work)
    update = (local.theta - start)[:, :columns].double().numpy()
    mean = update.mean(0)
    eps = torch.finfo(torch.float32).eps
    rounding = 0.5 * eps * local.theta.double().norm(dim=1).max()
    assert np.linalg.norm(mean) < rounding
    norms = np.linalg.norm(update, axis=1) * np.linalg.norm(mean)
    alignment = np.maximum(0, update @ mean / (norms + 1e-8))
    assert one.step(1)["degenerate"] == 0
    weights = [row["weight"] for row in one.records.clients if row["participated"]]
    assert weights == pytest.approx(list(alignment / alignment.sum()), rel=1e-4)


def test_where_all_use_the_shared_model_and_see_the_same_it_is_expected_to_do_as_well(
    config, material
):
    partition = make_partition("digits", "iid", 0, config.federation.clients, config.partition)
    one = build(config.run("digits", "iid", method_entry("fedavg"), 0), material, partition)
    for row in one.run().rounds:
        assert row["expected_accuracy"] == pytest.approx(row["global_accuracy"], abs=1e-12)
        assert row["expected_std"] < 1e-12


def test_a_client_is_expected_to_do_as_its_classes_are(finished, partition):
    """Under label skew: accuracy by class on the global test set, by the client's class shares."""
    one = finished("fedavg")
    counts = partition.counts(partition.label, 10)
    for client, own in enumerate(one.seen.weights):
        shares = [own[one.seen.labels[client] == c].sum() for c in range(10)]
        assert shares == pytest.approx(counts[client] / counts[client].sum(), abs=1e-12)
        assert np.array_equal(one.seen.index[client], partition.global_test())
        assert np.array_equal(one.seen.labels[client], partition.label[partition.global_test()])
    assert len({tuple(own.tolist()) for own in one.seen.weights}) == one.num_clients


@pytest.fixture(scope="module")
def mixed_company(config, material, partition):
    """FedSDG with few clients a round, of whom some conflict and two never take part."""
    changed = dataclasses.replace(
        config, federation=dataclasses.replace(config.federation, clients_per_round=2, rounds=4)
    )
    run = changed.run("digits", SKEW, method_entry("fedsdg"), 0)
    one = build(run, material, partition)
    facts = {"conflicts": np.arange(8) % 2 == 1, "held_out": np.isin(np.arange(8), (2, 5))}
    one.circumstances = dataclasses.replace(one.circumstances, facts=facts)
    one.run()
    return one


def test_means_over_clients_are_those_of_their_rows(mixed_company):
    one = mixed_company
    so_far = np.zeros(8, dtype=int)
    not_all_were_drawn = False
    for row in one.records.rounds:
        every = [r for r in one.records.clients if r["round"] == row["round"]]
        for r in every:
            so_far[r["client"]] += r.get("local_steps", 0)
        mine = [r for r in every if "test_accuracy" in r]
        last_quarter = row["round"] == 4
        there = np.arange(8) if last_quarter else np.setdiff1d(np.arange(8), (2, 5))
        assert [r["client"] for r in mine] == there.tolist()
        assert [r["steps"] for r in mine] == so_far[there].tolist()
        assert [r["drawn"] for r in mine] == (so_far[there] > 0).tolist()
        own, seen = (np.array([r[f"{n}_accuracy"] for r in mine]) for n in ("test", "expected"))
        conflicts, new, drawn = (
            np.array([r[name] for r in mine]) for name in ("conflicts", "held_out", "drawn")
        )
        judged = ~new
        not_all_were_drawn |= not drawn[judged].all()
        assert row["personal_accuracy"] == pytest.approx(own[judged].mean(), abs=1e-15)
        assert row["expected_accuracy"] == pytest.approx(seen[judged].mean(), abs=1e-15)
        assert row["expected_accuracy_a"] == pytest.approx(seen[judged & ~conflicts].mean())
        assert row["expected_accuracy_b"] == pytest.approx(seen[judged & conflicts].mean())
        assert ("expected_accuracy_new" in row) == last_quarter
        if last_quarter:
            assert row["expected_accuracy_new"] == pytest.approx(seen[new].mean())
        # Of at most eight clients the worst tenth is one.
        assert row["personal_worst_decile"] == own[judged & drawn].min()
        assert row["expected_worst_decile"] == seen[judged & drawn].min()
        for r in mine:
            assert ("private_shares" in r) == r["drawn"] == ("gate_penalty" in r)
        shares = [share for r in mine for share in r.get("private_shares", ())]
        assert all(0 <= share < 1 for share in shares) and any(shares)
    assert not_all_were_drawn


def test_the_shared_model_is_judged_on_the_validation_samples_of_those_who_count(
    mixed_company,
):
    one = mixed_company
    index = np.concatenate([own for k, own in enumerate(one.shards.val) if k not in (2, 5)])
    accuracy, _ = global_metrics(one.model, one.layout, one.samples, index, one.theta, one.private)
    assert one.records.rounds[-1]["global_val_accuracy"] == pytest.approx(accuracy, abs=1e-15)


@pytest.mark.parametrize("name", ["fedavg", "fedsdg", "fine-tune"])
def test_evaluating_less_often_changes_no_model(finished, name):
    often, rarely = finished(name), finished(name, evaluate_every=2)
    assert torch.equal(often.theta, rarely.theta)
    assert torch.equal(*(one.bank.private(torch.arange(8)) for one in (often, rarely)))
    assert [row["evaluated"] for row in rarely.records.rounds] == [False, True]


def test_evaluating_late_changes_no_model_and_no_later_number(finished):
    whole, late = finished("fine-tune"), finished("fine-tune", evaluate_from=2)
    assert torch.equal(whole.theta, late.theta)
    assert [row["evaluated"] for row in late.records.rounds] == [False, True]
    assert late.records.rounds[1] == whole.records.rounds[1]


def test_named_rounds_are_evaluated_and_the_last_and_no_others(finished):
    named, often = finished("fedsdg", rounds=4, evaluate_at=(1, 3)), finished("fedsdg", rounds=4)
    assert [row["evaluated"] for row in named.records.rounds] == [True, False, True, True]
    assert torch.equal(named.theta, often.theta)
    for mine, theirs in zip(named.records.rounds, often.records.rounds, strict=True):
        assert mine == theirs or not mine["evaluated"]


def test_what_is_not_asked_for_is_in_no_hash(config):
    def run(**federation):
        given = dataclasses.replace(config.federation, **federation)
        changed = dataclasses.replace(config, federation=given)
        return changed.run("digits", SKEW, method_entry("fedavg"), 0)

    said = run().to_dict()["federation"]
    assert not {"evaluate_at", "own_images"} & said.keys()
    hashes = {run(**given).hash for given in ({}, {"evaluate_at": (1,)}, {"own_images": 5})}
    assert len(hashes) == 3
    # As it is read back from a record.
    named = run(evaluate_at=(1,)).to_dict()
    assert json.loads(json.dumps(named)) == named


def test_clients_are_judged_on_at_most_so_many_of_their_own_images(config, material, partition):
    def made(method, seed=0, **federation):
        given = dataclasses.replace(config.federation, **federation)
        changed = dataclasses.replace(config, federation=given)
        return build(changed.run("digits", SKEW, method_entry(method), seed), material, partition)

    whole, few = made("fedavg").shards, made("fedavg", own_images=6).shards
    fewer, other = made("fedsdg", own_images=4).shards, made("fedavg", 1, own_images=6).shards
    some = 0
    for split in ("val", "test"):
        shards = [getattr(one, split) for one in (whole, few, fewer, other)]
        for own, six, four, elsewhere in zip(*shards, strict=True):
            assert len(six) == min(6, len(own)) and set(four) <= set(six) <= set(own)
            assert np.array_equal(six, np.sort(six)) and len(four) == min(4, len(own))
            some += set(six) != set(elsewhere)
    assert some > 0, "other seeds judge on other images"
    for mine, theirs in zip(few.train, whole.train, strict=True):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(few.test_sizes, list(map(len, whole.test)))


def test_fewer_own_images_change_nothing_but_what_is_measured_on_them(finished):
    whole, part = finished("fedsdg"), finished("fedsdg", own_images=4)
    assert torch.equal(whole.theta, part.theta)
    own = {"personal_accuracy", "personal_std", "personal_worst_decile", "val_accuracy"}
    own |= {"personal_accuracy_weighted", "global_val_accuracy"}
    for mine, theirs in zip(whole.records.rounds, part.records.rounds, strict=True):
        for name, value in mine.items():
            assert name in own or theirs[name] == value, name
    rows = [row for row in part.records.clients if "test_accuracy" in row]
    assert rows and all(row["n_test"] == 4 and row["n_val"] <= 4 for row in rows)
    assert all(float(4 * row["test_accuracy"]).is_integer() for row in rows)
    # A client with more test samples weighs more still.
    last = [row for row in rows if row["round"] == part.rounds_done]
    sizes = [len(whole.shards.test[row["client"]]) for row in last]
    mean = np.average([row["test_accuracy"] for row in last], weights=sizes)
    record = part.records.rounds[-1]
    assert record["personal_accuracy_weighted"] == pytest.approx(mean, abs=1e-15)
    assert mean != pytest.approx(record["personal_accuracy"], abs=1e-4)


def test_fedsdg_with_closed_gates_and_uniform_weights_is_uniform_fedavg(finished):
    closed = finished(
        {"type": "fedsdg", "gate_fixed": 0.0, "lambda1": 0.0, "lambda2": 0.0, "smoothing": 1.0}
    )
    uniform = finished("fedavg-uniform")
    assert distance(closed, uniform) < 1e-5
    for a, b in zip(closed.records.rounds, uniform.records.rounds, strict=True):
        assert a["personal_accuracy"] == b["personal_accuracy"]
        assert a["global_accuracy"] == b["global_accuracy"]


def test_an_open_gate_is_not_fedavg(finished):
    """The equality above is not empty: with gates at 1 the private branch takes part."""
    opened = finished(
        {"type": "fedsdg", "gate_fixed": 1.0, "lambda1": 0.0, "lambda2": 0.0, "smoothing": 1.0}
    )
    assert distance(opened, finished("fedavg-uniform")) > 1e-3


def test_fedprox_without_proximal_term_is_fedavg(finished):
    assert torch.equal(finished({"type": "fedprox", "mu": 0.0}).theta, finished("fedavg").theta)
    assert not torch.equal(finished({"type": "fedprox", "mu": 1.0}).theta, finished("fedavg").theta)


def test_fine_tuning_feeds_nothing_back(finished):
    tuned, plain = finished("fine-tune"), finished("fedavg")
    assert torch.equal(tuned.theta, plain.theta)
    assert (
        tuned.records.rounds[-1]["global_accuracy"] == plain.records.rounds[-1]["global_accuracy"]
    )
    assert tuned.records.clients != plain.records.clients


def test_fine_tuning_draws_from_a_stream_of_its_own(config, material, partition, monkeypatch):
    from fedsdg.federation import judged_models, rounds

    drawn = []

    def noted(shards, clients, *, purpose, round_, **options):
        drawn.append((purpose, round_, len(clients)))
        return cohort_batches(shards, clients, purpose=purpose, round_=round_, **options)

    for module in (rounds, judged_models):
        monkeypatch.setattr(module, "cohort_batches", noted)
    build(config.run("digits", SKEW, method_entry("fine-tune"), 0), material, partition).run()
    assert drawn == [(p, r, n) for r in (1, 2) for p, n in (("batches", 5), ("evaluation", 8))]


def test_scaffold_keeps_its_invariant_on_the_model(finished):
    one = finished("scaffold", rounds=3)
    mean = one.bank.kept("control", torch.arange(8)).mean(0)
    assert mean.norm() > 0
    assert torch.allclose(one.state["control"], mean, atol=1e-6 * float(mean.abs().max()) + 1e-9)
    assert (
        one.records.rounds[0]["bytes_up"] > 1.9 * finished("fedavg").records.rounds[0]["bytes_up"]
    )


def test_identical_clients_and_full_participation_make_scaffold_fedavg_sgd(
    config, material, partition
):
    """Everybody holds the same samples and takes full batches: the corrections cancel."""
    thetas = []
    full = dataclasses.replace(config.federation, clients_per_round=8, rounds=3)
    changed = dataclasses.replace(
        config, federation=full, training=dataclasses.replace(config.training, batch_size=500)
    )
    for name in ("scaffold", "fedavg-sgd"):
        one = build(changed.run("digits", SKEW, method_entry(name), 0), material, partition)
        shard = partition.shards(TRAIN)[0]
        one = dataclasses.replace(one, shards=dataclasses.replace(one.shards, train=[shard] * 8))
        one.start = one.theta.clone()
        one.run()
        thetas.append(one)
    assert distance(*thetas) < 1e-4
    assert float(thetas[0].state["control"].norm()) > 0


def test_local_only_sends_nothing_and_has_no_global_model(finished):
    one = finished("local-only")
    for row in one.records.rounds:
        assert row["bytes_up"] == row["bytes_down"] == 0
        assert "global_accuracy" not in row
    assert one.layout.d == 0


def test_private_state_stays_with_its_client(finished):
    one = finished("fedsdg", rounds=1)
    cohort = set(draw_cohort(0, 1, 8, 5).tolist())
    for client in range(8):
        changed = not torch.equal(one.bank.private(torch.tensor([client]))[0], one.private)
        assert changed == (client in cohort) == bool(one.bank.trained[client])


def test_a_client_never_drawn_is_judged_with_the_global_model(finished):
    one = finished("fedsdg", rounds=1)
    shared = finished({"type": "fedsdg", "gate_fixed": 0.0}, rounds=1)
    assert shared.layout.d == one.layout.d
    from fedsdg.federation.evaluation import personal_accuracies

    # Put wild private parameters where nobody has trained: nothing may change.
    calm = one.bank.private(torch.arange(8))
    wild = calm.clone()
    noise = torch.randn(wild.shape, generator=torch.Generator().manual_seed(0))
    wild[~one.bank.trained] = noise[~one.bank.trained]
    arguments = (one.model, one.layout, one.samples, one.shards.val, one.shards.test, one.theta)

    def accuracies(private, trained):
        found = personal_accuracies(*arguments, private.__getitem__, trained)
        return found.test.tolist()

    assert accuracies(calm, one.bank.trained) == accuracies(wild, one.bank.trained)
    trained = torch.ones_like(one.bank.trained)
    assert accuracies(wild, trained) != accuracies(calm, one.bank.trained)


def test_accuracies_equal_a_count_by_hand(finished):
    from fedsdg.models.parameters import views

    one = finished("fedsdg")
    rows = {r["client"]: r for r in one.records.clients if r["round"] == 2}
    for client in range(8):
        parameters = {
            **views(one.theta[None], one.layout.communicated),
            **views(one.bank.private(torch.tensor([client])), one.layout.private),
        }
        own = torch.from_numpy(one.shards.test[client])
        with torch.no_grad():
            logits = one.model.logits(
                one.samples.images[own], [len(own)], parameters, bool(one.bank.trained[client])
            )
        right = (logits.argmax(1) == one.samples.labels[own]).double().mean()
        assert rows[client]["test_accuracy"] == pytest.approx(float(right), abs=1e-12)


def run_to(folder, store, config, material, partition, entry="fedsdg"):
    run = config.run("digits", SKEW, method_entry(entry), 0)
    return execute(
        run, material, partition, folder, store=store, identity={"experiment": "test", "seed": 0}
    )


def test_two_runs_give_the_same_bytes(tmp_path, config, material, partition):
    for name in ("a", "b"):
        failure = run_to(tmp_path / name, tmp_path / f"store-{name}", config, material, partition)
        assert failure is None
    for file in BYTE_IDENTICAL:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_a_finished_run_is_taken_from_the_store(tmp_path, config, material, partition):
    assert run_to(tmp_path / "a", tmp_path / "store", config, material, partition) is None
    began = json.loads((tmp_path / "a" / "provenance.json").read_text())["wall_seconds"]
    assert run_to(tmp_path / "b", tmp_path / "store", config, material, partition) is None
    again = json.loads((tmp_path / "b" / "provenance.json").read_text())["wall_seconds"]
    assert began == again, "the second is the first one's record"
    result = json.loads((tmp_path / "b" / "result.json").read_text())
    assert result["status"] == "ok" and result["experiment"] == "test"
    assert result["last"]["round"] == 2


def test_nan_in_training_is_a_failed_row_with_what_was_recorded(
    tmp_path, config, material, partition
):
    images = material.samples.images.clone()
    first = set(draw_cohort(0, 1, 8, 5).tolist())
    victims = [k for k in draw_cohort(0, 2, 8, 5).tolist() if k not in first]
    assert victims, "somebody is drawn in round 2 for the first time"
    victim = victims[0]
    images[partition.shards(TRAIN)[victim]] = float("nan")
    broken = dataclasses.replace(material, samples=Samples(images, material.samples.labels))
    failure = run_to(tmp_path / "run", tmp_path / "store", config, broken, partition)
    assert failure is not None and f"round 2, client {victim}" in failure
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed" and result["error"] == failure
    assert pq.read_table(tmp_path / "run" / "rounds.parquet").num_rows == 1
    assert not any((tmp_path / "store").iterdir()), "a failed run is not kept"


def test_a_partition_of_another_data_set_is_a_failed_row(tmp_path, config, material, partition):
    other = dataclasses.replace(partition, dataset="mnist", dataset_sha256="0" * 64)
    failure = run_to(tmp_path / "run", tmp_path / "store", config, material, other)
    assert failure is not None and "made for another data set (mnist)" in failure


def test_trace_every_n_batches(config, material, partition):
    traced = dataclasses.replace(
        config, federation=dataclasses.replace(config.federation, trace_every=1, rounds=1)
    )
    one = build(traced.run("digits", SKEW, method_entry("fedsdg"), 0), material, partition)
    one.run()
    assert len(one.records.trace) == one.records.rounds[0]["local_steps"]
    assert {row["client"] for row in one.records.trace} == set(draw_cohort(0, 1, 8, 5).tolist())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_run_on_the_gpu_is_the_run_on_the_cpu(config, material, partition, finished, method):
    """Every tensor is where it is worked with; the two differ in rounding alone."""
    samples = Samples(material.samples.images.cuda(), material.samples.labels.cuda())
    there = dataclasses.replace(material, samples=samples)
    changed = suited(config, method)
    gpu = build(changed.run("digits", SKEW, method_entry(method), 0), there, partition)
    with repeatable("cuda"):
        gpu.run()
    cpu = finished(method, clients_per_round=changed.federation.clients_per_round)
    assert gpu.theta.is_cuda and gpu.bank.device.type == "cuda"
    for mine, other in zip(gpu.records.rounds, cpu.records.rounds, strict=True):
        assert mine.keys() == other.keys()
        assert mine["bytes_up"] == other["bytes_up"]
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
    if gpu.layout.d:
        gpu.theta = gpu.theta.cpu()
        assert distance(gpu, cpu) < 1e-2


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "tf32"])
def test_a_run_on_the_gpu_gives_the_same_bytes_twice(tmp_path, config, partition, precision):
    """With 17 tokens, attention by another way than on the CPU, and convolution of patches."""
    architecture = Architecture(16, 4, 1, 64, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    training = dataclasses.replace(config.training, device="cuda", precision=precision)
    there = dataclasses.replace(config, training=training)
    material = prepare_material("digits", backbone, "cuda")
    for place in ("once", "again"):
        run_to(tmp_path / place / "run", tmp_path / place / "store", there, material, partition)
    for name in BYTE_IDENTICAL:
        once, again = (tmp_path / place / "run" / name for place in ("once", "again"))
        assert once.read_bytes() == again.read_bytes(), name


#: Between them terms, probes, models of a client's own and rules of every kind.
PARTS = ("fedsdg", "scaffold", "feddpa", "apfl", "focus", "cgsv-xu", "fedcurv")


def by_torch(config):
    """Return the config with PyTorch's kernel, as on a real GPU."""
    return dataclasses.replace(
        config, training=dataclasses.replace(config.training, kernel="torch")
    )


@pytest.mark.parametrize("method", PARTS)
def test_a_run_keeps_every_tensor_where_it_is_worked_with(
    config, material, partition, finished, method, monkeypatch
):
    """On a device that is pretended: nothing is mixed, numbers are those of the CPU, and no
    operation is one that torch knows no fixed order for."""
    monkeypatch.setattr("fedsdg.federation.passes.budget", lambda device: 1 << 34)
    monkeypatch.setattr("fedsdg.federation.fisher.budget", lambda device: 1 << 34)
    changed = by_torch(suited(config, method))
    with pretended_cuda() as machine:
        samples = Samples(material.samples.images.cuda(), material.samples.labels.cuda())
        there = dataclasses.replace(material, samples=samples)
        gpu = build(changed.run("digits", SKEW, method_entry(method), 0), there, partition)
        gpu.run()
        assert gpu.theta.is_cuda and gpu.bank.device.type == "cuda"
        gpu.theta = gpu.theta.cpu()
    assert machine.operations.total() > 1000
    assert not DISORDERLY & set(machine.operations)
    cpu = finished(method, clients_per_round=changed.federation.clients_per_round)
    for mine, other in zip(gpu.records.rounds, cpu.records.rounds, strict=True):
        assert mine.keys() == other.keys()
        for exactly in ("bytes_up", "bytes_down", "local_steps", "samples_processed"):
            assert mine[exactly] == other[exactly]
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
    assert distance(gpu, cpu) < 1e-2


@pytest.mark.parametrize("method", ["fedsdg", "scaffold"])
def test_the_host_waits_as_often_for_many_clients_and_tensors_as_for_few(
    config, partition, method, monkeypatch
):
    """In a round without evaluation, gates and messages included."""
    monkeypatch.setattr("fedsdg.federation.passes.budget", lambda device: 1 << 34)
    waits = []
    for clients, depth in ((2, 1), (6, 3)):
        architecture = Architecture(8, 4, 1, 32, depth, 2, (0.5,), (0.5,))
        backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
        material = prepare_material("digits", backbone, "cpu")
        federation = dataclasses.replace(
            config.federation, clients_per_round=clients, rounds=3, evaluate_every=3
        )
        changed = by_torch(dataclasses.replace(config, federation=federation))
        with pretended_cuda() as machine:
            samples = Samples(material.samples.images.cuda(), material.samples.labels.cuda())
            there = dataclasses.replace(material, samples=samples)
            one = build(changed.run("digits", SKEW, method_entry(method), 0), there, partition)
            one.step(1)
            before = machine.waits.total()
            one.step(2)
            waits.append(machine.waits.total() - before)
    assert waits[0] == waits[1] > 0


@pytest.fixture
def done(config, material, partition, tmp_path):
    """Do a run into a folder, as the command does; the store lies beside it."""

    def do(folder):
        run = config.run("digits", SKEW, method_entry("fedavg"), 0)
        store = tmp_path / "runs"
        failure = execute(run, material, partition, tmp_path / folder, store=store, identity={})
        assert failure is None
        return tmp_path / folder

    return do


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["rounds.parquet", "clients.parquet", "result.json"])
def test_a_flipped_bit_in_the_store_has_the_run_made_again(done, tmp_path, capsys, name):
    first = done("first")
    (kept,) = (tmp_path / "runs").iterdir()
    flipped(kept / name)
    second = done("second")
    assert f"{kept / name} has changed" in capsys.readouterr().err
    for file in BYTE_IDENTICAL:
        assert (second / file).read_bytes() == (first / file).read_bytes()
    done("third")
    assert capsys.readouterr().err == ""


def test_a_run_that_was_kept_without_hashes_is_made_again(done, tmp_path, capsys):
    done("first")
    (kept,) = (tmp_path / "runs").iterdir()
    (kept / "SHA256SUMS").unlink()
    done("second")
    error = capsys.readouterr().err.splitlines()
    assert error == [f"fedsdg: {kept} has no SHA256SUMS; the run is made again"]
    assert (kept / "SHA256SUMS").is_file()


def test_the_hashes_of_records_are_those_of_what_lies_there(done):
    folder = done("first")
    assert changed_file(folder) is None
    flipped(folder / "clients.parquet")
    assert str(folder / "clients.parquet") in changed_file(folder)
