"""A record and the runs computed here as one: the union of their runs, where they fit together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fedsdg.analysis.names import NOT_RUN
from fedsdg.analysis.summarise import Gathered
from fedsdg.analysis.summary_schemas import IDENTITY_SCHEMA
from fedsdg.files import differences
from fedsdg.files.places import split_setting

#: Type of a method -> the keys of ``training`` that it may have for itself.
OwnTraining = Callable[[str], frozenset[str]]

#: What of a run's config is its own; everything else all runs of an experiment share.
_OF_A_RUN = ("dataset", "skew", "seed", "method", "parameters", "plugin", "training")


def merged(
    recorded: Iterable[Gathered],
    here: Iterable[Gathered],
    own_training: OwnTraining,
    stamps: Iterable[Mapping[str, Any]] = (),
) -> list[Gathered]:
    """The runs of both: one computed here replaces the recorded one of the same identity.

    ``stamps``: which other code computes what recorded runs are (``origins.read_stamps``).

    A run that was not run here replaces none. Raises ``ValueError`` with the first difference where
    recorded runs that stay cannot stand beside those computed here: other settings that all runs of
    an experiment share, the same method with other settings or code, another partition of the same
    data, another backbone.
    """
    ours = {_name(run): run for run in here}
    theirs = {_name(run): run for run in recorded}
    both = {**theirs, **{name: run for name, run in ours.items() if _is_done(run)}}
    for name, run in ours.items():
        both.setdefault(name, run)
    kept = [run for name, run in theirs.items() if both[name] is run and _is_done(run)]
    done = [run for run in ours.values() if _is_done(run)]
    codes = {run.row["source_hash"] for run in done}
    alike = {
        folder: source
        for entry in stamps
        for source in codes & entry["sources"].keys()
        for folder in entry["sources"][source]
    }
    _require_alike(kept, done, own_training, alike)
    return list(both.values())


def _name(run: Gathered) -> tuple[Any, ...]:
    return tuple(run.row[name] for name in IDENTITY_SCHEMA.names)


def _is_done(run: Gathered) -> bool:
    return run.row["status"] != NOT_RUN


def _require_alike(
    kept: list[Gathered],
    here: list[Gathered],
    own_training: OwnTraining,
    alike: Mapping[str, str],
) -> None:
    """``alike``: folder of a recorded run -> the code here that computes the same."""
    configs = [_config(run) for run in (*kept, *here)]
    sections = {name for config in configs for name in config} - {*_OF_A_RUN}
    training = {name for config in configs for name in config.get("training", {})}

    def facts(run: Gathered) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
        """(what it is of, its name, its value) of all that may stand in one record only once."""
        row, config = run.row, _config(run)
        skew, scenario = split_setting(row["skew"])
        for name in sorted(sections):
            yield (scenario,), name, config.get(name)
        for name in sorted(training - own_training(row["type"])):
            yield (scenario,), f"training.{name}", config.get("training", {}).get(name)
        method = (scenario, row["method"])
        for name in ("method", "parameters", "plugin", "training"):
            yield method, name, config.get(name)
        yield method, "source_hash", alike.get(run.folder, row["source_hash"])
        yield (config.get("backbone"),), "backbone_hash", row["backbone_hash"]
        place = (row["dataset"], row["clients"], skew, row["seed"])
        yield place, "partition_hash", row["partition_hash"]

    known: dict[tuple[Any, ...], tuple[Any, Gathered]] = {}
    for run in kept:
        for owner, name, value in facts(run):
            known.setdefault((owner, name), (value, run))
    for run in here:
        for owner, name, value in facts(run):
            there, other = known.get((owner, name), (value, run))
            for difference in differences(there, value, name):
                raise ValueError(
                    f"the runs computed here cannot join the record of {run.row['experiment']!r}: "
                    f"{difference} (its run {other.folder}, and {run.folder} of those here); "
                    "record without --merge to replace it"
                )


def _config(run: Gathered) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(run.row["config"] or "{}")
    return config
