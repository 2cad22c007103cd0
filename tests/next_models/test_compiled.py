"""The compiled pass against the same model by torch in float64, and its bits on any processor."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.next_models import (
    AdapterConfig,
    Architecture,
    CohortModel,
    CompiledModel,
    MixedModel,
    adam_step,
    root,
    sigmoid,
)
from tests.next_models.conftest import (
    CLASSES,
    VARIANTS,
    gradients,
    named,
    random_backbone,
    random_images,
    random_rows,
)

ROOT = Path(__file__).parents[2]
COUNTS = {"equal": [16, 16, 16], "ragged": [5, 0, 33, 1], "one image": [1]}


def squared(scores, labels, reduction):
    """A loss that is not cross-entropy."""
    return (1 - scores.softmax(1).gather(1, labels[:, None])[:, 0]) ** 2


def slopes_of(model, counts, loss=cross_entropy, private=True, prefixed=True, divisors=None):
    """(losses, gradient of both rows [M, d + d_p]) of a model in its own type."""
    dtype = getattr(model, "inner", model).dtype
    rows = [0.4 * row for row in random_rows(model, len(counts), dtype)]
    images, labels = random_images(sum(counts), dtype)
    images = model.prefixes(images) if prefixed else images
    if divisors is None:
        divisors = torch.from_numpy(np.repeat(counts, counts).astype(float))
    losses, slopes = gradients(
        model,
        rows,
        lambda p: model.losses(
            images, labels, divisors, counts, model.effective_weights(p, private), loss
        ),
    )
    return losses.double(), torch.cat(slopes, 1).double()


def assert_as_good_as_float32(make, counts, **how):
    """Relative error of every client's gradient at most 1e-6, and twice that of torch."""
    exact = slopes_of(make(CohortModel, torch.float64), counts, **how)
    usual = slopes_of(make(CohortModel, torch.float32), counts, **how)
    found = slopes_of(make(CompiledModel, torch.float32), counts, **how)
    torch.testing.assert_close(found[0], exact[0], rtol=2e-6, atol=1e-6)
    norms = exact[1].norm(dim=1)
    errors = [((other[1] - exact[1]).norm(dim=1) / norms)[norms > 0] for other in (found, usual)]
    assert (errors[0] <= 1e-6).all() and errors[0].max() <= 2 * errors[1].max()
    assert not found[1][norms == 0].any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gradient_is_as_good_as_torchs(make_model, variant):
    def make(kind, dtype):
        return make_model(kind, dtype, **VARIANTS[variant])

    assert_as_good_as_float32(make, COUNTS["ragged"])


@pytest.mark.parametrize(
    "how",
    [
        {"private": False},
        {"loss": squared},
        {"prefixed": False},
        {"divisors": torch.tensor([torch.inf, *[3.0] * 38], dtype=torch.float64)},
    ],
    ids=lambda how: next(iter(how)),
)
def test_whatever_is_asked_of_it(make_model, how):
    def make(kind, dtype):
        return make_model(kind, dtype, branch="dual", private_init="lora", rank=10)

    assert_as_good_as_float32(make, COUNTS["ragged"], **how)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_mixed_model_takes_the_same_pass(make_model, counts, weight):
    def make(kind, dtype):
        return MixedModel(make_model(kind, dtype), weight)

    assert_as_good_as_float32(make, COUNTS[counts])


def test_scores_are_torchs(make_model):
    fast = make_model(CompiledModel, torch.float32, branch="dual")
    exact, rows = make_model(branch="dual"), random_rows(fast, 4, torch.float32)
    images, _ = random_images(39)
    for private in (True, False):
        weights = fast.effective_weights(named(fast, rows), private)
        prefixes = fast.prefixes(images.float())
        assert fast.bytes_of_a_prefix == prefixes[0].nbytes
        got = fast.forward(prefixes, COUNTS["ragged"], weights)
        assert torch.equal(got, fast.forward(images.float(), COUNTS["ragged"], weights))
        wide = named(exact, [row.double() for row in rows])
        expected = exact.logits(images, COUNTS["ragged"], wide, private)
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", [cross_entropy, squared])
def test_gradients_of_the_head_alone_are_the_same_bits(make_model, loss):
    whole = slopes_of(make_model(CompiledModel, torch.float32), [5, 33], loss)
    model = make_model(CompiledModel, torch.float32)
    layout = model.layout
    model.layout = layout.of_copy(head_alone=True)
    alone = slopes_of(model, [5, 33], loss)
    assert torch.equal(whole[0], alone[0])
    head = slice(layout.before_head, layout.d)
    assert torch.equal(whole[1][:, head], alone[1][:, head])
    assert not alone[1][:, : head.start].any() and whole[1][:, : head.start].any()


