"""Fewer than half of the updates may be anything: the geometric median, on every engine."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsdg.aggregation import aggregate, aggregate_files
from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.screened import outlier_scores

from .large_attackers import attacked, true_residual

SCALES = {
    "float32": [1e1, 1e4, 1e8, 1e14, 1e20, 1e30, 3e38],
    "float64": [1e1, 1e4, 1e8, 1e14, 1e16, 1e37, 1e80, 1e153, 1e200, 1.7e308],
}
CASES = [(dtype, scale) for dtype, scales in SCALES.items() for scale in scales]
KINDS = ["alike", "apart", "of all sizes"]


def run(x, cohort, dtype, **options):
    rows = torch.tensor(x, dtype=getattr(torch, dtype))
    found = GeometricMedian(**{"tolerance": 1e-9, **options})({"update": rows}, cohort(len(x)), {})
    return found, rows.double().numpy()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_seven_small_points_and_one_far_away(dtype, cohort):
    """Of all that is far away the direction alone counts: the median of the seven points is that
    with the last one anywhere on its ray from there, here 1e3 away instead of 1e18."""
    x = np.array(
        [[3, 5, -4], [-3, 2, 4], [-5, -4, 3], [-1, -3, 1], [-4, 3, -5], [5, -4, 5]], dtype=float
    )
    far = np.array([-5e17, 9e17, -4e17])
    found, exact = run(np.vstack([x, far]), cohort, dtype)
    step = found.steps[0].double().numpy()
    near = step + 1e3 * far / np.linalg.norm(far)
    expected, _ = run(np.vstack([x, near]), cohort, "float64")
    np.testing.assert_allclose(step, expected.steps[0].numpy(), atol=1e-6)
    assert 0 <= found.diagnostics["residual"] <= 1e-7
    assert true_residual(exact, found.weights) < 1e-7


@pytest.mark.parametrize(("dtype", "scale"), CASES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "attackers"), [(10, 1), (9, 4), (20, 9)])
def test_the_residual_is_small_and_true_at_every_scale(dtype, scale, kind, size, attackers, cohort):
    """And the step is where it is claimed to be: no further from the honest updates' mean than
    2 (M - f) / (M - 2f) times the farthest of them (Lopuhaa and Rousseeuw 1991)."""
    x = attacked(size, attackers, 12, scale, kind, seed=attackers)
    found, exact = run(x, cohort, dtype)
    assert true_residual(exact, found.weights) < 1e-6
    assert found.diagnostics["residual"] == pytest.approx(
        true_residual(exact, found.weights), abs=1e-6
    )
    honest = exact[attackers:]
    mean = honest.mean(0)
    bound = 2 * (size - attackers) / (size - 2 * attackers)
    bound *= np.linalg.norm(honest - mean, axis=1).max()
    assert np.linalg.norm(found.steps[0].double().numpy() - mean) <= bound


@pytest.mark.parametrize("spread", [1e-150, 1e-8, 1e140, 1e290])
def test_the_honest_updates_may_be_of_any_size_too(spread, cohort):
    x = spread * attacked(9, 0, 12, 1.0, "apart")
    scale = min(spread * 1e305, 1.7e308)
    x[:4] = scale * np.random.default_rng(1).uniform(-1, 1, size=(4, 12))
    found, exact = run(x, cohort, "float64")
    assert true_residual(exact, found.weights) < 1e-6
    assert found.diagnostics["residual"] < 1e-6


def test_beyond_the_range_of_weights_it_withstands_still_and_says_how_well(cohort):
    """A weight of 1e-500 is 0: the pull of such an update is missing, which the residual tells."""
    x = 1e-200 * attacked(9, 0, 12, 1.0, "apart")
    x[:4] = 1e308 * np.random.default_rng(1).uniform(-1, 1, size=(4, 12))
    found, exact = run(x, cohort, "float64")
    assert np.abs(found.steps[0].numpy()).max() <= np.abs(x[4:]).max()
    assert found.diagnostics["residual"] == pytest.approx(true_residual(exact, found.weights))


def test_honest_updates_of_1e_minus_170_are_not_all_equal(cohort):
    """Their squared distances are below every number of float64."""
    x = 1e-170 * attacked(9, 0, 12, 1.0, "apart")
    x[0] = 1.0
    found, exact = run(x, cohort, "float64")
    assert true_residual(exact, found.weights) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e3, 1e8, 1e14, 1e37])
def test_kernels_do_as_well(dtype, scale, cohort):
    """Their float32 distances, good to 7 digits, say nothing of the honest from 1e8 on."""
    x = attacked(10, 4, 300, scale, "apart")
    with backend("numba"):
        found, exact = run(x, cohort, dtype)
    assert true_residual(exact, found.weights) < 1e-6
    assert found.diagnostics["residual"] < 1e-6


@pytest.mark.parametrize("where", ["torch", "numba"])
def test_behind_the_door_of_parameters(where):
    """Large tensors are read where they lie, small ones formed."""
    x = attacked(10, 4, 300, 1e30, "apart").astype("f4")
    wide = np.zeros((10, 40_000), dtype="f4")
    wide[:, 7] = x[:, 0]
    theta = {"wide": np.zeros(40_000, dtype="f4"), "small": np.zeros(299, dtype="f4")}
    clients = [{"wide": wide[k], "small": x[k, 1:]} for k in range(10)]
    with backend(where):
        found = aggregate("geometric-median", theta, clients)
    assert true_residual(x.astype(float), found.weights) < 1e-6
    assert found.diagnostics["residual"] < 1e-6
    honest = x[4:].astype(float)
    reached = np.linalg.norm(found.parameters["small"] - honest[:, 1:].mean(0))
    assert reached < 6 * np.linalg.norm(honest - honest.mean(0), axis=1).max()


def test_in_files(tmp_path):
    x = attacked(9, 4, 300, 1e200, "alike")
    save_file({"w": torch.zeros(300, dtype=torch.float64)}, tmp_path / "global.safetensors")
    files = [tmp_path / f"{k}.safetensors" for k in range(9)]
    for file, row in zip(files, x, strict=True):
        save_file({"w": torch.tensor(row)}, file)
    out = tmp_path / "out.safetensors"
    found = aggregate_files("geometric-median", tmp_path / "global.safetensors", files, out)
    assert true_residual(x, found.weights) < 1e-6
    assert np.abs(load_file(out)["w"].numpy()).max() < 10


def test_without_attackers_no_pass_is_added(cohort, monkeypatch):
    asked = []
    for name in ("log_distances", "centred_products"):
        monkeypatch.setattr(TensorRows, name, lambda *_: asked.append(1))
    for where in ("torch", "numba"):
        for scale in (1.0, 30.0):  # An outlier is no attack.
            with backend(where):
                run(attacked(10, 1, 300, scale, "alike"), cohort, "float32")
    assert not asked


def test_the_watch_sees_who_is_far_away(cohort):
    x = attacked(9, 2, 12, 1e200, "apart")
    scores = outlier_scores(TensorRows(torch.tensor(x)), cohort(9))
    assert (scores[:2] > 100).all()
    assert (scores[2:] < 10).all()


def test_points_on_a_line_give_the_middle_of_the_two_middle_ones_in_any_order(cohort):
    t = np.array([-3.0, 1e200, 2.0, 5.0, -1e190, 7.0])
    for order in (np.arange(6), np.array([3, 5, 1, 0, 2, 4])):
        found, _ = run(t[order][:, None], cohort, "float64")
        np.testing.assert_allclose(found.steps[0].numpy(), [3.5], rtol=1e-12)
        assert found.diagnostics["residual"] == 0
