"""Rivals that split a model's parameters differently, by what their definitions demand."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.federation import cohort_training
from fedsdg.federation.clients import Clients
from fedsdg.federation.cohorts import cohort_batches, draw_batches
from fedsdg.federation.evaluation import personal_accuracies
from fedsdg.federation.judged_models import judged_models, private_as_judged
from fedsdg.federation.messages import serialise
from fedsdg.federation.steps import by_epochs
from fedsdg.federation.traffic import traffic
from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import make_layout, side_by_side
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze
from fedsdg.models.forward import class_tokens
from fedsdg.models.instance_mixture import InstanceMixture
from fedsdg.models.mixture import MixedModel
from fedsdg.models.parameters import offsets, views
from fedsdg.rng import stream

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
ROUNDS, CLIENTS, RANK = 3, 8, 2


@pytest.fixture(scope="module")
def material():
    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    return prepare_material("digits", backbone, "cpu")


def prepared(material, entry, training=(), conditions=None, trainable="adapters", **federation):
    """A federation of a method's entry, and of what is otherwise than usual, before its rounds."""
    raw = yaml.safe_load(CONFIG.read_text())
    raw["training"]["kernel"] = "torch"
    raw["federation"] |= {"clients": CLIENTS, "clients_per_round": 4, "rounds": ROUNDS}
    raw["federation"] |= {"evaluate_every": 1, **federation}
    raw["training"] |= dict(training)
    raw["methods"] = [entry]
    raw["adapters"] |= {"rank": RANK, "alpha": 4}
    raw["conditions"] = conditions or {}
    raw["trainable"] = trainable
    config = parse_config(raw)
    clients = config.federation.clients
    partition = make_partition("digits", SKEW, 0, clients, config.partition)
    one = build(config.run("digits", SKEW, method_entry(entry), 0), material, partition)
    one.start = one.theta.clone()
    return one


@pytest.fixture(scope="module")
def finished(material):
    """As ``prepared``, after the rounds; everything is run once."""
    cache = {}

    def run(entry, training=(), **federation):
        key = repr((entry, training, federation))
        if key not in cache:
            cache[key] = prepared(material, entry, training, **federation)
            cache[key].run()
        return cache[key]

    return run


def alone(finished, entry, **training):
    """The federation of one client."""
    given = tuple(training.items())
    return finished(entry, given, clients=1, clients_per_round=1)


def everything(one):
    """All parameters of the models that all clients use, by name: [K, ...]."""
    everyone = torch.arange(one.num_clients)
    private = views(one.bank.private(everyone), one.layout.private)
    return {**views(one.theta.expand(len(everyone), -1), one.layout.communicated), **private}


def of(named, *ends):
    return {name: value for name, value in named.items() if name.endswith(ends)}


def metrics(one, *names):
    return [[row[name] for name in names] for row in one.records.rounds]


def close(a, b):
    """Models in float32 after the same training by another order of additions."""
    assert a.keys() == b.keys()
    for name in a:
        assert torch.allclose(a[name], b[name], rtol=1e-3, atol=1e-5), name


# --- FedPer ---------------------------------------------------------------------------------------


def test_fedper_splits_as_fedrep_and_trains_all_at_once(finished):
    per, rep = finished("fedper"), finished("fedrep")
    assert per.layout == rep.layout
    for name in ("bytes_up", "bytes_down"):
        assert metrics(per, name) == metrics(rep, name)
    assert all("global_accuracy" not in row for row in per.records.rounds)
    for row in per.records.clients:
        assert not row["participated"] or row["samples_processed"] == 2 * row["n_train"]
    trained = per.bank.trained
    heads = everything(per)["head.weight"]
    assert all(torch.equal(head, heads[~trained][0]) for head in heads[~trained])
    assert len({tuple(head.flatten().tolist()) for head in heads[trained]}) == int(trained.sum())


def test_fedper_with_one_client_is_plain_training(finished):
    per, plain = alone(finished, "fedper"), alone(finished, "fedavg")
    close(everything(per), everything(plain))
    assert metrics(per, "personal_accuracy") == metrics(plain, "personal_accuracy")


# --- FedSDG with own heads ------------------------------------------------------------------------


def test_fedsdg_with_own_heads_is_the_option_by_a_name_of_its_own(finished):
    row, option = finished("fedsdg+head"), finished({"type": "fedsdg", "head": "private"})
    assert row.layout == option.layout and torch.equal(row.theta, option.theta)
    assert row.records.rounds == option.records.rounds
    assert row.records.clients == option.records.clients


# --- FFA-LoRA -------------------------------------------------------------------------------------


def factors(one, theta, private):
    """(B, A) of every adapted layer for these rows."""
    named = {**views(theta, one.layout.communicated), **views(private, one.layout.private)}
    layers = [name.removesuffix(".lora_A") for name in of(named, ".lora_A")]
    return [
        (named[f"{layer}.lora_B"].double(), named[f"{layer}.lora_A"].double()) for layer in layers
    ]


