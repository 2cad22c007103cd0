"""Clients that name classes otherwise, see other images, or never train: in whole federations."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedsdg.data.datasets import ImageData
from fedsdg.data.partition import LEFT_OUT, TEST, TRAIN, VAL
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.differing import groups_of, views_of
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.federation.cohorts import draw_cohort, draw_held_out
from fedsdg.federation.knowledge import difference_clusters
from fedsdg.federation.seen import class_weights
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
CLIENTS = 8
CONFLICT = {"share": 0.5, "classes": 4}


def config(conditions=None, dataset="digits", skew="dirichlet~1.0", federation=None):
    raw = yaml.safe_load(CONFIG.read_text())
    raw["training"]["kernel"] = "torch"
    raw["federation"] |= {"clients": CLIENTS, "clients_per_round": 4, "rounds": 3}
    raw["federation"] |= {"evaluate_every": 1, **(federation or {})}
    raw["training"] |= {"epochs": 1}
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    return parse_config(
        raw
        | {"datasets": [dataset], "skews": [skew], "conditions": conditions or {}}
        | {"methods": ["fedavg"]}
    )


def backbone(channels=1):
    mean = (0.5,) * channels
    architecture = Architecture(8, 4, channels, 16, 2, 2, mean, mean)
    torch.manual_seed(0)
    return freeze(build_backbone(architecture), architecture, "tiny", {})


@pytest.fixture(scope="module")
def materials():
    return {n: prepare_material(n, backbone(), "cpu") for n in ("digits",)}


@pytest.fixture
def make(materials):
    """(run, material, partition, federation) of a run of some conditions."""

    def make(conditions=None, method="fedavg", seed=0, dataset="digits", **more):
        skew = more.get("skew", "dirichlet~1.0")
        told = config(conditions, dataset=dataset, **more)
        run = dataclasses.replace(told.run(dataset, skew, method_entry(method), 0), seed=seed)
        partition = make_partition(dataset, skew, 0, CLIENTS, told.partition)
        return run, materials[dataset], partition, build(run, materials[dataset], partition)

    return make


def shards_of(partition, client):
    return np.concatenate([partition.shards(split)[client] for split in (TRAIN, VAL, TEST)])


# --- Label conflict -----------------------------------------------------------------------------


@pytest.mark.parametrize("per", [{"per": "client"}, {"per": "group", "groups": 2}])
def test_all_labels_of_a_conflicting_client_follow_its_cycle(make, per):
    _, material, partition, made = make({"label_conflict": CONFLICT | per})
    facts = made.circumstances.facts
    assert facts["conflicts"].sum() == 4
    assert np.array_equal(facts["conflicts"], facts["group"] >= 0)
    true, held = partition.label, made.samples.labels.numpy()
    seen = made.seen
    for client in range(CLIENTS):
        own = shards_of(partition, client)
        # The table as the global test set shows it: every digit is in it.
        table = dict(zip(true[seen.index[client]], seen.labels[client], strict=True))
        assert sorted(table) == sorted(table.values()) == list(range(10))
        assert held[own].tolist() == [table[label] for label in true[own].tolist()]
        moved = sum(old != new for old, new in table.items())
        assert moved == (4 if facts["conflicts"][client] else 0)
        share = (held[own] != true[own]).mean()
        assert facts["relabelled"][client] == pytest.approx(share)
    tables = [tuple(seen.labels[k]) for k in np.flatnonzero(facts["conflicts"])]
    assert len(set(tables)) == (4 if per["per"] == "client" else 2)
    common = partition.global_test()
    assert np.array_equal(held[common], true[common])
    assert torch.equal(made.samples.images, material.samples.images)


def test_who_conflicts_depends_on_the_seed_and_the_share_alone(make):
    def who(seed=0, **conflict):
        return make({"label_conflict": CONFLICT | conflict}, seed=seed)[3].circumstances.facts

    first = who()
    for other in ({"classes": 9}, {"per": "group", "groups": 3}, {}):
        assert np.array_equal(who(**other)["conflicts"], first["conflicts"])
    assert not np.array_equal(who(seed=1)["conflicts"], first["conflicts"])
    fewer = who(share=0.25)["conflicts"]
    assert fewer.sum() == 2 and not (fewer & ~first["conflicts"]).any()
    assert not who(share=0)["conflicts"].any() and who(share=1)["conflicts"].all()


def test_a_conflict_comes_before_noise_and_noise_before_attackers(make):
    conflict, noise = {"label_conflict": CONFLICT}, {"label_noise": {"low": 0.5, "high": 0.5}}
    named = make(conflict)[3].samples.labels.numpy()
    _, _, partition, made = make(conflict | noise)
    noisy = made.samples.labels.numpy()
    tests = np.concatenate(partition.shards(TEST))
    assert np.array_equal(noisy[tests], named[tests])
    held = np.concatenate([*partition.shards(TRAIN), *partition.shards(VAL)])
    wrong = (noisy != named)[held].mean()
    assert abs(wrong - 0.5) < 5 * 0.5 / np.sqrt(len(held))
    attack = {"attack": {"type": "label-flip", "share": 0.25}}
    _, _, partition, made = make(conflict | noise | attack)
    for client in np.flatnonzero(made.circumstances.attackers):
        own = partition.shards(TRAIN)[client]
        assert np.array_equal(made.samples.labels.numpy()[own], 9 - noisy[own])


def test_what_may_not_be_meant_is_said_in_a_line(make, capsys):
    make({"label_conflict": {"share": 0}})
    assert "share is 0.0, which is none of 8 clients" in capsys.readouterr().err
    made = make({"label_conflict": {"classes": 2}}, skew="classes~2")[3]
    (line,) = capsys.readouterr().err.splitlines()
    facts = made.circumstances.facts
    spared = np.flatnonzero(facts["conflicts"] & (facts["relabelled"] == 0))
    assert len(spared) and f"clients {', '.join(map(str, spared))} conflict, but hold none" in line
    with pytest.raises(ValueError, match="classes is 11, but digits has only 10 classes"):
        make({"label_conflict": {"classes": 11}})


def test_who_differs_stands_in_every_row_of_a_client(make):
    _, _, _, made = make({"label_conflict": CONFLICT}, method="fedsdg")
    made.run()
    facts, last = made.circumstances.facts, made.records.rounds[-1]
    halves = [last["expected_accuracy_a"], last["expected_accuracy_b"]]
    assert last["expected_accuracy"] == pytest.approx(np.mean(halves))
    for row in made.records.clients:
        for name in ("conflicts", "relabelled", "group"):
            assert row[name] == facts[name][row["client"]]
    plain = make()[3]
    plain.step(1)
    assert not {"conflicts", "relabelled", "group"} & set(plain.records.clients[0])


# --- Feature shift ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["invert", "rotate", "noise"])
@pytest.mark.parametrize("per", [{"per": "client"}, {"per": "group", "groups": 2}])
def test_a_shifted_client_sees_all_its_images_so_and_the_test_set_too(make, kind, per):
    shift = {"share": 0.5, "kind": kind, **per}
    _, material, partition, made = make({"feature_shift": shift})
    plain = material.samples.images
    shifted = made.samples.images[: len(plain)]
    facts = made.circumstances.facts
    assert facts["conflicts"].sum() == 4 and "relabelled" not in facts
    held = np.flatnonzero(partition.client >= 0)
    same = (shifted == plain).flatten(1).all(1).numpy()
    b = facts["conflicts"][partition.client[held]]
    assert not same[held][b].any() and same[held][~b].all()
    assert same[partition.global_test()].all()
    samples, seen = made.samples, made.seen
    copies = {"invert": 1, "client": 4, "group": 2}[kind if kind == "invert" else per["per"]]
    size = len(partition.global_test())
    assert len(samples.images) == len(plain) + copies * size == len(samples.labels)
    for client in range(CLIENTS):
        assert np.array_equal(seen.labels[client], partition.label[partition.global_test()])
        assert np.array_equal(samples.labels[seen.index[client]].numpy(), seen.labels[client])
        if not facts["conflicts"][client]:
            assert np.array_equal(seen.index[client], partition.global_test())
        elif kind == "invert":
            # Mean and deviation are 0.5: inverted ink is the negative of what a model takes.
            views, before = samples.images[seen.index[client]], plain[partition.global_test()]
            assert torch.allclose(views, -before, atol=1e-6)
    chosen = np.flatnonzero(facts["conflicts"])
    if per["per"] == "group" and kind != "invert":
        for one in chosen:
            for other in chosen:
                alike = facts["group"][one] == facts["group"][other]
                assert np.array_equal(seen.index[one], seen.index[other]) == alike


def test_a_view_is_of_the_images_as_they_are_stored(make):
    """Turned back and prepared they are what the view of the client's own images shows."""
    run, material, partition, made = make({"feature_shift": {"kind": "rotate"}})
    client = int(np.flatnonzero(made.circumstances.facts["conflicts"])[0])
    own = shards_of(partition, client)
    turned = views_of(run)[client](material.pictures.stored[own], own)
    expected = torch.from_numpy(material.pictures.prepared(turned))
    assert torch.equal(made.samples.images[torch.from_numpy(own)], expected)


