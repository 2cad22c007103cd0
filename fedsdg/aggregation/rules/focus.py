"""FOCUS: a client weighs the less, the less its labels agree with those of the server."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Ask, Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.aggregation.weights import Weighed
from fedsdg.files.columns import Column
from fedsdg.parts import Range, part

LOSSES = ("benchmark_loss", "global_loss")


@part
class Focus(Weighed, PlannedRule):
    """step = sum_k w_k Delta_k with w_k = n_k C_k / sum_j n_j C_j.

    C_k = 1 - exp(a E_k) / sum_j exp(a E_j), over the cohort, with the mutual cross-entropy E_k =
    benchmark_loss_k + global_loss_k: that of the client's trained model on the server's benchmark
    set, and that of the server's model on the client's data. Wrong labels raise both. Credibilities
    sum to M - 1, so a single client has none: where all n_k C_k are 0, the weights are uniform.

    The paper calls a, which multiplies E, a temperature: the smaller, the more counts n_k alone. No
    value of the paper is known here; 1 is the plain softmax.
    Uploads: update [M, d], benchmark_loss [M, 1] and global_loss [M, 1], means over samples.
    Diagnostics: credibility [M] (C), mutual_loss [M] (E).
    Source: Chen et al. 2020, FOCUS.
    """

    reads: ClassVar[tuple[str, ...]] = ("update", *LOSSES)
    probes: ClassVar[tuple[Ask, ...]] = (Ask("losses"),)
    columns: ClassVar = (Column("diagnostics", "credibility", "float64", "FOCUS's C_k"),)

    temperature: Annotated[float, Range(1e-6)] = 1.0
    "a of the credibility 1 − softmax(a E)"

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        benchmark, served = (_losses(rows[name], context, name) for name in LOSSES)
        mutual = benchmark + served
        credibility = 1 - _softmax(self.temperature * mutual)
        weights = self.counts(context) * credibility
        total = weights.sum()
        weights = weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
        hides = not weights.all()  # A weight of zero may hide what is not finite.
        if hides:
            require_finite(rows["update"], None, context)
        found = {"credibility": credibility, "mutual_loss": mutual}
        return Plan(Combination(weights), weights, dict(state), found, checked=hides)


def _losses(rows: Rows, context: Context, name: str) -> np.ndarray:
    """[M] the numbers of an upload [M, 1]. Rows are read one by one: exact, whatever the sign."""
    size, width = rows.shape
    if width != 1:
        raise ValueError(f"upload {name!r} has shape {rows.shape}; a loss is one number per client")
    losses = np.array([float(rows.weighted_sum(one)) for one in np.eye(size)])
    require_finite(rows, losses, context, name)
    return losses


def _softmax(values: np.ndarray) -> np.ndarray:
    exponentials = np.exp(values - values.max())
    shares: np.ndarray = exponentials / exponentials.sum()
    return shares
