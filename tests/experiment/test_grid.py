"""A grid by the command alone: in order, side by side, again after a break, and in part."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from fedsdg.analysis.render import USUAL
from fedsdg.cli import main
from fedsdg.experiment import store
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.grid.pages import require_pages
from fedsdg.experiment.grid.runs import grid_runs
from fedsdg.experiment.summary import shown_pages
from fedsdg.files import read_json

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config" / "config.yaml"
TINY = {
    "experiment": "tiny",
    "skews": ["dirichlet~1.0", "iid"],
    "seeds": [0, 1],
    "methods": ["fedsdg", "fedavg"],
    "backbone": "tiny",
    "backbones": {
        "tiny": {"source": "pretrain", "data": "letters", "image_size": 8, "patch_size": 4}
        | {"channels": 1, "dim": 16, "depth": 2, "heads": 2, "images": 200, "held_out": 50}
        | {"epochs": 1, "threads": 1}
    },
    "federation": {"clients": 6, "clients_per_round": 2, "rounds": 2, "evaluate_every": 2},
    # All pages are made by the smallest real experiment (tests/workflow/test_smoke.py).
    "tables": ["main"],
    "figures": ["progress", "partition"],
}


@pytest.fixture
def place(tmp_path, monkeypatch, forked):
    """An empty folder to work in, with the default config and a tiny one to lay over it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    monkeypatch.delenv("FEDSDG_STORE", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text(CONFIG.read_text())
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return tmp_path


def grid(*arguments) -> int:
    return main(["run", "--grid", "tiny.yaml", *arguments])


def records(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Path -> bytes and time of every file of the runs."""
    files = sorted(file for file in folder.glob("results/runs/**/*.*") if file.is_file())
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def statuses(folder: Path) -> dict[tuple[str, str, int], str]:
    rows = pq.read_table(folder / "results/summary/tiny/runs.parquet").to_pylist()
    return {(row["skew"], row["method"], row["seed"]): row["status"] for row in rows}


# --- What there is to do --------------------------------------------------------------------------


def config():
    return load_config([CONFIG], ["experiment=x", "seeds=[0, 1]", "methods=[fedprox, fedsdg]"])


def test_a_config_names_its_tables_and_figures_or_takes_the_usual():
    raw = yaml.safe_load(CONFIG.read_text())
    assert shown_pages(config()) == (tuple(raw.pop("tables")), tuple(raw.pop("figures")))
    assert shown_pages(parse_config(raw)) == (USUAL["tables"], USUAL["figures"])
    chosen = load_config([CONFIG], ["tables=[main, attacks, personal_steps]", "figures=[drift]"])
    assert shown_pages(chosen) == (("main", "attacks", "personal_steps"), ("drift",))
    require_pages(chosen)
    with pytest.raises(ValueError, match="no figure.* 'drfit'; did you mean 'drift'"):
        require_pages(load_config([CONFIG], ["figures=[drfit]"]))
    with pytest.raises(ValueError, match="no table.* 'first'"):
        require_pages(load_config([CONFIG], ["tables=[first]"]))


def test_the_first_seed_of_every_method_comes_first():
    runs = [(r.config.seed, r.config.method, r.config.skew) for r in grid_runs(config(), Path())]
    skews = ("dirichlet~0.1", "dirichlet~0.3", "dirichlet~1.0")
    assert runs == [(n, m, s) for n in (0, 1) for m in ("fedprox", "fedsdg") for s in skews]


def test_runs_lie_where_the_summary_looks_for_them():
    folders = {str(run.folder) for run in grid_runs(config(), Path())}
    assert folders == {f"results/runs/x/{folder}" for folder in config().run_folders()}


@pytest.mark.parametrize(
    ("only", "count"),
    [
        ([], 12),
        (["seed~1"], 6),
        (["fedsdg", "seed~1"], 3),
        (["fedsdg", "fedprox", "dirichlet~0.1"], 4),
        (["digits"], 12),
    ],
)
def test_only_names_what_is_run(only, count):
    runs = grid_runs(config(), Path(), only)
    assert len(runs) == count
    for run in runs:
        place = {run.config.dataset, run.config.skew, run.config.method, f"seed~{run.config.seed}"}
        kinds = [{"seed~0", "seed~1"}, {"fedsdg", "fedprox"}, set(config().skews), {"digits"}]
        for kind in kinds:
            assert not kind & set(only) or kind & set(only) & place


def test_a_word_that_names_nothing_is_an_error():
    with pytest.raises(ValueError, match="--only: 'fedsgd' names nothing .*mean 'fedsdg'"):
        grid_runs(config(), Path(), ["fedsgd"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "fedsdg"], "--method is for one run"),
        (["--only", "seed~7"], "'seed~7' names nothing"),
        (["--set", "training.devise=cuda"], "unknown key 'devise'"),
        (["--set", "rounds"], "write key=value"),
        (["--set", "backbone=none"], "'none' is not described"),
    ],
)
def test_bad_input_is_one_sentence(place, capsys, arguments, sentence):
    assert grid(*arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and sentence in error[0]
    assert not (place / "results").exists()


# --- Running it -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_parts_again_and_whole_it_ends_with_the_same_files(place, capsys):
    """Nothing at all, one seed, the rest, once more, and all at once elsewhere."""
    assert grid("--minutes", "0") == 0
    assert set(statuses(place).values()) == {"not run"}
    assert "8 runs of the grid were not run" in capsys.readouterr().err

    assert grid("--only", "seed~0", "--jobs", "2") == 0
    assert {key[2]: value for key, value in statuses(place).items()} == {0: "ok", 1: "not run"}
    assert not (place / "results/summary/tiny/verified.txt").exists()
    table = (place / "results/tables/tiny/main.md").read_text()
    assert ": 1 not run\n" in table
    first = records(place)

    assert grid() == 0
    assert set(statuses(place).values()) == {"ok"}
    assert (place / "results/summary/tiny/verified.txt").is_file()
    whole = records(place)
    assert {name: whole[name] for name in first} == first, "the first seed was not touched again"
    text = capsys.readouterr().err
    assert "tiny: 8 runs, 4 of them finished before" in text
    assert "[8/8] digits iid fedavg seed 1: ok" in text
    assert "digits iid fedavg seed 1: round 2/2 loss=" in text, "plain lines without a terminal"

    assert grid() == 0
    assert records(place) == whole, "nothing was left to do"

    (place / "elsewhere").mkdir()
    os.chdir(place / "elsewhere")
    assert main(["run", "--config", "../config/config.yaml", "--grid", "../tiny.yaml"]) == 0
    there = records(place / "elsewhere")
    timed = ("provenance.json", "timings.parquet", "SHA256SUMS")
    mine = {Path(k).relative_to(place): v[0] for k, v in whole.items() if not k.endswith(timed)}
    other = {
        Path(k).relative_to(place / "elsewhere"): v[0]
        for k, v in there.items()
        if not k.endswith(timed)
    }
    assert mine == other


@pytest.mark.slow
def test_what_has_changed_is_done_again_and_nothing_else(place, capsys):
    assert grid("--only", "iid") == 0
    before = records(place)
    assert grid("--only", "iid", "--set", "methods=[{type: fedsdg, lambda1: 0.5}, fedavg]") == 0
    after = records(place)
    changed = {name for name in before if before[name] != after[name]}
    assert changed and all("fedsdg" in name for name in changed)

    partition = place / "results/partitions/digits/clients~6/iid/seed~0.parquet"
    content = partition.read_bytes()
    partition.write_bytes(content[: len(content) // 2])
    backbone = place / "results/backbones/tiny.safetensors"
    weights = backbone.read_bytes()
    assert grid("--only", "iid", "--set", "partition.min_samples=13") == 0
    assert pq.read_table(partition).num_rows == 1797 and partition.read_bytes() != content
    assert backbone.read_bytes() == weights
    assert grid("--minutes=0", "--set", "backbones.tiny.seed=1") == 0
    assert backbone.read_bytes() != weights


@pytest.mark.slow
def test_what_has_changed_on_the_disk_or_is_of_other_libraries_is_not_finished(
    place, capsys, monkeypatch
):
    one = ["--only", "iid", "fedavg", "seed~0"]
    assert grid(*one) == 0
    before = records(place)
    file = place / "results/runs/tiny/digits/clients~6/iid/fedavg/seed~0/rounds.parquet"
    content = file.read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    file.write_bytes(damaged)
    assert main(["summarise", "--runs", "results/runs/tiny", "--output", "summary"]) == 2
    assert "rounds.parquet is damaged" in capsys.readouterr().err
    capsys.readouterr()
    assert grid(*one) == 0
    said = capsys.readouterr().err
    assert f"{file.relative_to(place)} has changed" in said and "; the run is made again" in said
    assert {name: was for name, (was, _) in records(place).items()} == {
        name: was for name, (was, _) in before.items()
    }, "it was taken from the store"

    libraries = {**store.libraries(), "torch": "0.0.1"}
    monkeypatch.setattr(store, "libraries", lambda: libraries)
    assert grid(*one, "--minutes", "0") == 0
    assert "1 runs, 0 of them finished before" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_alone_as_the_workflow_asks_for_them(place, capsys):
    """Fine-tuning first, a failed run is one for the summary, and what is done comes from the
    store: Snakemake removes the outputs of a job before it runs it."""
    methods = "fedavg, {type: fine-tune, personal_epochs: 1}"
    broken = f"methods=[{methods}, {{type: fedavg, name: broken, optimiser: sgd, eta_g: 1.0e+38}}]"
    settings = ["--set", broken, "training.clip_norm=1.0e+30", "skews=[iid]", "seeds=[0]"]
    assert grid("--runs-only", *settings) == 0
    said = re.findall(
        r"^tiny: \[(\d/3)\] digits iid (\S+) seed 0: (\w+)", capsys.readouterr().out, re.M
    )
    assert said == [
        ("1/3", "fine-tune", "ok"), ("2/3", "fedavg", "ok"), ("3/3", "broken", "FloatingPointError")
    ]  # fmt: skip
    assert not (place / "results/summary").exists()
    runs = place / "results/runs/tiny/digits/clients~6/iid"
    assert read_json(runs / "broken/seed~0/result.json")["status"] == "failed"
    done = (runs / "fedavg/seed~0/provenance.json").read_bytes()

    shutil.rmtree(place / "results/runs")
    changed = settings[1].replace("personal_epochs: 1", "personal_epochs: 2")
    assert grid("--runs-only", settings[0], changed, *settings[2:]) == 0
    assert (runs / "fedavg/seed~0/provenance.json").read_bytes() == done, "it was run again"
    tuned = read_json(runs / "fine-tune/seed~0/result.json")["config"]
    assert tuned["parameters"]["personal_epochs"] == 2


@pytest.mark.slow
def test_a_failed_run_is_a_row_and_is_named_at_the_end(place, capsys):
    """A rate that overflows; mended, it alone is run again."""
    broken = "methods=[fedsdg, {type: fedavg, optimiser: sgd, eta_g: 1.0e+38}]"
    settings = ["--set", broken, "training.clip_norm=1.0e+30", "skews=[iid]"]
    assert grid(*settings) == 1
    error = capsys.readouterr().err
    assert "2 run(s) failed" in error and "clients~6/iid/fedavg/seed~1: Floating" in error
    assert statuses(place)["iid", "fedavg", 0] == "failed"
    assert statuses(place)["iid", "fedsdg", 1] == "ok"
    assert (place / "results/figures/tiny/partition.png").is_file()
    assert not (place / "results/summary/tiny/verified.txt").exists()
    assert grid(*settings) == 1, "it is tried again, and fails again"
    assert "4 runs, 2 of them finished before" in capsys.readouterr().err
    settings[1] = "methods=[fedsdg, fedavg]"
    assert grid(*settings) == 0


@pytest.mark.slow
def test_data_that_cannot_be_had_are_one_sentence_with_both_ways_out(place, capsys, monkeypatch):
    monkeypatch.delenv("FEDSDG_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(place / "hub"))
    assert grid("--set", "datasets=[cifar100]") == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("fedsdg: error: ") and "check the network" in last
    assert "set FEDSDG_DATA to the folder above it" in last


@pytest.mark.slow
def test_one_step_without_data_and_network_says_both_ways_out_too(place, monkeypatch):
    """Every connection is refused, and the folder that is named lacks the data set."""
    (place / "data").mkdir()
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(place / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("FEDSDG_DATA", str(place / "data"))
    command = ["partition", "--dataset", "cifar100", "--skew", "iid", "--seed", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "fedsdg", *command, "--output", "shares.parquet"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("fedsdg: error: data set 'cifar100' could not be fetched from the hub")
    assert "check the network, or put its parquet files into a folder 'cifar100'" in last
    assert "set FEDSDG_DATA to the folder above it" in last
    assert not (place / "shares.parquet").exists()


@pytest.mark.slow
def test_a_device_that_is_not_there_is_one_sentence(place, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert grid("--set", "training.device=cuda") == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "training.device is cuda, but this machine has no CUDA device" in last


@pytest.mark.slow
def test_interrupted_it_goes_on_where_it_was(place):
    """Stopped in the middle of a run and, taken up again, killed in the middle of the same: what
    was finished stays, the rest follows, no crumbs."""
    settings = ["--set", "federation.rounds=60", "skews=[iid]"]
    runs = place / "results/runs/tiny/digits/clients~6/iid"
    first = runs / "fedsdg/seed~0/provenance.json"
    code, last = interrupted(place, settings, signal.SIGINT)
    assert code == 130
    assert last == (
        "fedsdg: stopped: 1 of 4 runs are finished, and the rounds that others had done are saved; "
        "the same command goes on from there"
    )
    done = first.read_bytes()
    interrupted(place, settings, signal.SIGKILL)
    assert grid(*settings) == 0
    assert first.read_bytes() == done, "it was run again"
    assert read_json(runs / "fedavg/seed~1/result.json")["status"] == "ok"


def interrupted(place, settings, number) -> tuple[int, str]:
    """Start a process of its own with the grid, and send it a signal in FedAvg's first run.

    Returns its exit code and its last line.
    """
    command = [sys.executable, "-m", "fedsdg", "run", "--grid", "tiny.yaml", *settings]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("digits iid fedavg seed 0: round"):
            break
    process.send_signal(number)
    rest = process.stderr.read().splitlines()
    assert process.wait(60) != 0
    store = place / ".fedsdg/runs"
    for _ in range(100):  # whoever worked for it may still be cleaning up
        if not list(store.glob(".*")):
            break
        time.sleep(0.1)
    assert not list(store.glob(".*")), "half a run is left in the store"
    return process.returncode, (rest or [""])[-1]