def test_images_in_colour_are_shifted_as_grey_ones_are(materials):
    stored = np.random.default_rng(0).integers(0, 256, (400, 8, 8, 3)).astype(np.uint8)
    data = ImageData("colours", stored, np.arange(400) % 10, 10)
    told = config({"feature_shift": {"kind": "invert"}})
    run = told.run("digits", "dirichlet~1.0", method_entry("fedavg"), 0)
    partition = make_partition(data, "iid", 0, CLIENTS, told.partition)
    material = prepare_material(data, backbone(3), "cpu")
    made = build(run, material, partition)
    owner = partition.client
    b = (owner >= 0) & made.circumstances.facts["conflicts"][owner]
    images = made.samples.images[: len(stored)]
    assert torch.allclose(images[b], -material.samples.images[b], atol=1e-6)
    assert torch.equal(images[~b], material.samples.images[~b])


def test_a_run_with_a_shift_runs_and_comes_again(make):
    models = []
    for _ in range(2):
        made = make({"feature_shift": {"kind": "noise"}}, method="fedsdg")[3]
        made.run()
        models.append(made.theta)
    assert torch.equal(*models)


# --- What each client's accuracy would be ---------------------------------------------------------


@pytest.mark.parametrize("skew", ["dirichlet~0.5", "classes~2", "iid"])
@pytest.mark.parametrize("images", [None, 150])
def test_the_weighted_sum_is_the_accuracy_under_the_clients_own_distribution(make, skew, images):
    _, material, partition, made = make(
        {"label_conflict": CONFLICT}, skew=skew, federation={"global_images": images}
    )
    seen = made.seen
    assert torch.equal(made.samples.images, material.samples.images)
    true, test = partition.label, made.shards.global_test
    assert len(test) == (images or len(partition.global_test()))
    right = np.random.default_rng(0).random(len(test)) < 0.1 * (1 + true[test])
    by_class = np.array([right[true[test] == c].mean() for c in range(10)])
    for client in range(CLIENTS):
        assert np.array_equal(seen.index[client], test)
        assert seen.weights[client].sum() == pytest.approx(1) and (seen.weights[client] >= 0).all()
        expected = right.mean()
        if skew != "iid":
            shares = np.bincount(true[shards_of(partition, client)], minlength=10)
            expected = (shares / shares.sum() * by_class).sum()
        assert seen.weights[client] @ right == pytest.approx(expected)


