"""FedSDG's server aggregation of dictionaries of tensors in one call."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedsdg.aggregation import params
from fedsdg.aggregation.api import Aggregated, aggregate
from fedsdg.aggregation.rows import MemoryRows, StateDict
from fedsdg.aggregation.rules.alignment import Alignment, clip_factors
from fedsdg.aggregation.types import Combination


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
    """Return theta_g + sum_k w_k Delta_k, each client weighted by how its update aligns.

    With Delta_k = theta_k - theta_g over all tensors together, and their mean,
    alpha_k = max(0, <Delta_k, mean> / (||Delta_k|| ||mean|| + epsilon)) and
    w_k = alpha_k / sum_j alpha_j (FedSDG, Eq. 10 and 11); see `Alignment` for the cases in which
    the weights are uniform.

    Args:
        global_params: theta_g: tensors by name.
        client_params: theta_k: one such dict per client, in a list, or in a mapping by client id.
        epsilon: In (0, 0.01].
        return_weights: Whether the weights are returned.
        max_weight: Largest weight, at least 1/M; the excess is spread over the others in
            proportion. None: no limit.
        clip_norm: Updates with a larger L2 norm are scaled down to it first. None: no limit.
        debug: Whether intermediate results are returned.
        reference: Updates are compared with the "mean", or with the mean of the other clients'
            updates ("leave_one_out").
        transform: From cosines to weights: "relu", or "softmax" with a temperature.
        temperature: Of the softmax.
        smoothing: Share of uniform weights that is mixed in, in [0, 1].

    Returns:
        The new parameters; with return_weights (parameters, weights), the weights in a list, or in
        a dict by client id for a mapping. With debug one more element, a dict: clients (ids), alpha
        [M], cosine [M], norms [M] (before clipping), clip_factors [M], mean (of the clipped
        updates, by tensor), mean_norm, noise_norm (up to which a mean is rounding noise),
        weights [M], degenerate (whether the weights are uniform for lack of a direction). No
        clients: a copy of theta_g and no weights.

    Raises:
        ValueError: As `aggregate`.
        NonFiniteError: As `aggregate`.

    Example:
        >>> import torch
        >>> theta = {"w": torch.tensor([1.0, 2.0])}
        >>> clients = [{"w": torch.tensor(w)} for w in ([1.5, 2.3], [1.6, 2.4], [0.5, 1.8])]
        >>> parameters, weights = fedsdg_server_aggregate(theta, clients)
        >>> [round(weight, 3) for weight in weights]
        [0.498, 0.502, 0.0]
        >>> [round(value, 5) for value in parameters["w"].tolist()]
        [1.55016, 2.35016]
    """
    rule = Alignment(
        epsilon=epsilon,
        reference=reference,
        transform=transform,
        temperature=temperature,
        max_weight=max_weight,
        smoothing=smoothing,
        clip_norm=clip_norm,
    )
    made = aggregate(rule, global_params, client_params)
    results = [made.parameters]
    if return_weights:
        results.append(made.weights)
    if debug:
        results.append(_facts(rule, made, global_params, client_params))
    return results[0] if len(results) == 1 else tuple(results)


def _facts(
    rule: Alignment, made: Aggregated, global_params: StateDict, client_params: Any
) -> dict[str, Any]:
    """Return what `debug` asks for."""
    ids, clients, listed = params.by_client(client_params)
    facts: dict[str, Any] = {"clients": ids, "weights": np.zeros(0), "degenerate": False}
    if not ids:
        return facts
    weights = made.weights if listed else list(made.weights.values())
    norms = made.diagnostics["update_norm"]
    factors = clip_factors(norms, rule.clip_norm)
    origin, *sent = [params.tensors("", values) for values in (global_params, *clients)]
    floating = {name: t for name, t in origin.items() if t.is_floating_point()}
    updates = MemoryRows([{name: client[name] for name in floating} for client in sent], floating)
    sizes = [tensor.numel() for tensor in floating.values()]
    pieces = updates.vector(Combination(factors / len(ids))).split(sizes)
    shapes = zip(floating.items(), pieces, strict=True)
    return {
        **facts,
        "alpha": made.diagnostics["alignment"],
        "cosine": made.diagnostics["cosine"],
        "norms": norms,
        "clip_factors": factors,
        "mean": {name: piece.view(tensor.shape) for (name, tensor), piece in shapes},
        "mean_norm": made.diagnostics["mean_norm"],
        "noise_norm": float(factors.max()) * updates.rounding(float(norms.max())),
        "weights": np.array(weights),
        "degenerate": bool(made.diagnostics["degenerate"]),
    }
