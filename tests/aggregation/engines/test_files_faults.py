"""Whatever is wrong with files is one sentence naming the file, and nothing half-written."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedsdg.aggregation.api import aggregate
from fedsdg.aggregation.engines.files.new_files import new_file
from fedsdg.aggregation.engines.files.streaming import aggregate_files, read_state
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.uploads import NonFiniteError

from .test_files import check_close, drawn, write_raw, written

SMALL = {"w": (5, 3), "b": (4,), "s": ()}


class Case:
    """A call that is right, for a fault to change."""

    def __init__(self, folder):
        self.folder = folder
        self.theta, self.params = drawn(0, 7, (torch.float32,), SMALL)
        self.origin, self.files = written(folder, self.theta, self.params)
        self.out = folder / "new.safetensors"
        self.rule, self.options = "fedsdg", {}

    def run(self):
        return aggregate_files(self.rule, self.origin, self.files, self.out, **self.options)

    def change(self, k=2, **tensors):
        """Give client k other tensors; None takes one away."""
        params = {**self.params[k], **tensors}
        write_raw(self.files[k], {n: t for n, t in params.items() if t is not None})

    def set(self, **values):
        for name, value in values.items():
            setattr(self, name, value)


def damage(path, at, data=b""):
    """Overwrite bytes from `at` on, or cut there."""
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + data + raw[at + len(data) :] if data else raw[:at])


def integers(path, name):
    save_file({name: torch.zeros(3, dtype=torch.int64)}, path)


def control(case, **tensors):
    """SCAFFOLD with uploads, of which client 2's has other tensors."""
    folder = case.folder / "controls"
    folder.mkdir()
    files = written(folder, case.theta, case.params)[1]
    write_raw(files[2], {**case.params[2], **tensors})
    case.set(rule="scaffold")
    case.options = {"num_clients": 7, "uploads": {"control": files}, "state_out": folder / "s"}


