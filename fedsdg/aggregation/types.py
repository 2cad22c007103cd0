"""What goes into an aggregation rule and what comes out of it.

A rule is a pure function of what was uploaded. It sees uploads as `Rows`, M vectors of d numbers
wherever they lie, and returns a `Plan`; the door that called the rule carries the plan out. So one
rule works on arrays and tensors in memory, on files and over processes::

    class Nearest(Rule):
        def plan(self, rows, context, state):
            distances = rows["update"].distances()          # [M, M]
            weights = ...                                   # [M]
            return Plan(Combination(weights), weights, state)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from fedsdg.aggregation.errors import NonFiniteError, RuleFault, nonfinite_sentence
from fedsdg.lazy import Tensor, torch
from fedsdg.parts import Part

if TYPE_CHECKING:
    from fedsdg.aggregation.rows import Rows

State = Mapping[str, Tensor]
ADAPTERS = "adapters"
"""The upload that is formed from the parameters, as the updates are, without those of the head."""


@dataclass(frozen=True, eq=False)
class Context:
    """What the server knows of a round beside the uploads; row k of an upload is `clients[k]`."""

    round: int
    "1-based"
    clients: np.ndarray
    "[M] int64 ids of the cohort"
    num_clients: int
    "K, all clients of the federation"
    num_samples: np.ndarray
    "[M] training samples of each cohort client"
    num_batches: np.ndarray
    "[M] local steps per epoch"
    client_samples: np.ndarray
    "[K] training samples of every client"
    rounding: Callable[[float], float] = lambda update_norm: 0.0
    """bound on the rounding noise of an update, 1/2 eps max_k ||theta_k||, given the norm of the
    longest update; a mean update no longer than this has no direction"""
    models: Tensor | None = None
    "[C, d] the server's models before the round, for rules that serve several"
    ages: np.ndarray | None = None
    "[M] int64 rounds by which each upload is late; None if all are of this round"
    held_out: int = 0
    "how many of the K clients never take part"

    def subset(self, kept: np.ndarray | list[int]) -> Context:
        """Return the context of some of the clients, by position."""
        return replace(
            self,
            clients=self.clients[kept],
            num_samples=self.num_samples[kept],
            num_batches=self.num_batches[kept],
            ages=None if self.ages is None else self.ages[kept],
        )


class Step:
    """What is added to the server's model: a function of each column of the updates by itself."""

    def apply(self, rows: Rows, models: Tensor | None) -> Tensor:
        """Return the step [C, d] for rows without an origin and the server's models [C, d]."""
        return rows.vector(self)[None]


@dataclass(frozen=True, eq=False)
class Combination(Step):
    """sum_k c_k x_k + b."""

    coefficients: np.ndarray
    "[M] c"
    offset: Tensor | None = None
    "[d] b, such as a server's momentum; None: 0"


@dataclass(frozen=True, eq=False)
class TrimmedMean(Step):
    """The mean of the numbers of rank trim … M-1-trim of the column."""

    trim: int


@dataclass(frozen=True, eq=False)
class Mixture(Step):
    """For a server of C models theta_c: sum_k w_ck x_k + sum_j a_cj theta_j."""

    coefficients: np.ndarray
    "[C, M]"
    of_models: np.ndarray
    "[C, C]"

    def apply(self, rows: Rows, models: Tensor | None) -> Tensor:
        """Return the step [C, d]."""
        from fedsdg.aggregation.rows import MemoryRows

        count = len(self.of_models)
        if models is None or tuple(models.shape) != (count, rows.d):
            raise ValueError(
                f"the rule serves {count} models of {rows.d} parameters; pass them as "
                "Context.models"
            )
        steps = torch.zeros(models.shape, dtype=rows.dtype, device=models.device)
        pairs = ((rows, self.coefficients), (MemoryRows.of_matrix(models), self.of_models))
        for source, matrix in pairs:
            for c in np.flatnonzero(matrix.any(axis=1)):
                steps[c] += source.vector(Combination(matrix[c]))
        return steps


@dataclass(frozen=True, eq=False)
class Largest(Step):
    """For a server of C models: the q_c largest entries, by magnitude, of sum_k c_k x_k.

    All other entries are 0. Of equal entries the first ones are taken.
    """

    coefficients: np.ndarray
    "[M]"
    counts: np.ndarray
    "[C] q_c, the number of entries"

    def apply(self, rows: Rows, models: Tensor | None) -> Tensor:
        """Return the step [C, d]."""
        vector = rows.vector(Combination(self.coefficients))
        order = torch.sort(vector.abs(), descending=True, stable=True).indices
        steps = vector.new_zeros(len(self.counts), len(vector))
        for step, count in zip(steps, self.counts, strict=True):
            step[order[:count]] = vector[order[:count]]
        return steps


