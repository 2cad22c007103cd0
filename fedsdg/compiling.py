"""How kernels are compiled: without the interpreter's lock, kept on disk where that is possible."""

from collections.abc import Callable
from typing import Any

import numba

# Sums may be reordered (to fill vectors) and products fused; NaN and infinity keep their meaning,
# for they are how a kernel tells that it left the range of its numbers.
RELAXED = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Callable[..., Any], *, relaxed: bool = True) -> Callable[..., Any]:
    """Compile at the first call with each dtype; keep the machine code for the next process.

    It is kept beside the source, or in the user's cache folder if the installation cannot be
    written (`NUMBA_CACHE_DIR` names another place); where neither can, every process compiles.
    relaxed=False computes to the letter: nothing is reordered.
    """
    fastmath = RELAXED if relaxed else False
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no place for its cache
        return numba.njit(**options)(function)
