"""A real SLURM on this machine alone, through which the workflow goes: ``make slurm-demo``.

Two nodes of one processor run config/smoke.yaml through profiles/slurm. A cell is cancelled while
it trains and goes on from its checkpoint in the next attempt; all records are those of a local run,
byte for byte. Every process that is started here ends with this one.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path("/etc/slurm")
"""Where SLURM's commands look, within jobs too; they get links into our folder."""
FILES = ("slurm.conf", "cgroup.conf")
SQUEUE = ("--slurm-status-command=squeue", "--slurm-init-seconds-before-status-checks=3")
CHANGES = "federation: {rounds: 20}\ncheckpoint_seconds: 0\n"
"""Rounds enough to cancel a run between two of them."""
CELLS = "results/runs/smoke/digits/clients~20/dirichlet~0.3"
CONFIGURATION = """\
ClusterName=demo
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
NodeName=demo[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[26818-26819] CPUs=1 RealMemory=8192
PartitionName=demo Nodes=demo1,demo2 Default=YES MaxTime=INFINITE
"""


def main() -> None:
    """Start SLURM, run, cancel a cell, compare, and clean up."""
    if os.geteuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))):
        sys.exit("slurm-demo needs root, and SLURM: apt-get install slurm-wlm munge")
    if any(os.path.lexists(PLACE / name) for name in FILES):
        sys.exit(f"slurm-demo leaves the files in {PLACE} alone; remove them or use that SLURM")
    folder = Path(tempfile.mkdtemp(prefix="fedsdg-slurm."))
    try:
        start(folder)
        running = workflow(folder, "slurm", f"--workflow-profile={ROOT}/profiles/slurm", *SQUEUE)
        cancel_cell(folder, running)
        end(folder, "slurm", running)
        end(folder, "local", workflow(folder, "local", "--cores=2", "runs"))
        compare(folder)
    finally:
        subprocess.run(["scancel", "--user=root"], check=False)
        for name in FILES:
            (PLACE / name).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def start(folder: Path) -> None:
    """Start munged, slurmctld and two slurmd, and wait for the nodes."""
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    (folder / "state").mkdir()
    host = os.uname().nodename.partition(".")[0]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=host))
    version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True).stdout.split()[-1]
    (folder / "cgroup.conf").write_text("" if version < "24.05" else "CgroupPlugin=disabled\n")
    for name in FILES:
        (PLACE / name).symlink_to(folder / name)
    kinds = ("socket", "key-file", "pid-file", "log-file", "seed-file")
    files = [f"--{kind}={folder}/munge.{kind.partition('-')[0]}" for kind in kinds]
    daemon(folder, "munged", "--foreground", "--force", *files)
    wait("munge", lambda: answers("munge", "--no-input", files[0]))
    daemon(folder, "slurmctld", "-D")
    daemon(folder, "slurmd", "-D", "-N", "demo1")
    daemon(folder, "slurmd", "-D", "-N", "demo2")
    wait("SLURM", lambda: answers("sinfo", "--noheader", "--format=%T") == "idle\n")


def daemon(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one."""
    with open(folder / "log.txt", "ab") as log:
        bound = ["setpriv", "--pdeathsig", "TERM", *command]
        return subprocess.Popen(bound, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def answers(*command: str) -> str:
    """Return what a command prints if it succeeds, else nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout


def wait(name: str, holds: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something holds, and give up after some time."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            sys.exit(f"slurm-demo failed: {name} does not answer")
        time.sleep(0.2)


def workflow(folder: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    """Begin the workflow in a folder of its own, with a store of its own."""
    profile = ROOT / "profiles" / ("slurm" if name == "slurm" else "default")
    (folder / name).mkdir()
    (folder / "changes.yaml").write_text(CHANGES)
    command = [
        "snakemake",
        f"--snakefile={ROOT}/workflow/Snakefile",
        f"--directory={folder / name}",
    ]
    command += [f"--workflow-profile={profile}", *options]
    files = [f"{ROOT}/config/smoke.yaml", f"{folder}/changes.yaml"]
    return daemon(folder, *command, "--configfile", *files)


def end(folder: Path, name: str, running: subprocess.Popen[bytes]) -> None:
    """Wait for a workflow; fail if it failed."""
    if running.wait():
        sys.exit(f"{(folder / 'log.txt').read_text()[-5000:]}\nslurm-demo failed: {name}")
    print(f"the workflow has run: {name}", flush=True)


def cancel_cell(folder: Path, running: subprocess.Popen[bytes]) -> None:
    """Cancel the jobs that train as soon as one of them has saved its state."""
    checkpoints = folder / "slurm/.fedsdg/checkpoints"
    while running.poll() is None and not [*checkpoints.glob("*/round~*")]:
        time.sleep(0.1)
    for job in answers("squeue", "--noheader", "--states=running", "--format=%i").split():
        subprocess.run(["scancel", job], check=True)
        print(f"cancelled job {job} while it trains", flush=True)


def compare(folder: Path) -> None:
    """Fail unless a cell went on from its checkpoint and all records are the local run's."""
    records = ("rounds.parquet", "clients.parquet", "result.json")
    cells = [cell / "seed~0" for cell in (folder / "local" / CELLS).iterdir()]
    for name, cell in itertools.product(records, cells):
        other = folder / "slurm" / cell.relative_to(folder / "local")
        if (cell / name).read_bytes() != (other / name).read_bytes():
            sys.exit(f"slurm-demo failed: {other / name} is not that of the local run")
    facts = (folder / "slurm" / CELLS).glob("*/seed~0/provenance.json")
    resumed = [json.loads(file.read_text())["resumed_after"] for file in facts]
    if not any(resumed):
        sys.exit("slurm-demo failed: no cell went on from its checkpoint")
    print(f"resumed after rounds {resumed}; all records are those of the local run")


if __name__ == "__main__":
    main()
