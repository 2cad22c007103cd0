"""The config files and the command by which runs of a record are made again.

A record keeps the config of every run, but not from which files it was laid together. So the files
that name the experiment are tried, and those are taken that give the very configs of the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.experiment.config import Config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.replay import config_differences
from fedsdg.files.strict_yaml import read_yaml


@dataclass(frozen=True)
class Again:
    """How to make runs again.

    ``file`` is laid over the default config; ``only`` are the words that choose the runs in its
    grid; ``differs`` says in what the first run's config is another one now, nothing where the file
    gives the very runs of the record.
    """

    file: str
    only: tuple[str, ...]
    differs: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line."""
        words = ["fedsdg run --grid", self.file, *(["--only", *self.only] if self.only else [])]
        return " ".join(words)


def again(experiment: str, runs: Sequence[Mapping[str, Any]], configs: Path) -> Again | None:
    """How to make these runs of an experiment again, by the config files in a folder.

    ``runs`` are rows of runs.parquet. Of several configs the one is taken that gives most of them.
    None where no config of the folder names the experiment.
    """
    best: tuple[int, Again] | None = None
    for file in _candidates(experiment, configs):
        try:
            config = load_config([file])
        except (ValueError, OSError):
            continue  # It is for something that is not here, such as a plugin.
        differing = [_differs(config, run) for run in runs]
        same = sum(not sentences for sentences in differing)
        if best is None or same > best[0]:
            first = next((sentences for sentences in differing if sentences), ())
            best = same, Again(file.as_posix(), _only(config, runs), tuple(first))
    return None if best is None else best[1]


def _candidates(experiment: str, configs: Path) -> Iterator[Path]:
    """The config files that name the experiment."""
    for file in sorted(configs.rglob("*.yaml")):
        content = read_yaml(file)
        if isinstance(content, Mapping) and content.get("experiment") == experiment:
            yield file


def _differs(config: Config, run: Mapping[str, Any]) -> list[str]:
    """In what a run of the record is another one than the files give now, a sentence each."""
    labels = {method.label: method for method in config.methods}
    there = run["method"] in labels and run["skew"] in config.settings
    if not there or run["dataset"] not in config.datasets or run["seed"] not in config.seeds:
        return [f"the config's grid has no {run['method']} at {run['skew']}, seed {run['seed']}"]
    made = config.run(run["dataset"], run["skew"], labels[run["method"]], run["seed"])
    return config_differences(made, json.loads(run["config"]))


def _only(config: Config, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The words that choose the runs in the grid; a kind of which all are meant is not named."""
    kinds = (
        (config.datasets, [run["dataset"] for run in runs]),
        (config.settings, [run["skew"] for run in runs]),
        ([method.label for method in config.methods], [run["method"] for run in runs]),
        ([f"seed~{seed}" for seed in config.seeds], [f"seed~{run['seed']}" for run in runs]),
    )
    return tuple(
        word
        for known, wanted in kinds
        for word in (dict.fromkeys(wanted) if set(wanted) != set(known) else ())
    )