def test_all_who_differ_see_images_turned_by_one_angle(make):
    run, material, partition, made = make({"feature_shift": {"kind": "rotate", "angle": 90}})
    differ = np.flatnonzero(groups_of(run) >= 0)
    assert 0 < len(differ) < CLIENTS
    as_taken, stored = made.samples.images.numpy(), material.pictures.stored
    for client in range(CLIENTS):
        own = np.flatnonzero(partition.client == client)
        turned = np.rot90(stored[own], axes=(1, 2)) if client in differ else stored[own]
        assert np.array_equal(as_taken[own], material.pictures.prepared(turned.copy()))
    # One view for all, whoever and however many see it: the global test set is kept twice.
    assert len({id(view) for view in views_of(run)} - {id(None)}) == 1
    other = make({"feature_shift": {"kind": "rotate", "angle": 90}}, seed=1)[0]
    assert views_of(other)[np.flatnonzero(groups_of(other) >= 0)[0]].angle() == 90


def test_a_conflict_over_no_class_has_its_groups_and_everybodys_labels(make):
    made = make({"label_conflict": {**CONFLICT, "classes": 0}})[3]
    conflicting = make({"label_conflict": CONFLICT})[3]
    plain = make()[3]
    assert torch.equal(made.samples.labels, plain.samples.labels)
    facts, its = made.circumstances.facts, conflicting.circumstances.facts
    assert np.array_equal(facts["group"], its["group"]) and facts["conflicts"].sum() == CLIENTS / 2
    assert not facts["relabelled"].any() and its["relabelled"].any()


