"""How kernels are compiled: without the interpreter's lock, kept on disk where that is possible."""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numba
from numba.core.caching import FunctionCache

# Sums may be reordered (to fill vectors) and products fused; NaN and infinity keep their meaning,
# for they are how a kernel tells that it left the range of its numbers.
RELAXED = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Callable[..., Any], *, relaxed: bool = True) -> Callable[..., Any]:
    """Compile at the first call with each dtype; keep the machine code for the next process.

    It is kept beside the source, or in the user's cache folder if the installation cannot be
    written (`NUMBA_CACHE_DIR` names another place); where neither can, every process compiles.

    Args:
        function: Of arrays and numbers.
        relaxed: Whether sums may be reordered; False computes to the letter.
    """
    fastmath = RELAXED if relaxed else False
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no place for its cache
        return numba.njit(**options)(function)


def compiled_with(function: Callable[..., Any], parts: Sequence[ModuleType]) -> Any:
    """Compile to the letter, as with relaxed=False, a function made of functions of other modules.

    What is kept on disk is found again only while the sources of these ``parts`` are the same, for
    numba looks at the function's own file alone.

    Args:
        function: Of arrays and numbers.
        parts: The modules whose functions it calls.
    """
    kernel: Any = compiled(function, relaxed=False)
    stamp = hashlib.sha256("".join(map(inspect.getsource, parts)).encode()).hexdigest()

    class Stamped(FunctionCache):  # type: ignore[misc]
        def _index_key(self, *given: Any) -> tuple[Any, ...]:
            return (*super()._index_key(*given), stamp)

    if isinstance(getattr(kernel, "_cache", None), FunctionCache):  # Not with NUMBA_DISABLE_JIT.
        kernel._cache = Stamped(function)
    return kernel
