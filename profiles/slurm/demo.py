"""A real SLURM on this machine alone, through which the pipeline goes: `make slurm-demo`.

Two nodes of one processor each run config/smoke.yaml through profiles/slurm. A cell is cancelled
while it trains and goes on from its checkpoint in the next attempt; all records are those of a
local run, byte for byte. Whatever happens, every process that is started here ends and every file
that is written here goes; installed packages stay.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
#: Where SLURM's commands look, within jobs too; what is written there are links into our folder.
PLACE = Path("/etc/slurm")
FILES = ("slurm.conf", "cgroup.conf")
FOLDERS = "fedsdg-slurm."
#: Rounds enough to cancel a run between two of them, and a checkpoint after each.
CHANGES = """\
federation: {rounds: 20}
checkpoint_seconds: 0
"""
CELLS = "results/runs/smoke/digits/clients~20/dirichlet~0.3"
CANCELLED = "fedsdg"
RECORDS = ("rounds.parquet", "clients.parquet", "result.json")

CONFIGURATION = """\
ClusterName=demo
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
NodeName=demo1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=8192
NodeName=demo2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=8192
PartitionName=demo Nodes=demo1,demo2 Default=YES MaxTime=INFINITE
"""


def main() -> None:
    """Install, start, run, compare and clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    _require_the_means()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
    try:
        os.chdir(folder)
        folder.chmod(0o755)
        (folder / "demo.pid").write_text(str(os.getpid()))
        if not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))):
            _install(folder)
        _start(folder)
        _run_and_cancel(folder)
        _run(folder, "local", "profiles/default", "--cores", "2", "runs")
        _compare(folder)
        print(f"slurm-demo passed in {time.monotonic() - began:.0f} seconds")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _cancel_all()
        _clean_up(folder)


def _stop(number: int, _: object) -> None:
    sys.exit(128 + number)


# --- What it needs, and what it leaves --------------------------------------------------------


def _require_the_means() -> None:
    """Refuse in one sentence, before anything is written."""
    if os.geteuid():
        sys.exit("slurm-demo starts SLURM, which only root can do: sudo make slurm-demo")
    if not all(map(shutil.which, ("apt-get", "setpriv"))):
        sys.exit("slurm-demo installs SLURM with apt-get, which is not here: use Debian or Ubuntu")
    if not all(map(shutil.which, ("snakemake", "fedsdg"))):
        sys.exit("slurm-demo needs snakemake and fedsdg on the search path: make slurm-demo")
    for place in (PLACE / name for name in FILES):
        earlier = place.parent / os.readlink(place) if place.is_symlink() else place
        if earlier.parent.name.startswith(FOLDERS):
            running = _earlier(earlier.parent)
            if running:
                sys.exit(f"slurm-demo is running already, as process {running}: wait for its end")
            _clean_up(earlier.parent)
        elif os.path.lexists(place):
            sys.exit(
                f"slurm-demo leaves {place} alone, which is there already: use that SLURM instead, "
                "snakemake --workflow-profile profiles/slurm"
            )


def _earlier(folder: Path) -> str | None:
    """The process that works in the folder of a demo, if it was not killed."""
    with contextlib.suppress(OSError):
        process = (folder / "demo.pid").read_text()
        if os.readlink(f"/proc/{process}/cwd") == str(folder):
            return process
    return None


def _clean_up(folder: Path) -> None:
    """End all processes of a demo but this one, and remove what it wrote."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _processes(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        _within(10, lambda: not list(_processes(folder)))
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    for name in FILES:
        if (PLACE / name).is_symlink() and os.readlink(PLACE / name) == str(folder / name):
            (PLACE / name).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: Path) -> Iterator[int]:
    """Daemons, jobs and workflows of a demo: they, and no others, work in its folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            place = Path(os.readlink(entry / "cwd"))
            alive = (entry / "cmdline").read_bytes()
            if alive and place.is_relative_to(folder) and int(entry.name) != os.getpid():
                yield int(entry.name)


# --- SLURM ------------------------------------------------------------------------------------


