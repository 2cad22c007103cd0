"""What a personalisation is: which parameters stay with the client, and how its model is made.

A personalisation is data. It says what the adapter layout holds in private, how many epochs a
client trains its copy before it is evaluated, what model it keeps for itself, and which terms its
objective needs for all that; nothing else in the package asks which method it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.federation.objectives.term import Term
from fedsdg.federation.own_models.own_model import OwnModel


class Personalisation:
    """The neutral one, by which every client uses the global model; others say what they change."""

    @property
    def adapters(self) -> Mapping[str, Any]:
        """Settings of ``AdapterConfig``."""
        return {}

    @property
    def terms(self) -> tuple[Term, ...]:
        """What it adds to the clients' objective, before the terms of the method."""
        return ()

    @property
    def epochs(self) -> int:
        """Local epochs before an evaluation, on a copy that is then discarded."""
        return 0

    @property
    def head_alone(self) -> bool:
        """Whether in these epochs the head alone trains."""
        return False

    @property
    def private_first(self) -> int:
        """Local epochs in which only what is private moves, before the usual ones.

        In those only what is shared moves then; 0: both move together.
        """
        return 0

    @property
    def interleaved(self) -> bool:
        """Whether with every batch the private part moves, then the shared one."""
        return False

    @property
    def shared_alone(self) -> bool:
        """Whether the shared part learns without the private one where it moves alone.

        See ``LocalWork``.
        """
        return False

    @property
    def balanced(self) -> bool:
        """Whether the loss of the shared part alone is the balanced softmax (see ``LocalWork``)."""
        return False

    @property
    def gate_samples(self) -> str:
        """Which samples teach gates: ``all``, or a ``held-out`` quarter that they have to itself.

        No private part behind a gate learns from held-out samples, and no gate from the others.
        """
        return "all"

    @property
    def mixed_weight(self) -> float | None:
        """The weight of a whole private model in what a client uses; None: there is none.

        See ``MixedModel``.
        """
        return None

    @property
    def anchors(self) -> int:
        """How many training images of a client weigh its adapters when it is judged; 0: none do.

        Against the common ones, image by image (see ``InstanceMixture``).
        """
        return 0

    @property
    def own(self) -> OwnModel:
        """The model that a client keeps beside the one it trains for the server."""
        return OwnModel()