NAN = torch.tensor([1.0, float("nan"), 2.0, float("inf")])
FAULTS = {
    "no clients": (lambda c: c.set(files=[]), ValueError, "there are no client files"),
    "no global file": (
        lambda c: c.origin.unlink(), FileNotFoundError, r"global\.safetensors: there is no such",
    ),
    "no client file": (
        lambda c: c.files[4].unlink(), FileNotFoundError, r"client-4\.safetensors: there is no",
    ),
    "a folder": (
        lambda c: c.set(files=[*c.files, c.folder]), ValueError, "not a whole safetensors file",
    ),
    "an empty file": (
        lambda c: c.files[1].write_bytes(b""), ValueError,
        r"client-1.* is not a whole safetensors file \(.*\); write or fetch it again",
    ),
    "numbers are missing": (
        lambda c: damage(c.files[1], -3), ValueError, r"client-1.* is not a whole.*not fully",
    ),
    "numbers too many": (
        lambda c: c.files[1].write_bytes(c.files[1].read_bytes() + b"0000"), ValueError,
        r"client-1.* is not a whole",
    ),
    "the global file is cut": (
        lambda c: damage(c.origin, 40), ValueError, r"global.* is not a whole",
    ),
    "a header too large": (
        lambda c: damage(c.files[1], 0, b"\xff" * 8), ValueError, r"client-1.*header too large",
    ),
    "no tensors": (lambda c: save_file({}, c.origin), ValueError, "holds no tensors"),
    "whole numbers": (
        lambda c: integers(c.files[3], "w"), ValueError,
        r"client-3.*: tensor 'w' is I64; only F16, BF16, F32, F64 can be averaged",
    ),
    "another tensor": (
        lambda c: c.change(more=torch.ones(2)), ValueError,
        r"^client .*client-2\.safetensors: tensor 'more' is not in global_params",
    ),
    "a tensor is missing": (
        lambda c: c.change(b=None), ValueError, r"client-2.*: tensor 'b' is missing",
    ),
    "another shape": (
        lambda c: c.change(w=torch.ones(3, 5)), ValueError,
        r"client-2.*: tensor 'w' has shape \(3, 5\), expected \(5, 3\)",
    ),
    "another dtype": (
        lambda c: c.change(b=torch.ones(4).double()), ValueError,
        r"client-2.*: tensor 'b' has dtype torch.float64, expected torch.float32",
    ),
    "not finite": (
        lambda c: c.change(b=NAN), NonFiniteError,
        r"^client .*client-2\.safetensors: tensor 'b' has 2 non-finite values of 4; leave",
    ),
    "not finite, and the rule reads once": (
        lambda c: (c.change(b=NAN), c.set(rule="coordinate-median")), NonFiniteError,
        r"client-2\.safetensors: tensor 'b' has 2 non-finite values of 4",
    ),
    "not finite, and without weight": (
        lambda c: (
            c.change(b=NAN),
            c.set(rule="fedavg", options={"num_samples": [1, 1, 0, 1, 1, 1, 1]}),
        ), NonFiniteError, r"client-2\.safetensors: tensor 'b' has 2 non-finite",
    ),
    "the global file is not finite": (
        lambda c: write_raw(c.origin, {**c.theta, "b": NAN}), NonFiniteError,
        r"^global parameters: tensor 'b' has 2 non-finite values of 4",
    ),
    "none is finite": (
        lambda c: ([c.change(k, b=NAN) for k in range(7)],
                   c.set(options={"on_nonfinite": "drop"})),
        NonFiniteError, r"all 7 clients hold non-finite values .*client-0.*tensor 'b' has 2",
    ),
    "too few are left": (
        lambda c: ([c.change(k, b=NAN) for k in range(4)],
                   c.set(rule="krum", options={"on_nonfinite": "drop"})),
        ValueError, r"Krum with f=1 needs .* has 3.*\(4 of 7 clients were dropped as non-finite\)",
    ),
    "a control is not finite": (
        lambda c: control(c, s=torch.tensor(float("nan"))), NonFiniteError,
        r"client-2\.safetensors, upload 'control': tensor 's' has 1 non-finite values of 1",
    ),
    "an update overflows": (
        lambda c: (write_raw(c.origin, {**c.theta, "b": torch.full((4,), -3e38)}),
                   c.change(b=torch.full((4,), 3e38))),
        ValueError, r"client-2.*: the update of tensor 'b' overflows torch.float32; convert",
    ),
    "the result overflows": (
        lambda c: (
            write_raw(c.origin, {n: t.half() for n, t in c.theta.items()}),
            [write_raw(f, {n: t.half() + 60000 for n, t in c.theta.items()}) for f in c.files],
            control_files(c), c.set(rule=Scaffold(server_rate=2.0)),
        ), ValueError, r"the aggregated tensor '\w' overflows torch.float16; convert",
    ),
    "too few clients": (
        lambda c: c.set(rule={"type": "krum", "f": 3}), ValueError, "needs at least .* = 9 clients",
    ),
    "an unknown rule": (lambda c: c.set(rule="krun"), ValueError, "did you mean 'krum'"),
    "an unknown choice": (
        lambda c: c.set(options={"on_nonfinite": "skip"}), ValueError, "use 'raise' or 'drop'",
    ),
    "no memory": (lambda c: c.set(options={"memory": 7}), ValueError, "memory=7 bytes is too"),
    "a client twice": (
        lambda c: c.set(files=[*c.files, c.files[1]]), ValueError, r"client-1.* is given twice",
    ),
    "a client under two names": (
        lambda c: (os.link(c.files[1], c.folder / "x"), c.set(files=[*c.files, c.folder / "x"])),
        ValueError, r"x is given twice, also as a client's",
    ),
    "the global file among the clients": (
        lambda c: c.set(files=[*c.files, c.origin]), ValueError,
        r"global\.safetensors is given twice, also as the global file",
    ),
    "the result exists": (
        lambda c: c.set(out=c.origin), FileExistsError, r"global\.safetensors exists; choose",
    ),
    "the result is a client's": (
        lambda c: c.set(out=c.files[2], options={"overwrite": True}), ValueError,
        r"client-2\.safetensors is to be written, but is a client's",
    ),
    "the state is a client's": (
        lambda c: c.set(options={"overwrite": True, "state_out": c.files[2]}), ValueError,
        r"client-2\.safetensors is to be written, but is a client's",
    ),
    "the state is the result": (
        lambda c: c.set(options={"state_out": c.out}), ValueError, "both parameters and state",
    ),
    "no folder": (
        lambda c: c.set(out=c.folder / "no" / "new"), FileNotFoundError, "no folder .*; make it",
    ),
    "the result is a folder": (
        lambda c: c.set(out=c.folder), ValueError, "is not a regular file",
    ),
    "counts are missing": (lambda c: c.set(rule="fedavg"), ValueError, "give num_samples"),
    "a count is missing": (
        lambda c: c.set(rule="fedavg", options={"num_samples": {"client-0": 3}}), ValueError,
        r"num_samples holds no count for .*client-1\.safetensors; add it",
    ),
    "too few counts": (
        lambda c: c.set(rule="fedavg", options={"num_samples": [1, 2]}), ValueError,
        "holds 2 counts for 7 clients",
    ),
    "a count below zero": (
        lambda c: c.set(rule="fedavg", options={"num_samples": [1, 1, -1, 1, 1, 1, 1]}),
        ValueError, r"client .*client-2\.safetensors: the count in num_samples is -1",
    ),
    "a count in words": (
        lambda c: (c.set(rule="fedavg"),
                   [write_raw(f, p, {"num_samples": "many"})
                    for f, p in zip(c.files, c.params, strict=True)]),
        ValueError, r"client-0.*: its metadata has num_samples 'many'",
    ),
    "no federation": (
        lambda c: c.set(rule="cgsv"), ValueError, "give client_samples",
    ),
    "no place for the state": (
        lambda c: c.set(rule="cgsv", options={"client_samples": [1] * 7}), ValueError,
        "give state_out, its file",
    ),
    "a client without a number": (
        lambda c: (os.rename(c.files[0], c.folder / "ada"),
                   c.set(rule="cgsv", files=[c.folder / "ada", *c.files[1:]],
                         options={"client_samples": [1] * 7, "state_out": c.folder / "s"})),
        ValueError, "ada: .* a client is known by the number",
    ),
    "two clients of one number": (
        lambda c: (shutil.copy(c.files[0], c.folder / "x0"),
                   c.set(rule="cgsv", files=[c.folder / "x0", *c.files],
                         options={"client_samples": [1] * 9, "state_out": c.folder / "s"})),
        ValueError, r"x0 and .*client-0\.safetensors are both of client 0",
    ),
    "a state of another federation": (
        lambda c: c.set(rule="cgsv", options={
            "client_samples": [1] * 7, "state_out": c.folder / "s",
            "state": {"r": torch.ones(8), "participations": torch.zeros(8, dtype=torch.int64)}}),
        ValueError, "state 'r' is .* expected",
    ),
    "no controls": (
        lambda c: c.set(rule="scaffold", options={"num_clients": 7, "state_out": c.folder / "s"}),
        ValueError, "the rule reads the upload 'control'; give its files",
    ),
    "too few controls": (
        lambda c: c.set(options={"uploads": {"control": c.files[:2]}}), ValueError,
        "upload 'control' has 2 files for 7 clients",
    ),
    "controls that are the updates": (
        lambda c: c.set(options={"uploads": {"control": c.files}}), ValueError, "given twice",
    ),
    "an upload named update": (
        lambda c: c.set(options={"uploads": {"update": c.files}}), ValueError, "holds 'update'",
    ),
    "batches are missing": (
        lambda c: c.set(rule=Mean("batches")), ValueError, "give num_batches",
    ),
}  # fmt: skip