def local_rows(one, round_):
    """What the clients of a round end with: (θ_k [M, d], private [M, d_p])."""
    asked = one.clients(round_, one.cohort(round_))
    local = one.passes.train(one.model, one.layout, one.samples, asked, one.work)
    return local.theta, local.private


@pytest.mark.parametrize("name, exact", [("ffa-lora", True), ("fedavg-uniform", False)])
def test_with_a_frozen_a_the_mean_of_products_is_the_product_of_means(finished, name, exact):
    """FedAvg of both factors is not: the remainder is Σ p_k (B_k − B̄)(A_k − Ā)."""
    one = finished(name)
    theta, private = local_rows(one, ROUNDS + 1)
    for (b, a), (mean_b, mean_a) in zip(
        factors(one, theta, private),
        factors(one, theta.mean(0, keepdim=True), private[:1]),
        strict=True,
    ):
        products = (b @ a).mean(0)
        error = float((products - mean_b[0] @ mean_a[0]).norm() / products.norm())
        assert error < 1e-6 if exact else error > 1e-4


def test_a_frozen_a_is_the_common_draw_to_the_last_bit(finished):
    one, plain = finished("ffa-lora"), finished("fedavg")
    now = of(everything(one), ".lora_A")
    first = of(views(plain.start[None], plain.layout.communicated), ".lora_A")
    assert len(now) == 4 and now.keys() == first.keys()
    for name in now:
        assert all(torch.equal(mine, first[name][0]) for mine in now[name])
    # Heads and B's start as everybody's, and have moved.
    start = views(one.start[None], one.layout.communicated)
    whole = views(plain.start[None], plain.layout.communicated)
    for name, value in start.items():
        assert torch.equal(value, whole[name])
        assert not torch.equal(value[0], everything(one)[name][0])
    assert one.layout.own_parameters == 0 and one.layout.global_model
    assert all("global_accuracy" in row for row in one.records.rounds)


def test_ffa_clients_all_use_the_servers_model(finished):
    """Nothing private differs, so whoever never took part is judged as everybody else."""
    one = finished("ffa-lora")
    named = everything(one)
    assert all(torch.equal(value, value[:1].expand_as(value)) for value in named.values())


def test_ffa_with_one_client_is_lora_whose_a_does_not_learn(finished):
    """Against FedAvg whose A's gradients are taken away before every step."""
    one = alone(finished, "ffa-lora")
    columns = offsets(alone(finished, "fedavg").layout.communicated)
    still = [place for name, place in columns.items() if name.endswith(".lora_A")]
    real = cohort_training._fix

    def without(rows, moves):
        real(rows, moves)
        for place in still:
            rows.theta_grad[:, place] = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohort_training, "_fix", without)
        plain = finished("fedavg", (("clip_norm", 1.0),), clients=1, clients_per_round=1)
    close(everything(one), everything(plain))


# --- FedBABU --------------------------------------------------------------------------------------

HEAD = {"head.weight", "head.bias"}


def copies(one, **schedule):
    """All parameters of the models that clients are judged with now, by name; and all steps."""
    one = dataclasses.replace(one, schedule=dataclasses.replace(one.schedule, **schedule))
    everybody = np.ones(one.num_clients, dtype=bool)
    found = judged_models(one, ROUNDS, everybody, ~everybody)
    theta = found.theta.expand(one.num_clients, -1)
    private = found.private(torch.arange(one.num_clients))
    named = views(theta, one.layout.communicated) | views(private, one.layout.private)
    return named, found.steps


@pytest.mark.parametrize("trainable", ["adapters", "full"])
def test_a_frozen_head_is_the_common_draw_to_the_last_bit_and_is_not_sent(material, trainable):
    if trainable == "full":
        material = prepare_material("digits", None, "cpu")
    one, plain = (prepared(material, entry, trainable=trainable) for entry in ("fedbabu", "fedavg"))
    first = views(plain.start[None], plain.layout.communicated)
    for name, value in everything(one).items():
        assert torch.equal(value, first[name].expand_as(value)), name
    one.run(), plain.run()
    for name, value in everything(one).items():
        assert torch.equal(value, first[name].expand_as(value)) == (name in HEAD), name
    assert {spec.name for spec in one.layout.communicated} == first.keys() - HEAD
    size = sum(first[name].numel() for name in HEAD)
    assert plain.layout.d - one.layout.d == size
    for row, usual in zip(one.records.rounds, plain.records.rounds, strict=True):
        for sent in ("bytes_up", "bytes_down"):
            assert usual[sent] - row[sent] >= 4 * 4 * size  # four clients, four bytes a number
        assert "global_accuracy" in row
    assert one.layout.own_parameters == 0


