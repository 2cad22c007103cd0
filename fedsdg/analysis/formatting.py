"""Printed forms of numbers, shared by tables, captions and claims."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, log10

from fedsdg.analysis.inference import SHOWN_FROM

#: Stands where there is no number; the notes of the table say why.
MISSING = "–"


def printed(value: float) -> float:
    """A number as files hold it: six significant digits, whole numbers in full.

    Sums depend on the processor in their last digits; what is committed should not.
    """
    if value != value or value in (float("inf"), float("-inf")) or value.is_integer():
        return value
    return float(f"{value:.6g}")


#: The note of a table with intervals that would leave 0–100 %.
CUT = "Intervals beyond 0–100 % are cut there and shown as [low, high]."


def percent(mean: float, half_width: float | None) -> str:
    """A share and the half-width of its interval in percent: 0.9123, 0.008 → "91.2 ± 0.8".

    An interval that would leave 0–100 % is cut: 0.99, 0.02 → "99.0 [97.0, 100.0]".

    Args:
        mean: A share of 1.
        half_width: A share of 1; None where no interval is shown.
    """
    text = f"{100 * mean:.1f}"
    if half_width is None:
        return text
    low, high = mean - half_width, mean + half_width
    if low < 0 or high > 1:
        return f"{text} [{100 * max(low, 0.0):.1f}, {100 * min(high, 1.0):.1f}]"
    return f"{text} ± {100 * half_width:.1f}"


def is_cut(text: str) -> bool:
    """Whether ``percent`` cut the interval of this cell."""
    return "[" in text


def few_seeds(counts: Iterable[int], least: int) -> tuple[str, ...]:
    """The note of a table whose means rest on fewer seeds than an interval is shown for.

    Args:
        counts: The numbers of seeds that means were taken over.
        least: Seeds from which on an interval is shown.
    """
    few = sorted({n for n in counts if 0 < n < least})
    if not few:
        return ()
    seeds = f"{few[0]}" if len(few) == 1 else f"{few[0]} to {few[-1]}"
    plural = "s" * (few[-1] > 1)
    return (f"Without an interval: the mean of {seeds} seed{plural}, fewer than {least}.",)


def points(share: float) -> str:
    """A difference of shares in percentage points, signed: -0.012 → "−1.2"; never "−0.0"."""
    rounded = round(100 * share, 1)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else ''}{abs(rounded):.1f}"


def difference(n: int, mean: float, low: float | None, high: float | None) -> str:
    """A difference of shares in points with its interval: "+1.2 [−0.3, +2.7]".

    Args:
        n: Seeds; of fewer than ``SHOWN_FROM`` the mean stands alone.
        mean: A share of 1.
        low: The low end, cut at −100 points; None where there is none.
        high: The high end, cut at 100 points.
    """
    if low is None or high is None or n < SHOWN_FROM:
        return points(mean)
    return f"{points(mean)} [{points(max(low, -1.0))}, {points(min(high, 1.0))}]"


def p_value(p: float) -> str:
    """A p-value to three places: "p = 0.012", "p < 0.001"."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def amount(value: float, unit: float) -> str:
    """A quantity in its unit, to three digits or decimals: 123456, 1e3 → "123"; 0.02, 1 → "0.020".

    Args:
        value: A quantity ≥ 0.
        unit: How much of it is one in print.
    """
    scaled = value / unit
    if scaled == 0:
        return "0"
    if scaled < 0.0005:  # which would print as zero
        return f"{scaled:.2e}" if scaled < 1e-6 else f"{scaled:.{2 - floor(log10(scaled))}f}"
    decimals = 0 if scaled >= 100 else 1 if scaled >= 10 else 2 if scaled >= 1 else 3
    return f"{scaled:,.{decimals}f}"


def setting(value: object) -> str:
    """A value of a config in few characters: 0.3 → "0.3", 1e-4 → "0.0001", None → "none"."""
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:g}"
