"""What a rule or a door is told beside tensors: numbers and words, else ValueError."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

LONGEST = 100
"""Letters of a value in an error."""


def shown(value: Any) -> str:
    """A value as part of a sentence: on one line, and not too long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # A whole number of thousands of digits.
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def check_number(name: str, value: Any) -> None:
    """ValueError unless the value is a real number that a float has room for (no truth value)."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{name}={shown(value)} is a {type(value).__name__}; give a number")
    try:
        float(value)
    except OverflowError as error:
        raise ValueError(f"{name} is beyond the largest float; give a smaller number") from error


def check_whole_number(name: str, value: Any, least: int) -> None:
    """ValueError unless the value is a whole number of at least `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise ValueError(f"{name}={shown(value)} must be a whole number of at least {least}")
    if value < least:
        raise ValueError(f"{name}={shown(value)} must be >= {least}")


def check_word(name: str, value: Any, words: Sequence[str]) -> None:
    """ValueError unless the value is one of the words."""
    if not isinstance(value, str) or value not in words:
        *others, last = map(repr, words)
        raise ValueError(f"{name}={shown(value)}: use {', '.join(others)} or {last}")


def check_on_nonfinite(value: Any) -> None:
    """ValueError unless the value says what to do with clients that hold NaN or infinity."""
    check_word("on_nonfinite", value, ("raise", "drop"))
