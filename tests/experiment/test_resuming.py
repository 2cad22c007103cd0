"""Runs that are broken off and go on: bit for bit, whatever broke them off and whenever."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load

from fedsdg.experiment.building import build
from fedsdg.experiment.conditions import parse_conditions
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.examining.federations import Trial
from fedsdg.experiment.examining.rounds import resumes
from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.runs import execute
from fedsdg.federation import bank, passes, round_evaluation, rounds, together
from fedsdg.federation.checkpoints import Checkpoints, InUse
from fedsdg.federation.cohorts import draw_cohort
from fedsdg.federation.local_work import Samples
from fedsdg.federation.trajectories import Trajectory
from fedsdg.files import sha256_json
from fedsdg.methods.families import METHODS
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze, save_backbone
from tests.bad_inputs.outcomes import EVERYTHING
from tests.suited import facts_of, suited

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
ROUNDS = 3
ARCHITECTURE = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
BYTE_IDENTICAL = ("rounds.parquet", "clients.parquet", "trace.parquet", "result.json")
TABLES = ("rounds", "clients", "trace")


@pytest.fixture(scope="module")
def config():
    raw = yaml.safe_load(CONFIG.read_text())
    # Round 1 is not evaluated; with 9 clients somebody is drawn for the first time late.
    raw["federation"] |= {"clients": 9, "clients_per_round": 5, "rounds": ROUNDS}
    raw["federation"] |= {"evaluate_every": 2, "trace_every": 4}
    raw["training"] |= {"epochs": 1}
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    return parse_config(raw)


@pytest.fixture(scope="module")
def material():
    torch.manual_seed(0)
    backbone = freeze(build_backbone(ARCHITECTURE), ARCHITECTURE, "tiny", {})
    return prepare_material("digits", backbone, "cpu")


@pytest.fixture(scope="module")
def partition(config):
    return make_partition("digits", SKEW, 0, config.federation.clients, config.partition)


@pytest.fixture(scope="module")
def fresh(config, material, partition):
    """A method's name -> its federation before the first round."""

    def make(name="fedsdg", seed=0):
        run = suited(config, name).run("digits", SKEW, method_entry(name), seed)
        return build(run, material, partition)

    return make


@pytest.fixture
def go(config, material, partition, tmp_path):
    """Do a run into a folder, as the command does; the store lies beside it."""

    def execute_into(folder, material=material, name="fedsdg", **options):
        run = config.run("digits", SKEW, method_entry(name), 0)
        return execute(
            run, material, partition, tmp_path / folder, store=tmp_path / "runs", identity={},
            **{"checkpoint_seconds": 0, **options},
        )  # fmt: skip

    return execute_into


def state_of(one):
    """All that a federation is between rounds, as copies."""
    private, kept = one.bank.gather(torch.arange(one.num_clients))
    tensors = {"theta": one.theta, "private": private, "trained": one.bank.trained}
    tensors |= {f"kept {name}": value for name, value in kept.items()}
    tensors |= {f"state {name}": value for name, value in one.state.items()}
    tensors |= {f"memory {name}": value for name, value in one.memory().items()}
    records = {name: [dict(row) for row in getattr(one.records, name)] for name in TABLES}
    return {name: value.clone() for name, value in tensors.items()}, records


def assert_same(a, b):
    tensors, records = a
    assert tensors.keys() == b[0].keys()
    for name, value in tensors.items():
        assert value.dtype == b[0][name].dtype
        assert torch.equal(value, b[0][name]), name
    assert records == b[1]


def folder_of(tmp_path):
    """The folder of the only unfinished run beside a store."""
    (folder,) = (tmp_path / "checkpoints").iterdir()
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_from_every_round_on_the_rest_is_the_same_bit_for_bit(fresh, name):
    resumes(Trial(lambda: fresh(name)))


