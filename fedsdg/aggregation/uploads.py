"""The checks that every upload passes before a rule sees it: present, [M, d], floating, finite."""

from collections.abc import Mapping

import numpy as np
import torch

from fedsdg.aggregation.types import Context


class NonFiniteError(ValueError, FloatingPointError):
    """A client sent NaN or infinity. Both a ValueError (bad input) and a FloatingPointError."""


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
    if name not in uploads:
        raise ValueError(
            f"upload {name!r} is missing (there are: {sorted(uploads) or 'none'}); "
            f"use an objective that sends it"
        )
    rows = uploads[name]
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
        _check_finite(rows, context, name)
    return rows


def require_finite(
    rows: torch.Tensor, found: np.ndarray | torch.Tensor, context: Context, name: str = "update"
) -> None:
    """NonFiniteError, naming the client, if `found` is not finite because the rows are not.

    found: numbers that are not finite whenever a number of the rows is not.
    """
    found = torch.as_tensor(found)
    if not torch.isfinite(found).all():
        _check_finite(rows, context, name)


def _check_finite(rows: torch.Tensor, context: Context, name: str) -> None:
    if rows.shape[1] == 0:
        return
    # Minimum and maximum propagate NaN and infinity, and unlike isfinite need no [M, d] temporary.
    low, high = torch.aminmax(rows, dim=1)
    bad = (~(torch.isfinite(low) & torch.isfinite(high))).nonzero().flatten().tolist()
    if bad:
        count = int((~torch.isfinite(rows[bad[0]])).sum())
        others = f" (as do {len(bad) - 1} other clients)" if len(bad) > 1 else ""
        raise NonFiniteError(
            f"client {context.clients[bad[0]]}: upload {name!r} has {count} non-finite values of "
            f"{rows.shape[1]}{others}; lower its learning rate or leave the client out"
        )
