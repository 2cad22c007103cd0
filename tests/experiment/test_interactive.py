"""The suite from Python: the same runs and records as by the commands."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import fedsdg

ROOT = Path(__file__).parents[2]
SMALL = [
    "federation.rounds=2",
    "federation.evaluate_every=1",
    "federation.clients=8",
    "federation.clients_per_round=5",
    "training.epochs=1",
    "adapters.rank=2",
    "backbones.letters.images=400",
    "backbones.letters.epochs=1",
    "backbones.letters.held_out=100",
]


def test_published_records_are_frames():
    found = fedsdg.records("cross-needs")
    file = ROOT / "results/reference/cross-needs/runs.parquet"
    pd.testing.assert_frame_equal(found.runs, pd.read_parquet(file))
    assert {"round", "train_loss"} <= set(found.rounds) and "client" in found.clients


def test_a_folder_of_records_is_read_as_well():
    folder = ROOT / "results/reference/cross-label-skew"
    assert len(fedsdg.records(folder).runs) == len(fedsdg.records("cross-label-skew").runs)


def test_an_unknown_record_names_the_closest():
    with pytest.raises(FileNotFoundError, match="no published record .*did you mean 'cross-needs'"):
        fedsdg.records("cros-needs")


def test_a_run_gives_its_records_and_is_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSDG_STORE", str(tmp_path / "store"))
    wanted = {"settings": SMALL, "skew": "iid", "seed": 3}
    found = fedsdg.run("fedavg", **wanted)
    assert found.result["status"] == "ok" and found.result["seed"] == 3
    assert list(found.rounds["round"]) == [1, 2]
    assert len(found.clients) and len(found.timings) == 2
    started = found.result
    assert fedsdg.run("fedavg", **wanted).result == started
    store = tmp_path / "store/runs"
    assert len([file for file in store.iterdir() if file.is_dir()]) == 1
    assert not Path(".fedsdg").exists()
    other = fedsdg.run("fedavg", **wanted, store=tmp_path / "other")
    assert len([*store.iterdir()]) == len([*(tmp_path / "other").iterdir()]) == 1
    assert other.result == started


def test_a_run_that_cannot_be_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="unknown method 'fedagv'; did you mean 'fedavg'"):
        fedsdg.run("fedagv", skew="iid")


def test_the_package_is_light_until_it_is_asked():
    code = (
        "import fedsdg, sys; assert 'run' in dir(fedsdg); "
        "heavy = {'torch', 'pandas', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match="has no attribute 'runs'"):
        _ = fedsdg.runs
