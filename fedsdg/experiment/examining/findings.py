"""Properties of a part, and what examining them finds: one line each."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

OK: Literal["ok"] = "ok"
FAILED: Literal["failed"] = "failed"
NOT: Literal["does not apply"] = "does not apply"
Outcome = Literal["ok", "failed", "does not apply"]


class Failure(Exception):
    """A property does not hold: in which case, and what was found there."""


class Inapplicable(Exception):
    """A property says nothing of this part: why."""


class Property(NamedTuple):
    """Something that holds for every part of a kind.

    ``holds(part)`` returns what it has looked at, or raises ``Failure`` or ``Inapplicable``.
    ``needs``: claims of other properties without which this one says nothing.
    """

    claim: str
    holds: Callable[[Any], str]
    remedy: str
    needs: tuple[str, ...] = ()


class Finding(NamedTuple):
    """A line of the report."""

    part: str
    property: str
    outcome: Outcome
    sentence: str
    """What was looked at; the smallest failing case and the remedy; or why it does not apply."""


def examine(
    name: str, part: Any, properties: Sequence[Property], failed: set[str] | None = None
) -> Iterator[Finding]:
    """A finding for each property of a part, in their order, as soon as it is known.

    Without the first of them none of the others says anything. ``failed``: claims that are known
    not to hold, or cannot be told; those that are found so now are added.
    """
    failed = set() if failed is None else failed
    first = properties[0].claim
    for one in properties:
        lacking = [claim for claim in (first, *one.needs) if claim in failed]
        if lacking:
            outcome: Outcome = NOT
            sentence = f"it can be told once this holds: {lacking[0]}"
        else:
            outcome, sentence = _outcome(one, part)
        if lacking or outcome == FAILED:
            failed.add(one.claim)
        yield Finding(name, one.claim, outcome, sentence)


def _outcome(one: Property, part: Any) -> tuple[Outcome, str]:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return OK, one.holds(part)
    except Inapplicable as why:
        return NOT, str(why)
    except Failure as failure:
        return FAILED, f"{failure}; {one.remedy}"
    except Exception as error:
        return FAILED, f"{raised(error)}; {one.remedy}"


def raised(error: Exception) -> str:
    """What somebody else's part raised, and in which line of theirs."""
    return f"it raises {type(error).__name__}: {' '.join(str(error).split())}{_place(error)}"


def _place(error: Exception) -> str:
    """The last line outside of this package and of the libraries, " at file.py, line 3"."""
    package, found, trace = Path(__file__).parents[2], "", error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        elsewhere = file.suffix == ".py" and not file.is_relative_to(package)
        if elsewhere and not any(file.is_relative_to(p) for p in (sys.prefix, sys.base_prefix)):
            found = f" at {file.name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def counted(number: int, what: str) -> str:
    """ "1 client", "3 clients"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def bytes_of(value: Any) -> Any:
    """By which two values are compared: the bytes of arrays and tensors, with their kind."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return value
