"""Clients as they are: every value of a column, such as a writer or a site, is one client."""

from __future__ import annotations

import numpy as np

from fedsdg.data.datasets import Column
from fedsdg.data.partition_record import Natural


def large_enough(column: Column, min_samples: int) -> np.ndarray:
    """The codes, sorted, that at least ``min_samples`` samples have."""
    counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.names))
    return np.flatnonzero((counts >= min_samples) & (counts > 0))


def deal_by_column(
    column: Column, num_clients: int, min_samples: int, generator: np.random.Generator
) -> tuple[np.ndarray, Natural]:
    """Clients [n] int32 of samples by their value in a column, −1 for those left out.

    Clients are numbered in the order of the values. Where fewer are wanted than there are, they are
    drawn uniformly.

    Raises ValueError where there are fewer.
    """
    able = large_enough(column, min_samples)
    if num_clients > len(able):
        raise ValueError(
            f"{num_clients} clients are wanted, but only {len(able)} of {len(column.names)} have "
            f"{min_samples} samples; set federation.clients to all or at most {len(able)}, or "
            "lower partition.min_samples"
        )
    chosen = able
    if num_clients < len(able):
        chosen = np.sort(generator.choice(able, num_clients, replace=False))
    # One place more, for samples without a value.
    number = np.full(len(column.names) + 1, -1, dtype=np.int32)
    number[chosen] = np.arange(num_clients)
    client = number[column.codes]
    values = len(np.unique(column.codes[column.codes >= 0]))
    return client, Natural(
        names=tuple(column.names[code] for code in chosen),
        too_small=values - len(able),
        not_drawn=len(able) - num_clients,
        samples_left_out=int((client < 0).sum()),
    )
