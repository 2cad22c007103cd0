"""What the files of a summary hold, and the order that their runs stand in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from fedsdg.analysis.names import method_order, skew_order
from fedsdg.files.records import (
    CLIENTS_SCHEMA,
    METRICS,
    METRICS_OF_GROUPS,
    ROUNDS_SCHEMA,
    TIMINGS_SCHEMA,
)

#: Columns that name a run; they open every file of the summary. ``method`` is the label.
IDENTITY_SCHEMA = pa.schema(
    [
        ("experiment", pa.string()),
        ("dataset", pa.string()),
        ("clients", pa.int64()),
        ("skew", pa.string()),
        ("method", pa.string()),
        ("seed", pa.int64()),
    ]
)

COUNTS = (
    "bytes_up",
    "bytes_down",
    "client_storage_bytes",
    "communicated_parameters",
    "private_parameters",
    "degenerate_rounds",
    "rounds",
)
#: The reported values of a run, each a mapping of metrics in its ``result.json``.
REPORTED = ("last", "selected", "quarter")
VALUES = (*METRICS, *METRICS_OF_GROUPS)
HASHES = ("config_hash", "partition_hash", "backbone_hash", "source_hash")

RUNS_SCHEMA = pa.schema(
    [
        *IDENTITY_SCHEMA,
        ("type", pa.string()),
        ("status", pa.string()),
        ("error", pa.string()),
        *(
            (f"{at}_{key}", pa.int64() if key == "round" else pa.float64())
            for at in REPORTED
            for key in ("round", *VALUES)
        ),
        ("quarter_evaluations", pa.int64()),
        *((name, pa.int64()) for name in COUNTS),
        *((name, pa.string()) for name in HASHES),
        ("config", pa.string()),
        #: ``result.json`` without the config, as canonical JSON: it can be written back from here.
        ("result", pa.string()),
    ]
)

#: Columns of runs.parquet that older runs lack; where all of a summary do, it has none of them.
LATER_SCHEMA = pa.schema(
    [
        ("personal_steps", pa.int64()),
        ("gate_travel", pa.float64()),
        ("gates_a", pa.float64()),
        ("gates_b", pa.float64()),
    ]
)

SUMMARY_TIMINGS_SCHEMA = pa.schema(
    [*TIMINGS_SCHEMA, ("wall_seconds", pa.float64()), ("peak_rss_mb", pa.float64())]
)

#: The files of a summary beside runs.parquet: columns of a run's own record, or of its timings.
RECORD_SCHEMAS = {
    "rounds": ROUNDS_SCHEMA,
    "clients": CLIENTS_SCHEMA,
    "timings": SUMMARY_TIMINGS_SCHEMA,
}


def run_order(identity: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sorting key of a row that carries the identity columns."""
    return (
        identity["dataset"],
        identity["clients"],
        skew_order(identity["skew"]),
        method_order(identity["method"]),
        identity["seed"],
    )