def test_classes_without_an_image_are_left_out_and_none_at_all_is_refused():
    labels = np.array([0, 0, 1, 3])
    weights = class_weights(np.array([2, 6, 100, 0]), labels)
    assert weights == pytest.approx([1 / 8, 1 / 8, 6 / 8, 0])
    with pytest.raises(ValueError, match="no image of a class that the client holds; raise"):
        class_weights(np.array([0, 0, 7, 0]), labels)


# --- What servers are told ------------------------------------------------------------------------


def test_known_clusters_are_those_who_agree_and_the_groups():
    group = np.array([-1, 0, 1, 2, -1, 3])
    assert difference_clusters(group, 5).tolist() == [0, 1, 2, 3, 0, 4]
    assert difference_clusters(group, 3).tolist() == [0, 1, 2, 1, 0, 2]
    assert difference_clusters(group, 2).tolist() == [0, 1, 1, 1, 0, 1]
    assert difference_clusters(np.array([0, 1, 2, 3]), 2).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("condition", ["label_conflict", "feature_shift"])
@pytest.mark.parametrize("method", ["clustered", "semi-global"])
def test_methods_with_known_clusters_are_told_the_groups(make, condition, method):
    grouped = {condition: {"share": 0.5, "per": "group", "groups": 2}}
    entry = {"type": method, "clusters": 3, "assignment": "known"}
    made = make(grouped, method=entry)[3]
    expected = made.circumstances.facts["group"] + 1
    assert made.state["assignment"].tolist() == expected.tolist()
    nobody = make({condition: {"share": 0}}, method=entry)[3]
    assert set(nobody.state["assignment"].tolist()) == {0, 1, 2}
    plain = make(method=entry)[3]
    assert torch.equal(nobody.state["assignment"], plain.state["assignment"])


def test_the_servers_benchmark_keeps_the_common_labels_and_images(make):
    for condition in ({"label_conflict": CONFLICT}, {"feature_shift": {"kind": "invert"}}):
        _, material, _, made = make(condition | {"benchmark_images": 40}, method="focus")
        own = torch.from_numpy(made.shards.benchmark)
        assert torch.equal(made.samples.labels[own], material.samples.labels[own])
        assert torch.equal(made.samples.images[own], material.samples.images[own])
        made.step(1)
        credit = [row["credibility"] for row in made.records.clients if row["participated"]]
        assert len(credit) == 4 and np.isfinite(credit).all()


# --- Held-out clients -----------------------------------------------------------------------------


