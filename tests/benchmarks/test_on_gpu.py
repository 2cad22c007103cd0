"""`make gpu` on machines without one: its course with small parts, and its own parts in small."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import on_gpu
from benchmarks.carry import cut, joined
from benchmarks.copying import floor_bytes
from benchmarks.on_gpu import Part, Place, begin, run_parts
from fedsdg.experiment.config_files import load_config
from fedsdg.files.places import ARENAS

ROOT = Path(__file__).parents[2]


def part(name, code, minutes=1.0, lacks=""):
    return Part(name, minutes, lambda *_: [sys.executable, "-c", code], lambda place: lacks)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path / "work", tmp_path / "out", "cpu", True)
    begin(found, None, None)
    return found


COUNT = "open('count', 'a').write('x'); print('counted')"


def test_every_part_says_a_line_and_a_complete_one_is_not_done_again(place, capsys, monkeypatch):
    parts = [
        part("first", COUNT),
        part("broken", "print('it is odd'); raise SystemExit(3)"),
        part("without", COUNT, lacks="there are no images"),
        part("last", "import os; print(os.environ['PYTHONPATH'])"),
    ]
    lines = run_parts(parts, place, 5)
    assert lines["first"].startswith("done in ") and lines["first"].endswith(": counted")
    assert lines["broken"].startswith("failed with exit code 3 after ")
    assert lines["broken"].endswith(": it is odd")
    assert lines["without"] == "not run: there are no images"
    assert lines["last"].endswith(str(ROOT))
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["first", "broken", "without", "last"]
    summary = (place.out / "summary.md").read_text()
    assert all(f"- {name}: {line}\n" in summary for name, line in lines.items())

    again = run_parts(parts, place, 5)
    assert again["first"] == f"complete before: {lines['first']}"
    assert again["broken"].startswith("failed")
    assert (place.work / "count").read_text() == "x"
    monkeypatch.setattr(on_gpu, "sources_hash", lambda place: "of edited sources")
    assert run_parts(parts, place, 5)["first"].startswith("done in ")
    assert (place.work / "count").read_text() == "xx"


PUTS_AWAY = """
import signal, sys, time  # for long
def put_away(*_):
    open('saved', 'w').write('state')
    sys.exit(143)
signal.signal(signal.SIGTERM, put_away)
print('at work', flush=True)
time.sleep(600)
"""


@pytest.fixture
def time_is_up(place, monkeypatch):
    """The time of the part "long" is over when it is at work, however long that takes."""

    class Late(subprocess.Popen):
        def wait(self, timeout=None):
            log = place.work / "logs" / "long.log"
            if timeout == 60 and "for long" in str(self.args):
                while self.poll() is None and "at work" not in log.read_text():
                    time.sleep(0.05)
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Late)
    monkeypatch.setattr(on_gpu, "PATIENCE", 30)


def test_a_part_whose_time_is_up_is_told_so_and_goes_on_at_the_next_call(place, time_is_up):
    parts = [part("long", PUTS_AWAY), part("next", COUNT)]
    lines = run_parts(parts, place, 5)
    assert lines["long"].startswith("time was up after ") and lines["long"].endswith(": at work")
    assert (place.work / "saved").read_text() == "state"
    assert lines["next"].startswith("done in ")
    parts[0] = part("long", "import os; assert os.path.exists('saved'); print('went on')")
    assert run_parts(parts, place, 5)["long"].endswith(": went on")


def test_where_no_time_is_left_nothing_is_begun(place):
    lines = run_parts([part("first", COUNT)], place, 0.1)
    assert lines == {"first": "not run: no time is left; call again"}
    assert not (place.work / "count").exists()


def test_a_grid_that_was_not_done_whole_goes_on(place):
    code = "print('time is up: 3 of the runs are left; call again to go on'); print('tables')"
    lines = run_parts([part("grid", code)], place, 5)
    assert lines["grid"].endswith("time is up: 3 of the runs are left; call again to go on")
    assert not (place.work / "stamps").exists()


DEAF = """
import signal, time  # for long
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('at work', flush=True)
time.sleep(600)
"""


def test_who_does_not_end_is_killed(place, time_is_up, monkeypatch):
    monkeypatch.setattr(on_gpu, "PATIENCE", 0.2)
    assert run_parts([part("long", DEAF)], place, 5)["long"].endswith(": at work")


def test_a_signal_reaches_the_part_and_the_outputs_are_written(tmp_path):
    code = f"""
