"""The rules of `aggregate` in plain numpy: stack dictionaries, a few lines, cut the result up.

State dicts of many small arrays are measured against these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks.timing import Work
from fedsdg.aggregation import aggregate
from fedsdg.aggregation.rule_table import make_rule, rules
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.types import Rule

Arrays = dict[str, np.ndarray]
UPLOADS = {"scaffold": ("control",), "fedcurv": ("fisher", "fisher_theta")}


def draw(clients: int, tensors: int, numbers: int, seed: int = 0) -> tuple[Arrays, list[Arrays]]:
    """Global parameters of normal numbers, and clients whose updates share a direction."""
    generator = np.random.default_rng(seed)

    def rows(scale: float, shift: float = 0.0) -> Arrays:
        matrix = scale * generator.standard_normal((tensors, numbers), dtype=np.float32) + shift
        return {f"layer{i}.weight": row.copy() for i, row in enumerate(matrix)}

    origin = rows(1.0)
    updates = [rows(0.1, 0.05) for _ in range(clients)]
    return origin, [{name: origin[name] + u[name] for name in origin} for u in updates]


def ours(rule: str, origin: Arrays, clients: Sequence[Arrays]) -> Work:
    """The rule through the package's door; clients count one sample each."""
    ones = [1] * len(clients)
    uploads = dict.fromkeys(UPLOADS.get(rule, ()), clients)
    return lambda: (
        aggregate(
            rule,
            origin,
            clients,
            num_samples=ones,
            num_batches=ones,
            client_samples=ones,
            uploads=uploads,
        ).parameters
    )


def plainly(rule: str, origin: Arrays, clients: Sequence[Arrays]) -> Callable[[], Arrays]:
    """The same by numpy."""
    step, further = STEPS[make_rule(rule)], UPLOADS.get(rule, ())

    def work() -> Arrays:
        base = joined(origin)
        updates = stacked(clients)
        updates -= base
        for _ in further:  # A sum of each of the further uploads goes into the state.
            stacked(clients).sum(axis=0)
        return cut(base + step(updates), origin)

    return work


def joined(params: Arrays) -> np.ndarray:
    return np.concatenate([array.ravel() for array in params.values()])


def stacked(clients: Sequence[Arrays]) -> np.ndarray:
    return np.stack([joined(params) for params in clients])


def cut(vector: np.ndarray, like: Arrays) -> Arrays:
    bounds = np.cumsum([array.size for array in like.values()])[:-1]
    pieces = np.split(vector, bounds)
    return {
        name: piece.reshape(array.shape)
        for (name, array), piece in zip(like.items(), pieces, strict=True)
    }


def norms(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("kd,kd->k", rows, rows))


def mean(updates: np.ndarray) -> np.ndarray:
    return updates.mean(axis=0)


def aligned(updates: np.ndarray) -> np.ndarray:
    centre = updates.mean(axis=0)
    cosine = updates @ centre / (norms(updates) * np.sqrt(centre @ centre) + 1e-8)
    alpha = np.maximum(cosine, 0)
    return alpha / alpha.sum() @ updates


def aligned_to_the_others(updates: np.ndarray) -> np.ndarray:
    size, centre = len(updates), updates.mean(axis=0)
    squares, dots = norms(updates) ** 2, updates @ centre
    others = np.sqrt(size**2 * (centre @ centre) - 2 * size * dots + squares)
    cosine = (size * dots - squares) / (np.sqrt(squares) * others + 1e-8 * (size - 1))
    weights = np.exp((cosine - cosine.max()) / 0.05)
    return weights / weights.sum() @ updates


def distances(updates: np.ndarray) -> np.ndarray:
    gram = updates @ updates.T
    squares = gram.diagonal()
    return squares[:, None] + squares[None, :] - 2 * gram


def krum_order(updates: np.ndarray, f: int = 1) -> np.ndarray:
    between = distances(updates)
    np.fill_diagonal(between, np.inf)
    return np.argsort(np.sort(between, axis=1)[:, : len(updates) - f - 2].sum(axis=1))


def krum(updates: np.ndarray) -> np.ndarray:
    return updates[krum_order(updates)[0]]


def multikrum(updates: np.ndarray, f: int = 1) -> np.ndarray:
    return updates[krum_order(updates)[: len(updates) - f]].mean(axis=0)


def geometric_median(updates: np.ndarray) -> np.ndarray:
    """Weiszfeld's iteration until the objective changes by less than 1e-6 of it."""
    median, last = updates.mean(axis=0), np.inf
    while True:
        away = np.maximum(norms(updates - median), 1e-12)
        if last - away.sum() < 1e-6 * away.sum():
            return median
        last = away.sum()
        median = (1 / away) / (1 / away).sum() @ updates


def trimmed_mean(updates: np.ndarray, f: int = 1) -> np.ndarray:
    return np.sort(updates, axis=0)[f:-f].mean(axis=0)


def cosine_shapley(updates: np.ndarray) -> np.ndarray:
    """The first round; the contributions go into the state."""
    lengths = norms(updates)
    units = updates / lengths[:, None]
    together = units.mean(axis=0)
    units @ together
    return together * lengths.mean()


def screened(updates: np.ndarray, inner: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The first round, in which nobody is blocked: scores go into the state."""
    median = geometric_median(updates)
    away = norms(updates - median)
    cosine = updates @ median / (norms(updates) * np.sqrt(median @ median))
    for values in (away, cosine):
        np.median(np.abs(values - np.median(values)))
    return inner(updates)


STEPS: dict[Rule, Callable[[np.ndarray], np.ndarray]] = {
    make_rule("fedavg"): mean,
    make_rule("fedavg-uniform"): mean,
    make_rule("scaffold"): mean,
    make_rule("fedcurv"): mean,
    make_rule("fedsdg"): aligned,
    make_rule("fedsdg-official-aligned"): aligned_to_the_others,
    make_rule("krum"): krum,
    make_rule("multikrum"): multikrum,
    GeometricMedian(): geometric_median,
    make_rule("coordinate-median"): partial(np.median, axis=0),
    make_rule("trimmed-mean"): trimmed_mean,
    make_rule("cgsv"): cosine_shapley,
    make_rule("screened"): partial(screened, inner=mean),
    make_rule("fedsdg+screened"): partial(screened, inner=aligned),
    make_rule("local-only"): lambda updates: np.zeros_like(updates[0]),
}
"""By rule, for many names stand for the same one."""


def names() -> list[str]:
    """The first name of every rule of the door; many methods share one."""
    first = {make_rule(name): name for name in reversed(rules())}
    return [name for name in rules() if first[make_rule(name)] == name]
