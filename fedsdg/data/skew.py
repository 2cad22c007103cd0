"""How unlike the clients of a federation are, as the text that stands in paths and in the config.

``dirichlet~0.1`` (label proportions from a Dirichlet of concentration 0.1), ``classes~2`` (every
client holds two classes), ``quantity~0.5`` (sizes from a Dirichlet of concentration 0.5),
``mixed~0.5~0.1`` (half of the samples IID, the others as under ``dirichlet~0.1``), ``domains``
(every client holds samples of one domain), ``column~writer`` (every value of that column of the
data is a client) and ``iid``. The text is part of file names, so every skew has exactly one
spelling: ``dirichlet~0.10`` would be a second job with the same meaning, and is refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

KINDS = ("dirichlet", "mixed", "quantity", "classes", "domains", "column", "iid")
_CONCENTRATIONS = ("dirichlet", "quantity")
_FORMS = (
    "'dirichlet~ALPHA' (as 'dirichlet~0.1'), 'mixed~SHARE~ALPHA' (as 'mixed~0.5~0.1'), "
    "'quantity~BETA' (as 'quantity~0.5'), 'classes~COUNT' (as 'classes~2'), 'domains', "
    "'column~NAME' (as 'column~writer') or 'iid'"
)
_COLUMN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Skew:
    """One kind of skew; make it with :func:`parse_skew`.

    ``value`` is α > 0 (float) for ``dirichlet`` and ``mixed``, β > 0 (float) for ``quantity``, the
    number of classes per client (int) for ``classes``, the column's name for ``column``, and None
    for ``domains`` and ``iid``.
    ``share`` is the part of the samples that ``mixed`` deals IID, above 0 and below 1, and None for
    the others. ``text`` is the one spelling, ``parse_skew(s.text) == s``.

    Raises ValueError when the four do not belong together.
    """

    kind: Literal["dirichlet", "mixed", "quantity", "classes", "domains", "column", "iid"]
    value: float | int | str | None
    text: str
    share: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown skew kind {self.kind!r}: choose among {', '.join(KINDS)}")
        expected = _spell(self.kind, self.value, self.share)
        if self.text != expected:
            raise ValueError(f"skew {self.text!r} must be spelled {expected!r}")


def parse_skew(text: str) -> Skew:
    """Read a skew from its text.

    Raises ValueError for an unknown kind, a concentration that is not a finite number above 0, a
    share that is not above 0 and below 1, a count that is not a whole number of at least 1, and
    for a second spelling of a number.
    """
    if not isinstance(text, str):
        raise ValueError(f"skew must be a string such as 'dirichlet~0.1', not {text!r}: quote it")
    kind, separator, number = text.partition("~")
    if kind in ("iid", "domains") and not separator:
        return Skew(kind, None, text)  # type: ignore[arg-type]
    if kind in _CONCENTRATIONS and separator:
        return Skew(kind, _concentration(text, number), text)  # type: ignore[arg-type]
    if kind == "mixed" and "~" in number:
        part, _, rest = number.partition("~")
        share = _number(text, part)
        if not 0 < share < 1:
            raise ValueError(
                f"skew {text!r}: the share of IID samples must be above 0 and below 1; for the "
                "ends write 'dirichlet~ALPHA' or 'iid'"
            )
        return Skew("mixed", _concentration(text, rest), text, share)
    if kind == "column" and separator:
        if not _COLUMN.fullmatch(number):
            raise ValueError(
                f"skew {text!r}: the column's name is part of paths, and must be made of letters, "
                "digits, '_', '.' and '-'; rename the column"
            )
        return Skew("column", number, text)
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


def _number(text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ValueError(f"skew {text!r}: {number!r} is not a number; write {_FORMS}") from None


def _concentration(text: str, number: str) -> float:
    alpha = _number(text, number)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"skew {text!r}: the concentration must be finite and above 0")
    return alpha


def _spell(kind: str, value: float | int | str | None, share: float | None) -> str:
    if (share is None) == (kind == "mixed"):
        raise ValueError(f"skew {kind!r} and share {share!r} do not belong together")
    if kind in ("iid", "domains"):
        if value is not None:
            raise ValueError(f"skew {kind!r} takes no value, got {value!r}")
        return kind
    if value is None:
        raise ValueError(f"skew {kind!r} needs a value: write {_FORMS}")
    if kind in ("classes", "column"):
        return f"{kind}~{value}"
    if share is not None:
        kind = f"{kind}~{_digits(share)}"
    return f"{kind}~{_digits(float(value))}"


def _digits(value: float) -> str:
    """Positional, the shortest that reads back, at least one after the point: never 1e-4."""
    return np.format_float_positional(float(value), trim="0")
