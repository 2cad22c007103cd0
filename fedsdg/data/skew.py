"""The skew of a federation's labels, as the text that stands in paths and in the config.

``dirichlet~0.1`` (label proportions from a Dirichlet of concentration 0.1), ``classes~2`` (every
client holds two classes) and ``iid``. The text is part of file names, so every skew has exactly one
spelling: ``dirichlet~0.10`` would be a second job with the same meaning, and is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

KINDS = ("dirichlet", "classes", "iid")
_FORMS = "'dirichlet~ALPHA' (as 'dirichlet~0.1'), 'classes~COUNT' (as 'classes~2') or 'iid'"


@dataclass(frozen=True)
class Skew:
    """One kind of label skew; make it with :func:`parse_skew`.

    ``value`` is α > 0 (float) for ``dirichlet``, the number of classes per client (int) for
    ``classes``, and None for ``iid``. ``text`` is the one spelling, ``parse_skew(s.text) == s``.

    Raises ValueError when the three do not belong together.
    """

    kind: Literal["dirichlet", "classes", "iid"]
    value: float | int | None
    text: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown skew kind {self.kind!r}: choose among {', '.join(KINDS)}")
        expected = _spell(self.kind, self.value)
        if self.text != expected:
            raise ValueError(f"skew {self.text!r} must be spelled {expected!r}")


def parse_skew(text: str) -> Skew:
    """Read a skew from its text.

    Raises ValueError for an unknown kind, a concentration that is not a finite number above 0,
    a count that is not a whole number of at least 1, and for a second spelling of a number.
    """
    if not isinstance(text, str):
        raise ValueError(f"skew must be a string such as 'dirichlet~0.1', not {text!r}: quote it")
    kind, separator, number = text.partition("~")
    if kind == "iid" and not separator:
        return Skew("iid", None, text)
    if kind == "dirichlet" and separator:
        try:
            alpha = float(number)
        except ValueError:
            raise ValueError(f"skew {text!r}: {number!r} is not a number; write {_FORMS}") from None
        if not (math.isfinite(alpha) and alpha > 0):
            raise ValueError(f"skew {text!r}: the concentration must be finite and above 0")
        return Skew("dirichlet", alpha, text)
    if kind == "classes" and separator:
        try:
            count = int(number)
        except ValueError:
            raise ValueError(
                f"skew {text!r}: {number!r} is not a whole number; write {_FORMS}"
            ) from None
        if count < 1:
            raise ValueError(f"skew {text!r}: a client must hold at least 1 class")
        return Skew("classes", count, text)
    raise ValueError(f"unknown skew {text!r}: write {_FORMS}")


def _spell(kind: str, value: float | int | None) -> str:
    if kind == "iid":
        if value is not None:
            raise ValueError(f"skew 'iid' takes no value, got {value!r}")
        return "iid"
    if value is None:
        raise ValueError(f"skew {kind!r} needs a value: write {_FORMS}")
    if kind == "classes":
        return f"classes~{value}"
    # Positional, shortest digits that read back as the same float, at least one after the point:
    # 0.1, 1.0, 0.0001; never an exponent.
    return f"dirichlet~{np.format_float_positional(float(value), trim='0')}"