def test_a_checkpoint_brings_back_what_was_measured(fresh, tmp_path):
    whole, resumed = fresh(), fresh()
    whole.run()
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        checkpoints.save(whole, {"after": ROUNDS})
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        assert checkpoints.restore(resumed) == {"after": ROUNDS}
    assert resumed.rounds_done == ROUNDS
    assert resumed.records.timings == whole.records.timings
    assert_same(state_of(resumed), state_of(whole))


def rows_of(file):
    """The clients of each frame of a bank's file, read by hand, and their private rows."""
    content, found = file.read_bytes(), []
    while content:
        size = int.from_bytes(content[:8], "little")
        found.append(load(content[8 : 8 + size]))
        content = content[8 + size :]
    return found


def test_only_rows_that_changed_are_written(fresh, tmp_path):
    """Two checkpoints have files of their own; each takes what changed since the last but one."""
    one = fresh("scaffold")
    first, second, third = (
        set(draw_cohort(0, r, one.num_clients, 5).tolist()) for r in range(1, ROUNDS + 1)
    )
    assert first != second
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        for round_ in (1, 2, 3):
            one.step(round_)
            checkpoints.save(one, {})
    for number, expected in ((1, [first, second | third]), (2, [first | second])):
        frames = rows_of(tmp_path / f"bank~{number}.frames")
        assert [set(rows["clients"].tolist()) for rows in frames] == expected
        widths = [(len(clients), one.layout.d) for clients in expected]
        assert [rows["kept.control"].shape for rows in frames] == widths
    # The records, too: each row once.
    for number, count in ((1, 3), (2, 2)):
        written = (tmp_path / f"records~{number}.frames").read_bytes()
        assert written.count(b'"train_seconds"') == count and written.count(b'"drift"') == count


def test_a_resumed_run_goes_on_behind_what_it_read(fresh, tmp_path):
    one, other = fresh(), fresh()
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        one.step(1)
        checkpoints.save(one, {})
    before = (tmp_path / "bank~1.frames").read_bytes()
    with open(tmp_path / "bank~1.frames", "ab") as stream:
        stream.write(b"what a killed process left" * 1000)
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        checkpoints.restore(other)
        for round_ in (2, 3):
            other.step(round_)
            checkpoints.save(other, {})
    after = (tmp_path / "bank~1.frames").read_bytes()
    assert after[: len(before)] == before and b"killed" not in after and len(after) > len(before)
    third = fresh()
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        checkpoints.restore(third)
    assert_same(state_of(third), state_of(other))


def test_another_federation_is_written_whole(fresh, tmp_path):
    """Not what has changed since the one whose checkpoint is there, however far that had come."""
    one, other, third = fresh(), fresh(), fresh()
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        for round_ in (1, 2):
            one.step(round_)
            checkpoints.save(one, {})
        other.run()
        checkpoints.save(other, {})
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        checkpoints.restore(third)
    assert_same(state_of(third), state_of(other))


def test_a_file_of_replaced_rows_gives_way_to_a_new_one(fresh, tmp_path):
    """Over many rounds the files stay within three times the rows in use, and lose nothing."""
    one = fresh("scaffold")
    one = dataclasses.replace(one, schedule=dataclasses.replace(one.schedule, evaluate_every=100))
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        seen = set()
        for round_ in range(1, 13):
            one.step(round_)
            checkpoints.save(one, {})
            names = {file.name: file.stat().st_size for file in tmp_path.glob("bank~*")}
            seen |= names.keys()
            rows = max(names.values()) / one.bank.bytes_per_client()
            assert rows < 2 * int(one.bank.trained.sum()) * 1.05
            assert len(names) <= 2
            other = fresh("scaffold")
            aside = Path(f"{tmp_path}-aside")
            shutil.copytree(tmp_path, aside)
            with closing(Checkpoints(aside, {})) as copied:
                copied.restore(other)
            shutil.rmtree(aside)
            assert_same(state_of(other), state_of(one))
    assert len(seen) >= 3


