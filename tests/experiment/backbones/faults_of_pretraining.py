"""A program for the fault test: real processes at a pretraining, killed, and once on a full disk.

It imports once and forks for every attempt. What it found is printed as JSON.
"""

import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

# Imported late by the package: once here, and not in every process.
import sklearn.datasets
import sklearn.linear_model  # noqa: F401

from fedsdg.experiment.backbones.pretraining import pretrain
from fedsdg.models import Architecture, build_backbone

build_backbone(Architecture(8, 4, 1, 16, 1, 1, (0.5,), (0.5,)))  # imports timm

KILLS = 20
KILLS_WITHIN_A_WRITE = 4

place = Path(sys.argv[1])
# Everything that has a state: the average, blocks left out, shifted and mirrored images.
options = {
    "image_size": 8, "patch_size": 4, "channels": 1, "dim": 32, "depth": 3, "heads": 2,
    "images": 512, "held_out": 64, "epochs": 4, "batch_size": 32, "threads": 1,
    "ema": 0.99, "drop_path": 0.2, "augment": "crop-flip", "precision": "bfloat16",
}  # fmt: skip


def start(name, *, seconds=0.0, limit=None):
    """Fork a process that pretrains into ``place / name``."""
    if process := os.fork():
        return process
    status = 70
    try:
        with open(place / f"{name}.log", "a") as log:
            os.dup2(log.fileno(), 2)
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        folder = place / name
        pretrain(
            options,
            folder / "tiny.safetensors",
            checkpoints=folder / "checkpoints",
            checkpoint_seconds=seconds,
        )
        status = 0
    except OSError as error:
        print(error, file=sys.stderr)
        status = 1
    finally:
        os._exit(status)


def wait(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def kept(name):
    """The checkpoint's bytes, and whether one is just being written."""
    folder = place / name / "checkpoints"
    files = list(folder.iterdir()) if folder.is_dir() else []
    whole = [file for file in files if not file.name.startswith(".")]
    assert len(whole) <= 1
    return whole[0] if whole else None, len(whole) < len(files)


def different(name):
    return [
        f"{name}/{file}"
        for file in ("tiny.safetensors", "tiny.json")
        if (place / name / file).read_bytes() != (place / "undisturbed" / file).read_bytes()
    ]


def stamp(name):
    """Changes with every checkpoint."""
    file, _ = kept(name)
    try:
        return file and file.stat().st_ino
    except FileNotFoundError:  # removed meanwhile
        return None


assert wait(start("undisturbed", seconds=1e9)) == 0
report = {"kills": 0, "kills_within_a_write": 0, "resumptions": 0, "finished": 0, "different": []}
chance = random.Random(0)
while report["kills"] < KILLS:
    name = f"killed-{report['finished']}"
    while True:
        lacking = KILLS_WITHIN_A_WRITE - report["kills_within_a_write"]
        aim = report["kills"] % 3 == 2 or KILLS - report["kills"] <= lacking
        seen, checkpoints_to_pass = stamp(name), chance.randrange(8)
        process = start(name)
        ended = False
        while not ended and (checkpoints_to_pass or report["kills"] == KILLS):
            found = stamp(name)
            if found != seen:
                seen, checkpoints_to_pass = found, max(0, checkpoints_to_pass - 1)
            time.sleep(0.0005)
            ended = os.waitpid(process, os.WNOHANG)[0] != 0
        time.sleep(0 if aim else chance.uniform(0, 0.05))
        while not ended and aim and not kept(name)[1]:
            ended = os.waitpid(process, os.WNOHANG)[0] != 0
        if not ended:
            os.kill(process, signal.SIGKILL)
            ended = wait(process) != -signal.SIGKILL
        if ended:
            break
        report["kills"] += 1
        report["kills_within_a_write"] += kept(name)[1]
    log = (place / f"{name}.log").read_text()
    assert "damaged" not in log and "Traceback" not in log, log
    assert not list((place / name / "checkpoints").iterdir())
    report["resumptions"] += log.count("going on after step")
    report["finished"] += 1
    report["different"] += different(name)

# A full disk: no file may grow beyond half of a checkpoint, so the one that is there is all there
# is, and the backbone itself cannot be written. Then there is space again.
name = "full"
process = start(name)
while kept(name)[0] is None:
    time.sleep(0.0005)
os.kill(process, signal.SIGKILL)
wait(process)
file, _ = kept(name)
before = file.read_bytes()
status = wait(start(name, limit=8_000))
log = (place / f"{name}.log").read_text()
report["full_disk"] = {
    "failed": status != 0,
    "sentences": log.count("no checkpoint could be saved"),
    "half_written": kept(name)[1],
    "intact": file.read_bytes() == before,
    "failed_again": wait(start(name)) != 0,
    "different": different(name),
}
json.dump(report, sys.stdout)
