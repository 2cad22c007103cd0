"""SCAFFOLD's correction: gradients without what sets a client apart from the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedsdg.federation.objectives.term import Term
from fedsdg.federation.step_rows import Rows
from fedsdg.parts import part


@part
class ControlVariates(Term):
    """SCAFFOLD (Karimireddy et al. 2020), option II.

    Steps y ← y − η (g(y) − c_i + c); afterwards c_i⁺ = c_i − c + (x − y) / (K η) with K the
    client's actual number of steps. The clipped raw gradient is corrected, not the sum.
    Uploads ``control`` = c_i⁺ − c_i.
    """

    optimiser: ClassVar[str | None] = "sgd"
    keeps: ClassVar[tuple[str, ...]] = ("control",)

    def correct(self, rows: Rows) -> None:
        rows.theta_grad.add_(rows.received["control"] - rows.state["control"])

    def finish(
        self, rows: Rows, steps: Tensor, rate: float
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        moved = (rows.start - rows.theta) / (steps.to(rows.theta.dtype)[:, None] * rate)
        change = moved - rows.received["control"]
        return {"control": change}, {"control": rows.state["control"] + change}