def control_files(case):
    folder = case.folder / "controls"
    folder.mkdir()
    half = {name: torch.zeros_like(tensor).half() for name, tensor in case.theta.items()}
    files = written(folder, half, [half] * 7)[1]
    case.options = {"num_clients": 7, "uploads": {"control": files}, "state_out": folder / "s"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_sentence_and_leaves_nothing_behind(name, tmp_path):
    fault, error, pattern = FAULTS[name]
    case = Case(tmp_path)
    fault(case)
    before = contents(tmp_path)
    with pytest.raises(error, match=pattern) as caught:
        case.run()
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_what_is_not_finite_can_be_left_out(tmp_path):
    case = Case(tmp_path)
    case.change(2, b=NAN)
    case.change(5, w=torch.full((5, 3), -torch.inf), s=torch.tensor(torch.nan))
    left = [k for k in range(7) if k not in (2, 5)]
    counts = [10 * (k + 1) for k in range(7)]
    for rule in ("fedsdg", "coordinate-median", "fedavg", "krum"):
        case.set(rule=rule, out=tmp_path / f"{rule}.out")
        case.options = {"on_nonfinite": "drop", "num_samples": counts}
        found = case.run()
        expected = aggregate(
            rule, case.theta, [case.params[k] for k in left],
            num_samples=[counts[k] for k in left],
        )  # fmt: skip
        check_close(load_file(case.out), expected.parameters, 1e-6)
        assert found.dropped == {
            str(case.files[2]): {"b": 2},
            str(case.files[5]): {"w": 15, "s": 1},
        }
        if expected.weights is not None:
            assert [found.weights[k] for k in left] == pytest.approx(expected.weights, abs=1e-6)
            assert found.weights[2] == found.weights[5] == 0


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_file_is_an_error_or_means_what_the_library_says(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    case = Case(folder)
    victim = data.draw(st.sampled_from([case.origin, case.files[3]]))
    raw = bytearray(victim.read_bytes())
    header = 8 + int.from_bytes(raw[:8], "little")
    how = data.draw(st.sampled_from(["cut", "flip", "replace", "random", "insert"]))
    if how == "cut":
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    elif how == "random":
        raw[:] = data.draw(st.binary(max_size=100))
    elif how == "insert":
        at = data.draw(st.integers(8, header))
        extra = data.draw(st.binary(min_size=1, max_size=5))
        raw[at:at] = extra
        raw[:8] = (header - 8 + len(extra)).to_bytes(8, "little")
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, header - 1))
            bit = 1 << data.draw(st.integers(0, 7))
            raw[at] = raw[at] ^ bit if how == "flip" else data.draw(st.integers(0, 255))
    victim.write_bytes(raw)
    try:
        case.run()
    except ValueError as error:
        assert "\n" not in str(error)
        assert "safetensors" in str(error) or "global parameters" in str(error)
        assert not case.out.exists() and not list(folder.glob(".*"))
    else:
        expected = aggregate(
            "fedsdg", load_file(case.origin), [load_file(file) for file in case.files]
        )
        check_close(load_file(case.out), expected.parameters, 1e-6)
    shutil.rmtree(folder)


