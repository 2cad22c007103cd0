"""The phases of a client's training in a round."""

from __future__ import annotations

from dataclasses import dataclass

from fedsdg.federation.terms import Term

Turn = tuple[str, ...]
"""Which rows of a client move in a step: `shared`, `private` or both."""
SHARED: Turn = ("shared",)
PRIVATE: Turn = ("private",)
BOTH: Turn = (*SHARED, *PRIVATE)


@dataclass(frozen=True)
class Phase:
    """A part of a client's training in a round.

    With each batch every turn takes one step.
    """

    epochs: int
    "number of epochs of the client's batches"
    first: int = 0
    "the epoch of the batches with which the phase begins"
    turns: tuple[Turn, ...] = (BOTH,)
    alone: bool = False
    "whether predictions leave out the private row when the shared row moves alone"
    balanced: bool = False
    "whether the shared row, when it moves alone, learns by the balanced softmax"
    terms: tuple[Term, ...] | None = None
    "None: those of the method"
    inexact: bool = False
    "whether a client stops as soon as its solution is gamma-inexact"
    second: bool = False
    "whether it trains a model beside the one for the server"
