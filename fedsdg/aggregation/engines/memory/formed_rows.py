"""Rows of parameters that are formed a block of columns at a time, in one buffer."""

from collections.abc import Sequence

import torch

from fedsdg.aggregation.engines.memory.blocks import Block, cut
from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.memory.writing import place
from fedsdg.aggregation.engines.rows import BlockRows, Blocks, TensorRows
from fedsdg.aggregation.plans import Step

BLOCK_NUMBERS = 1 << 18
"""Numbers of a block: they stay in the cache while they are used."""
LEAST_WIDTH = 256
"""Columns of a block, however many the rows."""
WHOLE_NUMBERS = 1 << 21
"""So many in all, if one row would fit a block, are formed once and kept."""


class FormedRows(BlockRows):
    """The columns of some tensors, formed block by block in one buffer."""

    def __init__(
        self,
        origin: StateDict,
        clients: Sequence[StateDict],
        dtype: torch.dtype,
        *,
        subtract: bool,
        whole: bool = False,
    ) -> None:
        """whole: in one block, however large."""
        shapes = {name: tuple(tensor.shape) for name, tensor in origin.items()}
        size, d = len(clients), sum(tensor.numel() for tensor in origin.values())
        device = next((tensor.device for tensor in origin.values()), torch.device("cpu"))
        super().__init__(self._all, (size, d), dtype, device)
        self.origin, self.clients, self.subtract = origin, clients, subtract
        # A GPU has no such cache, and needs much to do at a time.
        numbers = BLOCK_NUMBERS if device.type == "cpu" else 64 * BLOCK_NUMBERS
        one = whole or (d <= BLOCK_NUMBERS and size * d <= WHOLE_NUMBERS)
        self.cut = cut(shapes, max(LEAST_WIDTH, d if one else numbers // size))
        self._buffer: torch.Tensor | None = None
        self._held: Block | None = None

    def formed(self, block: Block) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rows [M, width] of a block and, if it was subtracted, theta_g [width].

        Both are good until the next block is formed.
        """
        size = self.shape[0]
        if self._buffer is None:
            widest = max(each.width for each in self.cut)
            self._buffer = torch.empty(size + 1, widest, dtype=self.dtype, device=self.device)
        rows, base = self._buffer[:size, : block.width], self._buffer[size, : block.width]
        if self._held is not block:
            for params, row in zip(self.clients, rows, strict=True):
                block.gather(params, row)
            if self.subtract:
                block.gather(self.origin, base)
                rows -= base
            self._held = block
        return rows, base if self.subtract else None

    def put(
        self, step: Step, targets: StateDict, *, add: bool = True, rehearse: bool = False
    ) -> set[str]:
        """targets <- step, with `add` theta_g + step where theta_g was subtracted.

        Returns the names of the tensors in which a number is not finite. rehearse: nothing is
        written.
        """
        bad = set()
        for block in self.cut:
            rows, base = self.formed(block)
            values = step.of(TensorRows(rows))
            if add and base is not None:
                values += base
            bad |= place(block, values, targets, rehearse=rehearse)
        return bad

    def _all(self) -> Blocks:
        for block in self.cut:
            yield block.columns, self.formed(block)[0]
