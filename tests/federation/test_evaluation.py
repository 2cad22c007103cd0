"""What is recorded: accuracies, selected rounds, contributions, branches, paths, bytes."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.neighbours import Pens
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.experiment.saved_models import ModelSaver, read_models, write_models
from fedsdg.federation import evaluation
from fedsdg.federation.accuracy import class_weights, mean_accuracy, selected_round
from fedsdg.federation.conditions.attack import Attackers, SignFlip
from fedsdg.federation.conditions.difference import LabelConflict
from fedsdg.federation.conditions.quantisation import Quantisation
from fedsdg.federation.evaluation import evaluate_logits
from fedsdg.federation.observers.shapley import Shapley, coalitions, shapley_values
from fedsdg.federation.observers.trajectory import Trajectory, principal_plane
from fedsdg.federation.optimisers import Adam
from fedsdg.federation.personalisation import DualPath, FineTune, LocalOnly, OwnHead
from fedsdg.federation.terms import ControlVariates, Curvature
from fedsdg.models import views
from tests.federation.small import CLASSES, federation, run, stored, timm_model, trained, vit

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
TESTS = ("accuracy", "worst_decile", "loss_shared", "val_accuracy_shared")
"""How the names of accuracies on test images begin."""


def scores(theta, images):
    return images.flatten(1) @ theta[:-CLASSES].view(CLASSES, -1).T + theta[-CLASSES:]


def of_vit(personalisation, **given_):
    model, first, private = vit(**personalisation.adapters)
    return federation(model, first, private, personalisation=personalisation, **given_)


# --- Accuracies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", ["dirichlet~0.5", "quantity~0.7"])
def test_accuracies_by_their_definition(skew):
    """Of a client under its labels; of images of the test set by its class shares under a skew."""
    conditions = [LabelConflict(share=0.5, classes=3)]
    done = run(federation(skew=skew, conditions=conditions, clients=4, eta=0.02, rounds=2))
    setup, labels = done.setup, done.setup.samples.labels
    true, test = stored()[1], done.setup.data.global_test
    predicted = scores(done.theta, setup.samples.images).argmax(1)
    last = [row for row in done.clients if row["round"] == 2]
    for k, row in enumerate(last):
        for name, shards in (
            ("val_accuracy", setup.data.val),
            ("accuracy_own_test", setup.data.test),
        ):
            shard = torch.from_numpy(shards[k])
            right = (predicted[shard] == labels[shard]).double().mean()
            assert row[name] == pytest.approx(float(right))
        names = dict(zip(true[test], setup.test_views.labels[k], strict=True))
        held = [s[k] for s in (setup.data.train, setup.data.val, setup.data.test)]
        shares = np.bincount(true[np.concatenate(held)], minlength=CLASSES).astype(float)
        expected = 0.0
        for label in range(CLASSES):
            of_class = test[true[test] == label]
            right = np.mean([int(predicted[i]) == names[label] for i in of_class])
            share = (
                shares[label] / shares.sum() if "dirichlet" in skew else len(of_class) / len(test)
            )
            expected += share * right
        assert row["accuracy"] == pytest.approx(expected)
    of_round = done.rounds[-1]
    tests = [row["accuracy_own_test"] for row in last]
    sizes = [row["n_test"] for row in last]
    assert of_round["accuracy_own_test"] == pytest.approx(np.mean(tests))
    assert of_round["accuracy_own_test_weighted"] == pytest.approx(np.average(tests, weights=sizes))
    assert of_round["worst_decile_own_test"] == pytest.approx(min(tests))
    groups = {False: "a", True: "b"}
    for differs, name in groups.items():
        own = [row["accuracy"] for row in last if row["conflicts"] == differs]
        assert of_round[f"accuracy_{name}"] == pytest.approx(np.mean(own))
    right = predicted[torch.from_numpy(test)] == torch.from_numpy(true[test])
    assert of_round["accuracy_shared"] == pytest.approx(float(right.double().mean()))


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(1, 5))
def test_test_images_weigh_by_the_client_s_classes_and_sum_to_1(held, images):
    labels = np.repeat([0, 1], [images, 2])  # no image of class 2
    if not sum(held[:2]):
        with pytest.raises(ValueError, match="global_images"):
            class_weights(np.array(held), labels)
        return
    weights = class_weights(np.array(held), labels)
    assert math.isclose(weights.sum(), 1)
    assert math.isclose(weights[:images].sum(), held[0] / sum(held[:2]))


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 7)), min_size=1), st.randoms())
def test_the_mean_accuracy_is_exact_in_any_order(pairs, random):
    pairs = [(min(right, count), count) for right, count in pairs]
    expected = sum(Fraction(*pair) for pair in pairs) / len(pairs)
    random.shuffle(pairs)
    assert mean_accuracy(*np.array(pairs).T) == expected


def test_of_equal_rounds_the_earlier_is_selected_whatever_floats_say():
    """(1/3 + 2/3 + 1/10) / 3 in two orders: floats differ in the last bit, fractions do not."""
    thirds = [(1, 3), (2, 3), (1, 10)]
    rows = [
        {"round": t, "client": k, "val_accuracy": right / n, "n_val": n}
        for t, order in ((2, thirds), (4, thirds[::-1]), (6, [(1, 3), (1, 3), (1, 10)]))
        for k, (right, n) in enumerate(order)
    ]
    rows += [{"round": 6, "client": 9, "val_accuracy": 1.0, "n_val": 2, "held_out": True}]
    assert selected_round(rows) == 2
    assert selected_round(rows[3:]) == 4


def test_only_the_rounds_of_the_schedule_are_evaluated_and_the_last_one_always():
    for given_, wanted in (
        ({"evaluate_every": 3}, [3, 6, 7]),
        ({"evaluate_every": 2, "evaluate_from": 5}, [6, 7]),
        ({"evaluate_at": (1, 4)}, [1, 4, 7]),
    ):
        done = run(federation(rounds=7, epochs=1, schedule=given_))
        assert [row["round"] for row in done.rounds if row["evaluated"]] == wanted
        assert [row["round"] for row in done.rounds if "accuracy_own_test" in row] == wanted


def test_an_evaluation_changes_nothing():
    """Fine-tuned copies and refreshed branches are thrown away."""
    for personalisation, schedule in (
        (FineTune(personal_epochs=3), {}),
        (OwnHead(), {"refresh": 2}),
    ):
        often = run(of_vit(personalisation, schedule=schedule))
        seldom = run(of_vit(personalisation, schedule={**schedule, "evaluate_every": 3}))
        assert torch.equal(often.theta, seldom.theta)
        assert torch.equal(often.private, seldom.private)
        assert often.rounds[-1] == seldom.rounds[-1]
        assert often.rounds[-1]["evaluation_steps"] > 0


def test_clients_that_never_train_are_evaluated_by_themselves_in_the_last_quarter():
    done = run(federation(parts={"held_out": 0.34}, rounds=8, cohort=4))
    new = {row["client"] for row in done.clients if row["held_out"]}
    assert len(new) == 2
    for row in done.clients:
        if row["client"] in new:
            assert not row["participated"] and row["round"] > 6 and not row["drawn"]
    accuracies = [r["accuracy"] for r in done.clients if r["round"] == 8 and r["held_out"]]
    assert done.rounds[-1]["accuracy_new"] == pytest.approx(np.mean(accuracies))


def test_clients_that_train_alone_send_nothing_and_have_no_global_model():
    done = run(of_vit(LocalOnly()))
    assert {(row["bytes_up"], row["bytes_down"]) for row in done.rounds} == {(0, 0)}
    assert "accuracy_shared" not in done.rounds[-1]
    assert len(torch.unique(done.private, dim=0)) == 6


# --- Observers ------------------------------------------------------------------------------------


def test_shapley_values_are_means_over_all_orders_and_sum_to_what_all_are_worth():
    values = np.random.default_rng(0).random(2**4)
    members = coalitions(4)
    gains = np.zeros(4)
    for order in itertools.permutations(range(4)):
        before = 0
        for player in order:
            gains[player] += values[before | 1 << player] - values[before]
            before |= 1 << player
    np.testing.assert_allclose(shapley_values(values, members), gains / 24)


def test_contributions_of_a_run_sum_to_what_the_last_step_has_gained():
    done = run(federation(observers=[Shapley()], rounds=2, eta=0.05))
    before = run(federation(rounds=2, eta=0.05), 1).theta
    setup = done.setup
    val = torch.from_numpy(np.concatenate(setup.data.val))
    shares = [row["update_norm"] for row in done.clients if row["round"] == 2]
    assert len(shares) == 6
    _, results = trained(setup, 2, *_after(setup, 1))

    def value(theta):
        right = scores(theta, setup.samples.images[val]).argmax(1) == setup.samples.labels[val]
        return float(right.double().mean())

    both = [row["shapley"] for row in done.clients if row["round"] == 2]
    assert sum(both) == pytest.approx(value(results.theta.mean(0)) - value(before))
    assert not any("shapley" in row for row in done.clients if row["round"] == 1)
    several = run(federation(observers=[Shapley()], rounds=1, rule=Clustered(clusters=2)))
    assert not any("shapley_estimate" in row for row in several.clients), "there is no one model"


def _after(setup, most):
    done = run(setup, most)
    return done.server, done.store


def test_the_plane_of_a_trajectory_keeps_what_lies_in_it():
    draw = np.random.default_rng(0)
    basis = np.linalg.qr(draw.normal(size=(9, 2)))[0]
    flat = draw.normal(size=(12, 2)) * [5, 1]
    points, share = principal_plane(flat @ basis.T + 3)
    assert share == pytest.approx(1)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.testing.assert_allclose(distances, np.linalg.norm(flat[:, None] - flat[None], axis=2))
    assert points[:, 0].var() > points[:, 1].var()
    assert points[np.abs(points).argmax(0), [0, 1]].min() > 0


def test_a_trajectory_begins_where_clients_begin_and_leads_to_where_they_end():
    starts = torch.randn(6, 260, generator=torch.Generator().manual_seed(0)).double()
    for own_starts in (None, starts):
        setup = federation(observers=[Trajectory()], rounds=2, parts={"own_starts": own_starts})
        done = run(setup)
        for observer in setup.observers:
            observer.complete(done.rounds, done.clients)
        first = [row for row in done.clients if row["round"] == 1]
        begins = {(round(row["path_x"][0], 6), round(row["path_y"][0], 6)) for row in first}
        assert len(begins) == (1 if own_starts is None else 6)
        second = [row for row in done.clients if row["round"] == 2]
        place = (done.rounds[0]["model_x"], done.rounds[0]["model_y"])
        assert all((r["path_x"][0], r["path_y"][0]) == pytest.approx(place) for r in second)


def test_what_a_private_branch_amounts_to():
    """Per block ‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖), and the gates as they stand."""
    done = run(of_vit(DualPath(gate_init=0.7), optimiser=Adam(), eta=0.03, rounds=1))
    layout = done.setup.layout
    for k, row in enumerate(done.clients):
        named = {n: v[0] for n, v in views(done.private[k : k + 1], layout.private).items()}
        named |= {n: v[0] for n, v in views(done.theta[None], layout.communicated).items()}
        gates = [float(named[f"blocks.{b}.lambda_k_logit"].sigmoid()) for b in (0, 1)]
        assert row["gates"] == pytest.approx(gates)
        for block, share in enumerate(row["private_shares"]):
            squares = {"": 0.0, "_private": 0.0}
            for layer, kind in itertools.product(("attn.proj", "mlp.fc2"), squares):
                a, b = (named[f"blocks.{block}.{layer}.lora_{x}{kind}"] for x in "AB")
                squares[kind] += float((b @ a).square().sum())
            own, shared = gates[block] * squares["_private"] ** 0.5, squares[""] ** 0.5
            assert share == pytest.approx(own / (own + shared), rel=1e-4)


@pytest.mark.parametrize("choice", ["last", "selected"])
def test_saved_models_are_those_that_clients_were_evaluated_with(choice, tmp_path):
    setup = of_vit(DualPath(), observers=[ModelSaver(choice)], optimiser=Adam(), eta=0.05, rounds=4)
    done = run(setup)
    saver = next(one for one in setup.observers if isinstance(one, ModelSaver))
    write_models(tmp_path / "models.safetensors", setup, saver.state, {"seed": 0})
    models, facts = read_models(tmp_path / "models.safetensors")
    assert facts["round"] == (4 if choice == "last" else selected_round(done.clients))
    assert facts["seed"] == 0
    at = [row for row in done.clients if row["round"] == facts["round"]]
    transformer = timm_model()
    for row in at:
        k = row["client"]
        weights = models[facts["clients"][k]["model"]].merged(transformer.state_dict())
        head = [weights.pop(name) for name in ("head.weight", "head.bias")]
        test = torch.from_numpy(setup.data.test[k])
        tokens = torch.func.functional_call(transformer, weights, setup.samples.images[test])
        logits = torch.nn.functional.linear(tokens, *head)
        right = (logits.argmax(1) == setup.samples.labels[test]).double().mean()
        assert row["accuracy_own_test"] == pytest.approx(float(right))


def test_validation_alone_asks_no_model_about_a_test_image(monkeypatch):
    setup = of_vit(DualPath(), rounds=2, cohort=4, parts={"held_out": 0.2})
    whole = run(setup)
    asked = []

    def spied(setup, weights, tasks, answer):
        asked.extend(tasks)
        return evaluate_logits(setup, weights, tasks, answer)

    monkeypatch.setattr(evaluation, "evaluate_logits", spied)
    validation = replace(setup.schedule, evaluate="validation")
    done = run(replace(setup, schedule=validation))
    assert set(np.concatenate(asked)) <= set(np.concatenate(setup.data.val))
    for rows, all_rows in ((done.rounds, whole.rounds), (done.clients, whole.clients)):
        for row, other in zip(rows, all_rows, strict=True):
            assert all(other[name] == value for name, value in row.items())
            assert all(name.startswith(TESTS) for name in other.keys() - row.keys())
            assert not any(name.startswith(TESTS) for name in row)


def test_of_equal_rounds_the_models_of_the_earliest_are_saved():
    """Without a step all rounds are equal."""
    saver = ModelSaver("selected")
    done = run(federation(observers=[saver], eta=0.0))
    assert saver.state["round"] == selected_round(done.clients) == 1


# --- Messages and measurements --------------------------------------------------------------------


def message(setup, *vectors, **numbers):
    """The length of a message with these vectors of parameters, as it would be sent."""
    tensors = {name: torch.zeros(count, dtype=torch.float64) for name, count in numbers.items()}
    for vector in vectors:
        for spec in setup.layout.communicated:
            tensors[f"{vector}{spec.name}"] = torch.zeros(spec.shape)
    return len(save(tensors))


def test_bytes_are_the_lengths_of_the_messages():
    plain = run(federation(rounds=1))
    usual = message(plain.setup, "")
    assert plain.rounds[0]["bytes_up"] == plain.rounds[0]["bytes_down"] == 6 * usual
    scaffold = run(federation(rule=Scaffold(), terms=(ControlVariates(),), rounds=1))
    both = message(scaffold.setup, "", "control.")
    assert (scaffold.rounds[0]["bytes_up"], scaffold.rounds[0]["bytes_down"]) == (6 * both,) * 2
    clustered = run(federation(rule=Clustered(clusters=3), rounds=1, parts={"heads_apart": True}))
    assert clustered.rounds[0]["bytes_up"] == 6 * message(plain.setup, "", scores=3)
    assert clustered.rounds[0]["bytes_down"] == 6 * 3 * usual  # its own is one of three to try
    tried = run(federation(rule=Pens(sample=2), rounds=1))
    assert tried.rounds[0]["bytes_down"] == 6 * 3 * usual  # its own, and two to try
    attacked = run(federation(conditions=[Attackers(attack=SignFlip(), share=0.34)], rounds=1))
    assert attacked.rounds[0]["bytes_up"] == 6 * usual
    weak = run(federation(conditions=[Quantisation(share=0.5, bits=4)], rounds=1))
    few = len(
        save({"levels": torch.zeros(130, dtype=torch.uint8), "ends": torch.zeros(2).double()})
    )
    assert weak.rounds[0]["bytes_up"] == 3 * usual + 3 * few


def test_clustered_clients_go_to_the_model_with_the_least_loss_on_what_they_train_on():
    parts = {"heads_apart": True}
    first = torch.linspace(-1, 1, 260).double()
    setup = federation(
        first=first, rule=Clustered(clusters=3), rounds=1, skew="classes~1", clients=4, parts=parts
    )
    done = run(setup)
    losses = torch.zeros(4, 3)
    for k, c in itertools.product(range(4), range(3)):
        shard = torch.from_numpy(setup.data.train[k])
        logits = scores(setup.first[c], setup.samples.images[shard])
        losses[k, c] = torch.nn.functional.cross_entropy(logits, setup.samples.labels[shard])
    chosen = [row["cluster"] for row in done.clients if row["participated"]]
    assert chosen == losses.argmin(1).tolist()


def test_fisher_information_is_the_mean_square_of_the_gradients_of_samples():
    setup = federation(rule=FedCurv(), terms=(Curvature(strength=0.1),), clients=3, rounds=1)
    done = run(setup)
    _, results = trained(setup)
    for k in range(3):
        total = torch.zeros(260).double()
        for i in setup.data.train[k].tolist():
            theta = results.theta[k].clone().requires_grad_()
            logits = scores(theta, setup.samples.images[i : i + 1])
            loss = torch.nn.functional.cross_entropy(logits, setup.samples.labels[i : i + 1])
            total += torch.autograd.grad(loss, theta)[0].square()
        kept = done.store.read("fisher", np.array([k]))[0]
        torch.testing.assert_close(kept, total / len(setup.data.train[k]), **CLOSE)
        pull = done.store.read("fisher_theta", np.array([k]))[0]
        torch.testing.assert_close(pull, kept * results.theta[k], **CLOSE)
