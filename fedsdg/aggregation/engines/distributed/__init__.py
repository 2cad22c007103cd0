"""Aggregation over the processes of a `torch.distributed` group.

`aggregate_sharded` is for parameters whose columns are spread over the ranks, `aggregate_by_client`
for ranks that hold whole clients. No update ever meets the others on one rank: rules exchange a few
numbers per client or pair of clients. `ShardedRows` is what lets a rule not notice.
"""

from fedsdg.aggregation.engines.distributed.by_client import aggregate_by_client
from fedsdg.aggregation.engines.distributed.peers import DistributedError, Peers
from fedsdg.aggregation.engines.distributed.sharded import aggregate_sharded
from fedsdg.aggregation.engines.distributed.sharded_rows import ShardedRows

__all__ = ["DistributedError", "Peers", "ShardedRows", "aggregate_by_client", "aggregate_sharded"]
