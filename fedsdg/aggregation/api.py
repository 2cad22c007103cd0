"""The door for parameters in memory: of any kind in, of the same kind out."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedsdg.aggregation import buffers as buffer_rules
from fedsdg.aggregation import params
from fedsdg.aggregation.buffers import BufferRule
from fedsdg.aggregation.cohort import Cohort
from fedsdg.aggregation.errors import NonFiniteError, kind
from fedsdg.aggregation.ranks import Ranks
from fedsdg.aggregation.rows import MemoryRows, Rows, StateDict, nonfinite_by_row
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.types import ADAPTERS, Context, Plan, Rule, State
from fedsdg.errors import shortened


@dataclass(frozen=True, eq=False)
class Aggregated:
    """What `aggregate` returns."""

    parameters: Any
    "in the form of global_params; `out` itself if it was given"
    weights: Any
    """floats that sum to 1, in a list in the order of a list of clients, or a dict by the same ids
    for a mapping; 0 for a dropped client; None if the rule has no weights"""
    diagnostics: dict[str, Any]
    'arrays [M], NaN for a dropped client, or one value; "winner" is a client id'
    state: State
    "passed to the next call"
    dropped: dict[Hashable, dict[Any, int]]
    "of every client left out, its number of non-finite values by tensor"
    remarks: tuple[str, ...] = ()
    "sentences on what was not averaged"


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
    state: State | None = None,
    on_nonfinite: Literal["raise", "drop"] = "raise",
    buffers: BufferRule = "largest",
    out: Any = None,
    ranks: Ranks | None = None,
) -> Aggregated:
    """Aggregate clients' parameters: theta_g + step.

    The step is the rule's for the updates Delta_k = theta_k - theta_g. Sums are added in float64
    and updates are never stored, so that beside the result nothing as large as the parameters is
    allocated. Without clients the result is theta_g.

    Args:
        rule: A name as in a config ("fedsdg", "krum", …), a row of one ({"type": "krum", "f": 2}),
            or a rule (Krum(f=2)).
        global_params: theta_g: a numpy array, a torch tensor, a list or tuple of them, or a dict of
            them by name; float16, bfloat16, float32 or float64, on one device. Tensors that are
            the same memory under two names (tied weights) count once.
        client_params: theta_k: the same for every client, in a list, in a mapping by client id, or
            as the rows of one array [M, …]. Never modified.
        num_samples: One count per client, in a list or a mapping by id; needed by "fedavg".
        num_batches: The same, of local steps per epoch; needed by Mean(weights="batches").
        client_samples: The counts of all K clients, for rules with a state. Such rules need client
            ids that are whole numbers in 0 … K-1; a list holds all K clients in order.
        num_clients: K, in place of client_samples.
        uploads: Further uploads by name, each like client_params: {"control": …} for SCAFFOLD.
        round: 1, 2, …
        state: What the last call returned; None in the first round.
        on_nonfinite: "raise", or "drop", which leaves clients with NaN or infinity out.
        buffers: What becomes of integer and boolean tensors, such as BatchNorm's
            num_batches_tracked: "largest" (the largest client value; booleans: true if any is),
            "global" (theta_g's), or "refuse" (an error).
        out: Parameters like global_params that receive the result; may be global_params
            themselves, or a client's. After an error about an overflow it holds anything.
        ranks: Processes that all make this call, each with some of the tensors or their columns.
            Each gets its part of the parameters, and the same of all else.

    Returns:
        The new parameters, weights, diagnostics, state, dropped clients and remarks.

    Raises:
        ValueError: Naming client, tensor and remedy: other names, shapes, dtypes or devices than
            those of global_params, an unknown rule, too few clients for it, invalid counts.
        NonFiniteError: NaN or infinity, in global_params only if the rule reads them, an update
            longer than 1e150, or a result that overflows; also a FloatingPointError.

    Example:
        >>> import numpy as np
        >>> theta = np.array([1.0, 2.0])
        >>> clients = {"ada": [1.5, 2.3], "bob": [1.6, 2.4], "eve": [0.5, 1.8]}
        >>> clients = {name: np.array(values) for name, values in clients.items()}
        >>> result = aggregate("fedsdg", theta, clients)
        >>> result.parameters.round(5)
        array([1.55016, 2.35016])
        >>> {name: round(weight, 4) for name, weight in result.weights.items()}
        {'ada': 0.4984, 'bob': 0.5016, 'eve': 0.0}
        >>> clients["bob"][0] = np.nan
        >>> aggregate("coordinate-median", theta, clients, on_nonfinite="drop").dropped
        {'bob': {'parameters': 1}}
    """
    ranks = ranks or Ranks()
    ids, clients, listed = ranks.agreed(lambda: params.by_client(client_params))
    given = dict(zip(ids, clients, strict=True))
    cohort = Cohort(ids, listed, num_samples, num_batches, client_samples, num_clients, round)

    def read() -> tuple[Rule, dict[Any, Tensor], dict[str, dict[Hashable, dict[Any, Tensor]]]]:
        made = make_rule(rule)
        check_choices(on_nonfinite, buffers)
        origin = params.tensors("global parameters", global_params)
        return made, origin, checked_uploads(given, uploads, global_params, origin)

    made, origin, sent = ranks.agreed(read)
    ties = params.tied([origin, *sent["update"].values()])
    names = [n for n, t in origin.items() if t.is_floating_point() and n not in ties]
    others = [name for name, tensor in origin.items() if not tensor.is_floating_point()]

    def prepare() -> tuple[Context, State, tuple[str, ...], Any, dict[Any, Tensor]]:
        if not names and ranks.size == 1:
            raise ValueError("global parameters: there are no floating tensors; give some")
        context = cohort.context(made)
        current = cohort.state(made, state, context, sum(origin[name].numel() for name in names))
        result = params.new_like(global_params, ties) if out is None else out
        outs = params.outputs(result, global_params, origin)
        if out is not None:
            inputs = {f"client {client}": own for client, own in sent["update"].items()}
            params.check_overlaps(outs, {"global_params": origin, **inputs}, names)
        remarks = (buffer_rules.remark_on(others, buffers),) if others else ()
        return context, current, remarks, result, outs

    context, current, remarks, result, outs = ranks.agreed(prepare)
    counts = (context.num_samples, context.num_batches, context.client_samples)
    choices = (made, context.round, ids, on_nonfinite, buffers, list(sent))
    ranks.require_same("arguments", (*choices, *(values.tolist() for values in counts)))
    if not ids:
        for name, tensor in outs.items():
            tensor.copy_(origin[name])
        return Aggregated(result, [] if listed else {}, {}, current, {}, remarks)

    def averaged(tensors: StateDict) -> StateDict:
        return {name: tensors[name] for name in names}

    bases = {"update": averaged(origin)}
    rows = {
        upload: ranks.rows(MemoryRows(list(map(averaged, own.values())), bases.get(upload), upload))
        for upload, own in sent.items()
    }

    def write(plan: Plan, updates: Rows) -> None:
        targets = {name: _contiguous(outs[name]) for name in names}
        if out is not None:
            updates.check_finite()  # Before anything is overwritten.
        updates.map(plan.step, lambda block: [targets[name] for name in block.names])
        for name, tensor in outs.items():
            source = targets.get(ties.get(name, name), tensor)
            if source.data_ptr() != tensor.data_ptr():
                tensor.copy_(source)

    plan, kept = apply_plan(made, rows, cohort, context, current, on_nonfinite, write)
    for name in others:
        chosen = kept if plan.rows is None else [kept[row] for row in plan.rows]
        values = [sent["update"][ids[k]][name] for k in chosen if plan.takes_any]
        outs[name].copy_(buffer_rules.combine(origin[name], values, buffers))
    weights = cohort.weights(plan, kept)
    facts = cohort.diagnostics(plan, kept, context)
    return Aggregated(result, weights, facts, plan.state, cohort.dropped, remarks)


def apply_plan(
    rule: Rule,
    rows: dict[str, Rows],
    cohort: Cohort,
    context: Context,
    state: State,
    on_nonfinite: str,
    write: Callable[[Plan, Rows], None],
) -> tuple[Plan, list[int]]:
    """Plan and write; for all doors.

    Args:
        rule: The rule.
        rows: The uploads by name.
        cohort: The clients; those left out are noted there.
        context: The round.
        state: The rule's.
        on_nonfinite: "raise" or "drop".
        write: Writes a plan, given the updates.

    Returns:
        The plan, and the positions of the clients that were not dropped.
    """
    if ADAPTERS in rule.reads:
        rows[ADAPTERS] = _adapters(rows["update"])
    kept = list(range(len(cohort.ids)))
    while True:
        compared = rows.get(ADAPTERS, rows["update"])
        try:
            plan = rule.checked_plan(rows, replace(context, rounding=compared.rounding), state)
            write(plan, plan.select(rows["update"]))
            return plan, kept
        except NonFiniteError as error:
            faults = nonfinite_by_row(rows[name] for name in {"update", *rule.reads})
            if not faults:
                raise error.naming([cohort.ids[k] for k in kept]) from error
            if on_nonfinite == "drop":  # theta_g may be one that the rule does not read
                faults = {row: n for row, n in faults.items() if row >= 0} or faults
            kept = cohort.drop(faults, on_nonfinite)
        rows = {name: upload.subset(kept) for name, upload in rows.items()}
        context = context.subset(kept)


def check_choices(on_nonfinite: Any, buffers: Any) -> None:
    """Raise ValueError unless both are among their choices."""
    for what, value, choices in (
        ("on_nonfinite", on_nonfinite, ("raise", "drop")),
        ("buffers", buffers, buffer_rules.CHOICES),
    ):
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{what}={shortened(value)}: use one of {', '.join(choices)}")


def _adapters(updates: Rows) -> Rows:
    """Return the columns of all tensors but those of the head, whose names begin with "head."."""
    names = [name for name in updates.columns if not str(name).startswith("head.")]
    adapters = updates.subset(names=names)
    if not adapters.d:
        raise ValueError("all tensors belong to the head; compare all of them (scope='all')")
    return adapters


def checked_uploads(
    update: Mapping[Hashable, Any], uploads: Any, global_params: Any, origin: StateDict
) -> dict[str, dict[Hashable, dict[Any, Tensor]]]:
    """Return all uploads as tensors, by name and client, in the order of the clients.

    Args:
        update: The clients' parameters.
        uploads: Their further uploads by name.
        global_params: theta_g as it was given.
        origin: theta_g as tensors.

    Raises:
        ValueError: An upload is not like theta_g, or lacks a client.
    """
    if not isinstance(uploads, Mapping | None):
        raise ValueError(
            f"uploads is {kind(uploads)}; give a mapping from the upload's name, such as "
            "'control', to what each client sends"
        )
    checked: dict[str, dict[Hashable, dict[Any, Tensor]]] = {}
    for name, values in (("update", update), *(uploads or {}).items()):
        others, sent, _ = params.by_client(values, f"upload {name!r}")
        if name in (*checked, ADAPTERS) or set(others) != set(update):
            raise ValueError(
                f"upload {name!r} is of the clients {shortened(others)}; give uploads other than "
                f"the update, for the clients {shortened(list(update))}"
            )
        of_client = dict(zip(others, sent, strict=True))
        suffix = "" if name == "update" else f", upload {name!r}"
        checked[name] = {
            client: params.tensors_like(
                f"client {client}{suffix}", of_client[client], global_params, origin
            )
            for client in update
        }
    return checked


def _contiguous(target: Tensor) -> Tensor:
    """Return a tensor itself, or one to be copied to it, which kernels can write to."""
    return target if target.is_contiguous() else target.new_empty(target.shape)
