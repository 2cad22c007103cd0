"""The compiled pass against the same model by torch in float64, and its bits on any processor."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg import models
from fedsdg.models.fast import tiles, transformer
from tests.models import conftest as our

ROOT = Path(__file__).parents[2]
RAGGED = [5, 0, 33, 1]


def squared(scores, labels, reduction):
    """A loss that is not cross-entropy."""
    return (1 - scores.softmax(1).gather(1, labels[:, None])[:, 0]) ** 2


def slopes_of(model, counts, loss=cross_entropy, private=True, prefixed=True, divisors=None):
    """(losses, gradient of both rows [M, d + d_p]) of a model in its own type, in float64."""
    dtype = getattr(model, "inner", model).dtype
    rows = [0.4 * row for row in our.random_rows(model, len(counts), dtype)]
    images, labels = our.random_images(sum(counts), dtype)
    images = model.prefixes(images) if prefixed else images
    if divisors is None:
        divisors = torch.from_numpy(np.repeat(counts, counts).astype(float))

    def losses(parameters):
        weights = model.effective_weights(parameters, private)
        return model.losses(images, labels, divisors, counts, weights, loss)

    found, slopes = our.gradients(model, rows, losses)
    return found.double(), torch.cat(slopes, 1).double()


def assert_as_good_as_float32(make, counts, **how):
    """Relative error of every client's gradient at most 1e-6, and twice that of torch."""
    wide, narrow = torch.float64, torch.float32
    cases = (
        (models.CohortModel, wide),
        (models.CohortModel, narrow),
        (models.CompiledModel, narrow),
    )
    exact, usual, found = (slopes_of(make(kind, dtype), counts, **how) for kind, dtype in cases)
    torch.testing.assert_close(found[0], exact[0], rtol=2e-6, atol=1e-6)
    norms = exact[1].norm(dim=1)
    errors = [((other[1] - exact[1]).norm(dim=1) / norms)[norms > 0] for other in (found, usual)]
    assert (errors[0] <= 1e-6).all() and errors[0].max() <= 2 * errors[1].max()
    assert not found[1][norms == 0].any()


@pytest.mark.parametrize("variant", our.VARIANTS)
def test_the_gradient_is_as_good_as_torchs(make_model, variant):
    def make(kind, dtype):
        return make_model(kind, dtype, **our.VARIANTS[variant])

    assert_as_good_as_float32(make, RAGGED)


@pytest.mark.parametrize("how", ["private", "loss", "prefixed", "divisors"])
def test_whatever_is_asked_of_it(make_model, how):
    divisors = torch.tensor([torch.inf, *[3.0] * 38], dtype=torch.float64)
    asked = {"private": False, "loss": squared, "prefixed": False, "divisors": divisors}

    def make(kind, dtype):
        return make_model(kind, dtype, branch="dual", private_init="lora", rank=10)

    assert_as_good_as_float32(make, RAGGED, **{how: asked[how]})


@pytest.mark.parametrize("counts", [[16, 16, 16], RAGGED, [1]], ids=str)
def test_a_mixed_model_takes_the_same_pass(make_model, counts):
    def make(kind, dtype):
        return models.MixedModel(make_model(kind, dtype), 0.3)

    assert_as_good_as_float32(make, counts)


@pytest.mark.parametrize("loss", [cross_entropy, squared])
def test_gradients_of_the_head_alone_are_the_same_bits(make_model, loss):
    model = make_model(models.CompiledModel, torch.float32)
    layout, whole = model.layout, slopes_of(model, RAGGED, loss)
    model = make_model(models.CompiledModel, torch.float32)
    model.layout = layout.of_copy(head_alone=True)
    alone, body = slopes_of(model, RAGGED, loss), layout.before_head
    assert torch.equal(whole[0], alone[0])
    assert torch.equal(whole[1][:, body:], alone[1][:, body:])
    assert not alone[1][:, :body].any() and whole[1][:, :body].any()


def test_the_gradient_is_that_of_the_sum_alone(make_model):
    model, (images, labels) = make_model(models.CompiledModel, torch.float32), our.random_images(3)
    leaf = our.random_rows(model, 1, torch.float32)[0].requires_grad_()
    weights = model.effective_weights(our.named(model, (leaf, leaf[:, :0])))
    losses = model.losses(images, labels, torch.ones(3), [3], weights)
    with pytest.raises(ValueError, match="is that of their sum; take it of `logits`"):
        (losses * torch.arange(3)).sum().backward()


