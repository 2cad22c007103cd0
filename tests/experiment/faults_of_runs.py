"""A program for the fault test: a grid in real processes, killed, and a run on a full disk.

It imports once and forks for every attempt, so that twenty kills take a minute or two. Arguments: a
folder, and how many kills. What it found is printed as JSON.
"""

import builtins
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import matplotlib.pyplot  # noqa: F401
import yaml

import fedsdg.analysis.render  # noqa: F401
from fedsdg.cli import main
from fedsdg.experiment import resuming
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.machine import processes
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.reach import source_hash
from fedsdg.experiment.runs import execute
from fedsdg.federation import bank, checkpoints, prefixes
from fedsdg.models.backbones import load_backbone

SKEW = "dirichlet~1.0"
#: FedSDG has a private bank, SCAFFOLD one of control variates and state of the server, Ditto models
#: of clients' own, CGSV a state of the server alone.
METHODS = ["fedsdg", "scaffold", "ditto", "cgsv"]
RECORDS = ("rounds.parquet", "clients.parquet", "result.json")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: What a process is doing when it is killed; "anything": whatever it is doing after a random time.
MOMENTS = ("anything", "anything", "a new file", "a growing file", "after a renewal")
CHECKPOINT_SECONDS = 0.2

place, kills = Path(sys.argv[1]), int(sys.argv[2])
raw = yaml.safe_load((Path(__file__).parents[2] / "config/config.yaml").read_text())
raw["federation"] |= {"clients": 7, "clients_per_round": 3, "rounds": 24, "evaluate_every": 6}
raw["training"] |= {"epochs": 1, "batch_size": 64}
raw["adapters"] |= {"rank": 2, "alpha": 4}
raw["backbones"]["letters"] |= {"dim": 8, "depth": 1, "heads": 2, "images": 200, "epochs": 1}
raw["backbones"]["letters"] |= {"held_out": 50, "batch_size": 64}
raw |= {"experiment": "killed", "skews": [SKEW], "seeds": [0], "methods": METHODS}
raw |= {"tables": ["main"], "figures": ["progress"], "checkpoint_seconds": CHECKPOINT_SECONDS}
del raw["search"]
config = parse_config(raw)
# Reading the code for its hash takes as long as many rounds; once here, as the imports are, else
# most kills would come before the first round.
for method in config.methods:
    source_hash(config.run("digits", SKEW, method, 0))


class Forks:
    """What a grid starts anew is started by a fork; what happens at a signal is the same.

    As with a new interpreter, a process holds its own end of its own pipe alone: it would never
    see that the other end was closed.
    """

    def __init__(self):
        self.context, self.ours = multiprocessing.get_context("fork"), []

    def Pipe(self):
        ours, theirs = self.context.Pipe()
        self.ours.append(ours)
        return ours, theirs

    def Process(self, target, args, daemon):
        def begin(*arguments):
            for end in self.ours:
                end.close()
            target(*arguments)

        return self.context.Process(target=begin, args=args, daemon=daemon)


processes.get_context = lambda _: Forks()


