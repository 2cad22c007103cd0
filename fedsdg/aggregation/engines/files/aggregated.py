"""What aggregating files returns, and its report."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class AggregatedFiles:
    """What `aggregate_files` returns, beside the file it wrote."""

    rule: dict[str, Any]
    """Its type, as given, and all its parameters."""
    clients: list[str]
    """The files, as given."""
    weights: list[float] | None
    """[M], 0 for a dropped client; None where the rule has no weights. They sum to 1."""
    diagnostics: dict[str, Any]
    """Arrays [M], NaN for a dropped client, or one value; "winner" is a file."""
    state: dict[str, torch.Tensor]
    """Goes into the next call; empty for most rules."""
    dropped: dict[str, dict[str, int]]
    """Of every file left out, its number of non-finite values by tensor."""
    num_parameters: int
    """d."""
    passes: int
    """How often files were gone through, the one that writes included."""
    bytes_read: int
    seconds: float

    def report(self) -> dict[str, Any]:
        """All of it but the state, for JSON: facts of the round, and those of every client by
        file. A number that is not finite is null."""
        by_client: dict[str, dict[str, Any]] = {file: {} for file in self.clients}
        facts: dict[str, Any] = {}
        columns = {"weight": self.weights} if self.weights is not None else {}
        for name, value in {**columns, **self.diagnostics}.items():
            if np.ndim(value) == 0:
                facts[name] = _plain(value)
                continue
            for file, one in zip(self.clients, value, strict=True):
                by_client[file][name] = _plain(one)
        for file, counts in self.dropped.items():
            by_client[file]["dropped"] = counts
        return {
            "rule": self.rule,
            "num_clients": len(self.clients),
            "num_dropped": len(self.dropped),
            "num_parameters": self.num_parameters,
            "passes": self.passes,
            "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 3),
            "diagnostics": facts,
            "clients": by_client,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