@pytest.mark.parametrize(
    ("entry", "head_alone"),
    [
        ("fedbabu", True),
        ({"type": "fedbabu", "tunes": "all"}, False),
        ({"type": "fine-tune", "tunes": "head"}, True),
        ("fine-tune", False),
    ],
    ids=str,
)
def test_before_an_evaluation_copies_train_what_is_tuned_alone(finished, entry, head_alone):
    one = finished(entry)
    before, (tuned, steps) = everything(one), copies(one)
    for name, value in before.items():
        same = [torch.equal(a, b) for a, b in zip(value, tuned[name], strict=True)]
        assert same == [head_alone and name not in HEAD] * CLIENTS, name
    assert steps == 2 * one.batches_per_epoch(np.arange(CLIENTS)).sum()
    assert one.records.rounds[-1]["evaluation_steps"] == steps
    for name, value in everything(one).items():
        assert torch.equal(value, before[name]), "nothing is fed back"


def test_a_tuned_head_is_that_of_a_plain_loop(finished):
    """Adam of PyTorch on the head of one client, whose adapters stand still."""
    one = finished("fedbabu")
    named, before = copies(one)[0], everything(one)
    head = [before[name][:1].clone().requires_grad_() for name in ("head.weight", "head.bias")]
    fixed = {name: value[:1] for name, value in before.items()}
    adam = torch.optim.Adam(head, lr=one.work.eta_g)
    batches = cohort_batches(
        one.shards.train, [0], purpose="evaluation", seed=0, round_=ROUNDS,
        batch_size=one.schedule.batch_size, epochs=2,
    )[0]  # fmt: skip
    for batch in batches:
        adam.zero_grad()
        parameters = fixed | {"head.weight": head[0], "head.bias": head[1]}
        scores = one.model.logits(one.samples.images[batch], [len(batch)], parameters)
        torch.nn.functional.cross_entropy(scores, one.samples.labels[batch]).backward()
        torch.nn.utils.clip_grad_norm_(head, one.work.clip_norm)
        adam.step()
    for name, value in zip(("head.weight", "head.bias"), head, strict=True):
        moved = (value - before[name][:1]).norm()
        assert (named[name][:1] - value).norm() < 1e-3 * moved


def test_without_epochs_of_tuning_clients_are_judged_with_the_global_model(finished):
    plain, one = finished({"type": "fedbabu", "personal_epochs": 0}), finished("fedbabu")
    assert torch.equal(plain.theta, one.theta), "an evaluation feeds nothing back"
    named = {name: value[:1] for name, value in everything(plain).items()}
    right = []
    for test in plain.shards.test:
        scores = plain.model.logits(plain.samples.images[test], [len(test)], named)
        right.append(float((scores.argmax(1) == plain.samples.labels[test]).double().mean()))
    row, tuned = plain.records.rounds[-1], one.records.rounds[-1]
    assert row["personal_accuracy"] == pytest.approx(np.mean(right))
    assert tuned["personal_accuracy"] != row["personal_accuracy"]
    assert tuned["global_accuracy"] == row["global_accuracy"]
    assert row["evaluation_steps"] == 0


def test_fedbabu_with_one_client_is_lora_whose_head_does_not_learn(finished, monkeypatch):
    """Against FedAvg whose gradients by the head are taken away before every step."""
    one = alone(finished, "fedbabu")
    columns = offsets(alone(finished, "fedavg").layout.communicated)
    real = cohort_training._fix

    def without(rows, moves):
        real(rows, moves)
        for name in HEAD:
            rows.theta_grad[:, columns[name]] = 0

    monkeypatch.setattr(cohort_training, "_fix", without)
    plain = finished("fedavg", (("clip_norm", 1.0),), clients=1, clients_per_round=1, rounds=3)
    close(everything(one), everything(plain))


# --- FedSA-LoRA -----------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["shared", "private"])
def test_fedsa_keeps_every_b_at_home_and_shares_every_a(finished, head):
    one = finished({"type": "fedsa-lora", "head": head})
    sent = {spec.name for spec in one.layout.communicated}
    assert not of(dict.fromkeys(sent), ".lora_B") and len(of(dict.fromkeys(sent), ".lora_A")) == 4
    assert ("head.weight" in sent) == (head == "shared")
    assert not of(dict.fromkeys({s.name for s in one.layout.private}), "lora_k_logit", "_private")
    trained = one.bank.trained
    assert {True, False} == set(trained.tolist())
    for value in of(everything(one), ".lora_B").values():
        assert not value[~trained].any(), "who never took part has B = 0"
        own = {tuple(row.flatten().tolist()) for row in value[trained]}
        assert len(own) == int(trained.sum())
    assert all("global_accuracy" not in row for row in one.records.rounds)
    assert one.layout.own_parameters == sum(spec.size for spec in one.layout.private) > 0


@pytest.mark.parametrize("head", ["shared", "private"])
def test_fedsa_with_one_client_is_lora(finished, head):
    one, plain = alone(finished, {"type": "fedsa-lora", "head": head}), alone(finished, "fedavg")
    close(everything(one), everything(plain))
    assert metrics(one, "personal_accuracy") == metrics(plain, "personal_accuracy")


