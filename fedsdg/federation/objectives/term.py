"""What a term of the objective is: what a method adds to a client's cross-entropy.

A term states its value and its gradient in closed form, on whole matrices with one row a
client, so that it costs one pass over the parameters and no autograd graph. Terms compose by
standing in a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedsdg.federation.step_rows import Rows


class Term:
    """The neutral term: value 0, gradient 0, nothing kept and nothing sent."""

    #: The optimiser a term cannot do without, or None.
    optimiser: ClassVar[str | None] = None
    #: Names of the vectors [d] that every client keeps for this term between rounds, initially 0.
    keeps: ClassVar[tuple[str, ...]] = ()
    #: Those of them that are 0 again for a client that was not in the last cohort.
    fleeting: ClassVar[tuple[str, ...]] = ()

    @property
    def decoupled(self) -> bool:
        """Whether its gradient takes a step of its own beside the optimiser's, θ ← θ − η ∇term.

        Such a step is neither clipped nor rescaled: AdamW treats weight decay so.
        """
        return False

    def value(self, rows: Rows) -> Tensor:
        """The term per client, [a]."""
        return rows.theta.new_zeros(rows.theta.shape[0])

    def add_gradient(self, rows: Rows) -> None:
        """Add the term's gradient to the gradients in ``rows``; it is clipped with them."""

    def correct(self, rows: Rows) -> None:
        """Change the gradients after clipping."""

    def finish(
        self, rows: Rows, steps: Tensor, rate: float
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """After the last step: (what is uploaded beside the update, what the client keeps)."""
        return {}, {}
