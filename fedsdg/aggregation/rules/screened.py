"""Any rule, behind a watch that blocks clients whose updates stay outliers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import Rows, TensorRows
from fedsdg.aggregation.rules.geometric_median import geometric_median
from fedsdg.aggregation.types import Aggregate, Ask, Context, Rule, StatelessRule
from fedsdg.aggregation.uploads import NonFiniteError, checked_upload, require_finite
from fedsdg.files.columns import Column
from fedsdg.parts import Range, part

FEWEST = 4
"""Of fewer clients, the spread of the others says too little of one."""
LEAST_SPREAD = 0.1
"""Of distances, as a share of their median, and of cosines."""
INNER = "inner."
"""What the names of the inner rule's state begin with."""


@part
class Screened(StatelessRule):
    """The inner rule on the updates of the clients that are not blocked.

    Each round, the clients of the cohort that are not blocked are compared: how far is an update
    from their geometric median, and how little does it point in its direction (`outlier_scores`)?
    A client whose score exceeds `threshold` in `strikes` of its participations in a row is blocked
    for good, this round included; one participation below it starts the count anew. Until it is
    blocked, its updates count: watching takes time. Fewer than 4 clients are not judged. An update
    with NaN or infinity is infinitely far out, and is left out at once; only if all of a round are
    so, that is an error as with any rule.

    The inner rule sees the rest as if they were the cohort. A blocked client's uploads are not even
    looked at. If all clients of a round are blocked the model stays, without weights; if the rest
    are too few for the inner rule, its error says so.

    Attacks that stay within the spread of the honest updates (as ALIE does) are no outliers and are
    not found; nor can a majority be. An honest client whose data are like no one else's is an
    outlier too: how many are blocked wrongly is for an experiment to say.
    State: strikes [K] and blocked [K] (0 or 1) int64, and the inner rule's, prefixed with "inner.".
    Weights: the inner rule's, 0 for blocked clients. Diagnostics: blocked [M] (bool, after this
    round), outlier [M] (the score; NaN where not judged), and the inner rule's, NaN for blocked
    clients.
    The threshold of 3.5 is that of Iglewicz and Hoaglin 1993.
    """

    inner: Rule
    strikes: Annotated[int, Range(1)] = 2
    "times in a row as an outlier until a client is blocked"
    threshold: Annotated[float, Range(1e-3)] = 3.5
    "robust standard deviations that make a client an outlier"

    columns: ClassVar = (
        Column("diagnostics", "blocked", "bool", "whether it is blocked after this round"),
    )

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Rule):
            raise ValueError(f"inner={self.inner!r} is no rule; give one such as Mean()")

    @property
    def reads(self) -> tuple[str, ...]:
        """The uploads that the inner rule looks at."""
        return tuple(getattr(self.inner, "reads", ("update",)))

    @property
    def needs(self) -> str | None:
        needed: str | None = getattr(self.inner, "needs", None)
        return needed

    @property
    def probes(self) -> tuple[Ask, ...]:
        return self.inner.probes

    def require(self, cohort: int, clients: int) -> None:
        self.inner.require(cohort, clients)

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        none = torch.zeros(len(client_samples), dtype=torch.int64)
        inner = self.inner.init(d, client_samples)
        return {"strikes": none, "blocked": none.clone()} | _prefixed(inner)

    def broadcast(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.inner.broadcast(_inner(state))

    def models(self, num_clients: int) -> int:
        return self.inner.models(num_clients)

    def mixing(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        return self.inner.mixing(_inner(state), clients)

    def partial(
        self, state: Mapping[str, torch.Tensor], clients: np.ndarray, d: int
    ) -> np.ndarray | None:
        return self.inner.partial(_inner(state), clients, d)

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        updates = checked_upload(uploads, context, finite=False)
        ids = context.clients
        strikes = state["strikes"].numpy(force=True).copy()
        blocked = state["blocked"].numpy(force=True).copy()
        scores = self._scores(updates, context, blocked[ids] == 1)
        judged = ids[~np.isnan(scores)]
        strikes[judged] = np.where(
            scores[~np.isnan(scores)] > self.threshold, strikes[judged] + 1, 0
        )
        blocked[judged] = strikes[judged] >= self.strikes
        kept = np.flatnonzero((blocked[ids] == 0) & (scores != np.inf))
        found = self._of_the_rest(uploads, context, _inner(state), kept)
        renewed = {"strikes": torch.from_numpy(strikes), "blocked": torch.from_numpy(blocked)}
        diagnostics = {
            name: _spread(value, kept, len(ids), np.nan) if np.shape(value) == kept.shape else value
            for name, value in found.diagnostics.items()
        }
        diagnostics |= {"blocked": blocked[ids] == 1, "outlier": scores}
        weights = found.weights
        if weights is not None:
            weights = _spread(weights, kept, len(ids), 0.0)
        return Aggregate(found.steps, weights, renewed | _prefixed(found.state), diagnostics)

    def _scores(self, updates: torch.Tensor, context: Context, blocked: np.ndarray) -> np.ndarray:
        """[M] `outlier_scores`, infinite where an update is, NaN for those who are not judged."""
        scores = np.full(len(blocked), np.nan)
        watched = np.flatnonzero(~blocked)
        if not len(watched):
            return scores
        known, their = restricted({"update": updates}, context, watched)
        sound = TensorRows(known["update"]).nonfinite_counts() == 0
        if not sound.any():
            require_finite(TensorRows(known["update"]), None, their)
        scores[watched[~sound]] = np.inf
        watched = watched[sound]
        if len(watched) >= FEWEST:
            known, their = restricted({"update": updates}, context, watched)
            scores[watched] = outlier_scores(TensorRows(known["update"]), their)
        return scores

    def _of_the_rest(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: dict[str, torch.Tensor],
        kept: np.ndarray,
    ) -> Aggregate:
        """What the inner rule makes of the rows `kept`."""
        if not len(kept):
            update = uploads["update"].detach()
            count = self.inner.models(context.num_clients)
            return Aggregate(update.new_zeros(count, update.shape[1]), None, state, {})
        try:
            return self.inner(*restricted(uploads, context, kept), state)
        except NonFiniteError:
            raise
        except ValueError as error:
            if len(kept) == len(context.clients):
                raise
            left_out = f"{len(context.clients) - len(kept)} of {len(context.clients)}"
            raise ValueError(f"{error} ({left_out} clients of the round are blocked)") from error


def outlier_scores(updates: Rows, context: Context) -> np.ndarray:
    """[M] how far each update is out, in robust standard deviations of the cohort.

    The larger of two scores against the geometric median z: of the distance ||Delta_k - z|| being
    large, and of cos(Delta_k, z) being small. Scores are (x_k - median) / s, s = 1.4826 median |x_j
    - median|, the factor making it the standard deviation of normal numbers. s is no less than a
    tenth of the median distance, or 0.1 for the cosines: among clients that are much alike, a small
    difference stands out and does no harm. A zero update has no direction and is not judged by it.
    Raises NonFiniteError, naming the client.
    """
    median = geometric_median(updates, context, tolerance=1e-6)
    away = median.reach
    s = updates.measure(median.weights)
    length = s.reference_norm * s.unit
    moving = s.norms * s.reference_norm > 0
    cosine = s.dots / np.where(moving, s.norms * s.reference_norm, 1.0)
    straying = np.zeros(len(away))
    if moving.any():
        straying[moving] = _robust_scores(-cosine[moving], LEAST_SPREAD)
    # Where most updates are equal their median distance is rounding.
    least = max(LEAST_SPREAD * float(np.median(away)), 1e-6 * length)
    return np.maximum(_robust_scores(away, least), straying)


def restricted(
    uploads: Mapping[str, torch.Tensor], context: Context, kept: np.ndarray
) -> tuple[dict[str, torch.Tensor], Context]:
    """Uploads and context of some clients of a cohort; of all of them, without a copy."""
    if len(kept) == len(context.clients):
        return dict(uploads), context
    some = {name: rows[torch.as_tensor(kept, device=rows.device)] for name, rows in uploads.items()}
    fewer = replace(
        context,
        clients=context.clients[kept],
        num_samples=context.num_samples[kept],
        num_batches=context.num_batches[kept],
        ages=None if context.ages is None else context.ages[kept],
    )
    return some, fewer


def _robust_scores(values: np.ndarray, least: float) -> np.ndarray:
    """Deviations from the median over 1.4826 times their median, or `least` where that is more."""
    deviations = values - np.median(values)
    spread = max(1.4826 * float(np.median(np.abs(deviations))), least)
    return deviations / spread if spread > 0 else np.zeros(len(values))


def _spread(values: np.ndarray | float, kept: np.ndarray, size: int, missing: float) -> np.ndarray:
    """[M] the values of those kept, and `missing` for the others."""
    spread = np.full(size, missing)
    spread[kept] = values
    return spread


def _prefixed(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{INNER}{name}": value for name, value in state.items()}


def _inner(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(INNER): value for name, value in state.items() if name.startswith(INNER)
    }