def test_a_frozen_a_and_a_private_b_leave_nothing_to_learn_in_common():
    with pytest.raises(ValueError, match="set one of factor_a and factor_b to 'shared'"):
        AdapterConfig(factor_a="frozen", factor_b="private")
    for option in ({"factor_a": "frozen"}, {"factor_b": "private"}, {"head": "frozen"}):
        with pytest.raises(ValueError, match=f"so {next(iter(option))} must be 'shared'"):
            AdapterConfig(local=True, **option)


# --- RoLoRA ---------------------------------------------------------------------------------------


def step_by_step(material, entry, changed=lambda one: one, **federation):
    """θ after every round, from the start on, and the federation."""
    one = changed(prepared(material, entry, **federation))
    thetas = [one.theta.clone()]
    for round_ in range(1, one.schedule.rounds + 1):
        one.step(round_)
        thetas.append(one.theta.clone())
    return thetas, one


def changed_names(one, before, after):
    columns = offsets(one.layout.communicated)
    return {name for name, place in columns.items() if not torch.equal(before[place], after[place])}


def test_rolora_moves_one_factor_and_the_head_and_leaves_the_other_bit_equal(material):
    thetas, one = step_by_step(material, "rolora", rounds=4)
    names = offsets(one.layout.communicated)
    head = {"head.weight", "head.bias"}
    for round_, (before, after) in enumerate(itertools.pairwise(thetas), start=1):
        turn = ".lora_B" if round_ % 2 else ".lora_A"
        wanted = {name for name in names if name.endswith(turn)} | head
        assert changed_names(one, before, after) == wanted


def test_with_a_first_nothing_is_learned_in_the_first_round_but_by_the_head(material):
    def a_first(one):
        return dataclasses.replace(
            one, layout=dataclasses.replace(one.layout, turns=one.layout.turns[::-1])
        )

    thetas, one = step_by_step(material, "rolora", a_first, rounds=2)
    head = {"head.weight", "head.bias"}
    assert changed_names(one, thetas[0], thetas[1]) == head
    assert changed_names(one, thetas[1], thetas[2]) > head


def test_rolora_begins_as_ffa(finished, material):
    """In the first round both train B and the head on the one A."""
    thetas, one = step_by_step(material, "rolora", rounds=1)
    ffa = finished("ffa-lora", rounds=1)
    ours = views(thetas[1][None], one.layout.communicated)
    theirs = views(ffa.theta[None], ffa.layout.communicated)
    close({name: ours[name] for name in theirs}, theirs)


@pytest.mark.parametrize("round_", [2, 3])
def test_the_mean_of_rolora_products_is_the_product_of_means(material, round_):
    _, one = step_by_step(material, "rolora", rounds=round_ - 1)
    asked = one.clients(round_, one.cohort(round_))
    layout = one.layout.of_round(round_)
    local = one.passes.train(one.model, layout, one.samples, asked, one.work)
    means = factors(one, local.theta.mean(0, keepdim=True), local.private[:1])
    for (b, a), (mean_b, mean_a) in zip(
        factors(one, local.theta, local.private), means, strict=True
    ):
        products = (b @ a).mean(0)
        assert float((products - mean_b[0] @ mean_a[0]).norm() / products.norm()) < 1e-6


def test_rolora_sends_what_has_its_turn_and_owes_it_all_to_who_was_away(material):
    _, one = step_by_step(material, "rolora", rounds=5)

    def message(layout):
        return len(serialise({"": torch.zeros(layout.d)}, layout))

    sizes = {turn: message(one.layout.of_round(turn)) for turn in (1, 2)}
    assert sizes[1] < sizes[2] < message(one.layout)
    was_there = set()
    for row in one.records.rounds:
        round_ = row["round"]
        cohort = set(one.cohort(round_).tolist())
        assert row["bytes_up"] == 4 * sizes[2 - round_ % 2]
        stayed = len(cohort & was_there)
        owed = stayed * sizes[1 + round_ % 2] + (4 - stayed) * message(one.layout)
        assert row["bytes_down"] == owed
        was_there = cohort


def test_with_everybody_there_rolora_sends_half_of_what_fedavg_does(material):
    """Over a pair of rounds, both ways: A + B + 2 heads of 2 (A + B + head)."""
    tiny = Architecture(224, 16, 3, 192, 12, 3, (0.5,) * 3, (0.5,) * 3)
    for classes, ratio in ((10, 0.51), (100, 0.57)):
        layout = make_layout(tiny, classes, AdapterConfig(rank=8, alternate=True))
        theta = torch.zeros(layout.d)
        rows, none = theta.expand(3, -1), {}
        moved = [
            sum(traffic(layout, theta, none, rows, none, none, round_=r, in_step=3)) for r in (3, 4)
        ]
        whole = 2 * 3 * len(serialise({"": theta}, layout))
        assert sum(moved) / (2 * whole) == pytest.approx(ratio, abs=0.012)