def broken_off(function, watched, every=1):
    """Call ``function`` and raise ``Stopped`` before the first line of ``watched``, then again and
    raise before the next (or one of ``every`` so many), until it comes to its end; yields after
    each whether it did."""
    number, ended = 1 - every, False
    while not ended:
        number += every
        passed = 0

        def within(frame, event, _):
            nonlocal passed
            if event == "line":
                passed += 1
                if passed == number:  # noqa: B023
                    raise Stopped(signal.SIGTERM)
            return within

        def enter(frame, event, _):
            return within if watched(frame.f_code) else None

        sys.settrace(enter)
        try:
            function()
            ended = True
        except Stopped:
            pass
        finally:
            sys.settrace(None)
        yield ended


def test_a_round_broken_off_at_any_line_leaves_no_trace(fresh):
    one, undisturbed = fresh("scaffold"), fresh("scaffold")
    one.step(1)
    before = state_of(one)
    attempts = 0
    codes = (together._step.__code__, type(one).take.__code__)
    for ended in broken_off(lambda: one.step(2), lambda code: code in codes):
        attempts += 1
        if not ended:
            assert_same(state_of(one), before)
    assert attempts > 20
    one.step(3)
    undisturbed.run()
    assert_same(state_of(one), state_of(undisturbed))


def all_of(one):
    """Everything that a federation is between rounds: state, memory, records with all columns."""
    tensors, records = state_of(one)
    tensors |= {f"memory {name}": value for name, value in one.memory().items()}
    return tensors, records | {"timings": len(one.records.timings), "passes": one.passes.facts()}


@pytest.mark.slow
def test_a_last_round_broken_off_anywhere_leaves_all_as_before(config, material, partition):
    """With all that looks back or ahead: late updates, ways of models, worth of updates, models."""
    changed = dataclasses.replace(
        config,
        federation=dataclasses.replace(
            config.federation, trajectory="shared", shapley="estimated", evaluate_every=1
        ),
        training=dataclasses.replace(config.training, save="selected", private_optimiser="keep"),
        conditions=parse_conditions(
            {
                "compute": {"slowest": 1.0, "fastest": 8.0, "arrivals": 3},
                "dropout": {"probability": 0.1},
            }
        ),
    )
    run = changed.run("digits", SKEW, method_entry("fedsdg"), 0)
    one, undisturbed = (build(run, material, partition) for _ in range(2))
    for round_ in range(1, ROUNDS):
        one.step(round_)
    before = all_of(one)
    codes = {
        together._step.__code__,
        rounds.Federation.take.__code__,
        rounds.Federation._follow.__code__,
        round_evaluation.evaluate.__code__,
        round_evaluation.add_shapley.__code__,
        Trajectory.write.__code__,
    }
    attempts = 0
    for ended in broken_off(lambda: one.step(ROUNDS), lambda code: code in codes, every=5):
        attempts += 1
        if not ended:
            assert_same(all_of(one), before)
    assert attempts > 20
    undisturbed.run()
    assert_same(all_of(one), all_of(undisturbed))
    assert one.records.rounds[0]["plane_share"] <= 1


