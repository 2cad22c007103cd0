"""The door for ranks that each hold whole parameters of some clients."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from fedsdg.aggregation import params
from fedsdg.aggregation.api import Aggregated, aggregate, checked_uploads
from fedsdg.aggregation.ranks import Ranks
from fedsdg.aggregation.rows import StateDict
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.types import Rule, State

Bounds = Mapping[Any, list[int]]
"""By tensor, the [ranks + 1] first columns of the ranges into which it is cut."""


def aggregate_by_client(
    rule: str | Mapping[str, Any] | Rule,
    global_params: Any,
    own_params: Mapping[Hashable, Any],
    *,
    num_samples: Mapping[Hashable, float] | None = None,
    num_batches: Mapping[Hashable, float] | None = None,
    uploads: Mapping[str, Mapping[Hashable, Any]] | None = None,
    state: State | None = None,
    ranks: Ranks | None = None,
    **options: Any,
) -> Aggregated:
    """Aggregate clients that are spread over ranks, each of which holds some, one or none.

    Every tensor is cut into one range of columns per rank: each rank receives its columns of all
    clients, applies the rule to them, and sends its columns of the new parameters to all. So a rank
    holds M d / ranks numbers beside its own clients.

    Args:
        rule: As for `aggregate`, the same on all ranks.
        global_params: theta_g, the same on all ranks.
        own_params: By client id, theta_k of this rank's clients; each client on one rank only.
        num_samples: By client id, the counts of this rank's clients.
        num_batches: The same, of local steps per epoch.
        uploads: Further uploads of this rank's clients, by name and client id.
        state: What the last call returned on this rank.
        ranks: The processes; None: all of torch.distributed.
        options: Of `aggregate`: client_samples, num_clients, round, on_nonfinite, buffers.

    Returns:
        The same on every rank, but for entries of the state with a number per parameter, of which
        each rank has its columns. The cohort is the clients of rank 0 in their order, then those
        of rank 1, and so on.

    Raises:
        ValueError: As `aggregate`; the message names the rank of the client at fault.
        NonFiniteError: The same; it names the tensor's columns by the rank that held them.
        RankError: A rank does not answer.
    """
    ranks = ranks or Ranks.of()

    def prepare() -> tuple[Rule, dict[Any, Tensor], dict[str, dict[Hashable, Any]]]:
        own = dict(zip(*params.by_client(own_params, "own_params")[:2], strict=True))
        origin = params.tensors("global parameters", global_params)
        return make_rule(rule), origin, checked_uploads(own, uploads, global_params, origin)

    made, origin, sent = ranks.agreed(prepare)
    ranks.require_same(
        "tensors and uploads", ([(n, t.shape, t.dtype) for n, t in origin.items()], sorted(sent))
    )
    everyone = ranks.gathered(lambda: list(sent["update"]))
    twice = [client for client, n in Counter(chain.from_iterable(everyone)).items() if n > 1]
    if twice:
        raise ValueError(f"client {twice[0]} is on several ranks; give every client to one rank")
    counts = ranks.gathered(lambda: (num_samples or {}, num_batches or {}))
    ties_by_rank = ranks.gathered(lambda: params.tied([origin, *sent["update"].values()]))
    ties = {
        name: first
        for name, first in ties_by_rank[0].items()
        if all(name in ties for ties in ties_by_rank)
    }
    bounds = {
        name: [rank * tensor.numel() // ranks.size for rank in range(ranks.size + 1)]
        for name, tensor in origin.items()
        if name not in ties
    }
    shards = {
        upload: _shards(sent[upload], everyone, bounds, origin, ranks) for upload in sorted(sent)
    }
    result = aggregate(
        made,
        _part(origin, bounds, ranks),
        shards.pop("update"),
        num_samples={c: n for samples, _ in counts for c, n in samples.items()} or None,
        num_batches={c: n for _, batches in counts for c, n in batches.items()} or None,
        uploads=shards,
        state=state,
        ranks=ranks,
        **options,
    )
    whole = _joined(result.parameters, bounds, ranks)
    new = params.new_like(global_params, ties)
    for name, tensor in params.tensors("result", new).items():
        tensor.copy_(whole[ties.get(name, name)].view(tensor.shape))
    names = {f"{name} (rank {rank})": name for name in bounds for rank in range(ranks.size)}
    dropped = {client: _named(counts, names) for client, counts in result.dropped.items()}
    return replace(result, parameters=new, dropped=dropped)


def _part(tensors: StateDict, bounds: Bounds, ranks: Ranks) -> dict[Any, Tensor]:
    """Return this rank's columns of whole tensors."""
    return {
        name: tensors[name].reshape(-1)[ends[ranks.rank] : ends[ranks.rank + 1]]
        for name, ends in bounds.items()
    }


def _shards(
    clients: Mapping[Hashable, StateDict],
    everyone: list[list[Hashable]],
    bounds: Bounds,
    like: StateDict,
    ranks: Ranks,
) -> dict[Hashable, dict[Any, Tensor]]:
    """Return this rank's columns of all clients, given whole tensors of this rank's clients."""
    shards: dict[Hashable, dict[Any, Tensor]] = {c: {} for part in everyone for c in part}
    for name, ends in bounds.items():
        flat = [given[name].reshape(-1) for given in clients.values()]
        rows = torch.stack([like[name].reshape(-1), *flat])[1:]  # There may be no client here.
        sends = [rows[:, start:stop].contiguous() for start, stop in pairwise(ends)]
        width = ends[ranks.rank + 1] - ends[ranks.rank]
        receives = [rows.new_empty(len(ids), width) for ids in everyone]
        ranks.exchange(sends, receives)
        for client, row in zip(shards, torch.cat(receives), strict=True):
            shards[client][name] = row
    return shards


def _joined(parts: StateDict, bounds: Bounds, ranks: Ranks) -> dict[Any, Tensor]:
    """Return whole vectors by tensor, given this rank's columns of each."""
    whole = {}
    for name, ends in bounds.items():
        part = parts[name].contiguous()
        receives = [part.new_empty(stop - start) for start, stop in pairwise(ends)]
        ranks.exchange([part] * ranks.size, receives)
        whole[name] = torch.cat(receives)
    return whole


def _named(by_label: Mapping[Any, int], names: Mapping[str, Any]) -> dict[Any, int]:
    """Return counts by tensor, added over the ranks that held its columns."""
    by_tensor: Counter[Any] = Counter()
    for label, count in by_label.items():
        by_tensor[names.get(label, label)] += count
    return dict(by_tensor)
