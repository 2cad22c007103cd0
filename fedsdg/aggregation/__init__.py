"""Server aggregation: tensors in, tensors out. Knows no model, no data set and no configuration.

`aggregate` applies every rule to parameters of any kind, `aggregate_files` to safetensors files,
`aggregate_by_client` to clients spread over processes; `fedsdg_server_aggregate` is FedSDG's rule
for dictionaries of tensors. The rules are one per file in `rules`. Names are imported on first use,
so that importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from fedsdg.lazy import at_first_use

if TYPE_CHECKING:
    from fedsdg.aggregation.api import *  # noqa: F403
    from fedsdg.aggregation.by_client import *  # noqa: F403
    from fedsdg.aggregation.files import *  # noqa: F403
    from fedsdg.aggregation.ranks import *  # noqa: F403
    from fedsdg.aggregation.server_aggregate import *  # noqa: F403
    from fedsdg.aggregation.weights import *  # noqa: F403

_HOMES = {
    "Aggregated": "api",
    "AggregatedFiles": "files",
    "Ranks": "ranks",
    "aggregate": "api",
    "aggregate_by_client": "by_client",
    "aggregate_files": "files",
    "fedsdg_server_aggregate": "server_aggregate",
    "weight_summary": "weights",
}

__getattr__ = at_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