@pytest.mark.slow
def test_a_save_broken_off_anywhere_leaves_a_checkpoint_and_can_be_repeated(fresh, tmp_path):
    one = fresh()
    one.step(1)
    states = {1: state_of(one)}
    first = tmp_path / "first"
    with closing(Checkpoints(first, {})) as checkpoints:
        checkpoints.save(one, {})
    one.step(2)
    states[2] = state_of(one)
    found = []
    place = tmp_path / "place"
    checkpoints = None

    def save():
        nonlocal checkpoints
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(first, place)
        checkpoints = Checkpoints(place, {})
        checkpoints.save(one, {})

    file = Checkpoints.save.__code__.co_filename
    watched = lambda code: code.co_filename == file and code.co_name != "__init__"  # noqa: E731
    for _ in broken_off(save, watched, every=3):
        copy = shutil.copytree(place, tmp_path / "copy", dirs_exist_ok=False)
        other = fresh()
        with closing(Checkpoints(copy, {})) as copied:
            copied.restore(other, pytest.fail)
        assert_same(state_of(other), states[other.rounds_done])
        found.append(other.rounds_done)
        checkpoints.save(one, {})
        checkpoints.close()
        assert len(list(place.glob("*.json"))) == 2 and len(list(place.glob(".*"))) == 0
        shutil.rmtree(copy)
    assert set(found) == {1, 2} and found == sorted(found) and len(found) > 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_signal_keeps_the_state_and_the_run_goes_on(go, tmp_path, number, seconds, capsys):
    def signalled(round_, record):
        if round_ == 2:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # the same once more, as schedulers do: ignored

    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped, match="goes on after round 2") as stop:
        go("out", progress=signalled, checkpoint_seconds=seconds)
    assert stop.value.exit_code == 128 + number
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert not (tmp_path / "out").exists()
    assert not any((tmp_path / "runs").iterdir()), "nothing that looks finished"
    assert go("out") is None
    assert "going on after round 2" in capsys.readouterr().err
    assert not any((tmp_path / "checkpoints").iterdir()), "removed once the run is stored"
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["resumed_after"] == [2]

    shutil.rmtree(tmp_path / "runs")
    assert go("undisturbed", checkpoint_seconds=1000) is None
    for file in BYTE_IDENTICAL:
        assert (tmp_path / "out" / file).read_bytes() == (
            tmp_path / "undisturbed" / file
        ).read_bytes(), file
    undisturbed = json.loads((tmp_path / "undisturbed" / "provenance.json").read_text())
    assert undisturbed["resumed_after"] == []


def test_a_signal_within_the_first_round_keeps_nothing(go, tmp_path, monkeypatch):
    def signalled(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal should have come first")

    monkeypatch.setattr(passes, "train_clients", signalled)
    with pytest.raises(Stopped, match="before the first round was over"):
        go("out")
    assert not (tmp_path / "checkpoints").exists()


def test_a_signal_whose_exception_got_lost_is_found_by_check():
    with pytest.raises(Stopped), stopped_by_signals() as check:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except Stopped:
            pass  # as a finaliser would swallow it
        check()


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopped_by_signals() as check:
            os.kill(os.getpid(), signal.SIGINT)
            check()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_short_run_writes_no_checkpoint(go, tmp_path):
    seen = []
    go("out", checkpoint_seconds=30,
       progress=lambda *_: seen.append((tmp_path / "checkpoints").exists()))  # fmt: skip
    assert seen == [False] * ROUNDS and not (tmp_path / "checkpoints").exists()


def test_two_checkpoints_are_kept_and_nothing_else(go, tmp_path):
    seen = []

    def look(round_, record):
        if round_ == ROUNDS:
            seen.extend(sorted(file.name for file in folder_of(tmp_path).iterdir()))

    assert go("out", progress=look) is None
    assert [name for name in seen if name.endswith(".json")] == ["round~1.json", "round~2.json"]
    growing = ["bank~1.frames", "bank~2.frames", "lock", "records~1.frames", "records~2.frames"]
    assert [name for name in seen if "round" not in name] == growing
    assert len(seen) == 2 * 2 + len(growing)


@pytest.fixture
def stopped(go, tmp_path):
    """The folder of checkpoints of a run that was stopped after its second round."""

    def stop(round_, record):
        if round_ == 2:
            raise Stopped(signal.SIGTERM)

    with pytest.raises(Stopped):
        go("out", progress=stop)
    return folder_of(tmp_path)


def result(folder):
    return json.loads((folder / "result.json").read_text())


NEWEST = ("round~2.json", "round~2.server.safetensors", "bank~2.frames", "records~2.frames")


@pytest.mark.parametrize("damage", ["truncated", "at the start", "at the end", "missing"])
@pytest.mark.parametrize("file", NEWEST)
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    go, stopped, tmp_path, capsys, file, damage
):
    """Wherever it is damaged: the older one has files of its own."""
    place = stopped / file
    content = bytearray(place.read_bytes())
    if damage == "missing":
        place.unlink()
    elif damage == "truncated":
        place.write_bytes(content[:-5])
    else:
        content[9 if damage == "at the start" else -9] ^= 1
        place.write_bytes(content)
    assert go("out") is None
    error = capsys.readouterr().err
    assert "going on after round 1" in error
    if (file, damage) != ("round~2.json", "missing"):
        assert "round~2.json is damaged (" in error
    expected = state_of_result(go, tmp_path)
    assert result(tmp_path / "out") == expected


