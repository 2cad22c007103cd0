"""A program for the fault test: real processes with a run, killed, and once on a full disk.

It imports once and forks for every attempt, so that twenty kills take seconds. What it found
is printed as JSON.
"""

import builtins
import contextlib
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import yaml

from fedsdg.config import parse_config
from fedsdg.federation import bank, checkpoints, prefixes
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build, freeze
from fedsdg.reach import source_hash
from fedsdg.runs import execute, make_partition, prepare_material

SKEW = "dirichlet~1.0"
BYTE_IDENTICAL = ("rounds.parquet", "clients.parquet", "result.json")
KILLS = 20
KILLS_WITHIN_A_WRITE = 6
KILLS_WITHIN_AN_APPEND = 4

place = Path(sys.argv[1])
raw = yaml.safe_load((Path(__file__).parents[1] / "config/config.yaml").read_text())
raw["federation"] |= {"clients": 7, "clients_per_round": 3, "rounds": 24, "evaluate_every": 3}
raw["training"] |= {"epochs": 1, "batch_size": 64}
raw["adapters"] |= {"rank": 2, "alpha": 4}
raw["methods"] = ["fedsdg", "scaffold"]
config = parse_config(raw)
# FedSDG has a private bank; SCAFFOLD a bank of control variates and state of the server.
methods = config.methods
architecture = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
torch.manual_seed(0)
material = prepare_material(
    "digits", freeze(build(architecture), architecture, "tiny", {}), config.training.device
)
partition = make_partition("digits", SKEW, 0, config.federation.clients, config.partition)
# Reading the code for its hash takes as long as many rounds; once here, as the imports are, else
# most kills would come before the first round.
for method in methods:
    source_hash(config.run("digits", SKEW, method, 0))


def start(method, name, *, seconds=0.0, slowly=False, limit=None):
    """Fork a process that does the run into ``place / name``, its store beside it."""
    if process := os.fork():
        return process
    status = 70
    try:
        with open(place / f"{name}.log", "a") as log:
            os.dup2(log.fileno(), 2)
        if name.startswith("killed"):
            bank.MEMORY_LIMIT = 0  # what clients keep lies in a file; undisturbed, in memory
        if slowly:
            checkpoints.open = prefixes.open = slow_open
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        failure = execute(
            config.run("digits", SKEW, method, 0), material, partition, place / name / "out",
            store=place / name / "runs", identity={}, checkpoint_seconds=seconds,
        )  # fmt: skip
        status = 1 if failure else 0
    finally:
        os._exit(status)


