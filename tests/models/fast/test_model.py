"""The compiled pass against the same model by torch in float64, client by client."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.federation.losses.focal import Focal
from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import make_layout
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build, freeze
from fedsdg.models.cohort import CohortModel
from fedsdg.models.fast.model import CompiledModel
from fedsdg.models.parameters import leaves, of_every_block, views

ROOT = Path(__file__).parents[3]
CLASSES = 7
VARIANTS = {
    "shared": {},
    "gated": {"branch": "dual", "private_init": "lora"},
    "one gate": {"branch": "dual", "gate": "client", "private_init": "lora"},
    "gates by layer": {"branch": "dual", "gate": "layer"},
    "factors": {"branch": "dual", "composition": "factors", "private_init": "lora"},
    "mixture": {"branch": "dual", "composition": "mixture", "gate_fixed": 0.3},
    "shared A": {"branch": "dual", "private_subspace": "shared-a"},
    "frozen A": {"factor_a": "frozen"},
    "private B": {"factor_b": "private"},
    "private head": {"head": "private"},
    "local": {"local": True},
}
COUNTS = {"equal": [16, 16, 16], "ragged": [5, 0, 33, 1], "one client": [3], "one image": [1]}


@pytest.fixture(scope="module")
def backbone():
    architecture = Architecture(8, 4, 1, 32, 3, 2, (0.5,), (0.5,))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build(architecture)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return freeze(model, architecture, "small", {})


class Case:
    """A cohort's parameters and images, and both models."""

    def __init__(self, backbone, counts, options):
        config = AdapterConfig(**{"rank": 3, **options})
        self.layout = make_layout(backbone.architecture, CLASSES, config)
        given = (backbone, self.layout, config, CLASSES)
        self.fast, self.slow = CompiledModel(*given), CohortModel(*given)
        generator = np.random.default_rng(0)
        draw = lambda *shape: torch.from_numpy(generator.standard_normal(shape)).float()  # noqa: E731
        self.counts, size = counts, sum(counts)
        self.theta = 0.1 * draw(len(counts), self.layout.d)
        self.private = 0.1 * draw(len(counts), self.layout.d_private)
        self.images = draw(size, 1, 8, 8)
        self.labels = torch.from_numpy(generator.integers(0, CLASSES, size))
        self.divisors = torch.from_numpy(np.repeat(counts, counts).astype(float))

    def gradient(self, of_losses, dtype=torch.float32, arranged=leaves):
        """(losses [B], gradients [M, d + d_p]) in float64."""
        rows = self.theta.to(dtype), self.private.to(dtype)
        slopes = tuple(map(torch.zeros_like, rows))
        specs = self.layout.communicated, self.layout.private
        parameters = {}
        for row, slope, own in zip(rows, slopes, specs, strict=True):
            parameters |= arranged(row, slope, own)
        losses = of_losses(parameters)
        losses.sum().backward()
        return losses.detach().double(), torch.cat(slopes, 1).double()

    def exact(self, loss=cross_entropy, dtype=torch.float64, **which):
        model, images = self.slow.to(dtype), self.images.to(dtype)

        def losses(parameters):
            logits = model.logits(images, self.counts, parameters, **which)
            return loss(logits, self.labels, reduction="none") / self.divisors.to(dtype)

        return self.gradient(losses, dtype)

    def compiled(self, loss=cross_entropy, arranged=leaves, **which):
        prefixes = self.fast.prefixes(self.images)

        def losses(parameters):
            return self.fast.losses(
                prefixes, self.labels, self.divisors, self.counts, parameters, loss, **which
            )

        return self.gradient(losses, arranged=arranged)


def by_block(row, slope, specs):
    """Leaves under one name for all blocks, as on a GPU."""
    values, kinds = of_every_block(row.detach(), specs)
    slopes, _ = of_every_block(slope, specs)
    for spec in kinds:
        if spec.trainable:
            values[spec.name].requires_grad_()
            values[spec.name].grad = slopes[spec.name]
    return values


def errors(found, expected):
    """Relative l2 of every client with images."""
    norms = expected.norm(dim=1)
    return ((found - expected).norm(dim=1) / norms)[norms > 0]


def assert_as_good_as_float32(case, found, **which):
    losses, gradients = case.exact(**which)
    usual = errors(case.exact(dtype=torch.float32, **which)[1], gradients)
    ours = errors(found[1], gradients)
    assert (ours <= 1e-6).all()
    assert ours.max() <= 2 * usual.max()
    torch.testing.assert_close(found[0], losses, rtol=2e-6, atol=1e-6)
    empty = torch.tensor(case.counts) == 0
    assert (found[1][empty] == 0).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_gradient_is_as_good_as_torchs(backbone, name):
    case = Case(backbone, COUNTS["ragged"], VARIANTS[name])
    assert_as_good_as_float32(case, case.compiled())


@pytest.mark.parametrize("name", COUNTS)
def test_whatever_images_clients_have(backbone, name):
    case = Case(backbone, COUNTS[name], VARIANTS["gated"])
    assert_as_good_as_float32(case, case.compiled())
    assert_as_good_as_float32(case, case.compiled(arranged=by_block))


def test_the_shared_branch_alone(backbone):
    case = Case(backbone, COUNTS["ragged"], VARIANTS["gated"])
    assert_as_good_as_float32(case, case.compiled(private=False), private=False)


def test_another_loss_goes_through_the_scores(backbone):
    case, focal = Case(backbone, COUNTS["ragged"], VARIANTS["gated"]), Focal(gamma=2.0)
    assert_as_good_as_float32(case, case.compiled(focal), loss=focal)