def test_attackers_cannot_move_the_factor_that_rests(material):
    thetas, one = step_by_step(
        material, "rolora", rounds=2, conditions={"attack": {"type": "gaussian", "share": 0.5}}
    )
    for before, after, resting in (
        (thetas[0], thetas[1], ".lora_A"),
        (thetas[1], thetas[2], ".lora_B"),
    ):
        assert not of(dict.fromkeys(changed_names(one, before, after)), resting)


class ServerAlone(Rule):
    """The step is what the server's own samples make of its model."""

    reads = ("update", "server")

    def plan(self, rows, context, state):
        server = torch.from_numpy(rows["server"].numbers()[0])
        return Plan(Combination(np.zeros(len(context.clients)), offset=server), None, state)


class Noisy(Rule):
    """The mean, and noise on every number of it."""

    def plan(self, rows, context, state):
        size = len(context.clients)
        noise = torch.full((rows["update"].d,), 1e-3)
        return Plan(Combination(np.full(size, 1 / size), offset=noise), None, state)


@pytest.mark.parametrize("rule", [ServerAlone(), Noisy()])
def test_no_rule_moves_the_factor_that_rests(material, rule):
    def ruled(one):
        one.rule = rule
        return one

    thetas, one = step_by_step(
        material, "rolora", ruled, rounds=4, conditions={"benchmark_images": 40}
    )
    names = offsets(one.layout.communicated)
    for round_, (before, after) in enumerate(itertools.pairwise(thetas), start=1):
        turn = ".lora_B" if round_ % 2 else ".lora_A"
        wanted = {name for name in names if name.endswith(turn)} | {"head.weight", "head.bias"}
        assert changed_names(one, before, after) == wanted


def test_the_server_trains_the_factor_of_the_turn_as_a_client_with_its_samples_does(material):
    def ruled(one):
        one.rule = ServerAlone()
        return one

    thetas, one = step_by_step(
        material, "rolora", ruled, rounds=2, conditions={"benchmark_images": 40}
    )
    for round_, (before, after) in enumerate(itertools.pairwise(thetas), start=1):
        batches = draw_batches(
            one.shards.benchmark,
            batch_size=one.schedule.batch_size,
            epochs=one.schedule.epochs,
            generator=stream("server", one.seed, round_),
        )
        client = Clients([batches], before[None], one.private[None])
        layout = one.layout.of_round(round_)
        local = one.passes.train(one.model, layout, one.samples, client, one.work)
        torch.testing.assert_close(after, local.theta[0])


def test_a_late_update_moves_the_factor_whose_turn_it_was_when_it_was_trained(material):
    """What the server makes of it in a later round is not cut down to the later turn."""
    thetas, one = step_by_step(
        material,
        "rolora",
        rounds=3,
        conditions={"compute": {"slowest": 1.0, "fastest": 8.0, "arrivals": 1}},
    )
    late = [row for row in one.records.clients if row.get("age")]
    assert any(row["age"] % 2 for row in late)
    head = {"head.weight", "head.bias"}
    for round_, (before, after) in enumerate(itertools.pairwise(thetas), start=1):
        born = {
            round_ - row.get("age", 0)
            for row in one.records.clients
            if row["round"] == round_ and row.get("update_norm") is not None
        }
        turns = tuple(".lora_B" if turn % 2 else ".lora_A" for turn in born)
        names = {n for n in offsets(one.layout.communicated) if n.endswith(turns)}
        assert changed_names(one, before, after) == names | head


# --- APFL -----------------------------------------------------------------------------------------


def own_models(one):
    """The models v_k [K, d] of all clients."""
    return one.bank.private(torch.arange(one.num_clients))


def test_apfl_is_fedavg_for_the_server_to_the_last_bit(finished):
    one, plain = finished("apfl"), finished("fedavg-uniform")
    assert torch.equal(one.theta, plain.theta)
    for mine, theirs in zip(one.records.rounds, plain.records.rounds, strict=True):
        for name in ("global_accuracy", "bytes_up", "bytes_down", "train_loss"):
            assert mine[name] == theirs[name]
        assert mine["samples_processed"] == 2 * theirs["samples_processed"]


def test_apfl_with_a_weight_of_zero_is_judged_as_fedavg(finished):
    one, plain = finished({"type": "apfl", "weight": 0.0}), finished("fedavg-uniform")
    assert torch.equal(one.theta, plain.theta)
    names = ("personal_accuracy", "val_accuracy", "personal_worst_decile")
    assert metrics(one, *names) == metrics(plain, *names)
    # −a ∇f(v̂) = 0: nobody's own model moves.
    assert torch.equal(own_models(one), one.start.expand(CLIENTS, -1))