def test_a_name_twice_in_a_header_is_refused(tmp_path):
    case = Case(tmp_path)
    raw = case.files[1].read_bytes()
    size = int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8 : 8 + size])
    first = json.dumps({"s": entries["s"]})[:-1]
    text = (first + ", " + raw[8 : 8 + size].decode()[1:]).encode()
    case.files[1].write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])
    with pytest.raises(ValueError, match=r"client-1.*'s' is twice in the header"):
        case.run()


@pytest.mark.parametrize("how", ["numbers", "shorter", "another", "gone"])
def test_a_file_that_changes_while_it_is_read_is_noticed(how, tmp_path):
    case = Case(tmp_path)
    target = case.files[3]

    def progress(title, done, total):
        if title.startswith("pass 2") and done == 0:
            raw = target.read_bytes()
            if how in ("another", "gone"):
                target.unlink()
            if how != "gone":
                target.write_bytes(raw[:-8] if how == "shorter" else raw[:-8] + b"\0" * 8)
            if how == "numbers":  # Even where a clock is too coarse to see it.
                os.utime(target, ns=(0, 0))

    case.options = {"progress": progress}
    with pytest.raises(ValueError, match=r"client-3.* (was changed while|can no longer be read)"):
        case.run()
    assert not case.out.exists() and not list(tmp_path.glob(".*"))


