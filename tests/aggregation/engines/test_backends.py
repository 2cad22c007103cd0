"""The choice of the backend: by size and kind of the rows, and by force."""

import subprocess
import sys

import pytest
import torch

from fedsdg.aggregation.engines.backends import (
    AUTO_NUMBERS,
    VARIABLE,
    backend,
    chosen_backend,
    kernels_for,
)


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def blank(size, d, dtype=torch.float32):
    return torch.empty(size, d, dtype=dtype)


def test_size_decides():
    assert kernels_for(blank(10, AUTO_NUMBERS // 10)) == "numba"
    assert kernels_for(blank(10, AUTO_NUMBERS // 10 - 1)) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_with_and_without_kernels(dtype):
    with backend("numba"):
        assert kernels_for(blank(2, 3, dtype)) == "numba"
        assert kernels_for(blank(2, 1).T[:1]) == "numba"
        assert kernels_for(blank(2, 3, torch.float8_e5m2)) is None
        assert kernels_for(blank(3, 2).T) is None
        assert kernels_for(blank(2, 0)) is None
        assert kernels_for(torch.empty(2, 3, device="meta")) is None


def test_the_block_outweighs_the_environment(monkeypatch):
    assert chosen_backend() == "auto"
    monkeypatch.setenv(VARIABLE, "torch")
    assert kernels_for(blank(10, AUTO_NUMBERS)) is None
    with backend("numba"):
        assert kernels_for(blank(1, 1)) == "numba"
        with backend("torch"):
            assert chosen_backend() == "torch"
        assert chosen_backend() == "numba"
    assert chosen_backend() == "torch"


def test_unknown_names_are_refused(monkeypatch):
    with (
        pytest.raises(ValueError, match="backend='fast': use one of auto, torch, numba"),
        backend("fast"),
    ):
        pass
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ValueError, match=f"{VARIABLE}='fast'"):
        chosen_backend()


def test_small_problems_never_load_the_compiler():
    """So the runs of a grid, whose cohorts are small, give the bytes they gave without kernels."""
    code = """
import sys, numpy as np, torch
from fedsdg.aggregation.engines.statistics import measure, squared_distances, weighted_sum
rows = torch.randn(10, 90_000)
measure(rows, gram=True), squared_distances(rows), weighted_sum(rows, np.ones(10))
sys.exit("numba" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
