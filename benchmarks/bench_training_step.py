"""How fast a cohort trains: forward and backward of M clients on the digits backbone's shape.

    pytest benchmarks/bench_training_step.py        (samples per second stand in extra_info)

Run alone on the machine, with glibc told to keep memory between steps:
    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsdg.models.adapters import AdapterConfig, initial_values, make_layout
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build, freeze
from fedsdg.models.cohort import CohortModel
from fedsdg.models.parameters import leaves

CLIENTS, BATCH, CLASSES = 5, 16, 10


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _cohort(branch: Any) -> tuple[CohortModel, list[torch.Tensor], dict[str, torch.Tensor]]:
    architecture = Architecture(8, 2, 1, 64, 6, 4, (0.5,), (0.5,))
    config = AdapterConfig(branch=branch)
    layout = make_layout(architecture, CLASSES, config)
    backbone = freeze(build(architecture), architecture, "benchmark", {})
    model = CohortModel(backbone, layout, config, CLASSES)
    gradients, parameters = [], {}
    values = initial_values(layout, config, np.random.default_rng(0))
    for row, specs in zip(values, (layout.communicated, layout.private), strict=True):
        matrix = row.repeat(CLIENTS, 1)
        gradients.append(torch.zeros_like(matrix))
        parameters.update(leaves(matrix, gradients[-1], specs))
    return model, gradients, parameters


@pytest.mark.parametrize("branch", ["none", "dual"])
def test_training_step(benchmark, branch):
    model, gradients, parameters = _cohort(branch)
    images = torch.randn(CLIENTS * BATCH, 1, 8, 8)
    labels = torch.randint(CLASSES, (CLIENTS * BATCH,))
    counts = [BATCH] * CLIENTS

    def step() -> None:
        for gradient in gradients:
            gradient.zero_()
        logits = model.logits(images, counts, parameters)
        loss = F.cross_entropy(logits, labels, reduction="sum") / BATCH
        loss.backward()

    benchmark.pedantic(step, rounds=60, warmup_rounds=10)
    assert all(gradient.any() for gradient in gradients if gradient.numel())
    benchmark.extra_info["samples_per_second"] = len(images) / benchmark.stats.stats.median


@pytest.mark.parametrize("branch", ["none", "dual"])
def test_evaluation(benchmark, branch):
    model, _, parameters = _cohort(branch)
    images = torch.randn(CLIENTS * BATCH, 1, 8, 8)
    with torch.no_grad():
        weights = model.effective_weights(parameters)
        benchmark.pedantic(
            lambda: model.forward(images, [BATCH] * CLIENTS, weights), rounds=60, warmup_rounds=10
        )
    benchmark.extra_info["samples_per_second"] = len(images) / benchmark.stats.stats.median
