"""How many clients are trained at once, so that a pass fits into memory.

A cohort larger than ``clients_per_pass`` is trained in several passes of nearly equal size, clients
with as many steps together. Clients share no parameter, so results differ in rounding alone.

The number depends on the model, the batch, the kind of device and on how many processes share it,
on nothing that changes from run to run: what autograd keeps for one client is measured once, and a
stated budget divided by it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork, Model, Samples
from fedsdg.federation.memory import free, is_out_of_memory
from fedsdg.models.parameters import Layout, leaves

#: What a pass may take: on a CPU so many bytes, since runs stand side by side and small passes stay
#: closer to the cache (eight clients of CIFAR-100); on a GPU this share.
CPU_BYTES = 256 * 1024**2
GPU_SHARE = 0.5
#: Names how many processes train on the same GPU; each then takes its part of that share.
SHARING = "FEDSDG_SHARING"
#: Memory of a step over what autograd keeps of it: gradients on their way, other temporaries.
TEMPORARIES = 1.5
#: Copies of a client's parameters: start, value, gradient, Adam's two, result, temporaries.
COPIES = 8


class Passes:
    """Trains clients in passes that fit, and remembers what fitted.

    ``clients_per_pass`` is chosen at the first training unless it is given. When the device runs
    out of memory it is halved, which ``say`` is told, and the clients are trained again.
    """

    def __init__(
        self,
        batch_size: int,
        clients_per_pass: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.clients_per_pass = clients_per_pass
        self.out_of_memory: list[dict[str, Any]] = []
        self._batch_size = batch_size
        self._say = say or _to_stderr

    def facts(self) -> dict[str, Any]:
        """For checkpoints and provenance, as plain JSON."""
        return {
            "clients_per_pass": self.clients_per_pass,
            "out_of_memory": list(self.out_of_memory),
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on with the number that a checkpoint names."""
        self.clients_per_pass = facts.get("clients_per_pass", self.clients_per_pass)
        self.out_of_memory = list(facts.get("out_of_memory", ()))

    def train(
        self, model: Model, layout: Layout, samples: Samples, clients: Clients, work: LocalWork
    ) -> LocalResult:
        """As ``train_clients``; raises ``MemoryError`` when not even one client fits."""
        while True:
            try:
                if self.clients_per_pass is None:
                    self.clients_per_pass = self._choose(model, layout, samples, clients)
                return _train(model, layout, samples, clients, work, self.clients_per_pass)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = " ".join(str(error).split())
            # Out here nothing refers to the failed pass any more, and its memory is free.
            free()
            tried = min(self.clients_per_pass or 1, len(clients))
            place = f"{clients.name(0)} and the others of its pass on {samples.labels.device}"
            if tried == 1:
                raise MemoryError(
                    f"one client does not fit into memory ({place}: batches of "
                    f"{self._batch_size} samples, {layout.d + layout.d_private} parameters; "
                    f"{reason}); lower training.batch_size or adapters.rank, take a smaller "
                    "backbone, or free memory of the device"
                )
            self.clients_per_pass = tried // 2
            self.out_of_memory.append({"at": clients.name(0), "from": tried, "to": tried // 2})
            self._say(
                f"out of memory ({place}); clients_per_pass is halved from {tried} to "
                f"{tried // 2}, and they are trained again"
            )

    def _choose(self, model: Model, layout: Layout, samples: Samples, clients: Clients) -> int:
        need = bytes_of_a_client(
            model, layout, samples, self._batch_size, clients.start[:1], clients.private[:1]
        )
        return max(1, budget(samples.labels.device) // need)


def budget(device: torch.device) -> int:
    """Bytes that a pass may take on this kind of device."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return int(GPU_SHARE * total) // int(os.environ.get(SHARING, "1"))
    return CPU_BYTES


def bytes_of_a_client(
    model: Model,
    layout: Layout,
    samples: Samples,
    batch_size: int,
    start: Tensor,
    private: Tensor,
) -> int:
    """Memory that one client adds to a pass with batches of ``batch_size`` samples.

    ``start`` [1, d] and ``private`` [1, d_p] are any client's. What autograd keeps of a forward
    pass is counted for two clients and for one; the difference leaves out the frozen weights, which
    all clients share.
    """
    kept = [
        _kept_by_autograd(model, layout, samples, [batch_size] * clients, start, private)
        for clients in (1, 2)
    ]
    numbers = COPIES * (start.shape[1] + private.shape[1])
    return int(TEMPORARIES * (kept[1] - kept[0])) + numbers * start.element_size()


def _kept_by_autograd(
    model: Model,
    layout: Layout,
    samples: Samples,
    counts: list[int],
    start: Tensor,
    private: Tensor,
) -> int:
    """Bytes of the storages that autograd keeps for the backward pass of these batches."""
    parameters: dict[str, Tensor] = {}
    for row, specs in ((start, layout.communicated), (private, layout.private)):
        matrix = row.repeat(len(counts), 1)
        parameters |= leaves(matrix, torch.zeros_like(matrix), specs)
    index = torch.arange(sum(counts), device=samples.labels.device) % len(samples.labels)
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> None:
        # Held until all are counted, so that no address stands for two.
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        model.logits(samples.images[index], counts, parameters)
    return sum(storage.nbytes() for storage in storages.values())


def _train(
    model: Model,
    layout: Layout,
    samples: Samples,
    clients: Clients,
    work: LocalWork,
    clients_per_pass: int,
) -> LocalResult:
    if len(clients) <= clients_per_pass:
        return train_clients(model, layout, samples, clients, work)
    order = np.argsort([-len(own) for own in clients.batches], kind="stable")
    parts = np.array_split(order, -(-len(clients) // clients_per_pass))
    results = [train_clients(model, layout, samples, clients[part], work) for part in parts]
    return LocalResult.joined(results)[np.argsort(order)]


def _to_stderr(sentence: str) -> None:
    print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)
