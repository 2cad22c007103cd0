"""Assign samples to clients, one draw at a time.

Every function takes the labels [n] of the samples, the number of clients K, the number in the skew
and a generator, and returns the client [n] of each sample as int32. The caller checks whether all
clients got enough, and may draw again.
"""

import numpy as np
from numpy import ndarray
from numpy.random import Generator


def iid(labels: ndarray, clients: int, _: float, draw: Generator) -> ndarray:
    """Divide the samples at random into parts whose sizes differ by at most 1."""
    client = np.empty(len(labels), dtype=np.int32)
    order = draw.permutation(len(labels))
    for k, part in enumerate(np.array_split(order, clients)):
        client[part] = k
    return client


def dirichlet(labels: ndarray, clients: int, alpha: float, draw: Generator) -> ndarray:
    """Cut each class c at round(n_c · cumsum(p_c)), with shares p_c ~ Dir(α 1_K).

    As NIID-Bench (Li et al. 2022), but without the cap on sizes found in its code.
    """
    client = np.empty(len(labels), dtype=np.int32)
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        parts = _cut(members, draw.dirichlet(np.full(clients, alpha)))
        # In a random order: with even shares the same cuts are rounded up in every class, and some
        # clients would get twice as much as others.
        for k, part in zip(draw.permutation(clients), parts, strict=True):
            client[part] = k
    return client


def quantity(labels: ndarray, clients: int, beta: float, draw: Generator) -> ndarray:
    """Cut the samples, in random order, at round(n · cumsum(q)), with shares q ~ Dir(β 1_K).

    The quantity skew of NIID-Bench (Li et al. 2022): sizes differ, classes are IID.
    """
    client = np.empty(len(labels), dtype=np.int32)
    shares = draw.dirichlet(np.full(clients, beta))
    for k, part in enumerate(_cut(draw.permutation(len(labels)), shares)):
        client[part] = k
    return client


def _cut(members: np.ndarray, shares: np.ndarray) -> list[np.ndarray]:
    cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
    return np.split(members, np.minimum(cuts, len(members)))


def classes_each(labels: ndarray, clients: int, count: float, draw: Generator) -> ndarray:
    """Give every client samples of exactly ``count`` classes.

    Each client takes the classes with the fewest holders so far (ties at random), so the numbers of
    holders differ by at most 1; the holders of a class share its samples equally. McMahan et al.
    2017 deal shards instead, which may give a client one class twice.

    Raises:
        ValueError: There are too few classes, clients or samples.
    """
    classes, counts = np.unique(labels, return_counts=True)
    holders: list[list[int]] = [[] for _ in classes]
    for k in range(clients):
        load = np.array([len(held) for held in holders])
        ranked = np.lexsort((draw.random(len(classes)), load))
        for c in ranked[: int(count)]:
            holders[c].append(k)
    sizes = np.array([len(held) for held in holders])
    if count > len(classes) or not (sizes > 0).all() or (sizes > counts).any():
        raise ValueError(
            f"classes~{count}: {clients} clients cannot share {len(classes)} classes, the smallest "
            f"of {counts.min()} samples; use other numbers of clients or of classes per client"
        )
    client = np.empty(len(labels), dtype=np.int32)
    for label, held in zip(classes, holders, strict=True):
        members = draw.permutation(np.flatnonzero(labels == label))
        parts = np.array_split(members, len(held))
        for k, part in zip(draw.permutation(held), parts, strict=True):
            client[part] = k
    return client


#: By kind of skew.
ALLOCATIONS = {"iid": iid, "dirichlet": dirichlet, "quantity": quantity, "classes": classes_each}
