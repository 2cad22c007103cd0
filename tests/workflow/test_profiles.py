"""The profiles: each plans the whole grid, and two jobs never share a GPU."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WHOLE_GRID = {
    "partition_clients": 3,
    "pretrain_backbone": 1,
    "train_cell": 39,
    "summarise_runs": 1,
    "render": 1,
    "verify_runs": 1,
}
needs_plugin = pytest.mark.skipif(
    importlib.util.find_spec("snakemake_executor_plugin_slurm") is None,
    reason="snakemake-executor-plugin-slurm is not installed: make environment",
)
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


@needs_plugin
def test_the_profile_for_slurm_plans_the_whole_grid(project):
    assert plan(project, "slurm") == WHOLE_GRID
    assert effective_config(project)["training"]["device"] == "cpu"


# Stands in for SLURM: `sbatch` notes what a job asks for, and takes none.
SBATCH = """#!{python} -SE
import json, sys
asked = {{name: sys.argv[sys.argv.index(f"--{{name}}") + 1] for name in ("comment", "mem")}}
asked["minutes"] = sys.argv[sys.argv.index("-t") + 1]
asked |= dict(word[2:].split("=") for word in sys.argv if word.startswith(("--ntasks=", "--cpus")))
with open("asked.jsonl", "a") as file:
    file.write(json.dumps(asked) + "\\n")
sys.exit("sbatch: error: the queue is closed")
"""
SINFO = """#!/bin/sh
[ -z "$SAYS" ] || {{ echo "$SAYS" >&2; exit 1; }}
"""


@pytest.fixture
def slurm(tmp_path):
    """The search path with a SLURM that takes no jobs."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    nothing = "#!/bin/sh\nexit 1\n"
    scripts = {"sbatch": SBATCH, "sinfo": SINFO, "sacct": nothing, "scontrol": nothing}
    for name, text in scripts.items():
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(0o755)
    return folder


def submit(project, slurm, *arguments, **environment):
    path = os.pathsep.join(map(str, (slurm, project.commands, os.environ["PATH"])))
    profile = ("--workflow-profile=profiles/slurm", "--retries=0", "--latency-wait=1")
    profile += ("--slurm-init-seconds-before-status-checks=1",)
    return project.snakemake(*profile, *arguments, **{"PATH": path, **environment})


@needs_plugin
@pytest.mark.slow
def test_a_bundle_asks_for_what_one_job_needs(project, slurm):
    """15 partitions asked for 15 processors and 30 GB."""
    submit(project, slurm, "--until", "partition_clients")
    (asked,) = (project.folder / "asked.jsonl").read_text().splitlines()
    alone = {"ntasks": "1", "cpus-per-task": "1", "mem": "2048"}
    bundle = {"comment": "rule_partitions_partition_clients", "minutes": "30"}
    assert json.loads(asked) == {**bundle, **alone}


@needs_plugin
@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        (
            "sinfo: error: If munged is up, restart with --num-threads=10",
            "SLURM needs munge, which does not run here: start it (service munge start)",
        ),
        (
            "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
            "SLURM does not answer (slurm_load_partitions: Unable to contact slurm controller "
            "(connect failure)): start slurmctld, and see that this machine has its slurm.conf",
        ),
    ],
)
def test_where_slurm_does_not_answer_nothing_begins(says, sentence, project, slurm):
    """The executor tried each job again and again, and then waited for ever."""
    done = submit(project, slurm, SAYS=says)
    assert done.returncode == 1 and sentence in done.stdout
    assert not (project.folder / "asked.jsonl").exists()


@needs_plugin
@pytest.mark.slow
def test_without_slurm_nothing_begins(project, tmp_path):
    """It is hidden by a search path of a few commands."""
    few = tmp_path / "few"
    few.mkdir()
    for name in ("bash", "sh", "which"):
        (few / name).symlink_to(shutil.which(name))
    path = os.pathsep.join(map(str, (project.commands, few)))
    done = project.snakemake("--workflow-profile=profiles/slurm", PATH=path)
    assert done.returncode == 1
    assert "needs SLURM, but there is no command sbatch: call it on a node from" in done.stdout


# Stands in for training: takes a device as training does, and notes when it had it.
TRAIN = """#!{python}
import json, os, subprocess, sys, time
sys.path.insert(0, {root!r})
from fedsdg.experiment.machine.devices import take_device
if sys.argv[1] == "run":
    take_device()
    began = time.time()
    time.sleep(0.5)
    device = os.environ.get("CUDA_VISIBLE_DEVICES")
    with open("devices.jsonl", "a") as file:
        file.write(json.dumps([device, began, time.time()]) + "\\n")
sys.exit(subprocess.call([{stand_in!r}, *sys.argv[1:]]))
"""
CELLS = "skews: [iid]\nseeds: [0]\nmethods: [fedsdg, fedavg, scaffold, krum]\n"


@pytest.fixture
def on_devices(check_out, stand_in, tmp_path):
    """Train four cells with a profile; gives (device, began, ended) of each."""
    text = TRAIN.format(python=sys.executable, root=str(ROOT), stand_in=str(stand_in / "fedsdg"))
    project = check_out(tmp_path / "project", text)
    (project.folder / "cells.yaml").write_text(CELLS)

    def train(*arguments, **environment):
        done = project.snakemake(
            "runs",
            "--cores=4",
            "--configfile=cells.yaml",
            *arguments,
            TMPDIR=str(tmp_path),
            **environment,
        )
        assert done.returncode == 0, done.stdout
        lines = (project.folder / "devices.jsonl").read_text().splitlines()
        assert len(lines) == 4
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
    spans = on_devices("--jobs=4")  # With --jobs a cell is a job.
    assert most_at_once([span for _, *span in spans]) >= 2
