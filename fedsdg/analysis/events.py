"""The records of a run as TensorBoard's event files, by TensorBoard's own writer, without torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedsdg.files import atomic_path, read_json
from fedsdg.files.records import read_parquet

#: Columns that name something, and measure nothing.
NAMES = frozenset({"round", "client", "group", "domain", "cluster", "evaluated"})
#: The name of the file of events; TensorBoard finds files by its beginning.
FILE = "events.out.tfevents.0.fedsdg"

#: Of a tag the values by round.
Series = Mapping[str, Mapping[int, float]]


def write_events(run: Path, folder: Path) -> Path:
    """Write every recorded metric of a run's folder as scalars by round, and return the file.

    Tags: ``rounds/COLUMN``; ``clients/COLUMN/mean``, ``/min`` and ``/max`` over those clients (and
    their blocks, for gates) that have a value in a round; ``timings/COLUMN``. An event's wall time
    is the run's start plus the seconds of its rounds so far. TensorBoard holds values as float32.

    Raises ``ValueError`` where TensorBoard is not installed and for damaged records,
    ``FileNotFoundError`` where the folder holds no records.
    """
    record = _writer()
    missing = [name for name in ("rounds.parquet", "clients.parquet") if not (run / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{run} holds no {missing[0]}; name the folder of a run, "
            "as results/runs/EXPERIMENT/…/seed~0"
        )
    times = _wall_times(run)
    found = series(run)
    target = folder / FILE
    with atomic_path(target) as temporary, temporary.open("wb") as file:
        record(file, found, times)
    return target


def series(run: Path) -> Series:
    """All that was recorded of a run, by tag and round."""
    found: dict[str, dict[int, float]] = {}
    for name, gather in (("rounds", _each), ("clients", _over_clients), ("timings", _each)):
        file = run / f"{name}.parquet"
        if not file.is_file():
            continue
        table = _read(file)
        rounds = table.pop("round")
        for column, values in table.items():
            if column not in NAMES:
                for tag, by_round in gather(rounds, values):
                    found[f"{name}/{column}{tag}"] = by_round
    return found


def _read(file: Path) -> dict[str, list[Any]]:
    try:
        return read_parquet(file).to_pydict()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{file} is damaged ({error}); make the run again") from error


def _each(rounds: list[int], values: list[Any]) -> Iterator[tuple[str, dict[int, float]]]:
    """A value a round."""
    said = {n: float(v) for n, v in zip(rounds, values, strict=True) if v is not None}
    if said:
        yield "", said


def _over_clients(rounds: list[int], values: list[Any]) -> Iterator[tuple[str, dict[int, float]]]:
    """Mean, least and largest value of the clients of each round."""
    held: dict[int, list[float]] = defaultdict(list)
    for number, value in zip(rounds, values, strict=True):
        held[number] += [float(one) for one in _flat(value)]
    held = {number: known for number, known in held.items() if known}
    if held:
        for what, of in (("mean", np.mean), ("min", np.min), ("max", np.max)):
            yield f"/{what}", {number: float(of(known)) for number, known in held.items()}


def _flat(value: Any) -> Iterable[Any]:
    if value is None:
        return ()
    return [one for one in value if one is not None] if isinstance(value, list) else (value,)


def _wall_times(run: Path) -> Mapping[int, float]:
    """Seconds since 1970 at which each round ended, had nothing come between the rounds."""
    started, provenance, timings = 0.0, run / "provenance.json", run / "timings.parquet"
    if provenance.is_file():
        said = read_json(provenance).get("started")
        started = datetime.fromisoformat(said).timestamp() if said else 0.0
    if not timings.is_file():
        return defaultdict(lambda: started)
    table = _read(timings)
    seconds = [table[name] for name in table if name != "round"]
    spent = np.cumsum([sum(one or 0.0 for one in row) for row in zip(*seconds, strict=True)])
    ends = zip(table["round"], (started + spent).tolist(), strict=True)
    return defaultdict(lambda: started, ends)


def _writer() -> Any:
    """What writes series to a file, once TensorBoard is there."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise ValueError(
            f"TensorBoard is not installed ({error}); give pip install 'fedsdg-bench[tensorboard]'"
        ) from error

    def record(file: Any, found: Series, times: Mapping[int, float]) -> None:
        writer = RecordWriter(file)
        begun = min(times.values(), default=times[0])
        writer.write(Event(wall_time=begun, file_version="brain.Event:2").SerializeToString())
        for number in sorted({number for by_round in found.values() for number in by_round}):
            said = [
                Summary.Value(tag=tag, simple_value=by_round[number])
                for tag, by_round in found.items()
                if number in by_round
            ]
            event = Event(wall_time=times[number], step=number, summary=Summary(value=said))
            writer.write(event.SerializeToString())
        writer.flush()

    return record
