"""The command: one program under two names, lazy, and one clear sentence for every bad input."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from fedsdg.cli import main
from fedsdg.files.places import RUN_FILES
from tests.suited import facts_of

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


def run_command(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_module_and_console_script_are_the_same_command():
    module = run_command(sys.executable, "-m", "fedsdg", "methods")
    assert module.returncode == 0 and "fedsdg" in module.stdout
    script = shutil.which("fedsdg", path=str(Path(sys.executable).parent))
    if script is None:
        pytest.skip("the package is not installed, only importable")
    assert run_command(script, "methods").stdout == module.stdout
    for name in ([script], [sys.executable, "-m", "fedsdg"]):
        assert run_command(*name, "--version").stdout == run_command(script, "--version").stdout


def test_check_counts_the_grid(capsys):
    assert main(["check", "--config", str(CONFIG)]) == 0
    assert "13 methods x 1 data sets x 3 skews x 5 seeds = 195 runs" in capsys.readouterr().out


BACKBONE = Path("results/backbones/letters.safetensors")


def write_small(folder, raw):
    """Write a config, and a tiny backbone where it would have it."""
    import torch

    from fedsdg.models import Architecture, build_backbone, save_backbone

    (folder / "config.yaml").write_text(yaml.safe_dump(raw))
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    recipe = {k: v for k, v in raw["backbones"]["letters"].items() if k != "source"}
    save_backbone(build_backbone(architecture), architecture, folder / BACKBONE, facts_of(recipe))
    return folder / "config.yaml"


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The config of a small grid, with its backbone."""
    monkeypatch.chdir(tmp_path)
    raw = yaml.safe_load(CONFIG.read_text())
    raw |= {"experiment": "small", "seeds": [0], "skews": ["dirichlet~1.0"]}
    raw["methods"] = ["fedsdg", "fedavg"]
    raw["federation"] |= {"clients": 6, "clients_per_round": 2, "rounds": 2}
    return write_small(tmp_path, raw)


def test_a_run_alone_prints_and_records(small, capsys):
    assert main(["run", "--config", str(small), "--method", "fedavg"]) == 0
    printed = capsys.readouterr()
    *metrics, where, more = printed.out.splitlines()
    folder = "results/runs/small/digits/clients~6/dirichlet~1.0/fedavg/seed~0"
    assert {file.name for file in Path(folder).iterdir()} == {*RUN_FILES}
    result = json.loads(Path(folder, "result.json").read_text())
    assert result["status"] == "ok" and result["method"] == "fedavg"
    provenance = json.loads(Path(folder, "provenance.json").read_text())
    assert provenance["threads"] == 1 and provenance["peak_rss_mb"] > 10
    assert any(line.startswith("personal_accuracy") for line in metrics)
    assert where == f"records in {folder}"
    assert more.endswith("fedsdg run --grid smoke")
    assert "round 2/2 loss=" in printed.err, "plain lines where there is no terminal"


def test_a_truncated_backbone_is_one_sentence_and_no_records(small, capsys):
    BACKBONE.write_bytes(BACKBONE.read_bytes()[:100])
    code = main(["run", "--config", str(small), "--method", "fedsdg", "--output", "out"])
    assert code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("fedsdg: error: ") and "letters.safetensors" in error
    assert not Path("out").exists()


def test_a_backbone_of_another_recipe_is_refused_with_the_command_that_makes_it(small, capsys):
    other = ["--config", str(small), "--set", "backbones.letters.seed=7"]
    assert main(["run", *other, "--method", "fedavg", "--output", "out"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"backbone {BACKBONE} was made by another recipe than backbones.letters" in sentence
    assert f"'fedsdg pretrain --backbone letters --output {BACKBONE}'" in sentence
    assert not Path("out").exists()


def test_nan_makes_run_alone_exit_with_one(small, capsys):
    """A rate so high that the loss overflows: the run fails and says which client, and why."""
    raw = yaml.safe_load(small.read_text())
    raw["methods"] = [{"type": "fedavg", "optimiser": "sgd", "eta_g": 1e38}]
    raw["training"] |= {"clip_norm": 1e30, "kernel": "torch"}
    small.write_text(yaml.safe_dump(raw))
    code = main(["run", "--config", str(small), "--method", "fedavg", "--output", "out"])
    assert code == 1
    assert "not finite" in capsys.readouterr().err
    assert json.loads(Path("out/result.json").read_text())["status"] == "failed"


@pytest.mark.slow
def test_mnist_through_the_same_door(tmp_path, monkeypatch):
    """K = 50, α = 0.1: images of another size and kind reach the digits backbone."""
    if not os.environ.get("FEDSDG_DATA"):
        pytest.skip("FEDSDG_DATA names no folder with data sets")
    raw = yaml.safe_load(CONFIG.read_text())
    raw |= {"experiment": "mnist", "datasets": ["mnist"], "seeds": [0], "skews": ["dirichlet~0.1"]}
    raw["federation"] |= {"clients": 50, "clients_per_round": 5, "rounds": 1}
    raw["training"] |= {"epochs": 1, "batch_size": 64}
    monkeypatch.chdir(tmp_path)
    command = ["run", "--config", str(write_small(tmp_path, raw)), "--method", "fedsdg"]
    assert main([*command, "--output", "out"]) == 0
    result = json.loads(Path("out/result.json").read_text())
    assert result["dataset"] == "mnist" and result["clients"] == 50
    clients = pq.read_table("out/clients.parquet").to_pydict()
    assert len(clients["client"]) == 50
    held = sum(clients["n_train"]) + sum(clients["n_val"]) + sum(clients["n_test"])
    assert held == 60_000, "the official training set is what clients share"
    loss = pq.read_table("out/rounds.parquet").to_pydict()["train_loss"][0]
    assert loss < 2.2, "one epoch on skewed shards is better than guessing among ten, ln 10 = 2.30"


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("run", {"methods": "local-only"}),
        ("check", {"attacks": "label-flip", "keys of conditions": "benchmark_images"}),
        ("aggregate", {"rules": "trimmed-mean"}),
        ("render", {"tables": "main"}),
    ],
)
def test_the_help_of_a_command_names_what_the_package_has(command, named, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = dict(
        line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line
    )
    for what, name in named.items():
        assert name in lines[what].split(", ")
    assert "clustered" not in lines.get("rules", ""), "it needs more than one model's updates"


def test_a_reader_that_has_gone_ends_a_command_without_a_word():
    """As in ``fedsdg methods | head -0``; the reader has closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "fedsdg", "methods"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_broken_pipe_to_a_process_is_an_error_with_a_sentence(monkeypatch, capsys):
    def broken(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("fedsdg.experiment.grid.run_grid", broken)
    assert main(["run", "--grid", "smoke"]) == 2
    assert capsys.readouterr().err == "fedsdg: error: [Errno 32] Broken pipe\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_standard_output_is_named():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fedsdg", "methods"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert "error: standard output cannot be written to (No space left on device)" in sentence
