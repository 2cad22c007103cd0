"""What every client sent, sorted by client, and who is left out for NaN or infinity."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from fedsdg.aggregation.engines.memory.checks import StateDict, check_finite, kind, nonfinite_counts
from fedsdg.aggregation.engines.memory.kinds import clients_of
from fedsdg.aggregation.uploads import ADAPTERS, NonFiniteError


def further_uploads(uploads: Any, ids: list[Hashable]) -> dict[str, list[Any]]:
    """The uploads beside the parameters, each as a list in the order of the ids."""
    if uploads is None:
        return {}
    if not isinstance(uploads, Mapping):
        raise ValueError(f"uploads is {kind(uploads)}; give a mapping such as {{'control': …}}")
    ordered = {}
    for name, values in uploads.items():
        if name in ("update", ADAPTERS):
            raise ValueError(
                f"uploads holds {name!r}, which is formed from client_params; leave it out"
            )
        others, rows, _ = clients_of(values)
        if set(others) != set(ids):
            raise ValueError(
                f"upload {name!r} is of the clients {others}, client_params of {ids}; give both "
                f"for the same clients"
            )
        by_id = dict(zip(others, rows, strict=True))
        ordered[name] = [by_id[client] for client in ids]
    return ordered


def screened(
    ids: Sequence[Hashable], tensors: Mapping[str, Sequence[StateDict]], on_nonfinite: str
) -> dict[Hashable, dict[str, int]]:
    """The clients to drop, with their non-finite values by tensor; raises unless dropping."""
    dropped = nonfinite_by_client(ids, tensors, on_nonfinite)
    check_some_left(ids, dropped)
    return dropped


def nonfinite_by_client(
    ids: Sequence[Hashable], tensors: Mapping[str, Sequence[StateDict]], on_nonfinite: str
) -> dict[Hashable, dict[str, int]]:
    """As `screened`, though no client may be left."""
    dropped: dict[Hashable, dict[str, int]] = {}
    for k, client in enumerate(ids):
        for upload, rows in tensors.items():
            if on_nonfinite == "raise":
                check_finite(who(client, upload), rows[k])
            for name, count in nonfinite_counts(rows[k]).items():
                label = name if upload == "update" else f"{upload}: {name}"
                dropped.setdefault(client, {})[label] = count
    return dropped


def check_some_left(ids: Sequence[Hashable], dropped: Mapping[Hashable, Mapping[str, int]]) -> None:
    """NonFiniteError when all clients of a cohort are dropped."""
    if ids and len(dropped) == len(ids):
        client, counts = next(iter(dropped.items()))
        name, count = next(iter(counts.items()))
        raise NonFiniteError(
            f"all {len(ids)} clients hold non-finite values (client {client}: tensor {name!r} has "
            f"{count}); nothing is left to aggregate: lower the learning rate"
        )


def who(client: Hashable, upload: str) -> str:
    """Who sent what, for an error message."""
    return f"client {client}" + ("" if upload == "update" else f", upload {upload!r}")
