"""The profiles: each plans the whole grid, and two jobs never share a GPU."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WHOLE_GRID = {
    "partition_clients": 15,
    "pretrain_backbone": 1,
    "train_cell": 39,
    "summarise_runs": 1,
    "render_table": 10,
    "plot_figure": 9,
    "write_claims": 1,
    "verify_runs": 1,
}
CUDA = ("--config", "training={device: cuda}")


def plan(project, profile, *arguments):
    return project.planned("--workflow-profile", f"profiles/{profile}", *arguments)


def effective_config(project):
    (file,) = (project.folder / ".fedsdg/config").iterdir()
    return yaml.safe_load(file.read_text())


def test_the_profile_for_gpus_plans_the_whole_grid(project):
    """As does the default one, which Snakemake takes by itself (test_grid.py)."""
    assert plan(project, "gpu") == WHOLE_GRID
    assert effective_config(project)["training"]["device"] == "cuda"


def test_the_profile_for_slurm_plans_the_whole_grid(project):
    """Without SLURM's plugin all of it is read but the name of the executor."""
    there = importlib.util.find_spec("snakemake_executor_plugin_slurm") is not None
    executor = [] if there else ["--executor", "local"]
    assert plan(project, "slurm", *executor) == WHOLE_GRID
    assert effective_config(project)["training"]["device"] == "cpu"


# Stands in for training: takes a device as training does, and notes when it had it.
TRAIN = """#!{python}
import json, os, subprocess, sys, time
sys.path.insert(0, {root!r})
from fedsdg.experiment.machine.devices import take_device
if sys.argv[1] == "train":
    take_device()
    began = time.time()
    time.sleep(0.5)
    device = os.environ.get("CUDA_VISIBLE_DEVICES")
    with open("devices.jsonl", "a") as file:
        file.write(json.dumps([device, began, time.time()]) + "\\n")
sys.exit(subprocess.call([{stand_in!r}, *sys.argv[1:]]))
"""
SIX_CELLS = "skews: [iid]\nseeds: [0]\nmethods: [fedsdg, fedavg, scaffold, krum, cgsv, fedprox]\n"


@pytest.fixture
def on_devices(check_out, stand_in, tmp_path):
    """Train six cells with a profile; gives (device, began, ended) of each."""
    text = TRAIN.format(python=sys.executable, root=str(ROOT), stand_in=str(stand_in / "fedsdg"))
    project = check_out(tmp_path / "project", text)
    (project.folder / "six.yaml").write_text(SIX_CELLS)

    def train(*arguments, **environment):
        done = project.snakemake(
            "runs",
            "--cores=4",
            "--configfile=six.yaml",
            *arguments,
            TMPDIR=str(tmp_path),
            **environment,
        )
        assert done.returncode == 0, done.stdout
        lines = (project.folder / "devices.jsonl").read_text().splitlines()
        assert len(lines) == 6
        return [json.loads(line) for line in lines]

    return train


def most_at_once(spans):
    """The largest number of spans (began, ended) that share a moment."""
    events = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    level = highest = 0
    for _, step in events:
        level += step
        highest = max(highest, level)
    return highest


@pytest.mark.slow
def test_two_gpus_train_two_cells_at_once_and_neither_two(on_devices):
    spans = on_devices(
        "--workflow-profile=profiles/gpu", "--resources", "gpu=2", FEDSDG_DEVICES="0,1"
    )
    assert {device for device, *_ in spans} == {"0", "1"}
    for one in ("0", "1"):
        assert most_at_once([span for device, *span in spans if device == one]) == 1
    assert most_at_once([span for _, *span in spans]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["gpu", "default"])
def test_one_gpu_trains_one_cell_at_a_time(on_devices, profile):
    cuda = CUDA if profile == "default" else ()
    spans = on_devices(f"--workflow-profile=profiles/{profile}", *cuda, CUDA_VISIBLE_DEVICES="")
    assert most_at_once([span for _, *span in spans]) == 1


@pytest.mark.slow
def test_cells_on_the_cpu_share_the_cores(on_devices):
    spans = on_devices()
    assert most_at_once([span for _, *span in spans]) >= 2
