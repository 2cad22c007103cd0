"""What a trial is worth on one run: the score, and how a process finds it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.data.partition import PartitionSettings
from fedsdg.experiment.grid.loaded import loaded_images, loaded_material
from fedsdg.experiment.loading import Source
from fedsdg.experiment.machine.processes import Note
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.search.trials import TrialRun

#: A trial's score, as the file says it.
CRITERION = (
    "personal validation accuracy: the share that a client's own model gets right of its own "
    "validation samples, mean over clients, over the evaluations of the last quarter of the "
    "rounds, and over search seeds, skews and data sets; a run that failed counts 0"
)

#: What is known of a run: its score, its error or None, and what it reached on test samples.
Outcome = Mapping[str, Any]


def score(run: TrialRun, note: Note) -> Outcome:
    """Do one run, or take it from the store; a run that fails scores 0.

    Raises ``ValueError`` where clients have no validation samples: there is nothing to search by.
    """
    from fedsdg.data.partition import VAL
    from fedsdg.experiment.runs import execute

    config = _judged_late(run.config)
    material = loaded_material(run.source, run.backbone, config.training.device)
    shares = partition_of(
        run.source, config.skew, run.seed, config.federation.clients, config.partition
    )
    if not shares.counts(shares.split, 3)[:, VAL].any():
        raise ValueError(
            f"no client of {run.dataset} has a validation sample, by which the search chooses; "
            "give clients more samples with partition.min_samples"
        )
    with tempfile.TemporaryDirectory() as place:
        failure = execute(
            config,
            material,
            shares,
            Path(place),
            store=run.store,
            identity={},
            checkpoint_seconds=run.checkpoint_seconds,
        )
        if failure:
            return {"score": 0.0, "error": failure}
        result = files.read_json(Path(place) / "result.json")
    # Of a run from before there was a quarter, the last round.
    at = result.get("quarter") or result["last"]
    if at.get("val_accuracy") is None:
        raise ValueError(
            "the run has no validation accuracy, by which the search chooses; give clients "
            "validation samples"
        )
    return {
        "score": float(at["val_accuracy"]),
        "error": None,
        "test": test_scores(result["selected"]),
    }


def test_scores(selected: Mapping[str, Any]) -> dict[str, float]:
    """The round that validation selects, and the accuracies on test samples there.

    They are stored beside a trial's score, and no part of the search reads them. A trial is
    evaluated in the last quarter of its rounds alone, so the round is one of those.
    """
    scores = {
        name: round(value, 6)
        for name, value in selected.items()
        # A method without a model for all has no accuracy of it.
        if "accuracy" in name and "val_" not in name and value is not None
    }
    return {"round": selected["round"], **scores}


def _judged_late(config: RunConfig) -> RunConfig:
    """The run without the evaluations that its score does not count, which change nothing else."""
    federation = config.federation
    begin = 3 * federation.rounds // 4 + 1
    return replace(config, federation=replace(federation, evaluate_from=begin))


@lru_cache(maxsize=64)
def partition_of(
    source: Source, skew: str, seed: int, clients: int, settings: PartitionSettings
) -> Any:
    """The partition, made once by each process."""
    from fedsdg.experiment.material import make_partition

    return make_partition(loaded_images(source), skew, seed, clients, settings)
