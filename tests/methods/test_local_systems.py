"""Whole runs of the methods whose difference lies in what a client does, on real digits."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedsdg.experiment.building import build
from fedsdg.experiment.conditions import parse_conditions
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.federation import rounds
from fedsdg.federation.exchange import measure, merged
from fedsdg.federation.fisher import diagonal_fisher
from fedsdg.federation.losses.cross_entropy import CrossEntropy
from fedsdg.federation.losses.focal import Focal
from fedsdg.federation.together import step_together
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze
from fedsdg.models.parameters import views

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
ROUNDS, CLIENTS = 3, 8
NAMES = ("fedsgd", "fedprox-inexact", "fedcurv", "fedrep", "ditto", "interpolate")


@pytest.fixture(scope="module")
def config():
    raw = yaml.safe_load(CONFIG.read_text())
    raw["training"]["kernel"] = "torch"
    raw["federation"] |= {"clients": CLIENTS, "clients_per_round": 4, "rounds": ROUNDS}
    raw["federation"] |= {"evaluate_every": 1}
    raw["methods"] = ["fedavg"]
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    return parse_config(raw)


@pytest.fixture(scope="module")
def material():
    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    return prepare_material("digits", backbone, "cpu")


@pytest.fixture(scope="module")
def fresh(config, material):
    def make(entry, seed=0, conditions=None, **training):
        changed = dataclasses.replace(
            config, training=dataclasses.replace(config.training, **training)
        )
        partition = make_partition("digits", SKEW, seed, CLIENTS, config.partition)
        run = changed.run("digits", SKEW, method_entry(entry), seed)
        if conditions is not None:
            run = dataclasses.replace(run, conditions=parse_conditions(conditions))
        return build(run, material, partition)

    return make


@pytest.fixture(scope="module")
def finished(fresh):
    cache = {}

    def run(entry, **training):
        key = repr((entry, training))
        if key not in cache:
            cache[key] = fresh(entry, **training)
            cache[key].run()
        return cache[key]

    return run


def as_config(loss):
    """A loss as a config names it."""
    name = "focal" if isinstance(loss, Focal) else "cross-entropy"
    return {"type": name, **dataclasses.asdict(loss)}


def rows(federation, **wanted):
    return [
        row
        for row in federation.records.clients
        if all(row.get(name) == value for name, value in wanted.items())
    ]


def test_fedsgd_equals_fedavg_with_one_full_batch_step(finished):
    """Bit for bit, for whoever sets the same by hand; one step a client and round."""
    ours = finished({"type": "fedsgd", "eta_g": 0.5})
    theirs = finished(
        {"type": "fedavg", "optimiser": "sgd", "eta_g": 0.5}, epochs=1, batch_size=10_000
    )
    assert torch.equal(ours.theta, theirs.theta)
    assert ours.records.rounds == theirs.records.rounds
    for row in rows(ours, participated=True):
        assert row["local_steps"] == 1 and row["samples_processed"] == row["n_train"]


def test_inexact_fedprox_records_what_every_client_processed(finished):
    """n (e + 1 + min(e, most − 1)) samples in e epochs, and a γ that is the client's for good."""
    one = finished("fedprox-inexact")
    assert set(one.gammas) <= {0.9, 0.7, 0.5} and len(set(one.gammas)) > 1
    epochs = []
    for row in rows(one, participated=True):
        per_epoch = -(-row["n_train"] // 16)
        epochs.append(row["local_steps"] / per_epoch)
        assert epochs[-1] == int(epochs[-1]) and 1 <= epochs[-1] <= 10
        processed = row["n_train"] * (epochs[-1] + 1 + min(epochs[-1], 9))
        assert row["samples_processed"] == processed
    assert min(epochs) < 10


def test_inexact_fedprox_that_never_stops_is_fedprox_with_ten_epochs(fresh, finished):
    plain = finished("fedprox", epochs=10)
    one = fresh("fedprox-inexact")
    one.gammas = np.zeros(CLIENTS)
    one.step(1)
    assert one.records.rounds[0]["local_steps"] == plain.records.rounds[0]["local_steps"]
    assert one.records.rounds[0]["train_loss"] == pytest.approx(
        plain.records.rounds[0]["train_loss"], rel=1e-4
    )


def test_fedcurv_sends_three_times_and_a_round_without_sums_is_fedavg(finished):
    curv, plain = finished("fedcurv"), finished("fedavg")
    for mine, theirs in zip(curv.records.rounds, plain.records.rounds, strict=True):
        for direction in ("bytes_up", "bytes_down"):
            assert mine[direction] / theirs[direction] == pytest.approx(3, rel=0.15)
    # Nothing is known of anybody in the first round; later the penalty tells.
    assert curv.records.rounds[0]["train_loss"] == plain.records.rounds[0]["train_loss"]
    assert not torch.equal(curv.theta, plain.theta)
    without = finished({"type": "fedcurv", "strength": 0})
    assert torch.equal(without.theta, plain.theta)


def test_fedcurv_clients_take_off_what_they_sent_and_forget_it(fresh):
    one = fresh("fedcurv")
    cohort = one.cohort(1)
    one.step(1)
    place = torch.from_numpy(cohort)
    total = one.rule.broadcast(one.state)
    for name in ("fisher", "fisher_theta"):
        assert torch.allclose(one.bank.kept(name, place).sum(0), total[name], rtol=1e-5, atol=1e-9)
    nxt = one.cohort(2)
    asked = one.clients(2, nxt)
    for k, client in enumerate(nxt):
        own = asked.state["fisher"][k]
        if client in cohort:
            # What it holds is I at the θ_k that it sent: I θ_k / I.
            theta = (asked.state["fisher_theta"][k] / own.clamp(min=1e-30))[None]
            seen = own > 1e-12
            again = diagonal_fisher(
                one.model, one.layout, one.samples, [one.shards.train[client]], theta,
                one.private.expand(1, -1), one.work.loss,
            )[0]  # fmt: skip
            assert torch.allclose(again[seen], own[seen], rtol=0.05)
        else:
            assert not own.any()
    assert {client in cohort for client in nxt} == {True, False}


@pytest.mark.parametrize("loss", [Focal(), CrossEntropy(class_weights=tuple(range(1, 11)))])
@pytest.mark.parametrize("method", ["clustered", "focus", "fedcurv"])
def test_what_clients_measure_is_the_loss_that_they_train_on(fresh, method, loss):
    """By hand, sample by sample: PyTorch's mean of the loss, or of its squared gradients."""
    one = fresh(method, conditions={"benchmark_images": 30}, loss=as_config(loss))
    cohort = one.cohort(1)
    asked = one.clients(1, cohort)
    local = one.passes.train(one.model, one.layout, one.samples, asked, one.work)
    found = measure(one, 1, cohort, asked, local)
    numbers, vectors = merged([f.numbers for f in found]), merged([f.vectors for f in found])

    def of(theta, private, shard):
        named = views(theta, one.layout.communicated) | views(private, one.layout.private)
        logits = one.model.logits(one.samples.images[shard], [len(shard)], named)
        return loss(logits, one.samples.labels[shard], reduction="mean")

    for k, client in enumerate(cohort):
        own = one.shards.train[client]
        before, after = asked.private[[k]], local.private[[k]]
        if method == "clustered":
            for c, model in enumerate(one.models):
                expected = of(model[None], before, own)
                assert float(numbers["scores"][k, c]) == pytest.approx(float(expected), rel=1e-5)
        elif method == "focus":
            there = of(asked.start[[k]], before, own)
            assert float(numbers["global_loss"][k]) == pytest.approx(float(there), rel=1e-5)
            here = of(local.theta[[k]], after, one.shards.benchmark)
            assert float(numbers["benchmark_loss"][k]) == pytest.approx(float(here), rel=1e-5)
        else:
            squares, total = torch.zeros(one.layout.d), 0.0
            for sample in own:
                theta = local.theta[[k]].clone().requires_grad_()
                of(theta, after, [sample]).backward()
                weight = loss.weigh(one.samples.labels[[sample]])
                weight = 1.0 if weight is None else float(weight)
                # The mean of one sample is its loss without a weight.
                squares, total = squares + weight * theta.grad[0].square(), total + weight
            torch.testing.assert_close(vectors["fisher"][k], squares / total, rtol=1e-4, atol=1e-9)


def test_a_learned_weight_is_chosen_by_the_loss_that_clients_train_on(fresh):
    one = fresh({"type": "interpolate", "weight": None}, loss="focal")
    clients = np.arange(CLIENTS)
    models = one.downloads(clients)
    found = one.score(clients)(models)
    for k in clients:
        own, named = one.shards.val[k], views(models[[k]], one.layout.communicated)
        logits = one.model.logits(one.samples.images[own], [len(own)], named)
        expected = Focal()(logits, one.samples.labels[own], reduction="mean")
        assert float(found[k]) == pytest.approx(float(expected), rel=1e-5)


def test_fedrep_shares_the_adapters_and_keeps_the_heads(finished):
    one, plain = finished("fedrep"), finished("fedavg")
    head = 10 * 16 + 10
    assert one.layout.d == plain.layout.d - head and one.layout.d_private == head
    assert all("global_accuracy" not in row for row in one.records.rounds)
    for row in rows(one, participated=True):
        assert row["samples_processed"] == (2 + 2) * row["n_train"]
    took_part = {row["client"] for row in rows(one, participated=True)}
    heads = one.bank.private(torch.arange(CLIENTS))
    different = {tuple(row.tolist()) for row in heads[sorted(took_part)]}
    assert len(different) == len(took_part)
    for client in set(range(CLIENTS)) - took_part:
        assert torch.equal(heads[client], one.private)
    sent = plain.records.rounds[0]["bytes_up"] - one.records.rounds[0]["bytes_up"]
    assert sent >= 4 * 4 * head, "four clients, four bytes a number"


def test_ditto_is_fedavg_for_the_server_and_another_model_for_the_client(finished):
    one, plain = finished("ditto"), finished("fedavg")
    assert torch.equal(one.theta, plain.theta)
    for mine, theirs in zip(one.records.rounds, plain.records.rounds, strict=True):
        for name in ("global_accuracy", "bytes_up", "bytes_down", "train_loss"):
            assert mine[name] == theirs[name]
        assert mine["samples_processed"] == 2 * theirs["samples_processed"]
    assert (
        one.records.rounds[-1]["personal_accuracy"]
        != (plain.records.rounds[-1]["personal_accuracy"])
    )


def test_interpolation_with_weight_zero_is_fedavg_in_every_record(finished):
    one, plain = finished({"type": "interpolate", "weight": 0.0}), finished("fedavg")
    assert torch.equal(one.theta, plain.theta)
    for mine, theirs in zip(one.records.rounds, plain.records.rounds, strict=True):
        assert mine == theirs
    assert one.records.clients == plain.records.clients


def test_the_learned_weight_never_validates_worse_than_the_shared_model(fresh):
    """The shared model is one of the mixes that are tried, so its loss is a bound."""
    one = fresh({"type": "interpolate", "weight": None})
    one.run()
    everyone = np.arange(CLIENTS)
    score, downloads = one.score(everyone), one.downloads(everyone)
    kept = one.bank.gather(torch.from_numpy(everyone))[1]
    used = one.own.models(downloads, kept, one.bank.trained, score)
    assert bool((score(used) <= score(downloads)).all())
    assert bool((score(used) < score(downloads)).any())


def test_the_official_rows_are_what_the_authors_run(fresh):
    for name in ("fedsdg-official", "fedsdg-official-aligned"):
        one = fresh(name)
        assert one.schedule.epochs == 5 and one.work.eta_m == 0.1
        gates = [spec for spec in one.layout.private if spec.group == "gate"]
        assert len(gates) == 2 * 2, "two adapted layers in each of two blocks"
        columns = slice(one.layout.d_private - len(gates), None)
        assert torch.all(one.private[columns] == -2.0)
        gate_term, private_term = one.work.terms
        assert (gate_term.lambda1, private_term.lambda2) == (0.01, 0.001)
        assert torch.equal(one.theta, fresh("fedavg").theta)
        one.step(1)
    assert one.rule.reference == "leave_one_out" and one.rule.temperature == 0.05


def test_fedsdg_with_a_private_head_and_without(config, finished):
    one = finished({"type": "fedsdg", "head": "private"})
    assert not one.layout.global_model and "global_accuracy" not in one.records.rounds[-1]
    gates = [row["gates"] for row in rows(one, round=ROUNDS) if "gates" in row]
    assert gates and all(len(own) == 2 for own in gates)
    entries = ("fedsdg", {"type": "fedsdg", "head": "shared"})
    silent, said = (config.run("digits", SKEW, method_entry(entry), 0) for entry in entries)
    assert silent.hash == said.hash and silent.parameters["head"] == "shared"
    private = method_entry({"type": "fedsdg", "head": "private"})
    assert private.parameters["head"] == "private"


@pytest.mark.parametrize("name", NAMES)
def test_a_round_that_is_broken_off_leaves_no_trace(fresh, name, monkeypatch):
    one, twin = fresh(name), fresh(name)
    for federation in (one, twin):
        federation.step(1)

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "evaluate", fail)
        with pytest.raises(KeyboardInterrupt):
            one.step(2)
    one.step(2)
    twin.step(2)
    assert torch.equal(one.theta, twin.theta)
    assert one.records.rounds == twin.records.rounds and one.records.clients == twin.records.clients