def grid(name, *, slowly=False):
    """Fork a process that does the grid in ``place / name``; (process, the end of a pipe that is
    open for as long as it or a process that it has started lives)."""
    folder = place / name
    if not folder.is_dir():
        (folder / "config").mkdir(parents=True)
        (folder / "config/config.yaml").write_text(yaml.safe_dump(raw))
        if (place / "undisturbed").is_dir() and name != "undisturbed":
            for made in ("backbones", "partitions"):
                shutil.copytree(place / "undisturbed/results" / made, folder / "results" / made)
    ours, theirs = os.pipe()
    if process := os.fork():
        os.close(theirs)
        os.setpgid(process, process)  # Here and there: whoever comes first.
        return process, ours
    status = 70
    try:
        os.close(ours)
        os.setpgid(0, 0)
        os.chdir(folder)
        with open("log", "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if name != "undisturbed":
            bank.MEMORY_LIMIT = 0  # what clients keep lies in a file; undisturbed, in memory
        if slowly:
            checkpoints.open = prefixes.open = slow_open
            resuming.step_together = slow_step  # Or a fast machine would keep few checkpoints.
        status = main(["run", "--grid", "config/config.yaml"])
    except KeyboardInterrupt:  # before the command was called, or after
        status = 128 + signal.SIGINT
    finally:
        os._exit(status)


def alone(name, *, seconds=0.0, limit=None):
    """Fork a process that does one run of FedSDG into ``place / name``, its store beside it."""
    if process := os.fork():
        return process
    status = 70
    try:
        with open(place / f"{name}.log", "a") as log:
            os.dup2(log.fileno(), 2)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        failure = execute(
            config.run("digits", SKEW, config.methods[0], 0), material, partition,
            place / name / "out", store=place / name / "runs", identity={},
            checkpoint_seconds=seconds,
        )  # fmt: skip
        status = 1 if failure else 0
    finally:
        os._exit(status)


def wait(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def wait_for_all(end):
    """Until nobody holds the other end of the pipe."""
    os.read(end, 1)
    os.close(end)


class InPieces:
    """A file whose contents arrive in three pieces."""

    def __init__(self, stream):
        self.stream, self.flush, self.fileno = stream, stream.flush, stream.fileno
        self.read, self.tell, self.seek, self.truncate = (
            stream.read, stream.tell, stream.seek, stream.truncate,
        )  # fmt: skip

    def write(self, content):
        size = max(1, -(-len(content) // 3))
        for begin in range(0, len(content), size):
            self.stream.write(content[begin : begin + size])
            self.stream.flush()
            time.sleep(0.002)


def slow_step(*arguments, step=resuming.step_together):
    time.sleep(0.05)
    return step(*arguments)


@contextlib.contextmanager
def slow_open(file, mode):
    with builtins.open(file, mode) as stream:
        yield InPieces(stream)


def manifests(folder):
    """Rounds of the checkpoints of each run on the disk, and what is being written: "a new file",
    "a growing file" (longer than any manifest says), "after a renewal" of the bank's file."""
    rounds, doing = {}, set()
    for run in (folder / "checkpoints").glob("*"):
        known, found = {}, []
        with contextlib.suppress(FileNotFoundError):  # its run is stored just now
            files = list(run.iterdir())
            for file in files:
                if file.name.startswith("round~") and file.name.endswith(".json"):
                    found.append(int(file.name[6:-5]))
                    for part in json.loads(file.read_bytes())["parts"].values():
                        known[part["file"]] = max(part["bytes"], known.get(part["file"], 0))
            for file in files:
                if file.name.startswith("."):
                    doing.add("a new file")
                elif file.name.endswith(".frames") and file.stat().st_size > known.get(
                    file.name, 0
                ):
                    doing.add("a growing file")
                if file.name.startswith("bank~") and file.name != "bank~1.frames":
                    doing.add("after a renewal")
        rounds[run.name] = sorted(found)
    return rounds, doing


def pages(folder):
    """What a grid leaves that holds no time: records, tables, figures and claims."""
    kept = ("tables", "figures", "claims", "runs")
    files = [f for kind in kept for f in sorted((folder / "results" / kind).rglob("*"))]
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if file.is_file()
        # What was being written at a SIGKILL stays under a hidden name.
        and not file.name.startswith(".")
        and (file.name in RECORDS or "runs" not in file.parts)
    }


def killed(name, number, moment):
    """Kill the grid at a moment; "killed", "finished" before, or "missed" the moment."""
    store = place / name / ".fedsdg"
    done, _ = manifests(store)
    process, end = grid(name, slowly=moment != "anything")
    deadline = time.monotonic() + chance.uniform(0, 0.5 * took)
    to_pass, before, there = chance.randrange(3), False, False
    while True:
        if os.waitpid(process, os.WNOHANG)[0]:
            wait_for_all(end)
            return "finished" if moment == "anything" else "missed"
        if moment == "anything":
            if time.monotonic() >= deadline:
                break
        else:
            before, there = there, moment in manifests(store)[1]
            to_pass -= there and not before
            if there and (to_pass < 0 or moment == "after a renewal"):
                os.killpg(process, signal.SIGSTOP)
                if not os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]):
                    wait_for_all(end)
                    return "missed"
                if moment in manifests(store)[1]:  # Still, now that nothing moves.
                    break
                os.killpg(process, signal.SIGCONT)
        time.sleep(0.0005)
    # A terminal sends its signals to all processes of a job, a scheduler often to one.
    everyone = number == signal.SIGKILL or chance.random() < 0.5
    (os.killpg if everyone else os.kill)(process, number)
    os.killpg(process, signal.SIGCONT)
    code = wait(process)
    wait_for_all(end)
    if code == 0:
        return "finished"
    assert code in (-number, 128 + number), code
    after, _ = manifests(store)
    for run, rounds in after.items():
        assert len(rounds) <= 3, rounds
        # Once a run is stored its checkpoints go, and it may be killed while they do.
        before_it = done.get(run) or [0]
        stored = any(not one.name.startswith(".") for one in (store / "runs").glob("*"))
        assert stored or not rounds or rounds[-1] >= before_it[-1], (done, after)
    report["kills"][number.name] += 1
    report["while"][moment] += 1
    return "killed"


report = {"kills": {number.name: 0 for number in SIGNALS}, "while": {}, "different": []}
report["while"] = dict.fromkeys(MOMENTS, 0)
report |= {"finished": 0, "resumptions": 0}
begun = time.monotonic()
process, end = grid("undisturbed")
assert wait(process) == 0, (place / "undisturbed/log").read_text()
wait_for_all(end)
took = time.monotonic() - begun
expected = pages(place / "undisturbed")
assert len(expected) >= 4 * len(RECORDS) + 3, sorted(expected)

chance = random.Random(0)
folders = (f"killed-{number}" for number in itertools.count())
name = next(folders)
ended = []
for turn in range(kills):
    number, moment = SIGNALS[turn % len(SIGNALS)], MOMENTS[turn % len(MOMENTS)]
    for _ in range(50):
        outcome = killed(name, number, moment)
        if outcome == "killed":
            break
        # It has come to its end; another begins.
        ended.append(name)
        name = next(folders)
    else:
        raise AssertionError(f"never {moment}")
ended.append(name)
for name in ended:
    process, end = grid(name)
    assert wait(process) == 0, (place / name / "log").read_text()
    wait_for_all(end)
    log = (place / name / "log").read_text()
    report["resumptions"] += log.count("going on after round")
    # A signal within a finaliser is dropped by Python, which prints it.
    assert "damaged" not in log and log.count("Traceback") == log.count("Exception ignored"), log
    assert not list((place / name / ".fedsdg/checkpoints").iterdir())
    found = pages(place / name)
    names = expected.keys() | found.keys()
    report["different"] += [
        f"{name}/{file}" for file in sorted(names) if found.get(file) != expected.get(file)
    ]
    report["finished"] += 1

# A full disk: no file may grow beyond half of the bank, so neither checkpoints nor the finished
# run can be written, and the earlier checkpoint is all there is. Then there is space again.
material = prepare_material(
    "digits", load_backbone(place / "undisturbed/results/backbones/letters.safetensors"), "cpu"
)
partition = make_partition("digits", SKEW, 0, config.federation.clients, config.partition)
assert wait(alone("whole", seconds=1e9)) == 0
process = alone("full")
while not (there := manifests(place / "full")[0]) or not any(there.values()):
    time.sleep(0.0005)
os.kill(process, signal.SIGKILL)
wait(process)
(folder,) = (place / "full/checkpoints").iterdir()
rows = max(folder.glob("bank~*"), key=lambda file: file.stat().st_size)
named = [file for file in folder.iterdir() if not file.name.startswith(".")]
kept = {file.name: file.read_bytes() for file in named}
status = wait(alone("full", limit=rows.stat().st_size // 2))
log = (place / "full.log").read_text()
newest = max(kept, key=lambda file: (file.endswith(".json"), file))
parts = {part["file"]: part["bytes"] for part in json.loads(kept[newest])["parts"].values()}
parts[newest] = len(kept[newest])
report["full_disk"] = {
    "failed": status != 0,
    "sentences": log.count("no checkpoint could be saved"),
    "stored": [file.name for file in (place / "full/runs").iterdir()],
    "half-written": [file.name for file in folder.iterdir() if file.name not in kept],
    "intact": all(
        (folder / file).read_bytes()[:size] == kept[file][:size] for file, size in parts.items()
    ),
}
report["full_disk"]["failed_again"] = wait(alone("full")) != 0
report["full_disk"]["different"] = [
    file
    for file in RECORDS
    if (place / "full/out" / file).read_bytes() != (place / "whole/out" / file).read_bytes()
]
json.dump(report, sys.stdout)
