"""How clients differ in the samples that they hold, as a text in paths and configs.

=================  =============================================================================
``dirichlet~0.1``  shares of each class over the clients are drawn from a Dirichlet distribution
``quantity~2.0``   sizes are drawn from a Dirichlet distribution; classes are IID
``classes~2``      every client holds two classes
``column~writer``  every value of that column is a client
``iid``            equal parts at random
=================  =============================================================================

The text is part of file names, so a number has one spelling: ``dirichlet~0.10`` is refused.
"""

import math
import re
from dataclasses import dataclass

import numpy as np

from fedsdg.errors import closest

_KINDS = ("dirichlet", "quantity", "classes", "column")
_COLUMN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Skew:
    """A kind of skew with its parameter; make it with :func:`parse_skew`."""

    kind: str
    "dirichlet, quantity, classes, column or iid"
    text: str
    "its one spelling"
    number: float = 0.0
    "concentration α or β, or number of classes per client"
    column: str = ""
    "name of the column"


def parse_skew(text: str) -> Skew:
    """Read a skew.

    Args:
        text: Such as ``dirichlet~0.1``.

    Raises:
        ValueError: The text is no skew, or not its one spelling.

    Example:
        >>> parse_skew("classes~2")
        Skew(kind='classes', text='classes~2', number=2, column='')
    """
    kind, _, rest = str(text).partition("~")
    if text == "iid":
        return Skew(kind, text)
    if kind == "column" and _COLUMN.fullmatch(rest):
        return Skew(kind, text, column=rest)
    try:
        number = {"dirichlet": float, "quantity": float, "classes": int}[kind](rest)
        # Positional, the shortest text that reads back: never 1e-4.
        spelled = np.format_float_positional(number, trim="-" if kind == "classes" else "0")
        if 0 < number < math.inf and rest == spelled:
            return Skew(kind, text, number)
    except (KeyError, ValueError):
        pass
    known = [] if kind in _KINDS else [*(f"{one}~{rest}" for one in _KINDS), "iid"]
    raise ValueError(
        f"skew {text!r} is none of 'dirichlet~ALPHA', 'quantity~BETA', 'classes~COUNT', "
        "'column~NAME' and 'iid', with numbers above 0 spelled as 0.1 or 2.0, and counts as 2"
        f"{closest(text, known)}"
    )
