"""What the records of a run hold: training writes these columns, analysis reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.files import atomic_path, require_unchanged
from fedsdg.files.columns import Column

FORMAT = 2
"""The version of the columns' names and meanings, in every file of records; files without one have
the first. It rises when a column gets another name or another meaning."""
_KEY = b"fedsdg.format"
ROWS_OF_A_GROUP = 1024 * 1024
"""Rows of a row group, pyarrow's own number."""


# A row of each table: the columns that every run has, and below each what it means. A part that
# fills a further column declares it (``files/columns.py``).


class Round:
    """A round, but for what evaluation yields."""

    round = pa.int32()
    "round, from 1"
    train_loss = pa.float32()
    "training loss, mean over the cohort"
    gate_penalty = pa.float32()
    "Σ_l m_l of Eq. 5, without λ₁; mean over the cohort"
    private_penalty = pa.float32()
    "‖θ_p‖² of Eq. 5, without λ₂; mean over the cohort"
    update_norm_mean = pa.float32()
    "mean of ‖Δ_k‖ over the updates that arrived"
    update_norm_max = pa.float32()
    "largest ‖Δ_k‖"
    drift = pa.float32()
    "√(mean ‖Δ_k‖² − ‖mean Δ_k‖²): how far clients' parameters are from their mean"
    weight_mean = pa.float32()
    "mean of the clients' weights in the rule's step"
    weight_std = pa.float32()
    "their standard deviation (divisor M)"
    weight_min = pa.float32()
    "smallest weight"
    weight_max = pa.float32()
    "largest weight"
    weight_zeros = pa.float32()
    "number of weights below 1e-6"
    weight_entropy = pa.float32()
    "−Σ w_k ln w_k, in nats"
    alignment_mean = pa.float32()
    "mean of the alignment of an update with the rule's reference"
    alignment_min = pa.float32()
    "smallest alignment"
    alignment_max = pa.float32()
    "largest alignment"
    degenerate = pa.float32()
    "1 where the rule fell back on uniform weights"
    bytes_up = pa.int64()
    "bytes that all clients of the round sent"
    bytes_down = pa.int64()
    "bytes that all clients of the round downloaded"
    local_steps = pa.int64()
    "steps of the optimiser, of all clients of the round"
    samples_processed = pa.int64()
    "samples in these steps and in a stopping rule's gradients, repetitions counted"
    evaluated = pa.bool_()
    "whether this round was evaluated; the columns below are empty otherwise"


class Evaluation:
    """What evaluation yields for one round; also the keys of ``last`` and ``selected``."""

    accuracy_own_test = pa.float64()
    "accuracy of a client's own model on its test samples, mean over clients"
    accuracy_own_test_std = pa.float64()
    "its standard deviation over clients (divisor: their number)"
    worst_decile_own_test = pa.float64()
    "its mean over the tenth of the clients that are worst off, of those that were ever drawn"
    accuracy_own_test_weighted = pa.float64()
    "its mean weighted by the clients' test samples, those beyond `federation.own_images` counted"
    accuracy_shared = pa.float64()
    "accuracy of the server's model on the global test set"
    loss_shared = pa.float64()
    "its mean cross-entropy there"
    val_accuracy = pa.float64()
    """accuracy of clients' own models on their validation samples, mean over clients; picks the
    round called selected"""
    accuracy = pa.float64()
    """accuracy of a client's own model on the whole global test set as the client sees it (its
    labels, its view, weighted by its classes), mean over clients"""
    accuracy_std = pa.float64()
    "its standard deviation over clients (divisor: their number)"
    worst_decile = pa.float64()
    "its mean over the worst tenth, as above"
    val_accuracy_shared = pa.float64()
    "accuracy of the server's model on all clients' validation samples"


class GroupEvaluation:
    """What is evaluated where clients differ, over each group; only then it is recorded."""

    accuracy_a = pa.float64()
    "accuracy over the clients that agree"
    accuracy_b = pa.float64()
    "accuracy over the clients that differ"
    accuracy_new = pa.float64()
    "accuracy over the clients that never train, in the last quarter of the rounds"


class Client:
    """A client that trained, arrived or was evaluated in a round."""

    round = pa.int32()
    "round, from 1"
    client = pa.int32()
    "number of the client, 0 … K−1"
    participated = pa.bool_()
    "whether it trained in this round"
    weight = pa.float32()
    "its weight in the rule's step"
    alignment = pa.float32()
    "alignment of its update with the rule's reference"
    update_norm = pa.float32()
    "‖Δ_k‖"
    train_loss = pa.float32()
    "its mean training loss"
    local_steps = pa.int64()
    "its steps of the optimiser in this round"
    samples_processed = pa.int64()
    "samples in these steps and in a stopping rule's gradients, repetitions counted"
    val_accuracy = pa.float64()
    "accuracy of its own model on its validation samples"
    accuracy_own_test = pa.float64()
    "accuracy of its own model on its test samples"
    n_train = pa.int32()
    "its training samples"
    n_val = pa.int32()
    "its validation samples, of which at most `federation.own_images` are used"
    n_test = pa.int32()
    "its test samples, at most `federation.own_images` alike"
    gates = pa.list_(pa.float32())
    "its gates m = σ(a) at an evaluation, in the order of the blocks; empty before it has trained"
    accuracy = pa.float64()
    """accuracy of its own model on the whole global test set as the client sees it (its labels,
    its view, weighted by its classes)"""
    drawn = pa.bool_()
    "whether it has ever trained"
    steps = pa.int64()
    "its local steps so far, over all rounds"


