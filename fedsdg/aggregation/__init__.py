"""Server aggregation: tensors in, tensors out. Knows no model, no data set and no configuration.

The rules stand one per file in `fedsdg.aggregation.rules`. `aggregate` is the door to every rule,
for parameters of any kind, `aggregate_files` for safetensors files, `aggregate_sharded` and
`aggregate_by_client` for processes of torch.distributed; `fedsdg_server_aggregate` is FedSDG's, for
dictionaries of tensors. They are imported on first use, so that importing this package does not
import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsdg.aggregation.api import Aggregated, aggregate
    from fedsdg.aggregation.engines.distributed import aggregate_by_client, aggregate_sharded
    from fedsdg.aggregation.engines.files.aggregated import AggregatedFiles
    from fedsdg.aggregation.engines.files.streaming import aggregate_files
    from fedsdg.aggregation.engines.memory.state_dicts import fedsdg_server_aggregate
    from fedsdg.aggregation.weights import weight_summary

__all__ = [
    "Aggregated",
    "AggregatedFiles",
    "aggregate",
    "aggregate_by_client",
    "aggregate_files",
    "aggregate_sharded",
    "fedsdg_server_aggregate",
    "weight_summary",
]

_HOMES = {
    "Aggregated": "fedsdg.aggregation.api",
    "AggregatedFiles": "fedsdg.aggregation.engines.files.aggregated",
    "aggregate": "fedsdg.aggregation.api",
    "aggregate_by_client": "fedsdg.aggregation.engines.distributed",
    "aggregate_files": "fedsdg.aggregation.engines.files.streaming",
    "aggregate_sharded": "fedsdg.aggregation.engines.distributed",
    "fedsdg_server_aggregate": "fedsdg.aggregation.engines.memory.state_dicts",
    "weight_summary": "fedsdg.aggregation.weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
