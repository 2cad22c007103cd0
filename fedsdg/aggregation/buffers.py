"""Integer and boolean buffers, such as BatchNorm's num_batches_tracked, which are not averaged."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

BufferRule = Literal["largest", "global", "refuse"]
"""What becomes of integer and boolean buffers."""
CHOICES = ("largest", "global", "refuse")


def remark_on(names: Sequence[Any], buffers: BufferRule) -> str:
    """Return the remark on how buffers are treated.

    Args:
        names: The integer and boolean tensors, at least one.
        buffers: The choice.

    Raises:
        ValueError: The choice is to refuse them.
    """
    listed = ", ".join(repr(name) for name in names[:3]) + (", …" if len(names) > 3 else "")
    if buffers == "refuse":
        raise ValueError(
            f"tensor {listed}: integers and booleans are not averaged; leave them out, or choose "
            "buffers='largest' or buffers='global'"
        )
    largest = "take the largest client value (booleans: true if any is)"
    treated = largest if buffers == "largest" else "keep the server's value"
    return f"{len(names)} integer or boolean tensors are not averaged and {treated}: {listed}"


def combine(server: Tensor, clients: Sequence[Tensor], buffers: BufferRule) -> Tensor:
    """Return a buffer's new value.

    Args:
        server: The global value.
        clients: The values of the clients that take part; without any the server's stays.
        buffers: "largest": the elementwise maximum, for booleans the logical or; "global": the
            server's.
    """
    if buffers == "global" or not clients:
        return server
    return reduce(torch.maximum, clients)
