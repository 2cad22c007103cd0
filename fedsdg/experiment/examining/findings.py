"""Properties of a part, and the findings of trying them."""

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
WARNING: Literal["warning"] = "warning"
NOT: Literal["does not apply"] = "does not apply"
Outcome = Literal["ok", "failed", "warning", "does not apply"]
#: What code of a plugin may raise: `sys.exit` ends a plugin, and must not end the command.
RAISED = (Exception, SystemExit)


class Failure(Exception):
    """The smallest case in which a property does not hold, and what happens in it."""


class Suspicion(Exception):
    """A case that is usually a mistake, but that a method may intend."""


class Inapplicable(Exception):
    """The reason why a property says nothing about this part."""


class Property(NamedTuple):
    """A claim about every part of a kind.

    ``holds(part)`` returns the cases that it tried, or raises ``Failure``, ``Suspicion`` (a
    warning) or ``Inapplicable``. ``needs`` lists claims of other properties; where one of them does
    not hold, this one would fail for the same reason and is not tried.
    """

    claim: str
    holds: Callable[[Any], str]
    remedy: str
    needs: tuple[str, ...] = ()


class Finding(NamedTuple):
    """The result of one property on one part."""

    part: str
    property: str
    outcome: Outcome
    sentence: str
    """The cases tried; the smallest failing case and the remedy; or why it does not apply."""
    cause: str = ""
    """The claim without which this property was not tried; "" where it was tried."""


def examine(
    name: str, part: Any, properties: Sequence[Property], broken: dict[str, str] | None = None
) -> Iterator[Finding]:
    """Try the properties of a part in their order and yield each finding at once.

    Args:
        name: What the report calls the part.
        part: The part, as the properties expect it.
        properties: The first of them is needed by all others.
        broken: Claims that do not hold, each with the one that is the cause of it; extended by
            those found here.
    """
    broken = {} if broken is None else broken
    first = properties[0].claim
    for one in properties:
        cause = next((broken[claim] for claim in (first, *one.needs) if claim in broken), "")
        if cause:
            outcome: Outcome = NOT
            sentence = f"it is tried once this holds: {cause}"
        else:
            outcome, sentence = _outcome(one, part)
        if cause or outcome in (FAILED, WARNING):
            broken[one.claim] = cause or one.claim
        yield Finding(name, one.claim, outcome, sentence, cause)


def _outcome(one: Property, part: Any) -> tuple[Outcome, str]:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return OK, one.holds(part)
    except Inapplicable as why:
        return NOT, str(why)
    except Suspicion as doubt:
        return WARNING, f"{doubt}; {one.remedy}"
    except Failure as failure:
        return FAILED, f"{failure}; {one.remedy}"
    except RAISED as error:
        return FAILED, f"{raised(error)}; {one.remedy}"


def raised(error: BaseException) -> str:
    """Say what a plugin raised, and in which of its lines."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}){_place(error)}"
    return f"it raises {type(error).__name__}: {' '.join(str(error).split())}{_place(error)}"


def _place(error: BaseException) -> str:
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