@pytest.mark.parametrize("name", ["fedprox-inexact", "fedcurv", "fedrep", "ditto", "interpolate"])
def test_seeds_that_train_together_are_the_seeds_alone(fresh, name):
    together, alone = ([fresh(name, seed) for seed in (0, 1)] for _ in range(2))
    step_together(together, 1)
    for one, two in zip(together, alone, strict=True):
        two.step(1)
        moved = float((two.theta - one.theta).norm())
        assert moved < 1e-3 * float((two.theta - fresh(name, two.seed).theta).norm())
        assert [row["samples_processed"] for row in rows(one, participated=True)] == [
            row["samples_processed"] for row in rows(two, participated=True)
        ]


@pytest.mark.parametrize("name", NAMES)
def test_who_drops_out_keeps_what_it_had_and_an_empty_round_changes_nothing(fresh, name):
    one = fresh(name, conditions={"dropout": {"probability": 0.8}})
    seen = set()
    for round_ in range(1, 7):
        everyone = torch.arange(CLIENTS)
        private, kept = one.bank.gather(everyone)
        theta, present = one.theta.clone(), set(one.cohort(round_).tolist())
        one.step(round_)
        away = torch.tensor(sorted(set(range(CLIENTS)) - present))
        now, stays = one.bank.gather(away)
        assert torch.equal(now, private[away])
        assert all(torch.equal(stays[key], kept[key][away]) for key in kept)
        assert torch.equal(one.theta, theta) == (not present)
        seen.add(bool(present))
    assert seen == {True, False}


