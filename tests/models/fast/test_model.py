"""The compiled pass against the same model by torch in float64, client by client."""

import dataclasses
import json
import os
import platform
import subprocess
import sys
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
from fedsdg.models.forward import class_tokens
from fedsdg.models.instance_mixture import InstanceMixture
from fedsdg.models.interface import HasLosses
from fedsdg.models.mixture import MixedModel
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
    "first block": {"branch": "dual", "private_block": "first", "private_init": "lora"},
    "last block": {"branch": "dual", "private_block": "last", "composition": "factors"},
    "last block, shared A": {
        "branch": "dual",
        "private_block": "last",
        "private_subspace": "shared-a",
        "gate": "client",
    },
    "frozen A": {"factor_a": "frozen"},
    "private B": {"factor_b": "private"},
    "private head": {"head": "private"},
    "local": {"local": True},
}
MIXTURE = {"branch": "dual", "composition": "mixture", "gate_fixed": 0.8}
MIXTURES = {
    "own A": {},
    "shared A": {"private_subspace": "shared-a"},
    "two vectors of ranks": {"rank": 10},
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
    """A cohort's parameters and images, and both models, each in ``around`` one."""

    def __init__(self, backbone, counts, options, around=lambda model: model):
        config = AdapterConfig(**{"rank": 3, **options})
        layout = make_layout(backbone.architecture, CLASSES, config)
        given = (backbone, layout, config, CLASSES)
        self.fast, self.slow = around(CompiledModel(*given)), around(CohortModel(*given))
        self.layout = self.fast.layout
        generator = np.random.default_rng(0)
        draw = lambda *shape: torch.from_numpy(generator.standard_normal(shape)).float()  # noqa: E731
        self.counts, size = counts, sum(counts)
        self.theta = 0.1 * draw(len(counts), self.layout.d)
        self.private = 0.1 * draw(len(counts), self.layout.d_private)
        self.images = draw(size, 1, 8, 8)
        self.labels = torch.from_numpy(generator.integers(0, CLASSES, size))
        self.divisors = torch.from_numpy(np.repeat(counts, counts).astype(float))

    @property
    def prefixes(self):
        """The images as the compiled pass takes them."""
        return getattr(self.fast, "inner", self.fast).prefixes(self.images)

    def named(self, dtype=torch.float32):
        """All parameters in a type, by name."""
        named = views(self.theta.to(dtype), self.layout.communicated)
        return named | views(self.private.to(dtype), self.layout.private)

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
        def losses(parameters):
            return self.fast.losses(
                self.prefixes, self.labels, self.divisors, self.counts, parameters, loss, **which
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
    if "block" in name:
        assert_as_good_as_float32(case, case.compiled(arranged=by_block))


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
    weights = case.fast.effective_weights(case.named(), private)
    found = case.fast.forward(case.prefixes, case.counts, weights)
    exact = case.slow.to(torch.float64)
    wide = case.named(torch.float64)
    expected = exact.logits(case.images.double(), case.counts, wide, private)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    none = case.fast.forward(case.prefixes[:0], [0] * 4, weights)
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


def test_the_room_is_enough_for_every_rank(backbone):
    """Kernels write by address, and would write beyond a room that is too small."""
    case = Case(backbone, [2], {})
    assert [case.fast._room(rank).du.shape[1] for rank in (16, 48, 32)] == [16, 48, 48]


def test_gradients_of_the_head_alone_are_the_heads(backbone):
    """The same bytes as where those of the factors are asked for too."""
    case = Case(backbone, COUNTS["ragged"], VARIANTS["gated"])

    def head_alone(row, slope, specs):
        own = [dataclasses.replace(one, trainable=one.name.startswith("head.")) for one in specs]
        return leaves(row, slope, own)

    for loss in (cross_entropy, Focal(gamma=2.0)):
        whole, alone = case.compiled(loss), case.compiled(loss, arranged=head_alone)
        assert torch.equal(whole[0], alone[0])
        heads = torch.zeros(case.layout.d + case.layout.d_private, dtype=torch.bool)
        heads[case.layout.before_head : case.layout.d] = True
        assert torch.equal(whole[1][:, heads], alone[1][:, heads])
        assert (alone[1][:, ~heads] == 0).all() and (whole[1][:, ~heads] != 0).any()


def with_share(model, share):
    """The fixed mixture with another share, in float64."""
    given = model.backbone, model.layout, dataclasses.replace(model.config, gate_fixed=share)
    return CohortModel(*given, model.num_classes, dtype=torch.float64)


@pytest.mark.parametrize("counts", ["ragged", "one image"])
@pytest.mark.parametrize("name", MIXTURES)
def test_every_image_has_its_own_share_of_two_adapters(backbone, name, counts):
    """Against one fixed mixture an image, by torch."""
    case = Case(backbone, COUNTS[counts], MIXTURE | MIXTURES[name])
    size, wide = len(case.images), case.named(torch.float64)
    shares = torch.linspace(0, 1, size + 1)[1:]
    branches = case.fast.branches(case.named())
    found = case.fast.blended(case.prefixes, case.counts, branches, shares)
    clients = np.repeat(np.arange(len(case.counts)), case.counts)
    for image, client in enumerate(clients):
        own = {key: value[client : client + 1] for key, value in wide.items()}
        exact = with_share(case.slow, float(shares[image]))
        expected = exact.logits(case.images[image : image + 1].double(), [1], own)
        torch.testing.assert_close(found[image : image + 1].double(), expected, rtol=0, atol=1e-5)
    alone = case.fast.features(case.prefixes, case.counts, branches)
    weights = with_share(case.slow, 1.0).effective_weights(wide)
    double = case.slow.to(torch.float64).model
    expected = class_tokens(double, case.images.double(), case.counts, weights)
    torch.testing.assert_close(alone.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("counts", COUNTS)
def test_weights_by_instance_are_torchs(backbone, counts):
    """From the anchors to the scores."""
    case = Case(backbone, COUNTS[counts], MIXTURE, InstanceMixture)
    exact, anchor = case.slow.to(torch.float64), case.layout.private[-1].size
    few, known = [2, 1, 2, 3][: len(case.counts)], torch.arange(8) % len(case.images)
    known = known[: sum(few)]
    private = case.fast.with_anchors(case.private, case.prefixes[known], few)
    expected = exact.with_anchors(case.private.double(), case.images[known].double(), few)
    torch.testing.assert_close(private.double(), expected, rtol=0, atol=1e-6)
    assert (private[:, -anchor:].norm(dim=1) > 0.1).all()
    case.private = private
    weights = case.fast.effective_weights(case.named())
    found = case.fast.forward(case.prefixes, case.counts, weights)
    wide = exact.effective_weights(case.named(torch.float64))
    expected = exact.forward(case.images.double(), case.counts, wide)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    none = [0] * len(case.counts)
    for model, images, own in (
        (case.fast, case.prefixes, weights), (exact, case.images.double(), wide)
    ):  # fmt: skip
        assert model.forward(images[:0], none, own).shape == (0, CLASSES)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("options", "around"),
    [({}, lambda model: MixedModel(model, 0.3)), (MIXTURE, InstanceMixture)],
    ids=["apfl", "by instance"],
)
def test_mixtures_take_one_pass_for_their_gradient(backbone, options, around, private, monkeypatch):
    passes, run = [], CompiledModel._run
    monkeypatch.setattr(
        CompiledModel, "_run", lambda *given, **more: passes.append(1) or run(*given, **more)
    )
    case = Case(backbone, COUNTS["ragged"], options, around)
    found = case.compiled(arranged=by_block, private=private)
    assert len(passes) == 1
    assert_as_good_as_float32(case, found, private=private)
    assert not isinstance(case.slow, HasLosses)


def test_the_gradient_is_that_of_the_sum_alone(backbone):
    case = Case(backbone, [3], {})
    with pytest.raises(ValueError, match="is that of their sum; take it of `logits`"):
        case.gradient(
            lambda named: case.fast.losses(
                case.prefixes, case.labels, case.divisors, [3], named
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


def test_adapters_in_another_precision_are_refused(backbone):
    case = Case(backbone, [2], VARIANTS["shared"])
    weights = case.fast.effective_weights(case.named(torch.float64))
    with pytest.raises(TypeError, match="takes factors and heads in float32"):
        case.fast.forward(case.prefixes, [2], weights)


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
from tests.models.fast.test_model import COUNTS, MIXTURE, VARIANTS, Case, backbone
from fedsdg.models.fast import tiles
from fedsdg.models.fast.transformer import run
torch.set_num_threads(1)
case = Case(backbone.__wrapped__(), COUNTS["ragged"], VARIANTS["gated"])
losses, gradients = case.compiled()
mixed = Case(backbone.__wrapped__(), COUNTS["ragged"], MIXTURE)
shares, branches = torch.linspace(0, 1, 39), mixed.fast.branches(mixed.named())
scores = mixed.fast.blended(mixed.prefixes, mixed.counts, branches, shares)
hits = sum(run.stats.cache_hits.values())
numbers = [part.numpy().tobytes() for part in (losses, gradients, scores)]
digest = hashlib.sha256(b"".join(numbers)).hexdigest()
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
    # The name alone would leave the features of this processor.
    assert run(NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="") == [8, 0, digest]
