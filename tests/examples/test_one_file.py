"""The example in one file, piece by piece and for a round, against the engine."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsdg.config.config import Config
from fedsdg.config.layers import merged
from fedsdg.data.partition import TRAIN, VAL, partition_clients
from fedsdg.data.skew import parse_skew
from fedsdg.experiment.building import build
from fedsdg.experiment.material import load_material
from fedsdg.federation import rounds
from fedsdg.models import block_views, views

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("one_file", ROOT / "examples/one_file.py")
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)


@pytest.fixture(scope="module")
def federation():
    """The engine's federation of the example for one round, and its partition."""
    config = merged()
    penalties = {"lambda1": example.LAMBDA1, "lambda2": example.LAMBDA2}
    config |= {
        "skews": [f"dirichlet~{example.DIRICHLET}"],
        "seeds": [0],
        "methods": [{"type": "fedsdg", **penalties}],
    }
    config["federation"] |= {
        "clients": example.CLIENTS,
        "clients_per_round": example.CLIENTS_PER_ROUND,
        "rounds": 1,
    }
    config["training"] |= {
        "epochs": example.EPOCHS,
        "batch_size": example.BATCH_SIZE,
        "clip_norm": example.CLIP_NORM,
        "eta_g": example.ETA_G,
        "eta_p": example.ETA_P,
        "eta_m": example.ETA_M,
        "kernel": "torch",
    }
    run = next(Config.read(config).runs())
    weights = ROOT / "results/reference/backbones/letters.safetensors"
    material = load_material("digits", weights, "cpu")
    skew = parse_skew(run.skew)
    partition = partition_clients(material.data, example.CLIENTS, skew, 0, run.partition)
    return build(run, material, partition), partition


def row(parameters: dict[str, Tensor]) -> Tensor:
    """All parameters in their order, as the engine's rows have them."""
    return torch.nn.utils.parameters_to_vector(parameters.values()).detach()


def distance(values: Tensor, expected: Tensor) -> float:
    """The relative l2 distance."""
    return float((values - expected).norm() / expected.norm())


def test_images_and_samples_of_clients_are_the_same(federation):
    setup, partition = federation
    assert torch.equal(example.IMAGES, setup.samples.images)
    assert torch.equal(example.TARGETS, setup.samples.labels)
    assert (setup.data.global_test == example.TEST).all()
    for name, split in {"train": TRAIN, "val": VAL}.items():
        for own, shard in zip(example.partition(0), partition.shards(split), strict=True):
            assert (np.sort(own[name]) == shard).all()


def test_first_values_are_the_same_in_the_same_order(federation):
    setup, _ = federation
    shared, private = example.first_values(0)
    assert [*shared] == [spec.name for spec in setup.layout.communicated]
    assert [*private] == [spec.name for spec in setup.layout.private]
    assert torch.equal(row(shared), setup.first[0])
    assert torch.equal(row(private), setup.private)


def test_scores_and_penalty_of_any_parameters_agree(federation):
    setup, _ = federation
    noise = torch.Generator().manual_seed(0)
    rows = {}
    for name, first in {"theta": setup.first, "private": setup.private[None]}.items():
        rows[name] = first + 0.1 * torch.randn(first.shape, generator=noise)
    specs = {"theta": setup.layout.communicated, "private": setup.layout.private}
    named = {name: views(rows[name], specs[name]) for name in rows}
    shared = {name: value[0] for name, value in named["theta"].items()}
    private = {name: value[0] for name, value in named["private"].items()}
    stacked = block_views(rows["theta"], specs["theta"])
    stacked |= block_views(rows["private"], specs["private"])
    weights = setup.model.effective_weights(stacked)
    expected = setup.model.forward(example.IMAGES[:40], [40], weights)
    assert distance(example.scores(example.IMAGES[:40], shared, private), expected) < 1e-5
    view = SimpleNamespace(**rows, columns=setup.columns)
    value = sum(float(term.value(view)) for term in setup.work.terms)
    assert float(example.penalty(private)) == pytest.approx(value, rel=1e-6)


def test_a_round_ends_at_the_same_models_and_accuracies(federation):
    setup, _ = federation
    server, store = setup.initial()
    ((server, record),) = rounds.run(setup, server, store)
    clients = example.partition(0)
    shared, start = example.first_values(0)
    private = [start] * example.CLIENTS
    shared = example.one_round(1, 0, clients, shared, private)
    assert distance(row(shared) - setup.first[0], server.models[0] - setup.first[0]) < 1e-3
    kept = store.read("private", np.arange(example.CLIENTS))
    for k in np.flatnonzero(store.counts.trained):
        assert distance(row(private[k]), kept[k]) < 1e-3
    found = [example.accuracies(shared, private[k], clients[k]) for k in range(example.CLIENTS)]
    expected = [record.round["val_accuracy"], record.round["accuracy"]]
    assert np.mean(found, axis=0) == pytest.approx(expected, abs=1e-3)


def test_weights_are_those_of_the_specification_example():
    updates = torch.tensor([[0.5, 0.3], [0.6, 0.4], [-0.5, -0.2]])
    weights = example.alignment_weights(updates)
    assert weights.tolist() == pytest.approx([0.498, 0.502, 0], abs=1e-3)
    assert example.alignment_weights(torch.tensor([[1.0], [-1.0]])).tolist() == [0.5, 0.5]