@pytest.fixture
def limited_size():
    """No file can grow beyond 64 KiB: what a full disk is like."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("aside", [True, False], ids=["set aside", "written"])
def test_a_full_disk_leaves_what_was_there(aside, tmp_path, request, monkeypatch):
    theta, clients = drawn(0, 3, (torch.float32,), {"w": (30000,)})
    origin, files = written(tmp_path, theta, clients)
    before = contents(tmp_path)
    request.getfixturevalue("limited_size")
    if not aside:  # As on systems without this call.
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    for out, options in ((tmp_path / "new", {}), (origin, {"overwrite": True})):
        with pytest.raises(ValueError, match=r"cannot be written \(File too large\).*nothing was"):
            aggregate_files("fedsdg", origin, files, out, **options)
        assert contents(tmp_path) == before


def test_no_space_left(tmp_path):
    """A disk of one megabyte, where such can be made."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        theta, clients = drawn(0, 3, (torch.float32,), {"w": (300000,)})
        origin, files = written(tmp_path, theta, clients)
        with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\)"):
            aggregate_files("fedsdg", origin, files, disk / "new")
        assert not list(disk.iterdir())
        # The result fits, the state does not: neither is there.
        theta, clients = drawn(0, 3, (torch.float32,), {"w": (200000,)})
        (tmp_path / "small").mkdir()
        origin, files = written(tmp_path / "small", theta, clients)
        (tmp_path / "controls").mkdir()
        with pytest.raises(ValueError, match=r"state cannot be written \(No space left"):
            aggregate_files(
                "scaffold", origin, files, disk / "new", num_clients=3, state_out=disk / "state",
                uploads={"control": written(tmp_path / "controls", theta, clients)[1]},
            )  # fmt: skip
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_may_not_be_written_to(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("the superuser may write everywhere")
    case = Case(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    case.out = tmp_path / "closed" / "new"
    with pytest.raises(PermissionError, match="may not write to the folder"):
        case.run()


def test_a_name_taken_meanwhile_is_not_replaced(tmp_path):
    with (
        pytest.raises(FileExistsError, match="exists; choose another name"),
        new_file(tmp_path / "new") as file,
    ):
        file.write(b"mine")
        (tmp_path / "new").write_bytes(b"theirs")
    assert contents(tmp_path) == {tmp_path / "new": b"theirs"}


SLOWLY = """
import sys, time
from fedsdg.aggregation.engines.files.streaming import aggregate_files
def progress(title, done, total):
    if title.startswith("pass 2") and done:
        print("writing", flush=True)
        time.sleep(60)
origin, *clients = sys.argv[1:]
aggregate_files("fedsdg", origin, clients, origin, overwrite=True, progress=progress)
"""


def test_a_killed_process_leaves_the_old_file_whole(tmp_path):
    case = Case(tmp_path)
    before = contents(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", SLOWLY, str(case.origin), *map(str, case.files)],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
    after = {path: data for path, data in contents(tmp_path).items() if path.suffix != ".part"}
    assert after == before
    case.set(out=case.origin, options={"overwrite": True})
    case.run()  # Nor does what it leaves behind stand in the way.


def test_a_damaged_state_is_named(tmp_path):
    (tmp_path / "state").write_bytes(b"no state")
    with pytest.raises(ValueError, match="state is not a whole safetensors file"):
        read_state(tmp_path / "state")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_state(tmp_path / "none")
