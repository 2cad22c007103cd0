"""An optimiser that steps along the sign of the averaged gradient.

Use it with ``training: {optimiser: {type: sign, share: 0.5}}``.
"""

from typing import ClassVar

from fedsdg.federation.optimisers import Optimiser, descend
from fedsdg.parts import Share


class SignDescent(Optimiser, name="sign"):
    """theta <- theta - eta sign(v) with v <- mu v + (1 - mu) g."""

    memory: ClassVar = ("past",)

    share: Share = 0.9
    "μ, share of the past in v"

    def move(self, parameters, gradients, rate, memory, step):
        """Step in place; every tensor has the clients as its first axis."""
        past = memory["past"].mul_(self.share).add_(gradients, alpha=1 - self.share)
        descend(parameters, past.sign(), rate)