@dataclass(frozen=True, eq=False)
class Plan:
    """The outcome of a rule except for the arithmetic on whole updates."""

    step: Step
    "what the server adds to its model, as a function of the upload `update`"
    weights: np.ndarray | None
    "[M] weights of the clients, summing to 1; None if the rule has none"
    state: State = field(default_factory=dict)
    "passed to the rule in the next round"
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    "numbers to record: arrays [M] per client, or one float for the round"
    rows: list[int] | None = None
    "positions of the clients of whose updates the step is a function; None: all"

    def select(self, updates: Rows) -> Rows:
        """Return the updates of which the step is a function."""
        return updates if self.rows is None else updates.subset(self.rows)

    @property
    def takes_any(self) -> bool:
        """Whether the step takes something from any client."""
        return bool(np.any(getattr(self.step, "coefficients", True)))


class Aggregate(NamedTuple):
    """The outcome of a rule on tensors: a `Plan` whose step was taken."""

    steps: Tensor
    "[C, d]; the server adds steps[c] to its model c"
    weights: np.ndarray | None
    "[M], summing to 1; None if the rule has none"
    state: State
    "passed to the rule in the next round"
    diagnostics: Mapping[str, Any]
    "arrays [M] per client, or one float for the round"


@dataclass(frozen=True)
class UploadRequest:
    """What a rule asks clients to measure, in words: a rule knows no data, the federation does.

    "scores": upload `scores` [M, C], the loss of each of the server's models on a client's training
    samples before training, NaN if not measured. "losses": `global_loss` [M, 1], of the downloaded
    model on the client's training samples, and `benchmark_loss` [M, 1], of its trained model, as it
    arrives, on the server's samples. "fisher": `fisher` [M, d], the diagonal I_k of the Fisher
    information at the trained theta_k, and `fisher_theta` [M, d], I_k theta_k.
    """

    kind: Literal["scores", "losses", "fisher"]
    "which of the measurements"
    sample: int | None = None
    "number of models, other than its own, for which a client measures scores; None: all"
    rounds: int | None = None
    "number of rounds, from the first, in which it is measured; None: all"


Prior = Literal["clusters", "labels"]
"""What a rule may know of all clients before the first round: the cluster of each client, or how
many training samples of every class it holds."""