def state_of_result(go, tmp_path):
    shutil.rmtree(tmp_path / "runs")
    assert go("undisturbed") is None
    return result(tmp_path / "undisturbed")


def test_when_all_are_damaged_the_run_starts_anew(go, stopped, tmp_path, capsys):
    for number in (1, 2):
        file = stopped / f"bank~{number}.frames"
        file.write_bytes(file.read_bytes()[:99])
    assert go("out") is None
    first, second = capsys.readouterr().err.splitlines()
    assert "round~2.json is damaged (bank~2.frames has 99 bytes instead of" in first
    assert first.endswith("; the older is used")
    assert "round~1.json is damaged (" in second
    assert second.endswith("there is no older one: the run starts anew")
    provenance = json.loads((tmp_path / "out/provenance.json").read_text())
    assert provenance["resumed_after"] == []
    assert result(tmp_path / "out") == state_of_result(go, tmp_path)


def test_a_checkpoint_whose_name_comes_again_spoils_no_other(fresh, tmp_path):
    """Saved twice after one round, as when the first attempt was broken off after its renaming."""
    one = fresh()
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        for round_ in (1, 2):
            one.step(round_)
            checkpoints.save(one, {})
        checkpoints.save(one, {"again": True})
        one.step(3)
        checkpoints.save(one, {})
    newest, older = (names(tmp_path / f"round~{number}.json") for number in (3, 2))
    assert not newest & older
    (tmp_path / "round~3.server.safetensors").write_bytes(b"")
    other = fresh()
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        assert checkpoints.restore(other) == {"again": True}
    assert other.rounds_done == 2


def names(manifest):
    return {part["file"] for part in json.loads(manifest.read_text())["parts"].values()}


def altered(folder, change):
    """Every manifest of a folder changed, and its own hash with it."""
    for place in folder.glob("*.json"):
        manifest = json.loads(place.read_text())
        del manifest["sha256"]
        change(manifest)
        place.write_text(json.dumps({**manifest, "sha256": sha256_json(manifest)}))


