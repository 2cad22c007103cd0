"""The clients of a call: their ids and counts, as a rule's context and state."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.errors import NonFiniteError, kind, nonfinite_sentence
from fedsdg.aggregation.rows import Counts
from fedsdg.aggregation.types import Context, Plan, Rule, State
from fedsdg.errors import shortened

MOST = 2**53
"""The largest count: a float64 has room for all whole numbers up to it."""


@dataclass(eq=False)
class Cohort:
    """The clients of a call, with what the caller knows of them."""

    ids: Sequence[Hashable]
    "[M]"
    listed: bool
    "whether the ids are positions in a list"
    num_samples: Any = None
    "M counts in the order of the ids, or a mapping by id"
    num_batches: Any = None
    "the same, of local steps per epoch"
    client_samples: Any = None
    "the counts of all K clients"
    num_clients: Any = None
    "K"
    round: Any = 1
    "1, 2, …"
    dropped: dict[Hashable, dict[Any, int]] = field(default_factory=dict)
    "clients left out, with their non-finite values by tensor"

    def context(self, rule: Rule) -> Context:
        """Return the context of the round.

        Counts that are not given are 1 each, or are looked up in client_samples; K is M if it is
        not given. Clients are 0 … M-1 unless ids are whole numbers and K is known.

        Raises:
            ValueError: A count is invalid, or the rule needs counts that are not given.
        """
        everyone = self.client_samples
        if everyone is not None:
            everyone = _counts("client_samples", everyone)
        total, size = self._total(everyone), len(self.ids)
        clients, samples = np.arange(size), self.num_samples
        if total is not None and all(map(_is_whole, self.ids)):
            clients = np.array(self.ids, dtype=np.int64)
            if (clients < 0).any() or (clients >= total).any():
                raise ValueError(f"client ids {shortened(self.ids)} must be in 0 … {total - 1}")
            if samples is None and everyone is not None:
                samples = everyone[clients]
        given = {"num_samples": samples, "num_batches": self.num_batches}
        if size and rule.needs in given and given[rule.needs] is None:
            raise ValueError(
                f"the rule weighs clients by {rule.needs}: give one count per client, or use "
                "'fedavg-uniform'"
            )
        return Context(
            round=_positive("round", self.round),
            clients=clients,
            num_clients=total or size,
            num_samples=_counts("num_samples", samples, self.ids),
            num_batches=_counts("num_batches", self.num_batches, self.ids),
            client_samples=np.ones(total or size) if everyone is None else everyone,
        )

    def state(self, rule: Rule, state: Any, context: Context, d: int) -> State:
        """Return the checked state, or the one before round 1 for None.

        A rule with a state knows clients from round to round by their ids, so these must be whole
        numbers in 0 … K-1, and a list must hold all K clients.

        Raises:
            ValueError: The state is not what the last call returned for this federation and
                model, or clients cannot be identified.
        """
        if rule.needs == "client_samples" and state is None and self.client_samples is None:
            raise ValueError(
                "the rule starts from the clients' shares of the data: give client_samples, the "
                "counts of all clients, or the state that the last call returned"
            )
        fresh = rule.init(d, context.client_samples)
        if not fresh:
            if state:
                raise ValueError(f"state is {shortened(state)}, but the rule keeps none; omit it")
            return {}
        self._require_identified(context.num_clients)
        if state is not None:
            _check_state(state, fresh)
        return fresh if state is None else dict(state)

    def drop(self, faults: Counts, on_nonfinite: str) -> list[int]:
        """Leave out the clients with non-finite values; return the positions of the others.

        Args:
            faults: How many values are not finite, by row (-1: theta_g) and tensor.
            on_nonfinite: "raise" or "drop".

        Raises:
            NonFiniteError: Naming client and tensor, unless dropping leaves a client.
        """
        for row, counts in faults.items():
            who = "global parameters" if row < 0 else f"client {self.ids[row]}"
            if len(faults) == len(self.ids) and on_nonfinite == "drop":
                who = f"no client is left, for all hold non-finite values: {who}"
            elif row >= 0 and on_nonfinite == "drop":
                self.dropped[self.ids[row]] = counts
                continue
            raise NonFiniteError(nonfinite_sentence(who, counts))
        return [k for k in range(len(self.ids)) if k not in faults]

    def weights(self, plan: Plan, kept: Sequence[int]) -> Any:
        """Return the weights of all clients, 0 for a dropped one, in the caller's form."""
        if plan.weights is None:
            return None
        weights = self._of_all(plan.weights, kept, 0.0).tolist()
        return weights if self.listed else dict(zip(self.ids, weights, strict=True))

    def diagnostics(self, plan: Plan, kept: Sequence[int], context: Context) -> dict[str, Any]:
        """Return the diagnostics of all clients, NaN for a dropped one; "winner" is an id."""
        facts: dict[str, Any] = {
            name: self._of_all(value, kept, np.nan) if np.ndim(value) else value
            for name, value in plan.diagnostics.items()
        }
        if "winner" in facts:
            facts["winner"] = self.ids[context.clients.tolist().index(int(facts["winner"]))]
        return facts

    def _of_all(self, values: Any, kept: Sequence[int], missing: float) -> np.ndarray:
        every = np.full(len(self.ids), missing)
        every[list(kept)] = values
        return every

    def _total(self, everyone: np.ndarray | None) -> int | None:
        """K, if it is known."""
        given = None if self.num_clients is None else _positive("num_clients", self.num_clients)
        total = given if everyone is None else len(everyone)
        if total is not None and (given not in (None, total) or len(self.ids) > total):
            raise ValueError(
                f"num_clients={given} and client_samples={shortened(self.client_samples)} do not "
                f"fit {len(self.ids)} clients; count all clients of the federation"
            )
        return total

    def _require_identified(self, total: int) -> None:
        remedy = "give a mapping by client, whose ids are whole numbers in 0 … num_clients - 1"
        if self.client_samples is None and self.num_clients is None:
            raise ValueError("the rule keeps a state: give num_clients or client_samples")
        if not all(map(_is_whole, self.ids)) or (self.listed and len(self.ids) not in (0, total)):
            raise ValueError(
                f"the rule keeps a state by client, and {shortened(self.ids)} do not say which of "
                f"the {total} clients they are; {remedy}"
            )


