"""The benchmarks of training in print: a table from one file of measurements."""

from __future__ import annotations

from pathlib import Path

from fedsdg.analysis.measurements import Measurements
from fedsdg.analysis.tables import save_table
from fedsdg.analysis.tables.throughput import throughput


def write_throughput(measured: str | Path, table: str | Path) -> list[Path]:
    """Write `{table}.csv`, .md and .tex; return the paths.

    Raises FileNotFoundError or ValueError, naming the file, where no rounds were measured.
    """
    read = Measurements.read(measured)
    if not read.rounds:
        raise ValueError(
            f"{read.path} holds no rounds of federations; measure them with: "
            "pytest benchmarks/bench_training.py --measured FILE"
        )
    return save_table(throughput(read), table)
