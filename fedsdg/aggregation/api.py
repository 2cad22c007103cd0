"""The door for every rule: parameters of any kind in, parameters of the same kind out."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fedsdg.aggregation.arguments import check_on_nonfinite
from fedsdg.aggregation.calls import Call
from fedsdg.aggregation.cohort import Cohort
from fedsdg.aggregation.engines.memory.joining import joined, worth_joining, write_parts
from fedsdg.aggregation.engines.memory.kinds import (
    ALONE,
    check_like,
    clients_of,
    global_tensors,
    new_like,
    out_tensors,
    views,
)
from fedsdg.aggregation.engines.memory.rounding import check_differences
from fedsdg.aggregation.engines.memory.screening import further_uploads, screened, who
from fedsdg.aggregation.engines.memory.writing import write_copies
from fedsdg.aggregation.plans import Plan
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.types import Aggregate, Context, Rule
from fedsdg.aggregation.uploads import ADAPTERS, NonFiniteError


@dataclass(frozen=True, eq=False)
class Aggregated:
    """What `aggregate` returns."""

    parameters: Any
    """In the form of global_params; `out` itself where it was given."""
    weights: Any
    """A list of floats in the order of a list of clients, a dict by the same ids for a mapping, 0
    for a dropped client; None where the rule has no weights. They sum to 1."""
    diagnostics: dict[str, Any]
    """What the rule reports: arrays [M] in the order of the clients, NaN for a dropped one, or one
    value; "winner" is a client's id."""
    state: dict[str, torch.Tensor]
    """Goes into the next call; empty for most rules."""
    dropped: dict[Hashable, dict[str, int]]
    """Of every client left out, its number of non-finite values by tensor."""


def aggregate(
    rule: str | Mapping[str, Any] | Rule,
    global_params: Any,
    client_params: Any,
    *,
    num_samples: Any = None,
    num_batches: Any = None,
    client_samples: Any = None,
    num_clients: int | None = None,
    uploads: Mapping[str, Any] | None = None,
    round: int = 1,
    state: Mapping[str, torch.Tensor] | None = None,
    on_nonfinite: Literal["raise", "drop"] = "raise",
    out: Any = None,
) -> Aggregated:
    """theta_g + step, the step being the rule's for the updates Delta_k = theta_k - theta_g.

    rule: a name as in a config ("fedsdg", "krum", …; `rule_table.rules()`), a row of one
        ({"type": "krum", "f": 2}), or a rule object (Krum(f=2)).
    global_params: a numpy array, a torch tensor, a list or tuple of them, or a dict of them by
        name; float16, bfloat16, float32 or float64, on one device.
    client_params: the same for every client, with the same keys, shapes, dtypes and device: in a
        list, in a mapping by client id, or as the rows of one array [M, …]. Never modified.
    num_samples, num_batches: one count per client, in a list or a mapping by id; "fedavg" weighs by
        the first, Mean("batches") by the second.
    client_samples, num_clients: the counts of all K clients, or just K. A rule with a state needs
        them, and client ids that are whole numbers in 0 … K-1 (a list is all K clients in order).
        "cgsv" needs client_samples on its first call.
    uploads: further uploads by name, each like client_params: SCAFFOLD's {"control": Delta c}. The
        numbers of those that the rule does not read are not looked at. `adapters`, which FedSDG
        reads with scope "adapters", is formed from client_params: all tensors but those of the
        head, whose names begin with "head.".
    round: 1, 2, …, for rules that look at it.
    state: what the last call returned; None in the first round.
    on_nonfinite: "raise" | "drop", which leaves clients with NaN or infinity out and records them.
    out: parameters like global_params that are overwritten with the result, so that none is
        allocated; may be global_params themselves, or a client's. Unchanged when an error is
        raised.

    An empty cohort leaves the global parameters as they are, with weights [] (or {}), no
    diagnostics and the same state. Statistics are accumulated in float64; updates are formed in
    float64 if any tensor is, else in float32, a few columns at a time: beside the result, nothing
    as large as the parameters is allocated (but for a rule object of one's own that is no
    `PlannedRule`, which gets the matrix of updates, and for what a rule keeps as its state).
    Parameters of many small tensors on the CPU (of one dtype, at most 8,192 numbers on average and
    64 MiB for all clients together) are copied to one vector per client first; the result is that
    of the vectors, bit for bit.

    Raises ValueError, naming client and tensor, for anything else than the above: differing keys,
    shapes, dtypes, devices; NaN or infinity (a FloatingPointError too; when dropping, only if no
    client is left); too few clients for Krum's f; an unknown rule or parameter; a result that
    overflows.

    >>> import numpy as np
    >>> theta = np.array([1.0, 2.0])
    >>> clients = {"ada": [1.5, 2.3], "bob": [1.6, 2.4], "eve": [0.5, 1.8]}
    >>> clients = {name: np.array(values) for name, values in clients.items()}
    >>> result = aggregate("fedsdg", theta, clients)
    >>> result.parameters.round(5)
    array([1.55016, 2.35016])
    >>> {name: round(weight, 4) for name, weight in result.weights.items()}
    {'ada': 0.4984, 'bob': 0.5016, 'eve': 0.0}
    >>> aggregate("fedavg", theta, clients, num_samples=[30, 50, 20]).parameters
    array([1.35, 2.25])
    >>> clients["bob"][0] = np.nan
    >>> aggregate("coordinate-median", theta, clients, on_nonfinite="drop", out=theta).dropped
    {'bob': {'parameters': 1}}
    >>> theta
    array([1.  , 2.05])
    >>> aggregate("fedsdg", theta, clients)
    Traceback (most recent call last):
    ...
    fedsdg.aggregation.uploads.NonFiniteError: client bob: tensor 'parameters' has 1 non-finite \
values of 2; leave the client out or restore its last finite parameters
    """
    rule = make_rule(rule)
    check_on_nonfinite(on_nonfinite)
    origin = global_tensors(global_params)
    targets = None if out is None else out_tensors(out, global_params, origin)
    ids, clients, listed = clients_of(client_params)
    sent = {"update": clients, **further_uploads(uploads, ids)}
    for name, rows in sent.items():
        for client, params in zip(ids, rows, strict=True):
            check_like(who(client, name), params, global_params, origin)
    cohort = Cohort(ids, listed, num_samples, num_batches, client_samples, num_clients, round)
    context = cohort.context()
    cohort.check_counts(rule)
    state = cohort.state(rule, state, context, sum(tensor.numel() for tensor in origin.values()))
    result = new_like(global_params) if out is None else out
    places = views(result) if targets is None else targets
    if not ids:
        write_copies(places, origin)
        return Aggregated(result, [] if listed else {}, {}, state, {})

    # Which tensors are adapters their names say, which a vector does not have.
    by_name = ADAPTERS in getattr(rule, "reads", ())
    if not by_name and worth_joining(origin, len(ids)):
        vectors = {name: [joined(row, origin) for row in rows] for name, rows in sent.items()}
        target = {ALONE: torch.empty_like(vectors["update"][0][ALONE])}
        base = joined(global_params, origin)
        try:
            outcome = Call(rule, base, vectors, context, state, target, fresh=True).apply()
        except NonFiniteError:
            pass  # Found again below, tensor by tensor, where it can be named or left out.
        else:
            write_parts(places, target)
            return reported(result, outcome, context, ids, listed, {})
    tensors = {name: [views(row) for row in rows] for name, rows in sent.items()}
    call = Call(rule, origin, tensors, context, state, places, fresh=out is None)
    outcome, dropped = _apply(call, ids, on_nonfinite)
    return reported(result, outcome, context, ids, listed, dropped)