def test_held_out_clients_never_train_and_are_named(make):
    run, _, _, made = make(federation={"held_out": 0.25, "rounds": 12})
    out = made.circumstances.held_out
    assert out.sum() == 2
    drawn = np.concatenate([made.attendance(r).present for r in range(1, 200)])
    assert set(drawn.tolist()) == set(np.flatnonzero(~out).tolist())
    made.run()
    for row in made.records.clients:
        assert row["held_out"] == out[row["client"]]
        assert not (row["participated"] and row["held_out"])
    assert run.to_dict()["federation"]["held_out"] == 0.25
    plain_run, _, _, plain = make()
    assert plain_run.to_dict()["federation"]["held_out"] == 0
    assert plain.circumstances.held_out is None and "held_out" not in plain.circumstances.facts


def test_cohorts_are_those_of_before_where_nobody_is_held_out():
    for round_ in range(1, 30):
        before = draw_cohort(3, round_, 20, 5)
        assert np.array_equal(draw_cohort(3, round_, 20, 5, np.zeros(20, dtype=bool)), before)
    fewer, more = draw_held_out(3, 20, 0.2), draw_held_out(3, 20, 0.4)
    assert fewer.sum() == 4 and more.sum() == 8 and not (fewer & ~more).any()


def test_too_many_held_out_are_refused():
    with pytest.raises(ValueError, match="held_out is 0.6, which leaves 3 of 8 clients to draw 4"):
        config(federation={"held_out": 0.6})
    with pytest.raises(ValueError, match="held_out is 1.5, but must be at most 1"):
        config(federation={"held_out": 1.5})


def test_nothing_of_a_held_out_client_reaches_the_others(make):
    shared = make(federation={"held_out": 0.25}, method={"type": "data-sharing", "share": 0.5})
    _, _, partition, made = shared
    out = made.circumstances.held_out
    theirs = set(np.flatnonzero(out[partition.client] & (partition.client >= 0)).tolist())
    for client, own in enumerate(made.shards.train):
        if out[client]:
            assert own.tolist() == partition.shards(TRAIN)[client].tolist()
            assert made.circumstances.facts["disclosed"][client] == 0
        else:
            assert not theirs & set(own.tolist()) and len(own) > 0
    _, _, partition, made = make(federation={"held_out": 0.25}, method="centralised")
    batches = [b for r in range(1, 6) for b in made.clients(r, made.cohort(r)).batches[0]]
    used = set(np.concatenate(batches).tolist())
    kept = [partition.shards(TRAIN)[k] for k in np.flatnonzero(~made.circumstances.held_out)]
    assert used == set(np.concatenate(kept).tolist())


def test_scaffolds_control_is_the_mean_over_those_who_may_train(make):
    """c = (1/N) Σ c_i over the N clients that are not held out; the others keep c_i = 0."""
    _, _, _, made = make(federation={"held_out": 0.25, "rounds": 3}, method="scaffold")
    made.run()
    kept = made.bank.gather(torch.arange(CLIENTS))[1]
    (rows,) = kept.values()
    assert torch.allclose(made.state["control"], rows.sum(0) / 6, atol=1e-6)
    assert not rows[torch.from_numpy(made.circumstances.held_out)].any()


def test_a_client_that_trains_on_an_image_of_the_fixed_test_set_is_refused(make):
    run, material, partition, _ = make()
    sample = int(partition.global_test()[5])
    client, split = partition.client.copy(), partition.split.copy()
    client[sample], split[sample] = 3, TRAIN
    leaking = dataclasses.replace(partition, client=client, split=split)
    with pytest.raises(ValueError, match=f"digits .*gives sample {sample} of the fixed test set"):
        build(run, material, leaking)
    client[sample], split[sample] = -1, LEFT_OUT
    smaller = dataclasses.replace(partition, client=client, split=split)
    with pytest.raises(ValueError, match="another test set than the fixed one"):
        build(run, material, smaller)
    facts = {key: value for key, value in partition.facts.items() if key != "test"}
    build(run, material, dataclasses.replace(smaller, facts=facts))
