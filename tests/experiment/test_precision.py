"""training.precision from the config to what a run learns."""

import dataclasses

import pytest
import torch

from tests.experiment.small import setup_of, small_config, small_run
from tests.federation.small import run


def test_float32_is_the_default_and_another_word_is_refused():
    assert small_config().training.precision == "float32"
    with pytest.raises(ValueError, match=r"training\.precision.*bfloat16"):
        small_config(training={"precision": "half"})


def test_only_a_gpu_rounds_products_to_tf32():
    with pytest.raises(ValueError, match=r"precision is tf32.*set training\.device to cuda"):
        small_run(training={"precision": "tf32"})
    given = [{"precision": name, "device": "cuda"} for name in ("float32", "tf32")]
    runs = [small_run(training=training) for training in given]
    assert runs[0].hash != runs[1].hash


def test_a_run_in_bfloat16_learns_what_one_in_float32_learns():
    runs, finished, moved = [], [], []
    for precision in ("float32", "bfloat16", "bfloat16"):
        runs.append(small_run(training={"precision": precision}))
        one = run(setup_of(runs[-1]))
        assert one.theta.dtype == one.private.dtype == torch.float32
        finished.append(one)
        moved.append((one.theta - one.setup.first[0]).double())
    assert runs[0].hash != runs[1].hash == runs[2].hash
    assert dataclasses.replace(runs[1], training=runs[0].training) == runs[0]
    assert finished[1].rounds == finished[2].rounds and finished[1].clients == finished[2].clients
    assert torch.equal(moved[1], moved[2])
    # Adam takes the sign of tiny gradients: single entries may differ, the way taken may not.
    assert 0 < (moved[1] - moved[0]).norm() < 0.1 * moved[0].norm()
