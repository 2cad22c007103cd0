"""The door for dictionaries of tensors: FedSDG's server aggregation in one call."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from fedsdg.aggregation.arguments import check_number
from fedsdg.aggregation.engines.memory.checks import (
    StateDict,
    check_finite,
    check_global,
    check_structure,
    named_clients,
)
from fedsdg.aggregation.engines.memory.kinds import new_like, views
from fedsdg.aggregation.engines.memory.parameter_rows import ParameterRows
from fedsdg.aggregation.engines.memory.rounding import Rounding, check_differences
from fedsdg.aggregation.engines.memory.writing import write_copies
from fedsdg.aggregation.engines.statistics import Statistics
from fedsdg.aggregation.plans import Combination, Plan
from fedsdg.aggregation.rules.alignment import Alignment, Weighing


def fedsdg_server_aggregate(
    global_params: StateDict,
    client_params: Sequence[StateDict] | Mapping[Hashable, StateDict],
    epsilon: float = 1e-8,
    return_weights: bool = True,
    *,
    max_weight: float | None = None,
    clip_norm: float | None = None,
    debug: bool = False,
    reference: Literal["mean", "leave_one_out"] = "mean",
    transform: Literal["relu", "softmax"] = "relu",
    temperature: float = 0.05,
    smoothing: float = 0.0,
) -> Any:
    """theta_g + sum_k w_k (theta_k - theta_g), each client weighted by how its update aligns.

    With Delta_k = theta_k - theta_g over all tensors together and their mean,
    alpha_k = max(0, <Delta_k, mean> / (||Delta_k|| ||mean|| + epsilon)) and
    w_k = alpha_k / sum alpha (FedSDG, Eq. 10 and 11). The weights are uniform when
    sum alpha < 1e-6, or when the mean is no more than the rounding of the parameters
    (||mean|| <= 1/2 eps(dtype) max_k ||theta_k||).

    global_params: tensors by name, any floating dtypes, any device.
    client_params: one such dict per client, in a list, or in a mapping by client id; with the keys
        and shapes of global_params. Inputs are never modified.
    epsilon: in (0, 0.01].
    return_weights: whether the weights are returned.
    max_weight: cap on a weight, at least 1/M; the excess is spread over the others in proportion.
    clip_norm: updates with a larger L2 norm are scaled down to it before anything else.
    debug: whether a dict of intermediate results is returned: clients, alpha, cosine, norms (of the
        updates as uploaded), clip_factors, mean (Delta's mean, by tensor name, after clipping),
        mean_norm, noise_norm, weights, degenerate.
    reference, transform, temperature, smoothing: see `rules.alignment.Alignment`.

    Returns the aggregated parameters, in the dtypes and on the devices of global_params; with
    return_weights (parameters, weights), and with debug one more element at the end. The weights
    are in [0, 1] and sum to 1: a list in the order of a list of clients, a dict by the same ids for
    a mapping. No clients: a copy of global_params and [] (or {}). One client: its parameters and
    [1.0]. Raises ValueError, naming the client and the tensor, for differing keys or shapes,
    tensors that are not floating, NaN or infinity (this one also a FloatingPointError).

    >>> import torch
    >>> theta = {"w": torch.tensor([1.0, 2.0])}
    >>> clients = [{"w": torch.tensor(w)} for w in ([1.5, 2.3], [1.6, 2.4], [0.5, 1.8])]
    >>> aggregated, weights = fedsdg_server_aggregate(theta, clients)
    >>> [f"{w:.4f}" for w in weights]
    ['0.4984', '0.5016', '0.0000']
    >>> [f"{x:.5f}" for x in aggregated["w"].tolist()]
    ['1.55016', '2.35016']
    >>> fedsdg_server_aggregate(theta, {"ada": clients[0], "bob": clients[2]}, max_weight=0.6)[1]
    {'ada': 0.6, 'bob': 0.4}
    >>> fedsdg_server_aggregate(theta, [{"w": torch.zeros(3)}])
    Traceback (most recent call last):
    ...
    ValueError: client 0: tensor 'w' has shape (3,), expected (2,); all clients must share the \
architecture of global_params
    """
    rule = Alignment(epsilon, reference, transform, temperature, max_weight, smoothing)
    if clip_norm is not None:
        check_number("clip_norm", clip_norm)
    if clip_norm is not None and not 0 < clip_norm < float("inf"):
        raise ValueError(f"clip_norm={clip_norm} must be positive and finite, or None for none")
    check_global(global_params)
    ids, clients = named_clients(client_params)
    for client, params in zip(ids, clients, strict=True):
        check_structure(f"client {client}", params, global_params)

    origin, clients = views(global_params), [views(params) for params in clients]
    weights, facts = np.zeros(0), {"clients": ids, "weights": np.zeros(0), "degenerate": False}
    aggregated = new_like(origin)
    if not clients:
        write_copies(aggregated, origin)
    else:
        updates = ParameterRows(origin, clients)
        statistics = _measured(updates, clients, ids)
        with np.errstate(over="ignore"):  # The length of numbers near the largest is infinite.
            norms = statistics.norms * statistics.unit
        factors = np.ones(len(clients))
        if clip_norm is not None:
            factors = clip_norm / np.maximum(norms, clip_norm)
            statistics = _clipped(updates, statistics, factors)
        noise = _noise(Rounding(origin, clients), statistics, norms, factors, exact=debug)
        weighing = rule.weigh(statistics, noise)
        weights = weighing.weights
        _combine(origin, clients, weights * factors, (weights * (1 - factors)).sum(), aggregated)
        if debug:
            mean = _unflatten(updates.weighted_sum(factors / len(ids)), origin)
            facts = _facts(ids, norms, factors, noise, statistics, weighing, mean)
    by_client: Any = weights.tolist()
    if isinstance(client_params, Mapping):
        by_client = dict(zip(ids, by_client, strict=True))
    results = (aggregated, *([by_client] if return_weights else []), *([facts] if debug else []))
    return results if len(results) > 1 else aggregated


def _measured(
    updates: ParameterRows, clients: Sequence[StateDict], ids: Sequence[Hashable]
) -> Statistics:
    """The statistics of the updates; ValueError, naming client and tensor, if they do not exist."""
    statistics = updates.measure()
    if not np.isfinite(statistics.norms).all():
        for client, params in zip(ids, clients, strict=True):
            check_finite(f"client {client}", params)
        check_differences(updates.origin, clients, ids)
    return statistics


def _clipped(updates: ParameterRows, s: Statistics, factors: np.ndarray) -> Statistics:
    """The statistics of the updates, each times its factor, from those of the updates."""
    if (factors == 1).all():
        return s
    s = updates.measure(factors / len(factors))
    return replace(s, norms=factors * s.norms, dots=factors * s.dots)


def _noise(
    rounding: Rounding, s: Statistics, norms: np.ndarray, factors: np.ndarray, *, exact: bool
) -> float:
    """The largest rounding of an update; unless exact, a bound of it where ||mean|| is above it."""
    bound = float((factors * rounding.at_most(norms)).max())
    if not exact and s.reference_norm * s.unit > bound:
        return bound
    return float((factors * rounding.norms).max())


def _combine(
    origin: StateDict,
    clients: Sequence[StateDict],
    coefficients: np.ndarray,
    of_origin: float,
    targets: StateDict,
) -> None:
    """targets <- sum_k c_k theta_k + c_g theta_g, accumulated in float64.

    From the parameters and not the updates, so that equal clients give exactly their parameters.
    """
    if of_origin:  # Updates were clipped.
        clients, coefficients = [*clients, origin], np.append(coefficients, of_origin)
    plan = Plan(Combination(coefficients), None, {}, checked=True)
    ParameterRows(origin, clients, subtract=False).write(plan, targets, fresh=True)


def _unflatten(vector: torch.Tensor, like: StateDict) -> dict[str, torch.Tensor]:
    pieces = vector.split([tensor.numel() for tensor in like.values()])
    return {
        name: piece.view(tensor.shape)
        for (name, tensor), piece in zip(like.items(), pieces, strict=True)
    }


def _facts(
    ids: list[Hashable],
    norms: np.ndarray,
    factors: np.ndarray,
    noise: float,
    statistics: Statistics,
    weighing: Weighing,
    mean: dict[str, torch.Tensor],
) -> dict[str, Any]:
    return {
        "clients": ids,
        "alpha": weighing.alignment,
        "cosine": weighing.cosine,
        "norms": norms,
        "clip_factors": factors,
        "mean": mean,
        "mean_norm": statistics.reference_norm * statistics.unit,
        "noise_norm": noise,
        "weights": weighing.weights,
        "degenerate": weighing.degenerate,
    }
