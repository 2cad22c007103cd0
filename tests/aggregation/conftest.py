"""Fixtures of the aggregation tests."""

import numpy as np
import pytest

from fedsdg.aggregation.types import Context


@pytest.fixture(scope="session")
def context():
    """Makes a Context of clients (or 0 … M-1) out of K, client k with 10 + 7 k samples."""

    def make(clients, num_clients=None, **facts):
        ids = np.arange(clients) if isinstance(clients, int) else np.asarray(clients)
        total = num_clients or int(ids.max(initial=0)) + 1
        samples = facts.pop("samples", 10.0 + 7 * np.arange(total))
        return Context(
            round=facts.pop("round", 1),
            clients=ids.astype(np.int64),
            num_clients=total,
            num_samples=samples[ids],
            num_batches=np.ceil(samples[ids] / 4),
            client_samples=samples,
            **facts,
        )

    return make
