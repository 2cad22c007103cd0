"""Assign samples to clients, one draw at a time.

Every function takes the labels [n] of the samples, the number of clients K, the number in the skew
and a generator, and returns the client [n] of each sample as int32. The caller checks whether all
clients got enough, and may draw again.
"""

import numpy as np
from numpy.random import Generator


def iid(labels: np.ndarray, num_clients: int, _: float, generator: Generator) -> np.ndarray:
    """Divide the samples at random into parts whose sizes differ by at most 1."""
    client = np.empty(len(labels), dtype=np.int32)
    client[generator.permutation(len(labels))] = _even_parts(len(labels), num_clients)
    return client


def dirichlet(
    labels: np.ndarray, num_clients: int, alpha: float, generator: Generator
) -> np.ndarray:
    """Cut each class c at round(n_c · cumsum(p_c)), with shares p_c ~ Dir(α 1_K).

    As NIID-Bench (Li et al. 2022), but without the cap on sizes found in its code.
    """
    client = np.empty(len(labels), dtype=np.int32)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        parts = _parts(len(members), generator.dirichlet(np.full(num_clients, alpha)))
        # In a random order: with even shares the same cuts are rounded up in every class, and some
        # clients would get twice as much as others.
        client[members] = generator.permutation(num_clients)[parts]
    return client


def quantity(labels: np.ndarray, num_clients: int, beta: float, generator: Generator) -> np.ndarray:
    """Cut the samples, in random order, at round(n · cumsum(q)), with shares q ~ Dir(β 1_K).

    The quantity skew of NIID-Bench (Li et al. 2022): sizes differ, classes are IID.
    """
    client = np.empty(len(labels), dtype=np.int32)
    shares = generator.dirichlet(np.full(num_clients, beta))
    client[generator.permutation(len(labels))] = _parts(len(labels), shares)
    return client


def classes_each(
    labels: np.ndarray, num_clients: int, count: float, generator: Generator
) -> np.ndarray:
    """Give every client samples of exactly ``count`` classes.

    Each client takes the classes with the fewest holders so far (ties at random), so the numbers of
    holders differ by at most 1; the holders of a class share its samples equally. McMahan et al.
    2017 deal shards instead, which may give a client one class twice.

    Raises:
        ValueError: There are too few classes, clients or samples.
    """
    classes, counts = np.unique(labels, return_counts=True)
    holds = np.zeros((num_clients, len(classes)), dtype=bool)
    for k in range(num_clients):
        ranked = np.lexsort((generator.random(len(classes)), holds.sum(axis=0)))
        holds[k, ranked[: int(count)]] = True
    holders = holds.sum(axis=0)
    if count > len(classes) or (holders == 0).any() or (holders > counts).any():
        raise ValueError(
            f"classes~{count}: {num_clients} clients cannot share {len(classes)} classes, of which "
            f"the smallest has {counts.min()} samples; use other numbers of clients or of classes"
        )
    client = np.empty(len(labels), dtype=np.int32)
    for c, label in enumerate(classes):
        members = generator.permutation(np.flatnonzero(labels == label))
        parts = _even_parts(len(members), holders[c])
        client[members] = generator.permutation(np.flatnonzero(holds[:, c]))[parts]
    return client


def _even_parts(total: int, count: int) -> np.ndarray:
    """Return the part [total] of each of so many samples in a row; sizes differ by at most 1."""
    return np.sort(np.arange(total) % count)


def _parts(total: int, shares: np.ndarray) -> np.ndarray:
    """Return the part [total] of each of so many samples in a row, cut by cumulative shares."""
    ends = np.rint(np.cumsum(shares)[:-1] * total)
    return np.searchsorted(ends, np.arange(total), side="right")


#: By kind of skew.
ALLOCATIONS = {"iid": iid, "dirichlet": dirichlet, "quantity": quantity, "classes": classes_each}
