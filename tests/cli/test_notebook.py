"""The doors in Python: runs and records as frames, and a process left as it was."""

import json
import signal
import warnings

import numpy as np
import pytest
import torch

import fedsdg
from tests.cli.conftest import TINY


def settings():
    """What a run may change in its process, and has to give back."""
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
        np.geterr(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        list(warnings.filters),
    )


def test_a_run_gives_frames_and_the_process_is_as_before(here):
    torch.set_num_threads(2)
    try:
        before = settings()
        run = fedsdg.run("fedavg", config="tiny.yaml", settings=["federation.rounds=2"])
        assert settings() == before
    finally:
        torch.set_num_threads(1)
    assert list(run.rounds["round"]) == [1, 2] and set(run.clients["client"]) <= set(range(6))
    (row,) = run.runs.to_dict("records")
    assert row["status"] == "ok" and row["last_accuracy"] == run.rounds["accuracy"].iloc[-1]
    assert len(run.timings) == 2


def test_a_run_has_the_backbone_that_its_config_describes(here):
    recipe = TINY["backbones"]["tiny"]
    hashes = set()
    for images in (100, 120):
        again = json.dumps({"again": recipe | {"images": images}})
        settings = ["experiment=again", "federation.rounds=1", f"backbones={again}"]
        run = fedsdg.run("fedavg", config="tiny.yaml", settings=[*settings, "backbone=again"])
        hashes |= set(run.runs["backbone_hash"])
    assert len(hashes) == 2


def test_a_run_that_fails_raises_its_sentence_and_gives_everything_back(here):
    before = settings()
    rates = ["training.eta_g=1.0e+38", "training.clip_norm=1.0e+30", "training.kernel=torch"]
    with pytest.raises(ValueError, match=r"fedavg seed 0 failed: .*not finite"):
        fedsdg.run("fedavg", config=["tiny.yaml"], settings=[*rates, "training.optimiser=sgd"])
    assert settings() == before


def test_records_are_those_of_a_folder_or_published_ones(here):
    mine = fedsdg.records("results/summary/tiny")
    assert set(mine.runs["method"]) == {"fedsdg", "fedavg"} and "accuracy" in mine.rounds
    published = fedsdg.records("needs")
    assert published.runs["selected_accuracy"].between(0, 1).any()
    with pytest.raises(FileNotFoundError, match="did you mean 'needs'?"):
        fedsdg.records("neads")
    with pytest.raises(AttributeError, match="no attribute 'recods'"):
        fedsdg.recods  # noqa: B018