def wait(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


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


@contextlib.contextmanager
def slow_open(file, mode):
    with builtins.open(file, mode) as stream:
        yield InPieces(stream)


def manifests(name):
    """Rounds of the checkpoints on the disk, and what is just being written: "a new file", "a
    growing file" (longer than any manifest says), or nothing."""
    folders = list((place / name / "checkpoints").glob("*"))
    files = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # its run is stored just now
            files += list(folder.iterdir())
    known = {}
    rounds = []
    for file in files:
        if file.name.startswith("round~") and file.name.endswith(".json"):
            rounds.append(int(file.name[6:-5]))
            with contextlib.suppress(FileNotFoundError):
                for part in json.loads(file.read_bytes())["parts"].values():
                    known[part["file"]] = max(part["bytes"], known.get(part["file"], 0))
    writing = None
    with contextlib.suppress(FileNotFoundError):
        for file in files:
            if file.name.startswith("."):
                writing = "a new file"
            elif file.name.endswith(".frames") and file.stat().st_size > known.get(file.name, 0):
                writing = "a growing file"
    return sorted(rounds), writing


def different(name, method):
    expected = place / f"undisturbed-{method.label}" / "out"
    return [
        f"{name}/{file}"
        for file in BYTE_IDENTICAL
        if (place / name / "out" / file).read_bytes() != (expected / file).read_bytes()
    ]


report = {"kills": 0, "kills_within_a_write": 0, "kills_within_an_append": 0, "rewritten": 0}
report |= {"resumptions": 0, "finished": 0, "different": []}
took = {}
for method in methods:
    begun = time.monotonic()
    assert wait(start(method, f"undisturbed-{method.label}", seconds=1e9)) == 0
    took[method.label] = time.monotonic() - begun

chance = random.Random(0)
turn = 0
while report["kills"] < KILLS:
    method = methods[turn % len(methods)]
    turn += 1
    name = f"killed-{turn}"
    while True:
        aim = report["kills"] % 3 == 2 or KILLS - report["kills"] <= (
            KILLS_WITHIN_A_WRITE - report["kills_within_a_write"]
        )
        done, _ = manifests(name)
        process = start(method, name, slowly=aim)
        writes_to_pass = chance.randrange(1, 8)
        enough = report["kills_within_an_append"] >= KILLS_WITHIN_AN_APPEND
        aimed_at = {"a new file", "a growing file"} if enough else {"a growing file"}
        deadline = time.monotonic() + chance.uniform(0, 0.4 * took[method.label])
        writing = ended = False
        while report["kills"] < KILLS and not ended:
            ended = os.waitpid(process, os.WNOHANG)[0] != 0
            if aim:
                before, writing = writing, manifests(name)[1] in aimed_at
                writes_to_pass -= writing and not before
                if writing and writes_to_pass <= 0:
                    break
            elif time.monotonic() >= deadline:
                break
            time.sleep(0.0005)
        if not ended and report["kills"] == KILLS:
            assert wait(process) == 0
            ended = True
        if ended:
            break
        os.kill(process, signal.SIGKILL)
        ended = wait(process) != -signal.SIGKILL
        if ended:
            break
        report["kills"] += 1
        after, unfinished = manifests(name)
        report["kills_within_a_write"] += unfinished is not None
        report["kills_within_an_append"] += unfinished == "a growing file"
        numbers = [
            int(file.name.split("~")[1].split(".")[0])
            for file in (place / name / "checkpoints").glob("*/bank~*")
        ]
        report["rewritten"] += max(numbers, default=1) > 1
        # Once a run is stored its checkpoints go, and it may be killed while they do.
        stored = any(not run.name.startswith(".") for run in (place / name / "runs").glob("*"))
        assert len(after) <= 3, after
        assert not done or stored or after[-1] >= done[-1], (done, after)
    log = (place / f"{name}.log").read_text()
    report["resumptions"] += log.count("going on after round")
    assert "damaged" not in log
    assert not list((place / name / "checkpoints").iterdir())
    report["finished"] += 1
    report["different"] += different(name, method)

# A full disk: no file may grow beyond half of the bank, so neither checkpoints nor the finished
# run can be written, and the earlier checkpoint is all there is. Then there is space again.
method, name = methods[0], "full"
process = start(method, name)
while not manifests(name)[0]:
    time.sleep(0.0005)
os.kill(process, signal.SIGKILL)
wait(process)
(folder,) = (place / name / "checkpoints").iterdir()
rows = max(folder.glob("bank~*"), key=lambda file: file.stat().st_size)
named = [file for file in folder.iterdir() if not file.name.startswith(".")]
kept = {file.name: file.read_bytes() for file in named}
status = wait(start(method, name, limit=rows.stat().st_size // 2))
log = (place / f"{name}.log").read_text()
newest = max(kept, key=lambda file: (file.endswith(".json"), file))
parts = {part["file"]: part["bytes"] for part in json.loads(kept[newest])["parts"].values()}
parts[newest] = len(kept[newest])
report["full_disk"] = {
    "failed": status != 0,
    "sentences": log.count("no checkpoint could be saved"),
    "stored": [file.name for file in (place / name / "runs").iterdir()],
    "half-written": [file.name for file in folder.iterdir() if file.name not in kept],
    "intact": all(
        (folder / file).read_bytes()[:size] == kept[file][:size] for file, size in parts.items()
    ),
}
report["full_disk"]["failed_again"] = wait(start(method, name)) != 0
report["full_disk"]["different"] = different(name, method)
json.dump(report, sys.stdout)