@pytest.mark.parametrize(
    "place, value, message",
    [
        (["format"], 1, "has format 1, but this version reads format 2; use the version"),
        (["made_for", "torch"], "1.0", f"torch is '1.0' in it, but {torch.__version__!r} here"),
        (
            ["made_for", "config", "training", "eta_g"],
            0.5,
            "config.training.eta_g is 0.5 in it, but 0.003 here",
        ),
        (["made_for", "source_hash"], "0", "source_hash is '0' in it, but "),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_with_the_difference(
    go, stopped, place, value, message
):
    def change(manifest):
        *way, key = place
        for step in way:
            manifest = manifest[step]
        manifest[key] = value

    altered(stopped, change)
    failure = go("out")
    assert message in failure and f"delete the folder {stopped} to start anew" in failure
    assert failure.count("\n") == 0
    assert len(list(stopped.glob("*.json"))) == 2, "refused, not removed"


def test_another_config_starts_a_run_of_its_own(go, stopped, tmp_path, capsys):
    assert go("other", name="fedavg") is None
    assert "going on" not in capsys.readouterr().err
    assert go("out") is None
    assert "going on after round 2" in capsys.readouterr().err


def test_shapes_that_do_not_fit_are_named(fresh, tmp_path):
    one = fresh()
    one.step(1)
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.save(one, {})
    for name, message in (("scaffold", "it holds"), ("local-only", "theta has the shape")):
        other = fresh(name)
        before = state_of(other)
        with pytest.raises(ValueError, match=message):
            checkpoints.restore(other)
        assert_same(state_of(other), before)


def test_one_process_at_a_time(fresh, go, stopped, tmp_path, capsys):
    holder = Checkpoints(stopped, {})
    with pytest.raises(ValueError, match="was not made for this run"):
        holder.restore(fresh())  # refused, but the folder is held
    before = sorted(file.name for file in stopped.iterdir())
    with pytest.raises(InUse):
        Checkpoints(stopped, {}).restore(fresh())
    assert go("out") is None
    error = capsys.readouterr().err
    assert "another process is at the same run" in error and "starts from the beginning" in error
    assert before == sorted(file.name for file in stopped.iterdir()), "the other's files"
    holder.close()


def test_a_run_that_fails_by_itself_leaves_no_checkpoint(go, material, tmp_path, monkeypatch):
    """From round 3 on, samples are not numbers: the failure has its record and nothing else."""
    monkeypatch.setattr("fedsdg.experiment.building.MOST_KEPT", 0)
    images = material.samples.images.clone()
    seen = []

    def spoil(round_, record):
        seen.append(round_)
        if round_ == 2:
            images[:] = float("nan")

    broken = dataclasses.replace(material, samples=Samples(images, material.samples.labels))
    failure = go("out", material=broken, progress=spoil)
    assert "round 3" in failure and "not finite" in failure and seen == [1, 2]
    assert not any((tmp_path / "checkpoints").iterdir())
    assert go("out") is None, "with the cause mended it starts anew"
    assert json.loads((tmp_path / "out/provenance.json").read_text())["resumed_after"] == []


def test_a_run_that_the_machine_failed_goes_on(go, tmp_path, capsys):
    def out_of_memory(round_, record):
        if round_ == 3:
            raise MemoryError("no memory left")

    assert "no memory left" in go("out", progress=out_of_memory)
    assert go("out") is None
    assert "going on after round 2" in capsys.readouterr().err


def test_checkpoints_that_cannot_be_written_stop_nothing(go, tmp_path, capsys):
    (tmp_path / "checkpoints").write_text("a file in the way")
    assert go("out") is None
    assert capsys.readouterr().err.count("no checkpoint could be saved") == 1
    assert (tmp_path / "checkpoints").read_text() == "a file in the way"


def test_a_full_disk_is_one_sentence_whichever_file_it_refuses(go, monkeypatch, capsys):
    def refuse(checkpoints, federation, facts):
        raise OSError(errno.ENOSPC, f"no space for round~{federation.rounds_done}")

    monkeypatch.setattr(Checkpoints, "save", refuse)
    assert go("out") is None
    assert capsys.readouterr().err.count("no checkpoint could be saved") == 1


def test_checkpoints_in_a_read_only_folder_are_one_sentence(fresh, tmp_path):
    """Read by somebody who may not write there; a folder of root's, if that is who tests."""
    one, root = fresh(), os.geteuid() == 0
    folder = Path(tempfile.mkdtemp())
    checkpoints = Checkpoints(folder, {})
    folder.chmod(0o555)
    try:
        if root:
            os.seteuid(65534)
        for touch in (lambda: checkpoints.restore(one), lambda: checkpoints.save(one, {})):
            with pytest.raises(PermissionError) as found:
                touch()
            message = str(found.value)
            assert f"checkpoints {folder} cannot be written to (Permission denied)" in message
            assert "FEDSDG_STORE" in message and "\n" not in message
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_bank_without_room_fails_the_run_in_one_sentence(go, tmp_path, monkeypatch):
    """The folder beside the store cannot be made: nothing is computed that could not be kept."""
    monkeypatch.setattr(bank, "MEMORY_LIMIT", 0)
    (tmp_path / "checkpoints").write_text("a file in the way")
    failure = go("out")
    assert "9 clients keep between rounds takes" in failure and "\n" not in failure
    assert result(tmp_path / "out")["status"] == "failed"


def test_a_store_that_cannot_be_written_is_refused_before_the_first_round(go, tmp_path):
    (tmp_path / "runs").write_text("a file in the way")
    seen = []
    assert "File exists" in go("out", progress=lambda *_: seen.append(1))
    assert not seen


# --- Whole processes --------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    """``fedsdg run`` on a small config in a folder of its own, as arguments and options."""
    raw = yaml.safe_load(CONFIG.read_text())
    raw |= {"experiment": "small", "seeds": [0], "skews": [SKEW], "methods": ["fedsdg"]}
    raw["federation"] |= {"clients": 6, "clients_per_round": 2, "rounds": 400}
    raw["federation"] |= {"evaluate_every": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    torch.manual_seed(0)
    (tmp_path / "results/backbones").mkdir(parents=True)
    place = tmp_path / "results/backbones/letters.safetensors"
    recipe = {k: v for k, v in raw["backbones"]["letters"].items() if k != "source"}
    save_backbone(build_backbone(ARCHITECTURE), ARCHITECTURE, place, facts_of(recipe))
    arguments = [sys.executable, "-m", "fedsdg", "run", "--config", "config.yaml",
                 "--method", "fedsdg", "--output", "out"]  # fmt: skip
    package = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": package, "FEDSDG_STORE": str(tmp_path / "store")}
    return arguments, {"cwd": tmp_path, "env": environment, "stderr": subprocess.PIPE, "text": True}


@pytest.mark.slow
def test_the_command_ends_with_130_and_143_and_goes_on(command, tmp_path):
    arguments, options = command
    # A signal that this process ignores would be ignored by its children, too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    last = 0
    try:
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, **options) as process:
                lines = [process.stderr.readline()]
                while f"round {last + 3}/" not in lines[-1]:
                    lines.append(process.stderr.readline())
                    assert process.poll() is None, lines
                process.send_signal(number)
                lines += process.stderr.readlines()
                assert process.wait(60) == code
            if last:
                assert any(f"going on after round {last} " in line for line in lines)
            assert "stopped; the same command goes on after round " in lines[-1]
            last = int(lines[-1].rsplit(maxsplit=1)[-1])
    finally:
        signal.signal(signal.SIGINT, before)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_kills_of_a_grid_and_a_full_disk_change_no_byte(tmp_path):
    """Four methods, killed while it writes and at any other moment, at each by each signal; a
    hundred times in `make everything`."""
    script = Path(__file__).with_name("faults_of_runs.py")
    environment = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    environment = {
        k: v for k, v in environment.items() if k not in ("FEDSDG_STORE", "FEDSDG_CONFIG")
    }
    kills = 100 if EVERYTHING else 15
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(kills)],
        capture_output=True, text=True, timeout=60 * kills, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert sum(report["kills"].values()) == sum(report["while"].values()) == kills
    assert min(report["kills"].values()) >= kills // 3
    assert min(report["while"].values()) >= kills // 5
    # Who is killed before the first checkpoint, or before it has read one, does not say so.
    assert report["resumptions"] >= 1
    assert report["finished"] >= 1
    assert report["different"] == []
    assert report["full_disk"] == {
        "failed": True,
        "sentences": 1,
        "stored": [],
        "half-written": [],
        "intact": True,
        "failed_again": False,
        "different": [],
    }
