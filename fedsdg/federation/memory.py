"""Memory that runs out: how it is told from other errors, and trying again with half as much."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

#: torch's allocators, CUDA's runtime and driver, cuBLAS, cuDNN and triton, each in its own words.
_SENTENCES = re.compile(r"DefaultCPUAllocator: |out of memory|OUT_OF_MEMORY|ALLOC(ATION)?_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch's exception for devices, and what others say instead."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _SENTENCES.search(str(error)) is not None


def free() -> None:
    """Give back what torch keeps of a GPU's memory for later, where there is one in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def trim() -> None:
    """Give the system back what glibc's heap keeps of freed tensors; other systems do so anyway.

    Loading data and evaluating leave hundreds of megabytes that training never takes again.
    """
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if give_back is not None:
        give_back(0)


def halving(work: Callable[[int], Result], size: int) -> Result:
    """``work(size)``, or with half of it as often as memory runs out; with 1 the error stands."""
    while True:
        try:
            return work(size)
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise
        # Out here nothing refers to the failed call any more.
        size //= 2
        free()
