"""How many clients are trained together, so that a pass fits into memory.

Clients share no parameter, so results of smaller passes differ in rounding alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.errors import remark
from fedsdg.federation.phases import Phase
from fedsdg.federation.tasks import Results, Tasks
from fedsdg.federation.training import train
from fedsdg.models import ClientModel, Layout, leaves

if TYPE_CHECKING:
    from fedsdg.federation.setup import Setup

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
OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: |out of memory|OUT_OF_MEMORY|ALLOC(ATION)?_FAILED"
)
"""What torch's allocators, CUDA's runtime and driver, cuBLAS, cuDNN and triton say."""


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
            largest = int(setup.sizes.max())
            batch = min(setup.schedule.batch_size or largest, largest)
            self.clients_per_pass = rows_per_pass(setup, layout, batch)
        longest_first = np.argsort([-sum(map(len, own)) for own in tasks.batches], kind="stable")

        def in_passes(size: int) -> Results:
            parts = [np.arange(len(tasks))]
            if len(tasks) > size:
                parts = np.array_split(longest_first, -(-len(tasks) // size))
            results = [train(setup, layout, tasks.take(part), phases, where) for part in parts]
            return results[0].followed_by(*results[1:]).take(np.argsort(np.concatenate(parts)))

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
            reason = " ".join(str(error).split())
            if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(reason):
                raise
        # Here nothing refers to the failed pass any more, and its memory is free.
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        if size == 1:
            raise MemoryError(
                f"{what} does not fit into memory, not even one at a time ({reason}); lower "
                "training.batch_size or adapters.rank, take a smaller backbone, or free memory of "
                "the device"
            )
        remark(f"out of memory; {what} goes on with half as many")
        size //= 2


def rows_per_pass(setup: Setup, layout: Layout, batch: int) -> int:
    """Return how many clients, with batches of so many images, fit into a pass."""
    images = setup.samples.images
    budget = CPU_BYTES
    if images.device.type == "cuda":
        total = torch.cuda.get_device_properties(images.device).total_memory
        budget = int(GPU_SHARE * total) // int(os.environ.get(SHARING, "1"))
    # The difference leaves out the frozen weights, which all clients share.
    kept = [_bytes_of_autograd(setup.model, layout, clients, batch, images) for clients in (1, 2)]
    numbers = COPIES * (layout.d + layout.d_private) * images.element_size()
    return max(1, budget // (int(TEMPORARIES * (kept[1] - kept[0])) + numbers))


def _bytes_of_autograd(
    model: ClientModel, layout: Layout, clients: int, batch: int, images: Tensor
) -> int:
    """Return the memory that autograd keeps for the backward pass of so many clients."""
    named: dict[str, Tensor] = {}
    for specs, width in ((layout.communicated, layout.d), (layout.private, layout.d_private)):
        matrix = images.new_zeros(clients, width)
        named |= leaves(matrix, torch.zeros_like(matrix), specs)
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> None:
        # Held until all are counted, so that no address stands for two.
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()

    some = images[:1].expand(clients * batch, *images.shape[1:])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        model.logits(some, [batch] * clients, named)
    return sum(storage.nbytes() for storage in storages.values())