import sys
from benchmarks import on_gpu
on_gpu.PARTS = (on_gpu.Part("long", 5, lambda *_: [sys.executable, "-c", {PUTS_AWAY!r}]),)
sys.exit(on_gpu.main(["--small", "--out", "out", "--work", "work"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    log = tmp_path / "work" / "logs" / "long.log"
    for _ in range(1200):
        if log.is_file() and "at work" in log.read_text():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 143
    assert (tmp_path / "work" / "saved").read_text() == "state"
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "- long: stopped by a signal; call again to go on" in summary


def test_outputs_are_eight_small_files_and_an_earlier_call_is_taken_up(place, monkeypatch):
    monkeypatch.setattr(on_gpu, "MOST_BYTES", 800_000)
    noise = np.random.default_rng(0).bytes
    for name in ("cross-needs", "cifar100"):
        folder = place.work / "results" / "runs" / name
        folder.mkdir(parents=True)
        for number in range(6):
            (folder / f"{number}.parquet").write_bytes(noise(150_000))
    for name in ("kernels", "training~digits", "environment", "twice"):
        (place.work / f"{name}.json").write_text("{}")
    run = place.work / ".fedsdg" / "runs" / "abc"
    run.mkdir(parents=True)
    (run / "result.json").write_text("{}")
    parts = [part("loud", "print('x' * 1000000); print('heard')")]
    lines = run_parts(parts, place, 5)
    files = sorted(file.name for file in place.out.iterdir())
    eight = "arenas.tar.gz cifar100.tar.gz environment.json kernels.json store.tar.gz summary.md"
    assert files == sorted([*eight.split(), "tests.log", "training.json"])
    assert all((place.out / name).stat().st_size <= 800_000 for name in files)
    summary = (place.out / "summary.md").read_text()
    assert "left out, for want of room: results/runs/cross-needs/5.parquet" in summary

    other = Place(place.work.with_name("elsewhere"), place.out, "cpu", True)
    begin(other, None, place.out)
    assert (other.work / ".fedsdg/runs/abc/result.json").read_text() == "{}"
    assert run_parts(parts, other, 5)["loud"] == f"complete before: {lines['loud']}"


def test_its_own_parts_run_in_small_on_a_cpu(tmp_path):
    """The real command: versions, what is missing, kernels; and a grid that leaves its records."""
    command = [sys.executable, "-m", "benchmarks.on_gpu", "--small", "--minutes", "10"]
    only = ["--only", "environment", "kernels", "needs"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), *only],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["environment", "kernels", "needs"]
    assert all(": done in " in line for line in lines), lines
    rows = json.loads((tmp_path / "out" / "kernels.json").read_text())["rows"]
    assert {row["rule"] for row in rows} >= {"mean", "fedsdg", "krum"}
    with tarfile.open(tmp_path / "out" / "arenas.tar.gz") as archive:
        names = archive.getnames()
    assert any(name.startswith("results/runs/cross-needs/") and "result" in name for name in names)


def test_every_part_names_what_there_is():
    place = Place(Path("work"), Path("out"))
    for one in on_gpu.PARTS:
        for word in one.command(place, 60.0):
            if word.startswith(str(ROOT)):
                assert Path(word).exists(), word
    configs = []
    for one in on_gpu.PARTS[-4:]:
        words = one.command(place, 60.0)
        a, b, c = (words.index(option) for option in ("--config", "--grid", "--jobs"))
        configs.append(load_config([Path(file) for file in words[a + 1 : b]], words[b + 2 : c]))
    names = [one.experiment for one in configs]
    assert names == [*ARENAS, "cifar100"]
    assert all(one.training.device == "cuda" for one in configs)
    assert (configs[-1].federation.rounds, configs[-1].backbone) == (192, "tiny-imagenet-p8")
    assert "no folder with cifar100" in on_gpu.PARTS[-1].lacks(place)


# --- Data and backbones in parts ------------------------------------------------------------------


def test_parts_hold_the_same_rows_in_the_same_order(tmp_path):
    folder, noise = tmp_path / "data" / "cifar100" / "deep", np.random.default_rng(1).bytes
    folder.mkdir(parents=True)
    rows = [{"img": {"bytes": noise(2000), "path": None}, "label": k} for k in range(50)]
    for number, half in enumerate((rows[:30], rows[30:])):
        table = pa.Table.from_pylist(half)
        pq.write_table(table, folder / f"train-{number:05d}-of-00002.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:2]), folder / "test.parquet")
    (tmp_path / "data" / "README.md").write_text("where they are from")
    target = tmp_path / "parts"
    written = cut(tmp_path / "data", target, 20_000)
    assert all(file.stat().st_size <= 20_000 for file in written)
    found = sorted((target / "cifar100" / "deep").glob("train*.parquet"))
    assert len(found) > 5 and found[0].name == f"train-00000-of-{len(found):05d}.parquet"
    again = pa.concat_tables([pq.ParquetFile(file).read() for file in found])
    assert again.to_pylist() == rows
    assert (target / "README.md").read_text() == "where they are from"
    with pytest.raises(ValueError, match="a row of it is larger than a part"):
        cut(tmp_path / "data", tmp_path / "tiny", 1_000)


def test_weights_are_put_together_as_they_were(tmp_path):
    weights = np.random.default_rng(2).bytes(100_000)
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "letters.safetensors").write_bytes(weights)
    (tmp_path / "from" / "letters.json").write_text("{}")
    written = cut(tmp_path / "from", tmp_path / "parts", 30_000)
    assert len(written) == 5
    joined(tmp_path / "parts", tmp_path / "there")
    assert (tmp_path / "there" / "letters.safetensors").read_bytes() == weights
    assert sorted(p.name for p in (tmp_path / "there").iterdir()) == [
        "letters.json", "letters.safetensors"
    ]  # fmt: skip
    (tmp_path / "parts" / "letters.safetensors-00001-of-00004").unlink()
    with pytest.raises(FileNotFoundError, match="3 of the 4 parts of letters.safetensors"):
        joined(tmp_path / "parts", tmp_path / "else")
    with pytest.raises(FileNotFoundError, match="is no folder of backbones"):
        joined(tmp_path / "nowhere", tmp_path / "else")


def test_the_floor_of_a_gpu_is_every_pass_and_one_row():
    assert floor_bytes(1, 10, 100) == 4 * 100 * 11
    assert floor_bytes(2, 5, 1) == 44
