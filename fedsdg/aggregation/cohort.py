"""The context and the state that a rule needs, from what a caller of the door knows."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.engines.memory.checks import kind
from fedsdg.aggregation.types import Context, Rule
from fedsdg.parts import shown

LARGEST_COUNT = 2**53


@dataclass(frozen=True, eq=False)
class Cohort:
    """Who takes part in a call, as given; everything is checked when it is asked for."""

    ids: Sequence[Hashable]
    listed: bool
    """Whether the ids are positions in a list."""
    num_samples: Any = None
    """M counts in the order of the ids, or a mapping by id."""
    num_batches: Any = None
    client_samples: Any = None
    """The counts of all K clients."""
    num_clients: Any = None
    """K."""
    round: Any = 1

    def context(self) -> Context:
        """Counts that are not given are 1 each, K that is not given is M.

        Its clients are the ids where they are whole numbers and K is known, else 0 … M-1.
        num_samples that are not given are looked up in client_samples where they can be.
        """
        ids, size = self.ids, len(self.ids)
        everyone = None
        if self.client_samples is not None:
            everyone = _listed("client_samples", self.client_samples)
        total = self._total(everyone)
        clients, samples = np.arange(size), self.num_samples
        if total is not None and _whole_numbers(ids):
            for client in ids:
                if not 0 <= client < total:  # type: ignore[operator]
                    raise ValueError(
                        f"client {client}: ids must be in 0 … num_clients - 1 = {total - 1}"
                    )
            clients = np.array(ids, dtype=np.int64)
            if samples is None and everyone is not None:
                samples = everyone[clients]
        counts = _counts("num_samples", samples, ids)
        known = np.broadcast_to(1.0, total or size) if everyone is None else everyone
        return Context(
            round=_positive("round", self.round),
            clients=clients,
            num_clients=len(known),
            num_samples=counts,
            total_samples=int(counts.sum() if everyone is None else everyone.sum()),
            num_batches=_counts("num_batches", self.num_batches, ids),
            client_samples=known,
        )

    def check_counts(self, rule: Rule) -> None:
        """ValueError when the rule weighs by counts that were not given and cannot be looked up.

        A rule names them in an attribute `needs`; one without it needs none.
        """
        needed = getattr(rule, "needs", None)
        if needed not in ("num_samples", "num_batches") or not self.ids:
            return
        looked_up = needed == "num_samples" and self.client_samples is not None
        if getattr(self, needed) is None and not (looked_up and _whole_numbers(self.ids)):
            counted = needed.removeprefix("num_")
            raise ValueError(
                f"the rule weighs clients by {counted}: give {needed}, one count per client, or "
                f"use 'fedavg-uniform'"
            )

    def state(self, rule: Rule, state: Any, context: Context, d: int) -> dict[str, torch.Tensor]:
        """The state checked against that of round 1, or that of round 1 itself for None.

        A rule with a state knows clients from round to round by their ids, so these must be whole
        numbers in 0 … K-1, and a list stands for a cohort only when it holds all K clients.
        """
        if state is not None and not isinstance(state, Mapping):
            raise ValueError(f"state is {kind(state)}; pass the state that the last call returned")
        starts_from_samples = getattr(rule, "needs", None) == "client_samples"
        if starts_from_samples and state is None and self.client_samples is None:
            raise ValueError(
                "CGSV starts from the clients' shares of the data: give client_samples, the counts "
                "of all clients of the federation, or the state that the last call returned"
            )
        fresh = rule.init(d, np.asarray(context.client_samples))
        if not fresh:
            if state:
                raise ValueError(f"state holds {list(state)}, but the rule keeps none; omit it")
            return {}
        self._check_identified()
        if state is None:
            return fresh
        _check_state(state, fresh)
        return dict(state)

    def _total(self, everyone: np.ndarray | None) -> int | None:
        total = None if self.num_clients is None else _positive("num_clients", self.num_clients)
        if everyone is not None:
            if total not in (None, len(everyone)):
                raise ValueError(
                    f"num_clients={total}, but client_samples holds {len(everyone)} counts; give "
                    f"one count for every client of the federation"
                )
            total = len(everyone)
        if total is not None and len(self.ids) > total:
            raise ValueError(
                f"the cohort has {len(self.ids)} clients, but the federation {total}; give the "
                f"num_clients or client_samples of all clients"
            )
        return total

    def _check_identified(self) -> None:
        total = self.num_clients if self.client_samples is None else len(self.client_samples)
        if total is None:
            raise ValueError(
                "the rule keeps a state for the whole federation: give num_clients or "
                "client_samples"
            )
        for client in self.ids:
            if not _whole_numbers([client]):
                raise ValueError(
                    f"client {client}: the rule keeps a state by client, so ids must be whole "
                    f"numbers in 0 … num_clients - 1"
                )
        if self.listed and self.ids and len(self.ids) != total:
            raise ValueError(
                f"the rule keeps a state by client, and a list of {len(self.ids)} does not say "
                f"which of the {total} they are; give a mapping from client id to parameters"
            )


def _check_state(state: Mapping[Any, Any], fresh: Mapping[str, torch.Tensor]) -> None:
    remedy = "pass the state that the last call returned, for the same federation and model"
    if set(state) != set(fresh):
        raise ValueError(f"state holds {list(state)}, expected {list(fresh)}; {remedy}")
    for name, expected in fresh.items():
        value = state[name]
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"state {name!r} is {kind(value)}, not a tensor; {remedy}")
        if value.layout != torch.strided or value.device.type == "meta" or value.requires_grad:
            raise ValueError(
                f"state {name!r} is sparse, without values (meta) or requires a gradient; {remedy}"
            )
        if value.shape != expected.shape or _kind(value.dtype) != _kind(expected.dtype):
            raise ValueError(
                f"state {name!r} is {value.dtype} of shape {tuple(value.shape)}, expected "
                f"{expected.dtype} of shape {tuple(expected.shape)}; {remedy}"
            )
        if not torch.isfinite(value).all():
            raise ValueError(f"state {name!r} holds non-finite values; {remedy}")


def _kind(dtype: torch.dtype) -> str:
    """Numbers of the same kind can stand for each other."""
    if dtype.is_floating_point:
        return "floating"
    return "other" if dtype.is_complex or dtype == torch.bool else "whole"


def _counts(name: str, given: Any, ids: Sequence[Hashable]) -> np.ndarray:
    """[M] counts in the order of the ids."""
    if given is None:
        return np.ones(len(ids))
    if isinstance(given, Mapping):
        for client in ids:
            if client not in given:
                raise ValueError(f"{name} holds no count for client {client}; add it")
        given = [given[client] for client in ids]
    counts = _listed(name, given, ids)
    if len(counts) != len(ids):
        raise ValueError(
            f"{name} holds {len(counts)} counts for {len(ids)} clients; give one per client"
        )
    return counts


def _listed(name: str, given: Any, ids: Sequence[Hashable] | None = None) -> np.ndarray:
    values = given.tolist() if _has_values(given) else given
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ValueError(f"{name} is {kind(given)}; give a list of counts")
    for position, value in enumerate(values):
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 0 <= value <= LARGEST_COUNT:
            client = ids[position] if ids and position < len(ids) else position
            raise ValueError(
                f"client {client}: the count in {name} is {shown(value)}; it must be a number from "
                f"0 to 2**53"
            )
    return np.array(values, dtype=np.float64)


def _has_values(given: Any) -> bool:
    if isinstance(given, torch.Tensor):
        return given.layout == torch.strided and given.device.type != "meta"
    return isinstance(given, np.ndarray)


def _whole_numbers(ids: Sequence[Hashable]) -> bool:
    return all(isinstance(id_, Integral) and not isinstance(id_, bool) for id_ in ids)


def _positive(name: str, value: Any) -> int:
    number = isinstance(value, Integral) and not isinstance(value, bool)
    if not number or not 1 <= value <= LARGEST_COUNT:
        raise ValueError(f"{name}={shown(value)} must be a whole number of at least 1")
    return int(value)
