"""How many clients are trained together, so that a pass fits into memory.

Clients share no parameter, so results of smaller passes differ in rounding alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.next_federation.model_names import Layout, leaves
from fedsdg.next_federation.tasks import Phase, Results, Tasks
from fedsdg.next_federation.training import train

if TYPE_CHECKING:
    from fedsdg.next_federation.setup import Setup

Result = TypeVar("Result")

CPU_BYTES = 256 * 1024**2
"""What a pass may take on a CPU: small passes stay close to the cache."""
GPU_SHARE = 0.5
"""What a pass may take of a GPU's memory."""
SHARING = "FEDSDG_SHARING"
"""The environment variable with the number of processes that train on the same GPU."""
COPIES = 8
"""Copies of a client's parameters: start, value, gradient, Adam's two, result, temporaries."""
TEMPORARIES = 1.5
"""Memory of a step over what autograd keeps of it."""
# torch's allocators, CUDA's runtime and driver, cuBLAS, cuDNN and triton, each in its own words.
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: |out of memory|OUT_OF_MEMORY|ALLOC(ATION)?_FAILED"
)


class MicroBatcher:
    """Trains the clients of a federation in passes that fit, and remembers what fitted."""

    def __init__(self, clients_per_pass: int | None = None) -> None:
        """Create one.

        Args:
            clients_per_pass: Clients that are trained together; None: as many as memory allows.
        """
        self.clients_per_pass = clients_per_pass

    def train(
        self, setup: Setup, layout: Layout, tasks: Tasks, phases: tuple[Phase, ...], where: str
    ) -> Results:
        """Train clients as `training.train` does, in as many passes as needed.

        If memory runs out, half as many clients are trained together from then on.

        Args:
            setup: The federation.
            layout: What trains.
            tasks: What each of M clients trains.
            phases: The parts of the training.
            where: The beginning of errors, such as "round 3".

        Raises:
            FloatingPointError: The loss of a client is not finite.
            MemoryError: Not even one client fits.
        """
        if self.clients_per_pass is None:
            self.clients_per_pass = rows_per_pass(setup, layout, _largest_batch(setup))
        lengths = [sum(len(epoch) for epoch in epochs) for epochs in tasks.batches]
        longest_first = np.argsort([-length for length in lengths], kind="stable")

        def in_passes(size: int) -> Results:
            parts = [np.arange(len(tasks))]
            if len(tasks) > size:
                parts = np.array_split(longest_first, -(-len(tasks) // size))
            results = []
            for part in parts:
                own = tasks.take(part)
                results.append(
                    train(setup.model, layout, setup.samples, own, setup.work, phases, where)
                )
            order = np.argsort(np.concatenate(parts))
            return results[0].followed_by(*results[1:]).take(order)

        most = min(self.clients_per_pass, max(1, len(tasks)))
        results, fitted = halving(in_passes, most, f"{where}: the training of clients")
        if fitted < most:
            self.clients_per_pass = fitted
        return results


def halving(work: Callable[[int], Result], size: int, what: str) -> tuple[Result, int]:
    """Return `work(size)` and the size, which is halved as often as memory runs out.

    Args:
        work: What is done, at once for so many clients or images.
        size: Their number.
        what: The subject of the error.

    Raises:
        MemoryError: Memory runs out with a size of 1.
    """
    while True:
        try:
            return work(size), size
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())
        # Here nothing refers to the failed pass any more, and its memory is free.
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        if size == 1:
            raise MemoryError(
                f"{what} does not fit into memory, not even one at a time ({reason}); lower "
                "training.batch_size or adapters.rank, take a smaller backbone, or free memory of "
                "the device"
            )
        print(f"fedsdg: out of memory; {what} goes on with half as many", file=sys.stderr)
        size //= 2


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, of whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def rows_per_pass(setup: Setup, layout: Layout, batch: int) -> int:
    """Return how many clients, with batches of so many images, fit into a pass."""
    images = setup.samples.images
    budget = CPU_BYTES
    if images.device.type == "cuda":
        total = torch.cuda.get_device_properties(images.device).total_memory
        budget = int(GPU_SHARE * total) // int(os.environ.get(SHARING, "1"))
    model: Any = setup.model
    return max(1, budget // _bytes_of_a_client(model, layout, batch, images))


def _largest_batch(setup: Setup) -> int:
    largest = int(setup.sizes.max())
    return min(setup.schedule.batch_size or largest, largest)


@lru_cache(maxsize=8)
def _bytes_of_a_client(model: Any, layout: Layout, batch: int, images: Tensor) -> int:
    """Return the memory that one more client adds to a pass.

    What autograd keeps is measured for two clients and for one; the difference leaves out the
    frozen weights, which all clients share.
    """
    kept = []
    for clients in (1, 2):
        named: dict[str, Tensor] = {}
        for specs, width in ((layout.communicated, layout.d), (layout.private, layout.d_private)):
            matrix = torch.zeros(clients, width, device=images.device)
            named |= leaves(matrix, torch.zeros_like(matrix), specs)
        storages: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: Tensor, storages: dict[int, torch.UntypedStorage] = storages) -> None:
            # Held until all are counted, so that no address stands for two.
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage

        some = images[:1].expand(clients * batch, *images.shape[1:])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            model.logits(some, [batch] * clients, named)
        kept.append(sum(storage.nbytes() for storage in storages.values()))
    numbers = COPIES * (layout.d + layout.d_private)
    return int(TEMPORARIES * (kept[1] - kept[0])) + numbers * images.element_size()