class Seconds:
    """The time that a round took."""

    round = pa.int32()
    "round, from 1"
    train_seconds = pa.float32()
    "seconds of local training, all clients of the round"
    aggregate_seconds = pa.float32()
    "seconds of the server's step"
    evaluate_seconds = pa.float32()
    "seconds of the evaluation"


def columns_in(row: type) -> list[tuple[str, pa.DataType]]:
    """Return the names and types of the columns of a class such as ``Round``."""
    return [(name, kind) for name, kind in vars(row).items() if isinstance(kind, pa.DataType)]


ROUNDS_SCHEMA = pa.schema([*columns_in(Round), *columns_in(Evaluation)])
CLIENTS_SCHEMA = pa.schema(columns_in(Client))
TIMINGS_SCHEMA = pa.schema(columns_in(Seconds))
METRICS = tuple(name for name, _ in columns_in(Evaluation))
"""What evaluation yields for one round, over all clients."""
METRICS_OF_GROUPS = tuple(name for name, _ in columns_in(GroupEvaluation))
"""What it yields over groups of clients, if clients differ."""


def more(table: Literal["rounds", "clients"], columns: Sequence[Column]) -> pa.Schema:
    """Return the columns beyond the schema of a table.

    Args:
        table: "rounds", or "clients", whose records hold the diagnostics as well.
        columns: What the parts of a run declare.
    """
    tables = ("rounds",) if table == "rounds" else ("clients", "diagnostics")
    own = [column for name in tables for column in columns if column.table == name]
    kinds = {column.name: _type(column.kind) for column in own}
    if table == "rounds":
        kinds |= dict.fromkeys(METRICS_OF_GROUPS, pa.float64())
    return pa.schema(kinds.items())


def _type(kind: str) -> pa.DataType:
    inner = kind.removeprefix("list of ")
    return pa.type_for_alias(kind) if inner == kind else pa.list_(_type(inner))


def write_parquet(
    path: str | Path,
    rows: Sequence[Mapping[str, Any]],
    schema: pa.Schema,
    more: pa.Schema | None = None,
) -> None:
    """Write rows of records, atomically.

    Args:
        path: The file.
        rows: Its rows.
        schema: The columns that it always has.
        more: Columns that follow if at least one row has a value there.

    """
    for column in more or ():
        if any(row.get(column.name) is not None for row in rows):
            schema = schema.append(column)
    write_tables(path, [pa.Table.from_pylist([dict(row) for row in rows], schema=schema)], schema)


def write_tables(path: str | Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write tables one behind the other, atomically, with one of them in memory.

    Each becomes a row group. If all but the last have ``ROWS_OF_A_GROUP`` rows, the file is the one
    that ``write_parquet`` makes of all rows at once.

    Args:
        path: The file.
        tables: Its rows.
        schema: To which each table is cast.
    """
    schema = schema.with_metadata({_KEY: str(FORMAT)})
    # Single-precision numbers hardly repeat. With bytes of equal places side by side they take a
    # third less room than in a dictionary.
    single = [column for column in schema if _inner(column.type) == pa.float32()]
    encoding: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": 15,
        "use_byte_stream_split": [
            f"{column.name}.list.element" if pa.types.is_list(column.type) else column.name
            for column in single
        ],
        "use_dictionary": [column.name for column in schema if column not in single],
    }
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, **encoding) as writer,
    ):
        for table in tables:
            writer.write_table(table.cast(schema))
            del table  # or it would lie in memory beside the next one


def rounded(table: pa.Table) -> pa.Table:
    """Return a table whose single-precision numbers have 16 significant bits, about five digits.

    The bits behind them are rounding errors of training, and take a fifth of the room of a table of
    clients.
    """
    for place, column in enumerate(table.schema):
        if _inner(column.type) == pa.float32():
            table = table.set_column(place, column, _rounded(table[place].combine_chunks()))
    return table


def _rounded(numbers: pa.Array) -> pa.Array:
    missing = numbers.is_null()
    if pa.types.is_list(numbers.type):
        values = _rounded(numbers.values)
        return pa.ListArray.from_arrays(numbers.offsets, values, type=numbers.type, mask=missing)
    exact = numbers.to_numpy(zero_copy_only=False)
    fraction, exponent = np.frexp(exact)
    with np.errstate(over="ignore"):
        kept = np.ldexp(np.rint(fraction * 2**16) / 2**16, exponent)
    kept = np.where(np.isfinite(kept), kept, exact)
    return pa.array(kept, numbers.type, mask=missing.to_numpy(zero_copy_only=False))


def _inner(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def read_parquet(path: str | Path, columns: list[str] | None = None) -> pa.Table:
    """Return a file of records; ``seed~0`` in its path is no column.

    Args:
        path: The file.
        columns: Those to read; None: all.

    Raises:
        ValueError: It has another format, or it has changed since its hash was written beside it.
    """
    require_unchanged(path)
    # Opened once, and without the machinery for many files: an experiment has thousands of them.
    with pq.ParquetFile(path) as file:
        version = (file.schema_arrow.metadata or {}).get(_KEY, b"1").decode()
        if version != str(FORMAT):
            raise ValueError(
                f"{path} has records of format {version}, but this version of FedSDG Bench reads "
                f"format {FORMAT}; use the version that wrote them, or delete them, from the store "
                "(.fedsdg) too, and make them anew"
            )
        return file.read(columns, use_threads=False)