def test_the_gradient_is_that_of_the_sum_alone(make_model):
    model = make_model(CompiledModel, torch.float32)
    images, labels = random_images(3, torch.float32)
    leaf = random_rows(model, 1, torch.float32)[0].requires_grad_()
    weights = model.effective_weights(named(model, (leaf, leaf[:, :0])))
    losses = model.losses(images, labels, torch.ones(3), [3], weights)
    with pytest.raises(ValueError, match="is that of their sum; take it of `logits`"):
        (losses * torch.arange(3)).sum().backward()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"targets": "qkv-fc1"}, "adapters at the outputs alone, not at qkv-fc1"),
        ({"dtype": torch.float64}, "it computes in float32"),
    ],
)
def test_what_it_does_not_support_is_said(make_model, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_model(CompiledModel, **{"dtype": torch.float32, **options})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dim": 16}, r"widths \[16, 8, 64\] of tokens, heads .* of 16"),
        ({"init_values": 0.1}, "plain blocks"),
        ({"qkv_bias": False}, "with biases"),
        ({"reg_tokens": 2}, "each with a position"),
    ],
)
def test_designs_it_does_not_support(change, sentence):
    architecture = Architecture(8, 4, 1, change.pop("dim", 32), 2, 2, (0.5,), (0.5,))
    with pytest.raises(ValueError, match=sentence):
        CompiledModel(random_backbone(architecture, **change), AdapterConfig(), CLASSES)


def test_parameters_in_another_precision_are_refused(make_model):
    model = make_model(CompiledModel, torch.float32)
    images, _ = random_images(2, torch.float32)
    with pytest.raises(TypeError, match="takes factors and heads in float32"):
        model.logits(images, [2], named(model, random_rows(model, 1)))


def test_adam_is_torchs():
    theta, mean, square = torch.randn(3, 40), torch.zeros(3, 40), torch.zeros(3, 40)
    leaf, rate = theta.clone().requires_grad_(), 0.01
    optimiser = torch.optim.Adam([leaf], lr=rate)
    for step in range(1, 6):
        leaf.grad = torch.randn(3, 40)
        optimiser.step()
        c = (1 - 0.999**step) ** 0.5
        numbers = (1 - 0.9, 0.999, 1 - 0.999, 1e-8 * c, c / (1 - 0.9**step))
        arrays = (x.numpy() for x in (theta, leaf.grad, mean, square, torch.full((40,), rate)))
        adam_step(*arrays, *(np.float32(number) for number in numbers))
    torch.testing.assert_close(theta, leaf.detach(), rtol=1e-5, atol=1e-6)


def test_roots_and_sigmoids_are_rounded_once():
    x = torch.logspace(-30, 30, 4001)
    assert torch.equal(root(x).double(), x.double().sqrt().float().double())
    x = torch.linspace(-30, 30, 4001)
    assert torch.equal(sigmoid(x), torch.sigmoid(x.double()).float())
    assert root(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64


#: Computes losses, gradients and a step of Adam; prints their hash and the LLVM code for them.
PROGRAM = """
import hashlib, json, sys
import numpy as np, torch
from fedsdg.next_models import AdapterConfig, Architecture, CompiledModel, adam_step
from fedsdg.next_models.fast import tiles, transformer
from tests.next_models.conftest import random_backbone
from tests.next_models.test_compiled import slopes_of
torch.set_num_threads(1)
architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
config = AdapterConfig(rank=3, branch="dual", private_init="lora")
found = slopes_of(CompiledModel(random_backbone(architecture), config, 5), [5, 0, 33, 1])
rows = [np.linspace(1, 2, 64, dtype=np.float32).reshape(2, 32) for _ in range(4)]
adam_step(*rows, np.ones(32, np.float32), *np.linspace(0, 1, 5, dtype=np.float32))
digest = hashlib.sha256(b"".join(x.numpy().tobytes() for x in found) + rows[0].tobytes())
hits = sum(transformer.run.stats.cache_hits.values())
code = [kernel.inspect_llvm() for kernel in (transformer.run, transformer.embed, adam_step)]
text = "" if hits else "".join(text for one in code for text in one.values())
print(json.dumps([tiles.REGISTER, hits, digest.hexdigest(), text]))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86")
def test_bits_do_not_depend_on_the_processor_and_code_is_kept(tmp_path):
    """Compiled for registers of 16 and of 8 numbers, where this machine has both; then read."""

    def run(**environment):
        own = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **own, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    register, hits, digest, code = run()
    assert hits == 0
    # No flag and no function lets the compiler fuse or reorder.
    flags = r"\bf(?:add|sub|mul|div|neg) [a-z ]*\b(?:fast|contract|reassoc|arcp|afn)\b"
    assert len(re.findall(r"llvm\.fma\.v\d+f32", code)) > 200
    assert not re.search(rf"{flags}|llvm\.fmuladd", code)
    assert run() == [register, 1, digest, ""]
    # The name alone would leave the features of this processor.
    haswell = run(NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="")
    assert haswell[:3] == [8, 0, digest]