def test_fedcurv_remembers_the_last_cohort_through_an_empty_round(fresh):
    """The server's sums are still those of it, so its clients have still their own to take off."""
    one = fresh("fedcurv", conditions={"dropout": {"probability": 0.8}})
    known, afterwards = set(), 0
    for round_ in range(1, 13):
        present = one.cohort(round_)
        asked = one.clients(round_, present)
        for client, own in zip(present.tolist(), asked.state["fisher"], strict=True):
            assert bool(own.any()) == (client in known)
        empty = not len(present)
        one.step(round_)
        afterwards += empty and bool(known)
        known = known if empty else set(present.tolist())
    assert afterwards, "there were empty rounds"


@pytest.mark.parametrize("name", NAMES)
def test_a_client_takes_the_steps_it_has_time_for(fresh, name):
    """Nobody takes more, whatever it trains; FedCurv measures with a part of its time."""
    compute = {"slowest": 1.0, "fastest": 8.0, "local_seconds": 2.5, "max_epochs": 6}
    one = fresh(name, conditions={"compute": compute})
    one.step(1)
    for row in rows(one, participated=True):
        speed = one.circumstances.clock.speeds[row["client"]]
        assert 1 <= row["local_steps"] <= int(2.5 * speed)
    assert torch.isfinite(one.theta).all()