class Rule(Part):
    """A server aggregation rule, which modifies neither uploads nor state.

    A subclass defines `plan`; the other methods have these defaults.
    """

    reads: ClassVar[tuple[str, ...]] = ("update",)
    "the uploads that the plan looks at"
    needs: ClassVar[str | None] = None
    "the field of `Context` without which the rule cannot work"
    probes: ClassVar[tuple[UploadRequest, ...]] = ()
    "what clients measure for the rule"
    server_prior: ClassVar[tuple[Prior, ...]] = ()
    "what the server must know before the first round"

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return what to do with the uploads.

        Args:
            rows: The uploads named in `reads`, M rows each.
            context: The round and its cohort.
            state: What the last plan returned, or `init`.

        Returns:
            The step, the weights, the next state and the diagnostics.

        Raises:
            ValueError: The rule cannot handle this cohort.
            NonFiniteError: An upload holds NaN or infinity.
        """
        raise NotImplementedError

    def require(self, cohort: int, clients: int) -> None:
        """Raise ValueError unless `cohort` of `clients` clients in a round are enough."""

    def init(self, d: int, client_samples: np.ndarray) -> State:
        """Return the state before the first round, for d parameters and client_samples [K]."""
        return {}

    def broadcast(self, state: State) -> State:
        """Return named arrays sent to every client beside the model."""
        return {}

    def models(self, num_clients: int) -> int:
        """Return C, the number of models that the server holds."""
        return 1

    def mixing(self, state: State, clients: np.ndarray) -> np.ndarray:
        """Return [M, C] with rows that sum to 1: client k downloads row k times the models."""
        return np.ones((len(clients), 1))

    def partial(self, state: State, clients: np.ndarray, d: int) -> np.ndarray | None:
        """Return [M] how many of the d entries of its model each client downloads; None: all."""
        return None

    def checked_plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of `plan`, after checks of what goes in and what comes out.

        Raises:
            ValueError: An upload is missing or has too few rows, or the cohort is too small.
            RuleFault: Coefficients or weights are not finite numbers, one for each client.
            NonFiniteError: An upload holds NaN or infinity.
        """
        size = len(context.clients)
        for name in self.reads:
            given = rows[name].size if name in rows else 0
            if given != size and (name != "server" or not given):
                raise ValueError(
                    f"the rule reads {', '.join(self.reads)}, but upload {name!r} has {given} rows "
                    f"for {size} clients; send one each"
                )
        self.require(size, context.num_clients)
        plan = self.plan(rows, context, state)
        fault = _fault(plan, size, sum(rows["update"].columns.values()))
        if fault:
            for name in self.reads:
                rows[name].check_finite()  # A client may be at fault, not the rule.
            raise RuleFault(f"the rule {type(self).__name__} returned {fault}")
        used = plan.step.coefficients != 0 if isinstance(plan.step, Combination) else np.zeros(1)
        if used.any() and not used.all():
            plan.select(rows["update"]).check_finite()  # A coefficient of 0 hides NaN.
        return plan

    def __call__(self, uploads: Mapping[str, Tensor], context: Context, state: State) -> Aggregate:
        """Aggregate tensors in memory.

        Args:
            uploads: Tensors [M, d] by name; `update` holds Delta_k = theta_k - theta_g.
            context: The round and its cohort.
            state: What the last call returned, or `init`.

        Returns:
            The steps [C, d], weights, next state and diagnostics.

        Raises:
            NonFiniteError: An upload holds NaN or infinity; the message names the client.
            ValueError: As `checked_plan`.
        """
        from fedsdg.aggregation.rows import MemoryRows, nonfinite_by_row

        rows = {name: MemoryRows.of_matrix(sent, name) for name, sent in uploads.items()}
        try:
            plan = self.checked_plan(rows, context, state)
            steps = plan.step.apply(plan.select(rows["update"]), context.models)
        except NonFiniteError as error:
            for row, counts in nonfinite_by_row([rows[name] for name in self.reads]).items():
                who = f"client {context.clients[row]}"
                raise NonFiniteError(nonfinite_sentence(who, counts)) from error
            raise error.naming(context.clients.tolist()) from error
        return Aggregate(steps, plan.weights, plan.state, plan.diagnostics)


class Wrapper(Rule):
    """A rule around another rule, with the inner rule's needs, state and models."""

    inner: Rule


# A wrapper takes these from its inner rule.
_ATTRIBUTES = ("reads", "needs", "probes", "server_prior")
_METHODS = ("require", "init", "broadcast", "models", "mixing", "partial")
_OF_CLUSTERS = ("clusters", "with_clusters", "with_labels")
for _name in _ATTRIBUTES + _METHODS + _OF_CLUSTERS:
    setattr(Wrapper, _name, property(lambda self, name=_name: getattr(self.inner, name)))  # type: ignore[misc]


def _fault(plan: Any, size: int, d: int) -> str | None:
    """Return what is wrong with a plan of `size` clients and d parameters, or None."""
    if not isinstance(plan, Plan) or not isinstance(plan.step, Step):
        return f"{plan!r}; return a Plan with a Step"
    chosen = range(size) if plan.rows is None else plan.rows
    for what, values, count in (
        ("weights", plan.weights, size),
        ("coefficients", getattr(plan.step, "coefficients", None), len(chosen)),
    ):
        sound = (
            isinstance(values, np.ndarray)
            and values.dtype.kind in "fiub"
            and values.shape[-1:] == (count,)
            and np.isfinite(values).all()
        )
        if values is not None and not sound:
            return f"the {what} {values}; return a numpy array of {count} finite numbers"
    if not {*chosen} <= {*range(size)}:
        return f"the rows {plan.rows} of {size} clients; count from 0"
    trim = getattr(plan.step, "trim", 0)
    if trim and not 0 < 2 * trim < len(chosen):
        return f"a trim of {trim} at both ends of {len(chosen)} updates; leave one at least"
    offset = getattr(plan.step, "offset", None)
    if offset is not None and not (isinstance(offset, torch.Tensor) and offset.shape == (d,)):
        return f"an offset that is no tensor of {d} numbers; return one for each parameter"
    if plan.weights is not None and (plan.weights < -1e-9).any():
        return "a weight below 0; weights are shares"
    return None
