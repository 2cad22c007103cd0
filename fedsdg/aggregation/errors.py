"""The errors of aggregation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any


class NonFiniteError(ValueError, FloatingPointError):
    """NaN or infinity, sent by a client or caused by what was sent."""

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)
        """Positions of the clients whose updates are at fault, if the message does not say."""

    def naming(self, ids: Sequence[Hashable]) -> NonFiniteError:
        """Return the error with the clients at fault named in its message."""
        clients = ", ".join(f"client {ids[row]}" for row in self.rows)
        return NonFiniteError(f"{clients}: {self}") if clients else self


class RuleFault(ValueError):
    """A rule returned something that is no outcome of a round."""


class RankError(RuntimeError):
    """Another process of a group has died or does not answer."""


def nonfinite_sentence(who: str, counts: Mapping[Any, int]) -> str:
    """Return the error message for values that are not finite, by tensor."""
    name, count = next(iter(counts.items()))
    return (
        f"{who}: tensor {name!r} has {count} non-finite values; restore its last finite "
        "parameters, or leave a client out with on_nonfinite='drop' (--on-nonfinite drop)"
    )


def kind(value: Any) -> str:
    """Return what a value is, for an error message."""
    return f"a {type(value).__name__}"