def test_what_it_does_not_support_is_said(make_model, tiny):
    for sentence, shape, design, options in (
        ("adapters at the outputs alone, not at qkv-fc1", tiny, {}, {"targets": "qkv-fc1"}),
        (r"widths \[16, 8, 64\] of tokens, heads, .* of 16", replace(tiny, dim=16), {}, {}),
        ("with biases", tiny, {"qkv_bias": False}, {}),
        ("each with a position", tiny, {"reg_tokens": 2}, {}),
    ):
        backbone = our.random_backbone(shape, **design)
        with pytest.raises(ValueError, match=sentence):
            models.CompiledModel(backbone, models.AdapterConfig(**options), our.CLASSES)
    with pytest.raises(ValueError, match="it computes in float32"):
        make_model(models.CompiledModel, torch.float64)
    model, (images, _) = make_model(models.CompiledModel, torch.float32), our.random_images(2)
    with pytest.raises(TypeError, match="takes factors and heads in float32"):
        model.logits(images, [2], our.named(model, our.random_rows(model, 1)))


def at(array):
    return array.ctypes.data


def test_every_entry_of_a_product_is_one_sum_in_order():
    """So tiles of any shape give the same bits."""
    draws = np.random.default_rng(0)
    a, b = (draws.standard_normal(shape).astype(np.float32) for shape in ((13, 40), (40, 144)))
    whole, alone = (np.zeros((13, 144), np.float32) for _ in range(2))
    zeros = np.zeros(tiles.WIDEST, np.float32)
    tiles.product(at(a), 40, 1, at(b), at(whole), 13, 144, 40, at(zeros), 0)
    for row in range(13):
        for first in range(0, 144, 16):
            part, right = np.zeros(16, np.float32), np.ascontiguousarray(b[:, first : first + 16])
            tiles.product(at(a[row]), 40, 1, at(right), at(part), 1, 16, 40, at(zeros), 0)
            alone[row, first : first + 16] = part
    assert whole.tobytes() == alone.tobytes()
    np.testing.assert_allclose(whole, a.astype(float) @ b, atol=1e-5)


def test_roots_and_sigmoids_are_rounded_once():
    x = torch.logspace(-30, 30, 4001)
    assert torch.equal(models.root(x), x.double().sqrt().float())
    x = torch.linspace(-30, 30, 4001)
    assert torch.equal(models.sigmoid(x), torch.sigmoid(x.double()).float())


def report():
    """Print a hash of losses, gradients and a step of Adam, and the LLVM code for them."""
    torch.set_num_threads(1)
    backbone = our.random_backbone(models.Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,)))
    config = models.AdapterConfig(rank=3, branch="dual", private_init="lora")
    found = slopes_of(models.CompiledModel(backbone, config, our.CLASSES), RAGGED)
    rows = [np.linspace(1, 2, 64, dtype=np.float32).reshape(2, 32) for _ in range(4)]
    models.adam_step(*rows, np.ones(32, np.float32), *np.linspace(0, 1, 5, dtype=np.float32))
    digest = hashlib.sha256(b"".join(x.numpy().tobytes() for x in found) + rows[0].tobytes())
    hits = sum(transformer.run.stats.cache_hits.values())
    kernels = () if hits else (transformer.run, transformer.embed, models.adam_step)
    code = "".join(text for kernel in kernels for text in kernel.inspect_llvm().values())
    print(json.dumps([tiles.REGISTER, hits, digest.hexdigest(), code]))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86")
def test_bits_do_not_depend_on_the_processor_and_code_is_kept(tmp_path):
    """Compiled for registers of 16 and of 8 numbers, where this machine has both; then read."""

    def run(**environment):
        own = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
        program = f"from {__name__} import report; report()"
        command, environment = [sys.executable, "-c", program], {**os.environ, **own, **environment}
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        return json.loads(done.stdout)

    register, hits, digest, code = run()
    # No flag and no function lets the compiler fuse or reorder.
    flags = r"\bf(?:add|sub|mul|div|neg) [a-z ]*\b(?:fast|contract|reassoc|arcp|afn)\b"
    assert hits == 0 and len(re.findall(r"llvm\.fma\.v\d+f32", code)) > 200
    assert not re.search(rf"{flags}|llvm\.fmuladd", code)
    assert run() == [register, 1, digest, ""]
    # The name alone would leave the features of this processor.
    haswell = run(NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="")
    assert haswell[:3] == [8, 0, digest]
