"""What TensorBoard's own reader finds in a file of events: every recorded value, at its round."""

import builtins
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.events import write_events
from fedsdg.cli import main
from fedsdg.files import read_json, write_json

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


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
        tag: {
            event.step: (make_ndarray(event.tensor_proto).item(), event.wall_time)
            for event in found.Tensors(tag)
        }
        for tag in found.Tags()["tensors"]
    }


def expected(run):
    """The same from the parquet files, row by row."""
    series = {}
    for name in ("rounds", "timings", "clients"):
        for row in pq.ParquetFile(run / f"{name}.parquet").read().to_pylist():
            number = row.pop("round")
            for column in row.keys() - {"client", "group", "domain", "cluster", "evaluated"}:
                values = row[column] if isinstance(row[column], list) else [row[column]]
                known = [float(value) for value in values if value is not None]
                if known:
                    series.setdefault(f"{name}/{column}", {}).setdefault(number, []).extend(known)
    found = {}
    for tag, by_round in series.items():
        if not tag.startswith("clients/"):
            found[tag] = {number: value for number, (value,) in by_round.items()}
            continue
        for what, of in (("mean", np.mean), ("min", min), ("max", max)):
            found[f"{tag}/{what}"] = {number: of(known) for number, known in by_round.items()}
    return found


def test_every_recorded_metric_is_there_with_its_values(run, tmp_path, capsys):
    assert main(["export", str(run), "--tensorboard", str(tmp_path / "events")]) == 0
    found, wanted = read(tmp_path / "events"), expected(run)
    assert found.keys() == wanted.keys()
    assert {"rounds/train_loss", "clients/gates/mean", "timings/train_seconds"} <= found.keys()
    for tag, values in wanted.items():
        assert {step: value for step, (value, _) in found[tag].items()} == {
            round_: pytest.approx(value, rel=1e-6) for round_, value in values.items()
        }, tag
    assert capsys.readouterr().out.startswith(str(tmp_path / "events"))


def test_an_event_is_at_the_wall_time_of_its_round_and_a_file_takes_the_place_of_the_former(
    run, tmp_path
):
    for _ in range(2):
        write_events(run, tmp_path)
    assert len(list(tmp_path.glob("*events*"))) == 1
    seconds = pd.read_parquet(run / "timings.parquet", partitioning=None).set_index("round")
    begun = pd.Timestamp("2026-01-02T03:04:05Z").timestamp()
    ends = begun + seconds.sum(axis=1).cumsum()
    assert ends.iloc[-1] > begun
    for round_, (_, wall_time) in read(tmp_path)["timings/train_seconds"].items():
        assert wall_time == pytest.approx(ends[round_], abs=1e-6)


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
def test_what_is_wrong_is_one_sentence_and_leaves_no_file(fault, sentence, run, tmp_path, refused):
    fault(run, tmp_path / "out")
    error = refused("export", run, "--tensorboard", tmp_path / "out")
    assert error.startswith("fedsdg: error: ") and sentence in error
    assert not list(tmp_path.rglob("events*")) and not list(tmp_path.rglob(".events*"))


def test_without_tensorboard_the_sentence_says_what_to_install(run, tmp_path, refused, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("tensorboard"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    error = refused("export", run, "--tensorboard", tmp_path / "out")
    assert "pip install 'fedsdg-bench[tensorboard]'" in error
    assert not (tmp_path / "out").exists()


def test_options_of_models_do_not_go_with_it(run, tmp_path, refused):
    error = refused("export", run, "--tensorboard", tmp_path / "out", "--client", 1)
    assert "--client is for models; --tensorboard writes none" in error
