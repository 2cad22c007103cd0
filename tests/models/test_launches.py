"""What a GPU would be asked: no waiting for its answers, few launches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedsdg.models.cohort import CohortModel, even
from fedsdg.models.parameters import leaves


@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3], [1, 5, 5, 1], [0, 6, 6, 0]])
def test_fillers_change_no_score_and_no_gradient(make_model, random_rows, images, counts):
    model = make_model(branch="dual")
    rows = random_rows(model, 4)
    labels = torch.arange(12) % 5
    results = []
    for filled in (False, True):
        slopes = [torch.zeros_like(row) for row in rows]
        parameters = leaves(rows[0].clone(), slopes[0], model.layout.communicated)
        parameters |= leaves(rows[1].clone(), slopes[1], model.layout.private)
        if filled:
            padded, sizes, kept = even(images, counts)
            assert kept is not None and len(set(sizes)) == 1
            assert torch.equal(padded[kept], images)
            logits = model.logits(padded, sizes, parameters)[kept]
        else:
            logits = model.logits(images, counts, parameters)
        F.cross_entropy(logits, labels, reduction="sum").backward()
        results.append((logits.detach(), *slopes))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_no_more_fillers_than_images():
    images = torch.zeros(12, 1)
    assert even(images, [10, 2, 0, 0])[2] is None


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("targets", ["outputs", "qkv-fc1"])
@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3], [12, 0, 0, 0]])
def test_a_step_reads_no_value_back(make_model, bfloat16, targets, counts):
    """On torch's device without values, where reading one is an error."""
    like = make_model(branch="dual", targets=targets)
    model = CohortModel(
        like.backbone, like.layout, like.config, 5, device="meta", bfloat16=bfloat16
    )
    parameters = {}
    for specs in (like.layout.communicated, like.layout.private):
        matrix = torch.zeros(4, sum(spec.size for spec in specs), device="meta")
        parameters |= leaves(matrix, torch.zeros_like(matrix), specs)
    logits = model.logits(torch.zeros(12, 1, 8, 8, device="meta"), counts, parameters)
    assert logits.shape == (12, 5) and logits.device.type == "meta"
    labels = torch.zeros(12, dtype=torch.int64, device="meta")
    F.cross_entropy(logits, labels).backward()