def test_labels_are_the_clients_own_where_they_share_an_image(backbone):
    """Two clients, the same images, other labels: what is kept of an image knows no label."""
    case = Case(backbone, [6, 6], VARIANTS["gated"])
    case.images[6:] = case.images[:6]
    case.labels[6:] = (case.labels[:6] + 1) % CLASSES
    assert_as_good_as_float32(case, case.compiled())


def test_images_that_do_not_count_change_nothing(backbone):
    case = Case(backbone, [5, 4], VARIANTS["gated"])
    case.divisors[4] = case.divisors[8] = torch.inf
    assert_as_good_as_float32(case, case.compiled())


@pytest.mark.parametrize("private", [True, False])
def test_scores_are_torchs(backbone, private):
    case = Case(backbone, COUNTS["ragged"], VARIANTS["gated"])
    parameters = views(case.theta, case.layout.communicated)
    parameters |= views(case.private, case.layout.private)
    prefixes = case.fast.prefixes(case.images)
    weights = case.fast.effective_weights(parameters, private)
    found = case.fast.forward(prefixes, case.counts, weights)
    exact = case.slow.to(torch.float64)
    wide = {name: value.double() for name, value in parameters.items()}
    expected = exact.logits(case.images.double(), case.counts, wide, private)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    none = case.fast.forward(prefixes[:0], [0] * 4, weights)
    assert none.shape == (0, CLASSES)


def test_what_is_frozen_of_images_is_torchs_and_need_not_be_kept(backbone):
    case = Case(backbone, COUNTS["ragged"], VARIANTS["gated"])
    vit = case.slow.to(torch.float64).model
    with torch.no_grad():
        tokens = vit.norm_pre(vit._pos_embed(vit.patch_embed(case.images.double())))
        mixed = []
        hook = vit.blocks[0].attn.proj.register_forward_pre_hook(lambda _, x: mixed.append(x[0]))
        vit.blocks[0].attn(vit.blocks[0].norm1(tokens))
        hook.remove()
    expected = torch.stack([tokens, mixed[0]], dim=1)
    found = case.fast.prefixes(case.images)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-6)
    assert case.fast.bytes_of_a_prefix == found[0].nbytes
    parameters = views(case.theta, case.layout.communicated)
    weights = case.fast.effective_weights(parameters | views(case.private, case.layout.private))
    answers = [case.fast.forward(x, case.counts, weights) for x in (case.images, found)]
    assert torch.equal(*answers)


def test_gradients_of_the_head_alone_are_the_heads(backbone):
    """The same bytes as where those of the factors are asked for too."""
    case = Case(backbone, COUNTS["ragged"], VARIANTS["gated"])

    def head_alone(row, slope, specs):
        own = [replace(one, trainable=one.name.startswith("head.")) for one in specs]
        return leaves(row, slope, own)

    for loss in (cross_entropy, Focal(gamma=2.0)):
        whole, alone = case.compiled(loss), case.compiled(loss, arranged=head_alone)
        assert torch.equal(whole[0], alone[0])
        heads = torch.zeros(case.layout.d + case.layout.d_private, dtype=torch.bool)
        heads[case.layout.before_head : case.layout.d] = True
        assert torch.equal(whole[1][:, heads], alone[1][:, heads])
        assert (alone[1][:, ~heads] == 0).all() and (whole[1][:, ~heads] != 0).any()


def test_the_gradient_is_that_of_the_sum_alone(backbone):
    case = Case(backbone, [3], {})
    with pytest.raises(ValueError, match="is that of their sum; take it of `logits`"):
        case.gradient(
            lambda named: case.fast.losses(
                case.fast.prefixes(case.images), case.labels, case.divisors, [3], named
            ) * torch.arange(3)
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"targets": "qkv-fc1"}, {}, "adapters at the outputs alone, not at qkv-fc1"),
        ({}, {"dtype": torch.float64}, "it computes in float32"),
        ({}, {"bfloat16": True}, "it computes in float32"),
    ],
)
def test_what_it_does_not_support_is_said(backbone, options, kind, sentence):
    config = AdapterConfig(rank=3, **options)
    layout = make_layout(backbone.architecture, CLASSES, config)
    with pytest.raises(ValueError, match=sentence):
        CompiledModel(backbone, layout, config, CLASSES, **kind)


def test_narrow_heads_are_refused():
    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    config = AdapterConfig()
    layout = make_layout(architecture, CLASSES, config)
    narrow = freeze(build(architecture), architecture, "narrow", {})
    with pytest.raises(ValueError, match=r"widths \[16, 8, 64\] of tokens, heads .* of 16"):
        CompiledModel(narrow, layout, config, CLASSES)


PROGRAM = """
import hashlib, json, sys
import torch
sys.path.insert(0, {tests!r})
from tests.models.fast.test_model import COUNTS, VARIANTS, Case, backbone
from fedsdg.models.fast import tiles
from fedsdg.models.fast.transformer import run
torch.set_num_threads(1)
case = Case(backbone.__wrapped__(), COUNTS["ragged"], VARIANTS["gated"])
losses, gradients = case.compiled()
hits = sum(run.stats.cache_hits.values())
digest = hashlib.sha256(losses.numpy().tobytes() + gradients.numpy().tobytes()).hexdigest()
print(json.dumps([tiles.LANES, hits, digest]))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86")
def test_bytes_do_not_depend_on_the_processor_and_code_is_kept(tmp_path):
    """Compiled for registers of 16 and of 8 numbers, where this machine has both; then read."""

    def run(**environment):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(tests=str(ROOT))],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
            | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    lanes, hits, digest = run()
    assert hits == 0
    assert run() == [lanes, 1, digest]
    assert run(NUMBA_CPU_NAME="haswell") == [8, 0, digest]
