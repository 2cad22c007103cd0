"""The records of a run as a file of events for TensorBoard, by TensorBoard's writer."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa

from fedsdg.files import atomic_path, read_json
from fedsdg.files.records import read_parquet

#: Columns that name something, and measure nothing.
NAMES = ["round", "client", "group", "domain", "cluster", "evaluated"]
#: The name of the file of events; TensorBoard recognises files by its beginning.
FILE = "events.out.tfevents.0.fedsdg"


def write_events(run: Path, folder: Path) -> Path:
    """Write every recorded metric of a run as scalars by round.

    Tags: ``rounds/COLUMN``; ``clients/COLUMN/mean``, ``/min`` and ``/max`` over those clients (and
    their blocks, for gates) that have a value in a round; ``timings/COLUMN``. An event's wall time
    is the run's start plus the seconds of its rounds so far. TensorBoard holds values as float32.

    Args:
        run: The folder of the run.
        folder: Where the file of events is written; an earlier one is replaced.

    Returns:
        The file of events.

    Raises:
        ValueError: TensorBoard is not installed, or the records are damaged.
        FileNotFoundError: The folder holds no records.
    """
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise ValueError(
            f"TensorBoard is not installed ({error}); give pip install 'fedsdg-bench[tensorboard]'"
        ) from error
    missing = [name for name in ("rounds.parquet", "clients.parquet") if not (run / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{run} holds no {missing[0]}; name the folder of a run, "
            "as results/runs/EXPERIMENT/…/seed~0"
        )
    started, ends = _wall_times(run)
    with tempfile.TemporaryDirectory() as scratch:
        writer = Writer(scratch)
        for tag, values in _series(run):
            for number, value in values.items():
                writer.add_scalar(tag, value, number, wall_time=ends.get(number, started))
        writer.close()
        (written,) = Path(scratch).iterdir()
        with atomic_path(folder / FILE) as temporary:
            shutil.copyfile(written, temporary)
    return folder / FILE


def _series(run: Path) -> Iterator[tuple[str, pd.Series]]:
    """Yield the tag and the values by round of everything that was recorded."""
    for name in ("rounds", "clients", "timings"):
        if not (run / f"{name}.parquet").is_file():
            continue
        frame = _read(run / f"{name}.parquet").set_index("round")
        for column in frame.columns.difference(NAMES):
            # The gates of a client are a list, one for each block.
            values = frame[column].explode().dropna().astype(float)
            if values.empty:
                continue
            if name != "clients":
                yield f"{name}/{column}", values
                continue
            by_round = values.groupby(level="round").agg(["mean", "min", "max"])
            for statistic in by_round:
                yield f"{name}/{column}/{statistic}", by_round[statistic]


def _wall_times(run: Path) -> tuple[float, pd.Series]:
    """Return the start of a run, and the end of each round had nothing come between the rounds.

    Both are in seconds since 1970; a run without provenance starts at 0.
    """
    provenance, timings = run / "provenance.json", run / "timings.parquet"
    said = read_json(provenance).get("started") if provenance.is_file() else None
    started = datetime.fromisoformat(said).timestamp() if said else 0.0
    if not timings.is_file():
        return started, pd.Series(dtype=float)
    return started, started + _read(timings).set_index("round").sum(axis=1).cumsum()


def _read(file: Path) -> pd.DataFrame:
    try:
        return read_parquet(file).to_pandas()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{file} is damaged ({error}); make the run again") from error
