"""FOCUS: clients whose labels disagree with the server's weigh less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Combination, Context, Plan, State, UploadRequest
from fedsdg.aggregation.weights import Weighed
from fedsdg.files.columns import Column

LOSSES = ("benchmark_loss", "global_loss")


class Focus(Weighed):
    """step = sum_k w_k Delta_k with w_k = n_k C_k / sum_j n_j C_j.

    C_k = 1 - exp(a E_k) / sum_j exp(a E_j) over the cohort, with the mutual cross-entropy
    E_k = benchmark_loss_k + global_loss_k. If all n_k C_k are 0, the weights are uniform.
    Uploads: update [M, d], benchmark_loss [M, 1] and global_loss [M, 1], means over samples.
    Diagnostics: credibility [M] (C), mutual_loss [M] (E).
    Source: Chen et al. 2020, FOCUS.
    """

    reads: ClassVar[tuple[str, ...]] = ("update", *LOSSES)
    probes: ClassVar[tuple[UploadRequest, ...]] = (UploadRequest("losses"),)
    columns: ClassVar = (Column("diagnostics", "credibility", "float32", "FOCUS's C_k"),)

    temperature: Annotated[float, Field(ge=1e-06)] = 1.0
    "a of the credibility 1 − softmax(a E)"

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        mutual = np.sum([rows[name].numbers()[:, 0] for name in LOSSES], axis=0)
        shares = np.exp(self.temperature * (mutual - mutual.max()))
        credibility = 1 - shares / shares.sum()
        weights = self.counts(context) * credibility
        if weights.sum() == 0:
            weights = np.ones(len(weights))
        weights = weights / weights.sum()
        return Plan(
            Combination(weights),
            weights,
            state,
            {"credibility": credibility, "mutual_loss": mutual},
        )
