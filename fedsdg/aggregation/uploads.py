"""The checks that every upload passes: present, [M, d], floating, finite."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import Rows, TensorRows
from fedsdg.aggregation.types import Context

Upload = TypeVar("Upload")

ADAPTERS = "adapters"
"""Upload that is formed from the parameters, as the updates are, without those of the head."""


class NonFiniteError(ValueError, FloatingPointError):
    """NaN or infinity, sent by a client or come of what was sent. Both a ValueError (bad input) and
    a FloatingPointError."""


def required(uploads: Mapping[str, Upload], name: str) -> Upload:
    """The upload `name`. ValueError when it is absent."""
    if name not in uploads:
        raise ValueError(
            f"upload {name!r} is missing (there are: {sorted(uploads) or 'none'}); "
            f"use an objective that sends it"
        )
    return uploads[name]


def adapters_of(params: Mapping[Any, Upload]) -> dict[Any, Upload]:
    """Return all tensors but those of the head, whose names begin with `head.`."""
    return {name: value for name, value in params.items() if not str(name).startswith("head.")}


def checked_upload(
    uploads: Mapping[str, torch.Tensor],
    context: Context,
    name: str = "update",
    *,
    finite: bool = True,
) -> torch.Tensor:
    """The upload `name` as a detached [M, d] tensor (no copy), M = len(context.clients) >= 1.

    Raises ValueError when it is absent, of the wrong shape or not floating; NonFiniteError, naming
    the client, when a row holds NaN or infinity. With finite=False the numbers are not read: the
    rule reads them all anyway, and calls `require_finite` with what came of it.
    """
    rows = required(uploads, name)
    size = len(context.clients)
    if size == 0:
        raise ValueError("the cohort is empty; a rule needs the upload of at least one client")
    if rows.ndim != 2 or rows.shape[0] != size:
        raise ValueError(
            f"upload {name!r} has shape {tuple(rows.shape)}; expected [{size}, d], "
            f"one row for each of the {size} clients of the cohort"
        )
    if not rows.is_floating_point():
        raise ValueError(f"upload {name!r} is {rows.dtype}; convert it to a floating dtype")
    rows = rows.detach()
    if finite:
        require_finite(TensorRows(rows), None, context, name)
    return rows


def require_finite(
    rows: Rows,
    found: np.ndarray | torch.Tensor | None,
    context: Context,
    name: str = "update",
) -> None:
    """NonFiniteError, naming the client, if `found` is not finite because the rows are not.

    found: an array, or a result [d] of the rows, that is not finite whenever a number of the rows
    is not; None if there is none such, so that the rows themselves have to be read.
    """
    if isinstance(found, torch.Tensor):
        looks_finite = rows.finite(found)
    else:
        looks_finite = found is not None and bool(np.isfinite(found).all())
    if looks_finite:
        return
    counts = rows.nonfinite_counts()
    bad = np.flatnonzero(counts)
    if len(bad):
        others = f" (as do {len(bad) - 1} other clients)" if len(bad) > 1 else ""
        raise NonFiniteError(
            f"client {context.clients[bad[0]]}: upload {name!r} has {counts[bad[0]]} non-finite "
            f"values of {rows.shape[1]}{others}; lower its learning rate or leave the client out"
        )
