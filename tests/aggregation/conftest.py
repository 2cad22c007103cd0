"""Fixtures of the aggregation tests."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedsdg.aggregation.types import Context


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cohort() -> Callable[..., Context]:
    """Makes a Context: clients given (or 0 … M-1) out of K, client k with 10 + 7 k samples."""

    def make(size: int = 0, *, clients=None, federation: int | None = None, **facts) -> Context:
        ids = np.arange(size) if clients is None else np.asarray(clients)
        total = int(ids.max(initial=0)) + 1 if federation is None else federation
        samples = facts.pop("samples", 10 + 7 * np.arange(total))
        return Context(
            round=1,
            clients=ids.astype(np.int64),
            num_clients=total,
            num_samples=samples[ids],
            total_samples=int(samples.sum()),
            num_batches=-(-samples[ids] // 4),
            client_samples=samples,
            **facts,
        )

    return make