def _install(folder: Path) -> None:
    print("Installing slurm-wlm and munge", flush=True)
    # Debian starts a service when it is installed, which would stay behind; this file forbids it.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        with open(folder / "apt.log", "wb") as log:
            for command in ("update", "install --yes --no-install-recommends slurm-wlm munge"):
                done = subprocess.run(
                    ["apt-get", *command.split()],
                    env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
    finally:
        if ours:
            policy.unlink()
    if done.returncode:
        sys.exit(f"slurm-wlm and munge could not be installed: {_last_line(folder / 'apt.log')}")


def _start(folder: Path) -> None:
    """Start munged, slurmctld and both slurmd, and wait for the nodes."""
    version = _output("slurmctld", "-V").split()[-1]
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    (folder / "state").mkdir()
    host = socket.gethostname().partition(".")[0]
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    text = CONFIGURATION.format(folder=folder, host=host, ports=ports)
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("" if version < "24.05" else "CgroupPlugin=disabled\n")
    for name in FILES:
        (PLACE / name).symlink_to(folder / name)
    names = ("socket", "key", "pid", "log", "seed")
    options = ("socket", "key-file", "pid-file", "log-file", "seed-file")
    files = [f"--{o}={folder}/munge.{n}" for o, n in zip(options, names, strict=True)]
    _daemon(folder, "munged", "--foreground", "--force", *files)
    if not _within(20, lambda: _answers("munge", "--no-input", files[0])):
        sys.exit(f"munge does not run: {_last_line(folder / 'munge.log')}")
    _daemon(folder, "slurmctld", "-D")
    _daemon(folder, "slurmd", "-D", "-N", "demo1")
    _daemon(folder, "slurmd", "-D", "-N", "demo2")
    states = ("sinfo", "--noheader", "--Node", "--format=%T")
    if not _within(60, lambda: _output(*states).split() == ["idle", "idle"]):
        logs = [f"{name}: {_last_line(folder / f'{name}.log')}" for name in ("slurmctld", "demo1")]
        sys.exit(f"SLURM does not come up: {'; '.join(logs)}")
    print(f"SLURM {version} runs with two nodes of one processor each", flush=True)


def _daemon(folder: Path, name: str, *options: str) -> None:
    """Start a process that ends with this one, even if this one is killed."""
    with open(folder / "daemons.log", "ab") as log:
        subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", name, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _cancel_all() -> None:
    """End all jobs before SLURM ends, for it would leave them behind."""
    if os.path.lexists(PLACE / FILES[0]) and _answers("scancel", "--user=root"):
        running = ("squeue", "--noheader", "--states=running,completing")
        _within(40, lambda: not _output(*running).strip())


# --- The pipeline -----------------------------------------------------------------------------


def _workflow(folder: Path, name: str, profile: str, *options: str) -> subprocess.Popen[bytes]:
    """Begin the pipeline in a folder of its own, with a store of its own."""
    (folder / name).mkdir()
    (folder / "changes.yaml").write_text(CHANGES)
    command = ["setpriv", "--pdeathsig", "TERM", "snakemake", f"--snakefile={ROOT}/Snakefile"]
    command += [f"--directory={folder / name}", f"--workflow-profile={ROOT / profile}"]
    command += [*options, "--configfile", f"{ROOT}/config/smoke.yaml", f"{folder}/changes.yaml"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FEDSDG_", "SLURM_"))}
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            command, env=kept, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def _end(folder: Path, name: str, running: subprocess.Popen[bytes]) -> None:
    if running.wait():
        print((folder / f"{name}.log").read_text()[-5000:], file=sys.stderr)
        sys.exit(f"slurm-demo failed: the pipeline ended with an error ({name}), as said above")


def _run(folder: Path, name: str, *arguments: str) -> None:
    began = time.monotonic()
    _end(folder, name, _workflow(folder, name, *arguments))
    print(f"The pipeline has run ({name}): {time.monotonic() - began:.0f} seconds", flush=True)


def _run_and_cancel(folder: Path) -> None:
    began = time.monotonic()
    squeue = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "3")
    running = _workflow(folder, "slurm", "profiles/slurm", *squeue)
    jobs = ("squeue", "--noheader", "--states=running", "--format=%i %k")
    while not _has_checkpoint(folder) and running.poll() is None:
        time.sleep(0.1)
    for job, rule in (line.split() for line in _output(*jobs).splitlines()):
        if rule.startswith("rule_train_cell") and rule.endswith(f"_{CANCELLED}"):
            subprocess.run(["scancel", job], check=True)
            print(f"Cancelled the cell of {CANCELLED} while it trains, job {job}", flush=True)
    _end(folder, "slurm", running)
    print(f"The pipeline has run (slurm): {time.monotonic() - began:.0f} seconds", flush=True)


def _has_checkpoint(folder: Path) -> bool:
    for file in (folder / "slurm/.fedsdg/checkpoints").glob("*/round~*"):
        with contextlib.suppress(FileNotFoundError):  # Newer checkpoints took its place.
            facts = json.loads(torch.load(file, weights_only=True)["facts"])
            if facts["made_for"]["config"]["method"] == CANCELLED:
                return True
    return False


def _compare(folder: Path) -> None:
    """Fail unless the cell went on from its checkpoint and all records are the local run's."""
    cells = [cell.name for cell in (folder / "local" / CELLS).iterdir()]
    for cell, name in itertools.product(cells, RECORDS):
        ours, theirs = (folder / run / CELLS / cell / "seed~0" / name for run in ("slurm", "local"))
        if ours.read_bytes() != theirs.read_bytes():
            sys.exit(f"slurm-demo failed: {name} of {cell} is not that of the local run")
    origin = folder / "slurm" / CELLS / CANCELLED / "seed~0/provenance.json"
    resumed = json.loads(origin.read_text())["resumed_after"]
    if not resumed:
        sys.exit(f"slurm-demo failed: {CANCELLED} did not go on from its checkpoint")
    print(f"{CANCELLED} went on after round {resumed[0]}; all records are those of the local run")


# --- Small things -----------------------------------------------------------------------------


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not (met := holds()) and time.monotonic() < until:
        time.sleep(0.2)
    return met


def _answers(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _last_line(file: Path) -> str:
    lines = file.read_text().splitlines() if file.exists() else []
    return lines[-1] if lines else f"{file.name} says nothing"


if __name__ == "__main__":
    main()