def _check_state(state: Any, fresh: State) -> None:
    remedy = "pass the state that the last call returned, for the same federation and model"
    if not isinstance(state, Mapping) or set(state) != set(fresh):
        raise ValueError(f"state is {shortened(state)}, expected {list(fresh)}; {remedy}")
    for name, expected in fresh.items():
        value = state[name]
        if (
            not isinstance(value, Tensor)
            or value.shape != expected.shape
            or value.is_floating_point() != expected.is_floating_point()
            or not torch.isfinite(value).all()
        ):
            raise ValueError(
                f"state {name!r} is {kind(value)}, expected finite {expected.dtype} of shape "
                f"{tuple(expected.shape)}; {remedy}"
            )


def _counts(name: str, given: Any, ids: Sequence[Hashable] | None = None) -> np.ndarray:
    """Return counts as float64, in the order of the ids, or as they are listed."""
    if given is None:
        return np.ones(len(ids or ()))
    if isinstance(given, Mapping) and ids is not None:
        given = [given.get(client) for client in ids]
    if isinstance(given, np.ndarray | Tensor):
        given = given.tolist()
    if not isinstance(given, list | tuple) or (ids is not None and len(given) != len(ids)):
        raise ValueError(f"{name} is {shortened(given)}; give a list of one count per client")
    for position, value in enumerate(given):
        if (
            not isinstance(value, int | float | np.number)
            or isinstance(value, bool)
            or not 0 <= value <= MOST
        ):
            raise ValueError(
                f"client {position if ids is None else ids[position]}: the count in {name} is "
                f"{shortened(value)}; give a number from 0 to 2**53"
            )
    return np.array(given, dtype=np.float64)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _positive(name: str, value: Any) -> int:
    if not _is_whole(value) or not 1 <= value <= MOST:
        raise ValueError(f"{name}={shortened(value)} must be a whole number of at least 1")
    return int(value)