def test_apfl_with_a_weight_of_one_is_training_alone(finished):
    one, alone_ = finished({"type": "apfl", "weight": 1.0}), finished("local-only")
    trained = one.bank.trained
    assert torch.equal(trained, alone_.bank.trained) and not trained.all()
    assert torch.allclose(own_models(one), own_models(alone_), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("trainable", ["adapters", "full"])
def test_a_step_of_apfl_is_that_of_its_definition(material, trainable):
    """v − η a ∇f(v̂) and w − η ∇f(w), both at the w from before, with gradients from a plain model.

    One client, whose batch is all it has, SGD and no clipping; three steps.
    """
    rate, weight = 0.3, 0.7
    training = {"optimiser": "sgd", "eta_g": rate, "clip_norm": 1e9, "batch_size": None}
    where = {"clients": 1, "clients_per_round": 1, "rounds": 1, "trainable": trainable}
    small = prepare_material("digits", None, "cpu") if trainable == "full" else material
    entry = {"type": "apfl", "weight": weight}
    one = prepared(small, entry, (*training.items(), ("epochs", 3)), **where)
    plain = prepared(small, "fedavg-uniform", (*training.items(), ("epochs", 3)), **where)
    w = v = plain.theta.clone()
    index = torch.from_numpy(one.shards.train[0])

    def gradient(theta):
        matrix = theta[None].clone().requires_grad_()
        named = views(matrix, plain.layout.communicated)
        scores = plain.model.logits(plain.samples.images[index], [len(index)], named)
        loss = torch.nn.functional.cross_entropy(scores, plain.samples.labels[index])
        return torch.autograd.grad(loss, matrix)[0][0]

    for _ in range(3):
        mixed = weight * v + (1 - weight) * w
        w, v = w - rate * gradient(w), v - rate * weight * gradient(mixed)
    one.step(1)
    assert float((w - one.start).norm()) > 1e-3 and float((w - v).norm()) > 1e-3
    assert torch.allclose(one.theta, w, rtol=1e-4, atol=1e-6)
    assert torch.allclose(own_models(one)[0], v, rtol=1e-4, atol=1e-6)


def test_who_never_took_part_is_judged_with_the_common_model(finished):
    one, plain = finished("apfl"), finished("fedavg-uniform")
    away = set(torch.nonzero(~one.bank.trained).flatten().tolist())
    assert away
    for mine, theirs in zip(one.records.clients, plain.records.clients, strict=True):
        if mine["client"] in away:
            assert mine == theirs


def test_only_plain_models_can_be_mixed_and_by_a_share(finished):
    with pytest.raises(ValueError, match="all of whose parameters are communicated"):
        MixedModel(finished("fedper").model, 0.5)
    with pytest.raises(ValueError, match=r"weight 1\.5 must lie in \[0, 1\]"):
        MixedModel(finished("fedavg").model, 1.5)


# --- FedDPA ---------------------------------------------------------------------------------------


def by_hand(one, theta, private, share):
    """Weights W + s ((1 − λ) B_u A_u + λ B_v A_v) of every adapted layer, and the head."""
    named = {**views(theta, one.layout.communicated), **views(private, one.layout.private)}
    config, found = one.model.config, {}
    for name in of(named, ".lora_A"):
        layer = name.removesuffix(".lora_A")
        u = named[f"{layer}.lora_B"] @ named[f"{layer}.lora_A"]
        v = named[f"{layer}.lora_B_private"] @ named[f"{layer}.lora_A_private"]
        frozen = one.model.model.get_submodule(layer).weight
        found[layer] = frozen + config.alpha / config.rank * ((1 - share) * u + share * v)
    return {**found, "head.weight": named["head.weight"], "head.bias": named["head.bias"]}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_feddpa_clients_use_the_mixture_of_both_products(finished, share):
    one = finished({"type": "feddpa", "weight": share})
    everyone = torch.arange(CLIENTS)
    theta, private = one.theta.expand(CLIENTS, -1), one.bank.private(everyone)
    named = {**views(theta, one.layout.communicated), **views(private, one.layout.private)}
    for branch, expected in ((True, share), (False, 0.0)):
        weights = one.model.effective_weights(named, private=branch)
        for name, value in by_hand(one, theta, private, expected).items():
            assert torch.allclose(weights[name], value, rtol=1e-5, atol=1e-6), name
    narrow = side_by_side("blocks.0.mlp.fc2", named, one.model.config, private=True)
    frozen = one.model.model.get_submodule("blocks.0.mlp.fc2").weight
    dense = by_hand(one, theta, private, share)["blocks.0.mlp.fc2"] - frozen
    assert torch.allclose(narrow[1] @ narrow[0], dense, atol=1e-6)


def test_the_common_adapter_of_feddpa_ignores_the_own_ones(finished):
    """To the last bit the same, whatever their share."""
    models = [finished({"type": "feddpa", "weight": share}) for share in (0.0, 0.3, 1.0)]
    assert all(torch.equal(one.theta, models[0].theta) for one in models)
    privates = [own_models(one) for one in models]
    assert not torch.equal(privates[1], privates[2])


def test_feddpa_with_a_share_of_zero_is_fedavg_with_lora(material, finished):
    """Of its clients' E last epochs; v has no gradient, and is not used."""
    one = prepared(material, {"type": "feddpa", "weight": 0.0})
    plain = prepared(material, "fedavg-uniform")
    cohort = one.cohort(1)
    asked, usual = one.clients(1, cohort), plain.clients(1, cohort)
    late = [list(itertools.chain(*by_epochs(own)[2:])) for own in asked.batches]
    assert [len(own) for own in late] == [len(own) for own in usual.batches]
    mine = one.passes.train(one.model, one.layout, one.samples, asked, one.work)
    theirs = plain.passes.train(
        plain.model, plain.layout, plain.samples, dataclasses.replace(usual, batches=late),
        plain.work,
    )  # fmt: skip
    assert torch.equal(mine.theta, theirs.theta)
    assert torch.equal(mine.private, asked.private)
    done = finished({"type": "feddpa", "weight": 0.0})
    val, test = done.shards.val, done.shards.test
    none = torch.zeros(CLIENTS, dtype=torch.bool)
    common = personal_accuracies(
        done.model, done.layout, done.samples, val, test, done.theta, done.bank.private, none
    )
    assert done.records.rounds[-1]["personal_accuracy"] == common.test.mean()


def test_the_own_adapter_of_feddpa_learns_on_the_mixture_with_the_common_one_fixed(material):
    """v − η_p ∇_v of the loss at the mixture, one step of SGD on all of a client's samples."""
    rate, share = 0.5, 0.3
    training = {"optimiser": "sgd", "eta_p": rate, "eta_g": 0.1, "clip_norm": 1e9}
    training |= {"batch_size": None, "epochs": 1}
    entry = {"type": "feddpa", "weight": share, "personal_epochs": 1}
    where = {"clients": 1, "clients_per_round": 1, "rounds": 2}
    one = prepared(material, entry, tuple(training.items()), **where)
    one.step(1)
    theta, before = one.theta[None], one.bank.private(torch.arange(1)).requires_grad_()
    index = torch.from_numpy(one.shards.train[0])
    weights = by_hand(one, theta, before, share)
    scores = one.model.forward(one.samples.images[index], [len(index)], weights)
    torch.nn.functional.cross_entropy(scores, one.samples.labels[index]).backward()
    assert float(before.grad.norm()) > 1e-4
    one.step(2)
    expected = before.detach() - rate * before.grad
    assert torch.allclose(own_models(one), expected, rtol=1e-4, atol=1e-6)


def test_feddpa_sends_what_fedavg_does(finished):
    one, plain = finished("feddpa"), finished("fedavg-uniform")
    for name in ("bytes_up", "bytes_down"):
        assert metrics(one, name) == metrics(plain, name)
    assert one.layout.global_model
    for row in one.records.clients:
        assert not row["participated"] or row["samples_processed"] == 4 * row["n_train"]


def test_per_sample_every_image_has_the_share_that_its_likeness_gives(finished):
    """Against dense weights worked out for one image after another."""
    share = 0.8
    one = finished({"type": "feddpa", "weight": share, "mixture": "per-sample"})
    client = int(torch.nonzero(one.bank.trained)[0])
    rows = private_as_judged(one, torch.tensor([client]))
    inner, theta, own = (
        one.model.inner,
        one.theta[None],
        rows[:, : one.model.inner.layout.d_private],
    )
    plain = dataclasses.replace(one, model=inner, layout=inner.layout)
    v_alone = by_hand(plain, theta, own, 1.0)

    def features(index):
        tokens = class_tokens(inner.model, one.samples.images[index], [len(index)], v_alone)
        return torch.nn.functional.normalize(tokens)

    five = stream("anchors", 0, client).choice(one.shards.train[client], 5, replace=False)
    test = torch.from_numpy(one.shards.test[client][:6])
    shares = share * (features(test) @ features(torch.from_numpy(five)).T).mean(1)
    named = {**views(theta, one.layout.communicated), **views(rows, one.layout.private)}
    weights = one.model.effective_weights(named)
    scores = one.model.forward(one.samples.images[test], [len(test)], weights)
    assert float(shares.std()) > 1e-3
    for image, alpha, mine in zip(test, shares, scores, strict=True):
        dense = by_hand(plain, theta, own, float(alpha))
        expected = inner.forward(one.samples.images[image[None]], [1], dense)[0]
        assert torch.allclose(mine, expected, rtol=1e-4, atol=1e-5)


def test_per_sample_and_fixed_train_alike_and_differ_when_judged(finished):
    fixed, sample = (
        finished({"type": "feddpa", "mixture": mixture}) for mixture in ("fixed", "per-sample")
    )
    assert torch.equal(fixed.theta, sample.theta)
    dim = sample.layout.d_private - fixed.layout.d_private
    assert dim == 16 and not own_models(sample)[:, -dim:].any()
    assert torch.equal(own_models(fixed), own_models(sample)[:, :-dim])
    names = ("global_accuracy", "bytes_up", "train_loss")
    assert metrics(fixed, *names) == metrics(sample, *names)
    first, second = (
        finished({"type": "feddpa", "weight": 0.0, "mixture": mixture})
        for mixture in ("fixed", "per-sample")
    )
    judged = ("personal_accuracy", "val_accuracy", "expected_accuracy")
    assert metrics(first, *judged) == metrics(second, *judged)


def test_a_client_judges_by_the_same_few_images_of_its_own(finished):
    one = finished({"type": "feddpa", "mixture": "per-sample"})
    everyone = torch.arange(CLIENTS)
    once, again = (private_as_judged(one, everyone)[:, -16:] for _ in range(2))
    assert torch.equal(once, again)
    assert bool((once.norm(dim=1) <= 1 + 1e-5).all()) and bool((once.norm(dim=1) > 0.1).all())
    apart = torch.cat([private_as_judged(one, k[None])[:, -16:] for k in everyone])
    assert torch.allclose(once, apart, atol=1e-5)
    with pytest.raises(ValueError, match="set composition to 'mixture' and gate_fixed to λ"):
        InstanceMixture(finished("fedavg").model)


def test_per_sample_in_bfloat16_answers_as_in_float32(material):
    entry = {"type": "feddpa", "mixture": "per-sample"}
    one = prepared(material, entry, (("precision", "bfloat16"),), rounds=2)
    one.run()
    rows = private_as_judged(one, torch.arange(CLIENTS))
    named = {
        **views(one.theta.expand(CLIENTS, -1), one.layout.communicated),
        **views(rows, one.layout.private),
    }
    exact = prepared(material, entry, rounds=2).model
    images = one.samples.images[: 3 * CLIENTS]
    mine, theirs = (
        model.forward(images, [3] * CLIENTS, model.effective_weights(named))
        for model in (one.model, exact)
    )
    assert float((mine - theirs).norm()) < 0.02 * float(theirs.norm())


# --- What is sent ---------------------------------------------------------------------------------

#: Both directions over those of FedAvg, for ViT-Tiny (192 wide, 12 deep, its feed-forward layers
#: four times as wide) with rank 8 on 10 and on 100 classes.
RATIOS = {
    "fedper": (0.99, 0.87),
    "ffa-lora": (0.30, 0.38),
    "fedsa-lora": (0.72, 0.75),
    "fedsa-lora, own heads": (0.70, 0.62),
}
ADAPTERS = {
    "fedper": {"head": "private"},
    "ffa-lora": {"factor_a": "frozen"},
    "fedsa-lora": {"factor_b": "private"},
    "fedsa-lora, own heads": {"factor_b": "private", "head": "private"},
}


def a_message(adapters, classes):
    tiny = Architecture(224, 16, 3, 192, 12, 3, (0.5,) * 3, (0.5,) * 3)
    layout = make_layout(tiny, classes, AdapterConfig(rank=8, **adapters))
    return len(serialise({"": torch.zeros(layout.d)}, layout))


@pytest.mark.parametrize("name", RATIOS)
def test_the_bytes_of_a_message_are_in_the_proportion_of_the_sizes(name):
    """By hand: in a block A has 8 (192 + 768) numbers and B 8 (192 + 192), so five to two."""
    for classes, ratio in zip((10, 100), RATIOS[name], strict=True):
        measured = a_message(ADAPTERS[name], classes) / a_message({}, classes)
        assert measured == pytest.approx(ratio, abs=0.012)


@pytest.mark.parametrize("name", ["fedper", "ffa-lora", "fedsa-lora"])
def test_a_round_sends_what_is_communicated_and_nothing_else(finished, name):
    one = finished(name)
    size = len(serialise({"": torch.zeros(one.layout.d)}, one.layout))
    for row in one.records.rounds:
        assert row["bytes_up"] == row["bytes_down"] == 4 * size
    assert np.isfinite(metrics(one, "train_loss")).all()


def test_a_watch_that_blocks_nobody_leaves_fedsdg_as_it_is_in_whatever_scope(material):
    """The rule behind the watch gets the adapters that it compares, as it does without one."""
    alignment = {"lambda1": 0.0, "scope": "adapters"}
    watched = {"type": "fedsdg+screened", "threshold": 1e9, **alignment}
    one, other = (
        prepared(material, entry, rounds=1) for entry in (watched, {"type": "fedsdg", **alignment})
    )
    one.run()
    other.run()
    assert not torch.equal(one.theta, one.start)
    torch.testing.assert_close(one.theta, other.theta, rtol=1e-5, atol=1e-7)
