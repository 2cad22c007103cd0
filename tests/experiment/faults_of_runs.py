"""A program for the fault test: a grid in real processes, killed again and again.

It imports once and forks for every attempt, so that twenty kills take a minute or two. Arguments: a
folder, and how many kills. What it found is printed as JSON.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import matplotlib.pyplot  # noqa: F401
import yaml

import fedsdg.analysis.render  # noqa: F401
from fedsdg.cli import main
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.machine import processes
from fedsdg.experiment.reach import source_hash
from fedsdg.federation import checkpoints, rounds, store
from fedsdg.files import atomic_path

SKEW = "dirichlet~1.0"
#: FedSDG has private rows, SCAFFOLD control variates and state of the server, Ditto models of
#: clients' own, CGSV a state of the server alone.
METHODS = ["fedsdg", "scaffold", "ditto", "cgsv"]
RECORDS = ("rounds.parquet", "clients.parquet", "result.json")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: What a process is doing when it is killed; "anything": whatever it is doing after a random time.
MOMENTS = ("anything", "a new checkpoint")
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
            store.MEMORY_LIMIT = 0  # what clients keep lies in a file; undisturbed, in memory
        if slowly:
            checkpoints.write_bytes = in_pieces
            rounds.begin = slow_begin  # Or a fast machine would keep few checkpoints.
        status = main(["run", "--grid", "config/config.yaml"])
    except KeyboardInterrupt:  # before the command was called, or after
        status = 128 + signal.SIGINT
    finally:
        os._exit(status)


def wait(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def wait_for_all(end):
    """Until nobody holds the other end of the pipe."""
    os.read(end, 1)
    os.close(end)


def in_pieces(path, content, *, durable):
    """Write a file in three pieces."""
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        size = max(1, -(-len(content) // 3))
        for begin in range(0, len(content), size):
            stream.write(content[begin : begin + size])
            stream.flush()
            time.sleep(0.002)


def slow_begin(*arguments, begin=rounds.begin):
    time.sleep(0.05)
    return begin(*arguments)


def saved(folder):
    """Rounds of the checkpoints of each run on the disk, and whether a new one is being written."""
    found, writing = {}, False
    for run in (folder / "checkpoints").glob("*"):
        # Its run is stored just now, or it is the file of what clients keep, for a moment.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = [file.name for file in run.iterdir()]
            writing |= any(name.startswith(".") for name in names)
            found[run.name] = sorted(
                int(name.split("~")[1]) for name in names if name.startswith("round~")
            )
    return found, writing


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
    folder = place / name / ".fedsdg"
    done, _ = saved(folder)
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
            before, there = there, saved(folder)[1]
            to_pass -= there and not before
            if there and to_pass < 0:
                os.killpg(process, signal.SIGSTOP)
                if not os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]):
                    wait_for_all(end)
                    return "missed"
                if saved(folder)[1]:  # Still, now that nothing moves.
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
    after, _ = saved(folder)
    for run, kept in after.items():
        assert len(kept) <= 3, kept
        # Once a run is stored its checkpoints go, and it may be killed while they do.
        before_it = done.get(run) or [0]
        stored = any(not one.name.startswith(".") for one in (folder / "runs").glob("*"))
        assert stored or not kept or kept[-1] >= before_it[-1], (done, after)
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

json.dump(report, sys.stdout)
