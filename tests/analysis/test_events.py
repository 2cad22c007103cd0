"""What TensorBoard's own reader finds in a file of events: every recorded value, at its round."""

import builtins
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fedsdg.analysis.events import write_events
from fedsdg.cli import main
from fedsdg.files import read_json, write_json

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)


@pytest.fixture
def run(make_runs):
    """The folder of one run with gates, written as training writes it."""
    written = make_runs(methods=("fedsdg",), skews=("dirichlet~0.1",), seeds=(3,))
    (result,) = written.runs.rglob("result.json")
    folder = result.parent
    facts = read_json(folder / "provenance.json")
    write_json(folder / "provenance.json", {**facts, "started": "2026-01-02T03:04:05+00:00"})
    return folder


def read(folder):
    """Tag → round → (value, wall time)."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return {
        tag: {event.step: (event.value, event.wall_time) for event in found.Scalars(tag)}
        for tag in found.Tags()["scalars"]
    }


def expected(run):
    """The same from the parquet files, by pandas."""
    series = {}
    for name in ("rounds", "timings"):
        frame = pd.read_parquet(run / f"{name}.parquet", partitioning=None).set_index("round")
        for column in frame.columns.difference(["evaluated"]):
            series[f"{name}/{column}"] = frame[column].dropna().astype(float)
    clients = pd.read_parquet(run / "clients.parquet", partitioning=None)
    for column in clients.columns.difference(["round", "client", "group", "domain", "cluster"]):
        told = clients[["round", column]].explode(column).dropna()
        grouped = told.assign(**{column: told[column].astype(float)}).groupby("round")[column]
        for what in ("mean", "min", "max"):
            series[f"clients/{column}/{what}"] = grouped.agg(what)
    return {tag: values.to_dict() for tag, values in series.items() if len(values)}


def test_every_recorded_metric_is_there_with_its_values(run, tmp_path, capsys):
    assert main(["export", str(run), "--tensorboard", str(tmp_path / "events")]) == 0
    found, wanted = read(tmp_path / "events"), expected(run)
    assert found.keys() == wanted.keys()
    assert {"rounds/train_loss", "clients/gates/mean", "timings/train_seconds"} <= found.keys()
    for tag, values in wanted.items():
        assert {step: value for step, (value, _) in found[tag].items()} == {
            round_: float(np.float32(value)) for round_, value in values.items()
        }, tag
    assert capsys.readouterr().out.startswith(str(tmp_path / "events"))


def test_an_event_is_at_the_wall_time_of_its_round(run, tmp_path):
    write_events(run, tmp_path)
    seconds = pd.read_parquet(run / "timings.parquet", partitioning=None).set_index("round")
    begun = pd.Timestamp("2026-01-02T03:04:05Z").timestamp()
    ends = begun + seconds.sum(axis=1).cumsum()
    assert ends.iloc[-1] > begun
    for round_, (_, wall_time) in read(tmp_path)["timings/train_seconds"].items():
        assert wall_time == pytest.approx(ends[round_], abs=1e-6)


def test_the_same_run_gives_the_same_bytes_and_takes_the_place_of_the_former_file(run, tmp_path):
    first = write_events(run, tmp_path).read_bytes()
    assert write_events(run, tmp_path).read_bytes() == first
    assert len(list(tmp_path.glob("events*"))) == 1


def test_it_is_done_without_torch(run, tmp_path):
    code = (
        "import sys\nfrom fedsdg.cli import main\n"
        "assert main(['export', sys.argv[1], '--tensorboard', sys.argv[2]]) == 0\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(run), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (lambda run, out: (run / "rounds.parquet").unlink(), "holds no rounds.parquet"),
        (lambda run, out: (run / "clients.parquet").write_bytes(b"PAR1"), "clients.parquet"),
        (lambda run, out: (run / "provenance.json").write_text("{"), "is not valid JSON"),
        (lambda run, out: out.write_text("a file"), "out"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_no_file(fault, sentence, run, tmp_path, capsys):
    out = tmp_path / "out"
    fault(run, out)
    assert main(["export", str(run), "--tensorboard", str(out)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("fedsdg: error: ") and sentence in error
    assert not list(tmp_path.rglob("events*")) and not list(tmp_path.rglob(".events*"))


def test_without_tensorboard_the_sentence_says_what_to_install(run, tmp_path, capsys, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("tensorboard"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main(["export", str(run), "--tensorboard", str(tmp_path / "out")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "pip install 'fedsdg-bench[tensorboard]'" in error
    assert not (tmp_path / "out").exists()


def test_options_of_models_do_not_go_with_it(run, tmp_path, capsys):
    arguments = ["export", str(run), "--tensorboard", str(tmp_path / "out"), "--client", "1"]
    assert main(arguments) == 2
    assert "--client is for models; --tensorboard writes none" in capsys.readouterr().err
