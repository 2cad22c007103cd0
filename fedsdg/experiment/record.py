"""The published record, made in order of value from the list config/record.yaml.

A step is the search of a config, or its runs. Finished runs go into results/reference, beside those
that the same config and version would make again; these are not done a second time.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from fedsdg.analysis.gather import failed_runs, keep_record
from fedsdg.config.config import Config
from fedsdg.config.layers import merged
from fedsdg.errors import remark
from fedsdg.experiment.backbones import described_sha256
from fedsdg.experiment.grid import run_grid
from fedsdg.experiment.points import points
from fedsdg.experiment.recheck import recorded_runs
from fedsdg.experiment.runs import is_record_of
from fedsdg.experiment.search import FINALISTS, SHARE, search
from fedsdg.experiment.summary import search_file, write_summary
from fedsdg.files import places, put_back, read_json, write_bytes
from fedsdg.files.yaml_text import read_yaml_file

STEPS = "config/record.yaml"
"""A list of steps: `search` or `runs`, the name of a config, and the seconds that a run of it takes
on one core, where none has been timed here yet."""


def make_record(jobs: int, minutes: float = math.inf) -> Iterator[str]:
    """Do what is left of the steps, and say after each how much that still is.

    Runs are kept in the store, so another call goes on where this one ends. A step that fails stops
    no other.

    Args:
        jobs: The number of runs side by side.
        minutes: No run is started after this time.

    Yields:
        A line for each step, and one for all of them.

    Raises:
        ValueError: Steps failed; the line of each says why.
    """
    end = time.monotonic() + 60 * minutes
    left = [(0.0, 0.0)]
    failed = []
    for kind, name, seconds in read_yaml_file(places.shipped(STEPS)):
        do, count = {"search": (_search, _trials_left), "runs": (_run, _runs_left)}[kind]
        config = None
        try:
            config = _load(name)
            if time.monotonic() < end:
                do(config, jobs, (end - time.monotonic()) / 60)
        except (ValueError, OSError) as error:
            failed.append(f"{kind} {name}")
            yield f"{kind} {name}: {error}"
        if config is None:
            continue
        config = _load(name)  # With the values that it found.
        runs = count(config)
        left.append((runs, runs * _seconds(config, seconds) / 3600))
        yield f"{kind} {name}: {_printed(*left[-1])}"
    yield f"in all: {_printed(*map(sum, zip(*left, strict=True)))}"
    if failed:
        raise ValueError(
            f"not everything could be done: {', '.join(failed)}; see their lines above"
        )


def _printed(runs: float, hours: float) -> str:
    return f"{runs:.0f} runs left, about {hours:.1f} core-hours" if runs else "finished"


def _load(name: str) -> Config:
    """Return a config with the tuned values that searches found here, else those of records."""
    raw = merged([name])
    put_back(places.filled(places.RECORD, experiment=raw["experiment"]))
    tuned = raw.get("tuned") or []
    files = map(Path, [tuned] if isinstance(tuned, str) else tuned)
    pairs = [(_found(file.parent.name).with_suffix(".tuned.yaml"), file) for file in files]
    raw["tuned"] = [str(found if found.is_file() else file) for found, file in pairs]
    return Config.read(raw)


def _found(experiment: str) -> Path:
    return places.filled(places.SEARCH, experiment=experiment)


def _search(config: Config, jobs: int, minutes: float) -> None:
    recorded, others = _known(config, places.RECORD)
    if others or not recorded:
        found, begun = _found(config.experiment), search_file(config.experiment)
        if begun not in (None, found):
            write_bytes(found, begun.read_bytes())
        search(config, found, jobs=jobs, minutes=minutes)


def _trials_left(config: Config) -> float:
    """Return how many runs of full length a search still takes."""
    recorded, others = _known(config, places.RECORD)
    # What a search of another version found says nothing of this one.
    file = _found(config.experiment) if others else search_file(config.experiment)
    rows = read_json(file)["methods"] if file and file.is_file() else {}
    left = 0.0
    for label in {} if recorded and not others else config.space:
        row = rows.get(label, {"expected_best": [], "best": None})
        trials = config.search.trials or len(points(config.space[label], None))
        left += SHARE * (trials - len(row["expected_best"]))
        left += 0 if row["best"] else FINALISTS * (len(config.search.seeds) - 1)
    return left * len(config.datasets) * len(config.settings)


def _run(config: Config, jobs: int, minutes: float) -> None:
    """Do the runs that the record lacks, and record them.

    Runs of another version or config are joined with none of them: recorded ones stay until all are
    done, those that lie here make room.
    """
    name = config.experiment
    recorded, others = _known(config, places.RECORD)
    run_grid(config, jobs=jobs, minutes=minutes, done=recorded)
    runs, summary = (places.filled(one, experiment=name) for one in (places.RUNS, places.SUMMARY))
    write_summary(runs, summary, config)
    made, _ = _known(config, places.SUMMARY)
    lacking = failed_runs(summary).keys() - recorded
    if others and lacking:
        remark(
            f"the record of {name} has runs of another version or config, such as "
            f"{others[0]}; they are replaced when the {len(lacking)} runs that are left are done"
        )
    elif others or made - recorded:
        record = places.filled(places.RECORD, experiment=name)
        keep_record(summary, record, merge=bool(recorded), without=others)


def _runs_left(config: Config) -> float:
    """Return how many runs are neither recorded nor finished here."""
    done = _known(config, places.RECORD)[0] | _known(config, places.SUMMARY)[0]
    grid = (config.seeds, config.datasets, config.settings, config.methods)
    return math.prod(map(len, grid)) - len(done)


def _known(config: Config, pattern: str) -> tuple[set[str], list[str]]:
    """Return the folders of finished runs: of those that would come out again, and of others.

    Args:
        config: The experiment.
        pattern: The place of its record, or of its summary.
    """
    folder = places.filled(pattern, experiment=config.experiment)
    if config.untuned or not (folder / "runs.parquet").is_file():
        return set(), []
    try:
        rows = recorded_runs(folder)
    except ValueError as fault:  # Its format is another, or it is damaged.
        return set(), [str(fault)]
    runs = {run.folder: run for run in config.runs()}
    below = folder if pattern == places.RECORD else Path("results")
    backbone = described_sha256(config, below / "backbones")
    current = set()
    others = []
    for row in rows:
        place = places.run_below(row)
        if place in runs and is_record_of(row, runs[place], backbone):
            current.add(place)
        else:
            others.append(place)
    return current, others


def _seconds(config: Config, otherwise: float) -> float:
    """Return the mean time of the runs that were made here; failed ones do not say theirs."""
    below = places.filled(places.RUNS, experiment=config.experiment)
    files = below.glob(f"{places.ANY_RUN}/provenance.json")
    times = [facts["wall_seconds"] for facts in map(read_json, files) if "wall_seconds" in facts]
    return fmean(times) if times else otherwise
