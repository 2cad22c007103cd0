"""Deal samples to clients: the schemes behind a label skew, one draw at a time.

Every function takes the labels of the samples to be shared, gives the client of each, and uses
every sample exactly once. Whether clients got enough is judged by the caller, who may draw again.

"Dirichlet" names at least two schemes in the literature:

- per class (NIID-Bench, Li et al. 2022, without the size cap found in its code): for every class c,
  p_c ~ Dir(α 1_K) says which part of the class goes to which client. Sizes vary.
- per client (in the manner of Hsu et al. 2019): for every client k, q_k ~ Dir(α 1_C) says which
  classes it draws from. Sizes are equal; clients dealt last get what is left, so the scheme
  follows q_k less and less closely as classes run out. The order of the clients is drawn.

A mixed skew deals a share of every class IID, and the others in one of these ways.
Sizes alone differ under quantity skew, and domains alone under feature skew; labels are then IID.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsdg.data.stratified import stratified_choice


def deal_iid(labels: np.ndarray, num_clients: int, generator: np.random.Generator) -> np.ndarray:
    """Clients [n] of samples dealt at random in equal parts (sizes differ by at most 1)."""
    client = np.empty(len(labels), dtype=np.int32)
    order = generator.permutation(len(labels))
    for k, part in enumerate(np.array_split(order, num_clients)):
        client[part] = k
    return client


def deal_dirichlet_per_class(
    labels: np.ndarray, num_clients: int, alpha: float, generator: np.random.Generator
) -> np.ndarray:
    """Clients [n]: class c is cut at round(n_c · cumsum(p_c)), p_c ~ Dir(α 1_K)."""
    client = np.empty(len(labels), dtype=np.int32)
    for c in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == c))
        shares = generator.dirichlet(np.full(num_clients, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        cuts = np.minimum(cuts, len(members))
        # The parts go to clients in a drawn order: with even shares the same cuts are rounded up
        # in every class, and some clients would get twice what others get.
        order = generator.permutation(num_clients)
        for k, part in zip(order, np.split(members, cuts), strict=True):
            client[part] = k
    return client


def deal_dirichlet_per_client(
    labels: np.ndarray, num_clients: int, alpha: float, generator: np.random.Generator
) -> np.ndarray:
    """Clients [n]: client k draws n/K samples without replacement, classes by q_k ~ Dir(α 1_C).

    When a class is used up q_k is renormalised over the others; when all classes that q_k can
    reach are used up, the rest is drawn in proportion to what is left.
    """
    n = len(labels)
    client = np.empty(n, dtype=np.int32)
    classes = np.unique(labels)
    pools = [generator.permutation(np.flatnonzero(labels == c)) for c in classes]
    left = np.array([len(pool) for pool in pools], dtype=np.int64)
    sizes = np.full(num_clients, n // num_clients, dtype=np.int64)
    order = generator.permutation(num_clients)
    sizes[order[: n % num_clients]] += 1
    for k in order:
        preference = generator.dirichlet(np.full(len(classes), alpha))
        wanted = int(sizes[k])
        while wanted > 0:
            mass = np.where(left > 0, preference, 0.0)
            if not mass.sum() > 0:
                mass = left.astype(np.float64)
            taken = np.minimum(generator.multinomial(wanted, mass / mass.sum()), left)
            for c in np.flatnonzero(taken):
                client[pools[c][left[c] - taken[c] : left[c]]] = k
            left -= taken
            wanted -= int(taken.sum())
    return client


def mix(
    labels: np.ndarray,
    num_clients: int,
    share: float,
    deal: Callable[[np.ndarray], np.ndarray],
    generator: np.random.Generator,
) -> np.ndarray:
    """Clients [n]: a part ``share`` of the samples IID, the others by ``deal(their labels)``.

    round(share · n) samples are drawn stratified by class, so that of n_c samples of class c
    share · n_c are dealt IID, up to rounding: a client's expected shares of classes are
    share · (those of all) + (1 − share) · (those that ``deal`` gives it).
    """
    alike = np.zeros(len(labels), dtype=bool)
    alike[stratified_choice(labels, round(share * len(labels)), generator)] = True
    client = np.empty(len(labels), dtype=np.int32)
    client[alike] = deal_iid(labels[alike], num_clients, generator)
    client[~alike] = deal(labels[~alike])
    return client


def deal_quantity(
    labels: np.ndarray, num_clients: int, beta: float, generator: np.random.Generator
) -> np.ndarray:
    """Clients [n]: samples in random order, cut at round(n · cumsum(q)), q ~ Dir(β 1_K).

    Quantity skew of NIID-Bench (Li et al. 2022): sizes differ, classes are IID within a client.
    """
    shares = generator.dirichlet(np.full(num_clients, beta))
    cuts = np.rint(np.cumsum(shares)[:-1] * len(labels)).astype(np.int64)
    client = np.empty(len(labels), dtype=np.int32)
    order = generator.permutation(len(labels))
    for k, part in enumerate(np.split(order, np.minimum(cuts, len(labels)))):
        client[part] = k
    return client


def deal_domains(
    domain: np.ndarray, num_clients: int, generator: np.random.Generator
) -> np.ndarray:
    """Clients [n] such that each holds samples of one domain, IID within it and equally many.

    ``domain`` [n] is the domain of each sample. The numbers of clients of two domains differ by at
    most 1, whatever the sizes of the domains; which clients get which domain is drawn.

    Raises ValueError for fewer clients than domains, since samples would be left over.
    """
    domains = np.unique(domain)
    if num_clients < len(domains):
        raise ValueError(
            f"domains: {num_clients} clients cannot hold {len(domains)} domains when each holds "
            f"one; use at least {len(domains)} clients"
        )
    client = np.empty(len(domain), dtype=np.int32)
    clients = np.array_split(generator.permutation(num_clients), len(domains))
    # Where the clients do not divide evenly, chance says which domains get one more.
    for d, holders in zip(generator.permutation(domains), clients, strict=True):
        members = np.flatnonzero(domain == d)
        client[members] = holders[deal_iid(members, len(holders), generator)]
    return client


def deal_classes(
    labels: np.ndarray, num_clients: int, per_client: int, generator: np.random.Generator
) -> np.ndarray:
    """Clients [n] such that each holds samples of exactly ``per_client`` distinct classes.

    Every client takes the classes with the fewest holders so far (ties at random), so the numbers
    of holders of two classes differ by at most 1; a class's samples are divided evenly among its
    holders (McMahan et al. 2017 deal shards instead, which may give a client one class twice).

    Raises ValueError when no such deal exists: more classes per client than there are, too few
    clients to hold every class, or a class with fewer samples than holders.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if per_client > len(classes):
        raise ValueError(
            f"classes~{per_client}: the data has only {len(classes)} classes; ask for fewer classes"
        )
    if num_clients * per_client < len(classes):
        raise ValueError(
            f"classes~{per_client}: {num_clients} clients hold at most {num_clients * per_client} "
            f"of the {len(classes)} classes, so samples would be left over; "
            "use more clients or more classes per client"
        )
    holders: list[list[int]] = [[] for _ in classes]
    for k in range(num_clients):
        load = np.array([len(h) for h in holders])
        ranked = np.lexsort((generator.random(len(classes)), load))
        for c in ranked[:per_client]:
            holders[c].append(k)
    client = np.empty(len(labels), dtype=np.int32)
    for c, held, count in zip(classes.tolist(), holders, counts, strict=True):
        if count < len(held):
            raise ValueError(
                f"classes~{per_client}: class {c} has {count} samples for {len(held)} clients; "
                "use fewer clients or fewer classes per client"
            )
        members = generator.permutation(np.flatnonzero(labels == c))
        for k, part in zip(
            generator.permutation(held), np.array_split(members, len(held)), strict=True
        ):
            client[part] = k
    return client