def reported(
    parameters: Any,
    outcome: Plan | Aggregate,
    context: Context,
    ids: Sequence[Hashable],
    listed: bool,
    dropped: dict[Hashable, dict[str, int]],
) -> Aggregated:
    """The outcome of those kept in the terms of the caller; context: of all clients, by `ids`."""
    kept = [k for k, client in enumerate(ids) if client not in dropped]

    def spread(values: Any, missing: float) -> np.ndarray:
        """[M] the values of those kept, and `missing` for the dropped."""
        spread = np.full(len(ids), missing)
        spread[kept] = values
        return spread

    diagnostics: dict[str, Any] = {
        name: spread(value, np.nan) if np.shape(value) == (len(kept),) else value
        for name, value in outcome.diagnostics.items()
    }
    if "winner" in diagnostics:
        by_row = dict(zip(context.clients.tolist(), ids, strict=True))
        diagnostics["winner"] = by_row.get(diagnostics["winner"], diagnostics["winner"])
    weights: Any = None if outcome.weights is None else spread(outcome.weights, 0.0).tolist()
    if weights is not None and not listed:
        weights = dict(zip(ids, weights, strict=True))
    return Aggregated(parameters, weights, diagnostics, outcome.state, dropped)


def _apply(
    call: Call, ids: Sequence[Hashable], on_nonfinite: str
) -> tuple[Plan | Aggregate, dict[Hashable, dict[str, int]]]:
    """What came of the call, and the clients dropped from it with their non-finite values.

    The parameters are looked at one by one only if what comes of them is not finite.
    """
    try:
        return call.apply(), {}
    except NonFiniteError as error:
        found = error
    dropped = screened(ids, call.sent, on_nonfinite)
    kept = [k for k, client in enumerate(ids) if client not in dropped]
    left = call.keeping(kept)
    check_differences(left.origin, left.sent["update"], [ids[k] for k in kept])
    if not dropped:
        raise found
    try:
        return left.apply(), dropped
    except ValueError as error:
        left_out = f"{len(dropped)} of {len(ids)} clients were dropped as non-finite"
        raise ValueError(f"{error} ({left_out})") from error
