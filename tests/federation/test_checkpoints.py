"""Runs that are broken off and go on: the same bytes, whatever breaks them off, and when."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.experiment.saved_models import ModelSaver
from fedsdg.federation import checkpoints, rounds, store
from fedsdg.federation.checkpoints import KEPT, SHARE, Checkpoints
from fedsdg.federation.conditions.compute import Compute
from fedsdg.federation.conditions.dropout import Dropout
from fedsdg.federation.observers.observer import Observer
from fedsdg.federation.observers.trajectory import Trajectory
from fedsdg.federation.optimisers import Adam
from fedsdg.federation.personalisation import Apfl, Ditto, DualPath, Interpolate
from fedsdg.federation.terms import ControlVariates
from tests.federation.small import federation, fingerprint, run, vit

ROOT = Path(__file__).parents[2]
ROUNDS = 4


def of_fedsdg(**given):
    model, first, private = vit(torch.float32, branch="dual")
    parts = {
        "rule": Screened(inner=Alignment()),
        "personalisation": DualPath(),
        "optimiser": Adam(),
    }
    return federation(model, first, private, eta=0.02, rounds=ROUNDS, **parts, **given)


#: Federations with something to remember, by what it is.
KINDS = {
    "private branches, moments, strikes": lambda: of_fedsdg(keeps_memory=True),
    "control variates": lambda: federation(
        rule=Scaffold(), terms=(ControlVariates(),), rounds=ROUNDS, cohort=4
    ),
    "late updates and models of clients' own": lambda: federation(
        personalisation=Ditto(),
        conditions=[
            Dropout(probability=0.2),
            Compute(slowest=1, fastest=16, arrivals=3, max_age=2),
        ],
        rounds=ROUNDS,
    ),
    "a running mix": lambda: federation(personalisation=Interpolate(), rounds=ROUNDS, cohort=4),
    "several models": lambda: federation(
        rule=Clustered(clusters=3), parts={"heads_apart": True}, rounds=ROUNDS, cohort=4
    ),
    "reputations": lambda: federation(rule=Cgsv(), rounds=ROUNDS, cohort=4),
    "paths and saved models": lambda: federation(
        personalisation=Apfl(), observers=[Trajectory(), ModelSaver("selected")], rounds=ROUNDS
    ),
}


def state_of(setup, server, kept, records):
    """All that a run has come to, in a form that can be compared."""
    memories = [{n: x.tolist() for n, x in one.state.items()} for one in setup.observers]
    return {**fingerprint(server, kept), "records": json.loads(json.dumps(records)), "m": memories}


def go_on(setup, folder, most=None):
    """Run from the newest checkpoint, and save one after every round; returns what it came to."""
    kept = Checkpoints(folder, {"run": 1})
    server, clients = setup.initial()
    restored = kept.restore(setup, server, clients)
    done, server, records = restored or (0, server, {"rounds": [], "clients": []})
    for after, record in itertools.islice(rounds.run(setup, server, clients, done), most):
        server = after
        records["rounds"].append(record.round)
        records["clients"] += record.clients
        kept.save(len(records["rounds"]), setup, server, clients, records)
    return state_of(setup, server, clients, records)


@pytest.mark.parametrize("kind", KINDS)
def test_from_every_round_on_a_run_goes_on_to_the_same_bytes(kind, tmp_path):
    whole = go_on(KINDS[kind](), tmp_path / "whole")
    for most in range(1, ROUNDS):
        folder = tmp_path / str(most)
        go_on(KINDS[kind](), folder, most)
        assert len(list(folder.glob("round~*"))) == min(most, KEPT)
        assert go_on(KINDS[kind](), folder) == whole


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "a flipped bit": flipped,
    "its end is missing": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "nothing": lambda file: file.write_bytes(b""),
    "something else": lambda file: file.write_bytes(b"{}" * 99),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(damage, tmp_path):
    setup = KINDS["control variates"]
    whole = go_on(setup(), tmp_path / "whole")
    go_on(setup(), tmp_path / "run", 3)
    *_, newest = sorted((tmp_path / "run").glob("round~*"))
    DAMAGES[damage](newest)
    restored = Checkpoints(tmp_path / "run", {"run": 1}).restore(setup(), *setup().initial())
    assert restored[0] == 2 and not newest.exists()
    assert go_on(setup(), tmp_path / "run") == whole
    for file in (tmp_path / "run").glob("round~*"):
        DAMAGES[damage](file)
    assert Checkpoints(tmp_path / "run", {"run": 1}).restore(setup(), *setup().initial()) is None
    assert go_on(setup(), tmp_path / "run") == whole


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    setup = federation()
    go_on(setup, tmp_path, 1)
    with pytest.raises(ValueError, match="another run"):
        Checkpoints(tmp_path, {"run": 2}).restore(setup, *setup.initial())


def test_a_full_disk_leaves_the_checkpoints_that_there_are(tmp_path, monkeypatch):
    setup = KINDS["control variates"]
    whole = go_on(setup(), tmp_path / "whole")
    go_on(setup(), tmp_path / "run", 2)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="No space"):
        broken.setattr(checkpoints, "write_bytes", full)
        go_on(setup(), tmp_path / "run")
    assert go_on(setup(), tmp_path / "run") == whole


def test_saving_takes_a_twentieth_of_the_time_at_most(tmp_path, monkeypatch):
    now = itertools.count()
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: float(next(now)))
    kept = Checkpoints(tmp_path, {})
    setup = federation()
    saved_at = [0]
    for second in range(400):
        if kept.due(5):
            kept.save(1, setup, *setup.initial(), {})
            saved_at.append(second)
    gaps = np.diff(saved_at)
    assert len(gaps) > 5 and (gaps[1:] >= 1 / SHARE - 3).all()  # each saving takes a second


def test_what_many_clients_keep_may_lie_in_a_file(monkeypatch):
    setup = KINDS["control variates"]
    expected = run(setup())
    monkeypatch.setattr(store, "MEMORY_LIMIT", 0)
    mapped = run(setup())
    assert fingerprint(mapped.server, mapped.store) == fingerprint(expected.server, expected.store)


class Breaking(Observer):
    """Breaks a round off at its end."""

    def observe(self, view):
        if view.t == 2 and not self.state:
            self.state = {"broken": torch.ones(1)}
            raise KeyboardInterrupt


def test_a_round_that_is_broken_off_changes_nothing():
    parts = {"personalisation": Ditto(), "rounds": 3}
    whole = run(federation(**parts))
    setup = federation(observers=[Breaking()], **parts)
    server, kept = setup.initial()
    (server, _), *_ = itertools.islice(rounds.run(setup, server, kept), 1)
    before = fingerprint(server, kept)
    with pytest.raises(KeyboardInterrupt):
        list(rounds.run(setup, server, kept, 1))
    assert fingerprint(server, kept) == before
    *_, (server, _) = rounds.run(setup, server, kept, 1)
    assert fingerprint(server, kept) == fingerprint(whole.server, whole.store)


@pytest.mark.slow
def test_kills_at_any_moment_change_no_byte(tmp_path):
    """A process that saves after each round is killed again and again."""
    script = "from tests.federation.test_checkpoints import slowly; slowly()"
    command = [sys.executable, "-c", script]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    whole = go_on(KINDS["late updates and models of clients' own"](), tmp_path / "whole")
    folder = tmp_path / "run"
    folder.mkdir()
    for pause in (0.0, 0.003, 0.01):
        known = set(folder.glob("round~*"))
        process = subprocess.Popen(command, cwd=folder, env=environment)
        while not set(folder.glob("round~*")) - known and process.poll() is None:
            time.sleep(0.001)
        time.sleep(pause)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        assert process.wait() in (-signal.SIGKILL, 0)
    assert go_on(KINDS["late updates and models of clients' own"](), folder) == whole


def slowly() -> None:
    """The run that is killed: each round takes at least some hundredths of a second."""
    setup = KINDS["late updates and models of clients' own"]()
    for _ in range(ROUNDS):
        go_on(setup, Path(), 1)
        time.sleep(0.02)
