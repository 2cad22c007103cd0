"""What a door is told beside tensors: numbers and words, else ValueError."""

from typing import Any

import numpy as np

from fedsdg.parts import shown


def check_number(name: str, value: Any) -> None:
    """ValueError unless the value is a real number that a float has room for (no truth value)."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{name}={shown(value)} is a {type(value).__name__}; give a number")
    try:
        float(value)
    except OverflowError as error:
        raise ValueError(f"{name} is beyond the largest float; give a smaller number") from error


def check_on_nonfinite(value: Any) -> None:
    """ValueError unless the value says what to do with clients that hold NaN or infinity."""
    if not isinstance(value, str) or value not in ("raise", "drop"):
        raise ValueError(f"on_nonfinite={shown(value)}: use 'raise' or 'drop'")
