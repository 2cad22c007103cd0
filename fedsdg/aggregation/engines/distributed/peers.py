"""The ranks of a process group: what one finds out all know, and what fails on one fails on all.

Ranks meet in exchanges, each rank with each other one directly. So a rank that has died or hangs is
known by its number, which collectives that pass messages on along a ring do not tell.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from fedsdg.aggregation.outcome import RuleFault
from fedsdg.aggregation.uploads import NonFiniteError

DEFAULT_TIMEOUT = 300.0
"""Seconds."""

UNKNOWN = -1
"""In place of a rank that cannot be told."""

_ERRORS: Mapping[str, type[Exception]] = {
    "NonFiniteError": NonFiniteError,
    "RuleFault": RuleFault,
    "ValueError": ValueError,
}
"""The errors that keep their type on the other ranks."""

T = TypeVar("T")


class DistributedError(RuntimeError):
    """Another rank died, does not answer, or failed for a reason of its own."""


class Peers:
    """This rank and the others of a process group; made, and used, by all of them alike.

    group: a `torch.distributed` process group, None for that of all processes. timeout: the seconds
    that an exchange waits for another rank: as long as one may come later than another, work
    between two exchanges included. Its methods raise DistributedError, naming the ranks that are
    missing, when it passes or a connection breaks; the group is of no more use then.

    Raises ValueError when torch.distributed is not initialised or this rank is not in the group.
    """

    def __init__(self, group: Any = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialised; call "
                "torch.distributed.init_process_group('gloo') first, in a process that torchrun "
                "started"
            )
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout={timeout} must be a positive number of seconds")
        self.group: Any = dist.group.WORLD if group is None else group
        self.rank: int = dist.get_rank(self.group)
        if self.rank < 0:
            raise ValueError("this process is not in the group; call on the ranks of the group")
        self.size: int = dist.get_world_size(self.group)
        self.timeout = timeout
        on_cpu = "cpu" in str(dist.get_backend_config(self.group))
        self.device = torch.device("cpu" if on_cpu else "cuda")
        """Where what is exchanged has to lie: with nccl on the current GPU."""

    def gathered(self, work: Callable[[], Sequence[float] | np.ndarray], count: int) -> np.ndarray:
        """[ranks, count] float64: in row r the `count` numbers that work() returned on rank r.

        When work raises, on any rank, so do all: the same type of error (ValueError,
        NonFiniteError, RuleFault, else DistributedError) with the same sentence, which names the
        rank. Work must not take part in an exchange itself.
        """
        numbers: Sequence[float] | np.ndarray = []
        failure: Exception | None = None
        try:
            numbers = work()
        except Exception as error:
            failure = error
        text = b"" if failure is None else _described(failure)
        message = torch.zeros(1 + count, dtype=torch.float64)
        message[0] = len(text)
        if failure is None:
            message[1:] = torch.as_tensor(np.asarray(numbers, dtype=np.float64))
        rows = self._all(message.to(self.device)).cpu().numpy()
        lengths = rows[:, 0].astype(np.int64).tolist()
        if any(lengths):
            self._fail(self._texts(text, lengths), failure)
        return rows[:, 1:]

    def agreed(self, work: Callable[[], T]) -> T:
        """What work() returns here, once it has on every rank; else all raise as in `gathered`."""
        found: list[T] = []

        def done() -> list[float]:
            found.append(work())
            return []

        self.gathered(done, 0)
        return found[0]

    def texts(self, text: str) -> list[str]:
        """The texts of all ranks, in their order."""
        data = text.encode()
        lengths = self.gathered(lambda: [len(data)], 1)[:, 0].astype(np.int64).tolist()
        return [received.decode() for received in self._texts(data, lengths)]

    def swap(self, sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]) -> None:
        """Sends a contiguous tensor to each rank in `sends`, and fills one from each in `receives`.

        All lie on `device`. Whoever sends n numbers to a rank must be expected to by that rank.
        """
        transfers = [self._transfer(dist.irecv, t, rank) for rank, t in receives.items()]
        transfers += [self._transfer(dist.isend, t, rank) for rank, t in sends.items()]
        ranks = [*receives, *sends]
        deadline = time.monotonic() + self.timeout
        missing: dict[int, Exception] = {}
        under_way: list[tuple[int, Any]] = []
        # One by one, so that a connection that is known to be broken is known by its rank. Not so
        # with nccl, where the sends and receives of a batch are one and wait for each other.
        together = 1 if self.device.type == "cpu" else max(len(transfers), 1)
        for start in range(0, len(transfers), together):
            batch = transfers[start : start + together]
            rank = ranks[start] if together == 1 else UNKNOWN
            try:
                under_way += [(rank, work) for work in dist.batch_isend_irecv(batch)]
            except RuntimeError as error:
                missing.setdefault(rank, error)
        for rank, work in under_way:
            if rank in missing:
                continue
            left = max(deadline - time.monotonic(), 0.001)
            try:
                work.wait(timedelta(seconds=left))
            except RuntimeError as error:
                missing[rank] = error
        if missing:
            self._give_up(missing, late=time.monotonic() >= deadline - 0.002)

    def _transfer(self, operation: Any, tensor: torch.Tensor, rank: int) -> dist.P2POp:
        # The size is the tag: ranks that are in different exchanges find no message, rather than
        # one that does not fit, at which gloo ends the process.
        tag = tensor.numel() % 2**31
        where = dist.get_global_rank(self.group, rank)
        return dist.P2POp(operation, tensor, where, self.group, tag)

    def _all(self, message: torch.Tensor) -> torch.Tensor:
        """[ranks, n] the messages [n] of all ranks."""
        rows = message.new_empty(self.size, len(message))
        rows[self.rank] = message
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.swap(dict.fromkeys(others, message), {rank: rows[rank] for rank in others})
        return rows

    def _texts(self, own: bytes, lengths: Sequence[int]) -> list[bytes]:
        def room(length: int) -> torch.Tensor:
            return torch.empty(length, dtype=torch.uint8, device=self.device)

        texts = {rank: room(length) for rank, length in enumerate(lengths)}
        texts[self.rank].copy_(torch.tensor(list(own), dtype=torch.uint8))
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.swap(
            {rank: texts[self.rank] for rank in others if own},
            {rank: texts[rank] for rank in others if lengths[rank]},
        )
        return [bytes(text.cpu().tolist()) for text in texts.values()]

    def _fail(self, texts: Sequence[bytes], cause: Exception | None) -> NoReturn:
        """Raises the error of the first rank that has one; without its number if all have it."""
        failed = {rank: json.loads(text) for rank, text in enumerate(texts) if text}
        first, (kind, text) = next(iter(failed.items()))
        if kind not in _ERRORS:
            text = f"{kind}: {text}"
        if len(failed) < self.size or any(other != failed[first] for other in failed.values()):
            others = [str(rank) for rank in failed if rank != first]
            also = f" (there are errors on rank {', '.join(others)} too)" if others else ""
            text = f"rank {first}: {text}{also}"
        raise _ERRORS.get(kind, DistributedError)(text) from cause

    def _give_up(self, missing: Mapping[int, Exception], *, late: bool) -> NoReturn:
        known = sorted(rank for rank in missing if rank != UNKNOWN)
        which = f"rank {', '.join(map(str, known))}" if known else "another rank"
        how = f"did not answer within {self.timeout:g} s" if late else "closed the connection"
        cause = next(iter(missing.values()))
        raise DistributedError(
            f"{which} {how} (on rank {self.rank} of {self.size}); a process has died, hangs or "
            f"makes another call than the others: look at its output, and start all ranks anew"
        ) from cause


def _described(error: Exception) -> bytes:
    kind = next((name for name, type_ in _ERRORS.items() if isinstance(error, type_)), None)
    return json.dumps([kind or type(error).__name__, str(error)]).encode()
