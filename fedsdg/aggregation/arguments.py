"""What a rule or a door is told beside tensors: numbers and words, else ValueError."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np


def check_number(name: str, value: Any) -> None:
    """ValueError unless the value is a real number (and no truth value)."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r} is a {type(value).__name__}; give a number")


def check_whole_number(name: str, value: Any, least: int) -> None:
    """ValueError unless the value is a whole number of at least `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
    if value < least:
        raise ValueError(f"{name}={value} must be >= {least}")


def check_word(name: str, value: Any, words: Sequence[str]) -> None:
    """ValueError unless the value is one of the words."""
    if not isinstance(value, str) or value not in words:
        *others, last = map(repr, words)
        raise ValueError(f"{name}={value!r}: use {', '.join(others)} or {last}")


def check_on_nonfinite(value: Any) -> None:
    """ValueError unless the value says what to do with clients that hold NaN or infinity."""
    check_word("on_nonfinite", value, ("raise", "drop"))
