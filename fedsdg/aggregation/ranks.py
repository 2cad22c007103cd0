"""Updates spread over the processes (ranks) of a torch.distributed group.

Sums over columns are gathered from all ranks and added in the order of the ranks, so that they are
the same to the last bit on each; steps, which treat every column by itself, need no exchange. Ranks
exchange directly with each other, so that a rank that has died or hangs is known by its number.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedsdg.aggregation.errors import RankError
from fedsdg.aggregation.rows import Block, Chosen, Counts, Rows
from fedsdg.aggregation.types import Step

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group that all make the same call; or this process alone.

    A rank that does not answer within the group's timeout raises `RankError` on all others, with
    its number; the group cannot be used afterwards.
    """

    group: Any = None
    "a group of torch.distributed; None: all processes"
    rank: int = 0
    "of this process"
    size: int = 1
    "number of ranks"

    @classmethod
    def of(cls, group: Any = None) -> Ranks:
        """Return the ranks of a group of torch.distributed, tested with gloo on the CPU.

        Args:
            group: The group; None: all processes.

        Raises:
            ValueError: torch.distributed is not initialised, or this process is not in the group.
        """
        if not dist.is_initialized() or dist.get_rank(group) < 0:
            raise ValueError(
                "torch.distributed is not initialised, or this process is not in the group; call "
                "torch.distributed.init_process_group('gloo') first, in a process of torchrun"
            )
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def gathered(self, work: Callable[[], T]) -> list[T]:
        """Return what work() returned on each rank.

        If it raises on one rank, all raise the same error, which names the rank.

        Raises:
            RankError: A rank does not answer.
        """
        if self.size == 1:
            return [work()]
        try:
            result: Any = work()
        except Exception as error:
            result = error
        results = [pickle.loads(text) for text in self._exchanged_bytes(pickle.dumps(result))]
        errors = {rank: each for rank, each in enumerate(results) if isinstance(each, Exception)}
        if errors:
            rank, first = next(iter(errors.items()))
            if len(errors) < self.size or len({str(error) for error in errors.values()}) > 1:
                first.args = (f"rank {rank}: {first}",)
            raise first
        return results

    def agreed(self, work: Callable[[], T]) -> T:
        """Return what work() returns here, once it has returned on every rank."""
        results: list[T] = []
        self.gathered(lambda: results.append(work()))
        return results[0]

    def require_same(self, what: str, value: Any) -> None:
        """Raise ValueError on all ranks unless a value is the same on all."""
        texts = self.gathered(lambda: repr(value) if self.size > 1 else "")
        if len(set(texts)) > 1:
            rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
            raise ValueError(
                f"the ranks disagree about the {what}: rank 0 has {texts[0]}, rank {rank} has "
                f"{texts[rank]}; make the same call on all ranks"
            )

    def rows(self, local: Rows) -> Rows:
        """Return rows whose columns are spread over the ranks, given those of this rank."""
        return local if self.size == 1 else RankRows(local, self)

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        """Send sends[r] to rank r, and fill receives[r] by what it sends here.

        Args:
            sends: One contiguous tensor for each rank, of any dtype.
            receives: The same, of the sizes that the others send.

        Raises:
            RankError: A rank does not answer.
        """
        receives[self.rank].copy_(sends[self.rank])
        started = []
        for rank in range(self.size):
            for exchange, tensors in ((dist.isend, sends), (dist.irecv, receives)):
                if rank != self.rank and tensors[rank].numel():
                    data = tensors[rank].view(-1).view(torch.uint8)
                    of_all = rank if self.group is None else dist.get_global_rank(self.group, rank)
                    with _naming(rank):
                        work: Any = exchange(data, of_all, self.group)
                    started.append((rank, work, data))
        for rank, work, _ in started:
            with _naming(rank):
                work.wait()

    def _exchanged_bytes(self, text: bytes) -> list[bytes]:
        """Return what each rank sends to all, in the order of the ranks."""
        lengths = list(torch.zeros(self.size, 1, dtype=torch.int64))
        self.exchange([torch.tensor([len(text)])] * self.size, lengths)
        texts = [torch.zeros(int(length), dtype=torch.uint8) for length in lengths]
        self.exchange([torch.frombuffer(bytearray(text), dtype=torch.uint8)] * self.size, texts)
        return [received.numpy().tobytes() for received in texts]


class RankRows(Rows):
    """M rows of d numbers, of which this rank holds some columns."""

    def __init__(self, local: Rows, ranks: Ranks) -> None:
        facts = ranks.gathered(lambda: (local.d, local.dtypes))
        super().__init__(local.columns, local.size, set().union(*(dtypes for _, dtypes in facts)))
        self.d = sum(d for d, _ in facts)
        self.local = local
        self.ranks = ranks

    def blocks(self) -> Iterator[Block]:
        """Yield all columns in order."""
        return self.local.blocks()

    def subset(self, clients: Chosen = None, names: Chosen = None) -> RankRows:
        """Return the rows of some clients and the columns of some tensors."""
        return RankRows(self.local.subset(clients, names), self.ranks)

    def map(self, step: Step, target: Any, put: Any = None) -> None:
        """Write a step block by block."""
        self.ranks.agreed(lambda: self.local.map(step, target, put))

    def vector(self, step: Step) -> Tensor:
        """Return this rank's columns of the step."""
        return self.ranks.agreed(lambda: self.local.vector(step))

    def numbers(self) -> np.ndarray:
        """Return [M, d] float64 all numbers."""
        return np.concatenate(self.ranks.gathered(self.local.numbers), axis=1)

    def nonfinite(self) -> Counts:
        """Return how many numbers are not finite, by row and tensor."""
        merged: Counts = {}
        for rank, counts in enumerate(self.ranks.gathered(self.local.nonfinite)):
            for row, by_tensor in counts.items():
                merged.setdefault(row, {}).update(
                    {f"{name} (rank {rank})": n for name, n in by_tensor.items()}
                )
        return dict(sorted(merged.items()))

    def _reduced(self, function: Callable[..., np.ndarray], *arguments: np.ndarray) -> np.ndarray:
        # A rank without columns has the number 0.
        return np.asarray(sum(self.ranks.gathered(lambda: self.local.reduce(function, *arguments))))


@contextmanager
def _naming(rank: int) -> Iterator[None]:
    """Raise RankError for a rank in place of what torch.distributed raises."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"rank {rank} does not answer ({str(error).splitlines()[0]}); look at its own error, "
            "and start all processes again"
        ) from error
