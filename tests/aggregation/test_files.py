"""`aggregate_files`: what is read and written, and every fault of a file."""

import errno
import json
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedsdg.aggregation import aggregate, aggregate_files
from fedsdg.aggregation.errors import NonFiniteError
from fedsdg.aggregation.files import check_not_read, read_counts, read_state
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.aggregation.tensor_files import TensorFile
from fedsdg.aggregation.types import Combination, Plan, Rule

from . import cohorts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(tmp_path):
    """A function that aggregates files in a folder, with options."""
    theta, clients = cohorts.drawn(seed=7, size=5)
    save_file(cohorts.tensors(theta), tmp_path / "g", metadata={"made": "here"})
    for k, client in enumerate(clients):
        save_file(cohorts.tensors(client), tmp_path / f"client-{k}.safetensors")

    def run(rule="fedsdg", files=None, out="new", **options):
        chosen = files or [tmp_path / f"client-{k}.safetensors" for k in range(5)]
        for name in ("state_out",):
            if name in options:
                options[name] = tmp_path / options[name]
        return aggregate_files(rule, tmp_path / "g", chosen, tmp_path / out, **options)

    run.folder, run.theta, run.clients = tmp_path, theta, clients
    return run


def nothing_new(folder, before):
    return sorted(path.name for path in folder.iterdir()) == before


# --- results ---


def test_the_result_has_the_layout_and_metadata_of_the_global_file(call):
    made = call()
    assert made.parameters == call.folder / "new"
    written = TensorFile(call.folder / "new")
    assert written.header == TensorFile(call.folder / "g").header
    with safe_open(call.folder / "new", framework="pt") as file:
        assert file.metadata() == {"made": "here"}
    expected = aggregate("fedsdg", call.theta, call.clients)
    assert made.weights == pytest.approx(expected.weights)
    assert cohorts.flat(
        {n: load_file(call.folder / "new")[n] for n in call.theta}
    ) == pytest.approx(cohorts.flat(expected.parameters), abs=1e-6)
    assert (call.folder / "new").stat().st_size == (call.folder / "g").stat().st_size


def test_the_global_file_may_be_replaced_and_a_link_stays_one(call):
    with pytest.raises(FileExistsError, match="exists; choose another name, or overwrite it"):
        call(out="g")
    (call.folder / "link").symlink_to(call.folder / "g")
    before = (call.folder / "g").read_bytes()
    call(out="link", overwrite=True)
    assert (call.folder / "link").is_symlink() and (call.folder / "g").read_bytes() != before


def test_no_aggregation_reads_the_global_file_alone(call):
    made = call("local-only")
    assert (call.folder / "new").read_bytes() == (call.folder / "g").read_bytes()
    assert made.weights is None and made.bytes_read == 4 * made.num_parameters


def test_a_rule_need_not_be_declared(call):
    class Plain(Rule):
        def plan(self, rows, context, state):
            return Plan(Combination(np.full(5, 0.2)), None)

    assert call(Plain()).report()["rule"] == {"type": "Plain"}


def test_small_blocks_give_the_same_as_one_block(call, monkeypatch):
    from fedsdg.aggregation import file_rows

    for rule in ("fedsdg", "coordinate-median", "krum", "geometric-median"):
        whole = call(rule, overwrite=True)
        expected = load_file(call.folder / "new")
        with monkeypatch.context() as patch:
            patch.setattr(file_rows, "WIDEST", 7)
            patch.setattr(file_rows, "NARROWEST", 1)
            made = call(rule, overwrite=True)
        assert made.passes == whole.passes and made.bytes_read == whole.bytes_read
        found = load_file(call.folder / "new")
        assert all(torch.allclose(found[name], expected[name], atol=1e-7) for name in expected)


def test_the_report_is_json_by_file(call):
    bad = call.folder / "client-2.safetensors"
    tensors = load_file(bad)
    tensors["a.b"][0] = torch.nan
    save_file(tensors, bad)
    made = call(on_nonfinite="drop")
    report = json.loads(json.dumps(made.report(), allow_nan=False))
    assert report["rule"]["type"] == "fedsdg" and report["rule"]["epsilon"] == 1e-8
    assert report["num_clients"] == 5 and report["num_dropped"] == 1
    facts = report["clients"][str(bad)]
    assert facts["weight"] == 0 and facts["cosine"] is None and facts["dropped"] == {"a.b": 1}
    assert report["diagnostics"]["degenerate"] == 0.0 and report["passes"] == made.passes
    krum = call({"type": "krum", "f": 0}, on_nonfinite="drop", overwrite=True)
    assert krum.report()["diagnostics"]["winner"] in krum.clients
    with pytest.raises(NonFiniteError, match=f"client {bad}: tensor 'a.b' has 1 non-finite"):
        call(overwrite=True)


def test_the_report_names_the_parameters_of_an_inner_rule(call):
    made = call("fedsdg+screened", num_clients=5, state_out="state")
    assert made.report()["rule"]["threshold"] == 3.5
    assert made.report()["rule"]["inner"]["epsilon"] == 1e-8


def test_progress_counts_every_byte(call):
    told = []
    made = call(progress=lambda *facts: told.append(facts), memory=1 << 20)
    assert {title for title, _, _ in told} == {f"pass {n + 1}" for n in range(made.passes)}
    assert all(done == total for _, done, total in told[-1:])
    assert sum(done for _, done, total in told if done == total) == made.bytes_read


def test_buffers_in_files(tmp_path):
    theta = {"n": torch.tensor(1), "w": torch.zeros(3), "mask": torch.tensor([True, False])}
    save_file(theta, tmp_path / "g")
    for k in range(2):
        client = {
            "n": torch.tensor(7 - k),
            "w": torch.ones(3) * k,
            "mask": torch.tensor([False, k == 1]),
        }
        save_file(client, tmp_path / f"{k}.safetensors")
    files = [tmp_path / f"{k}.safetensors" for k in range(2)]
    made = aggregate_files("fedavg-uniform", tmp_path / "g", files, tmp_path / "new")
    new = load_file(tmp_path / "new")
    aggregate_files(NoAggregation(), tmp_path / "g", files, tmp_path / "still")
    assert load_file(tmp_path / "still")["n"].item() == 1
    assert new["n"].item() == 7 and new["mask"].tolist() == [False, True]
    assert new["w"].tolist() == [0.5] * 3
    assert "2 integer or boolean tensors" in made.remarks[0] and made.report()["remarks"]
    with pytest.raises(ValueError, match="integers and booleans are not averaged"):
        aggregate_files("fedavg-uniform", tmp_path / "g", files, tmp_path / "x", buffers="refuse")


def test_a_state_is_written_and_read(call):
    counts = {"client_samples": [4, 1, 1, 1, 1]}
    with pytest.raises(ValueError, match="keeps a state for the next round; give state_out"):
        call("cgsv", **counts)
    first = call("cgsv", state_out="s", **counts)
    state = read_state(call.folder / "s")
    assert all(torch.equal(state[name], first.state[name]) for name in state)
    expected = aggregate("cgsv", call.theta, call.clients, **counts)
    assert torch.allclose(state["r"], expected.state["r"], atol=1e-6)
    second = call(
        "cgsv", state_out="t", state=state, num_clients=5, round=2, out="newer",
        files=[call.folder / "client-3.safetensors"],
    )  # fmt: skip
    assert second.state["participations"].tolist() == [1, 1, 1, 2, 1]


def test_scaffold_reads_controls(call):
    controls = []
    for k in range(5):
        controls.append(call.folder / f"control-{k}")
        control = {n: torch.full(v.shape, float(k)) for n, v in call.theta.items()}
        save_file(control, controls[-1])
    made = call("scaffold", num_clients=10, uploads={"control": controls}, state_out="s")
    assert torch.allclose(made.state["control"], torch.tensor(1.0))  # (0 + 1 + 2 + 3 + 4) / 10.
    with pytest.raises(ValueError, match="upload 'control' has 4 files for 5 clients"):
        call("scaffold", num_clients=10, uploads={"control": controls[1:]}, state_out="t", out="n")


# --- counts ---


def test_counts_by_name_path_list_and_metadata(call):
    path = str(call.folder / "client-0.safetensors")
    keys = [path, "client-1.safetensors", "client-2", "client-3", "client-4"]
    for counts in (dict(zip(keys, [3, 1, 1, 1, 2], strict=True)), [3, 1, 1, 1, 2]):
        made = call("fedavg", num_samples=counts, overwrite=True)
        assert made.weights == [0.375, 0.125, 0.125, 0.125, 0.25]
    with pytest.raises(ValueError, match="num_samples holds no count for .*client-4"):
        call("fedavg", num_samples=dict(zip(keys[:4], [1] * 4, strict=True)), out="x")
    for k, client in enumerate(call.clients):
        save_file(cohorts.tensors(client), call.folder / f"client-{k}.safetensors",
                  metadata={"num_samples": str(k)})  # fmt: skip
    assert call("fedavg", overwrite=True).weights == [0, 0.1, 0.2, 0.3, 0.4]
    save_file(cohorts.tensors(call.clients[0]), call.folder / "client-0.safetensors",
              metadata={"num_samples": "many"})  # fmt: skip
    with pytest.raises(ValueError, match="client .*client-0.*num_samples is 'many'; give a number"):
        call("fedavg", overwrite=True)
    save_file(cohorts.tensors(call.clients[0]), call.folder / "client-0.safetensors")
    with pytest.raises(ValueError, match="client .*client-0.*num_samples is None; give a number"):
        call("fedavg", overwrite=True)
    call("fedsdg", overwrite=True)  # Which needs no counts.


def same_names(call):
    """Files as peft writes them: one name in several folders."""
    files = []
    for k, client in enumerate(call.clients):
        files.append(call.folder / f"site-{k}" / "adapter_model.safetensors")
        files[-1].parent.mkdir()
        save_file(cohorts.tensors(client), files[-1])
    return files


def test_files_of_one_name_are_told_apart_by_their_folders(call):
    files = same_names(call)
    made = call("fedavg", files, num_samples={f"site-{k}": k for k in range(5)})
    assert made.weights == [0, 0.1, 0.2, 0.3, 0.4]
    for key in ("adapter_model.safetensors", "adapter_model"):
        with pytest.raises(ValueError, match=f"'{key}' fits several files"):
            call("fedavg", files, num_samples={key: 3}, out="x")
    ids = call("cgsv", files, client_samples=[1] * 5, state_out="s", out="y")
    assert ids.state["participations"].tolist() == [1] * 5
    (call.folder / "more").mkdir()
    save_file(cohorts.tensors(call.theta), call.folder / "more" / "client-0.safetensors")
    twice = [call.folder / "client-0.safetensors", call.folder / "more" / "client-0.safetensors"]
    with pytest.raises(ValueError, match="a client is known by the number"):
        call("cgsv", twice, client_samples=[1] * 5, state_out="t", out="z")
    other = call.folder / "x-0.safetensors"
    save_file(cohorts.tensors(call.theta), other)
    with pytest.raises(ValueError, match="are both of client 0"):
        call("cgsv", [twice[0], other], client_samples=[1] * 5, state_out="t", out="z")


def test_a_users_own_json(tmp_path):
    path = tmp_path / "n.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"a": 3}')
    assert read_counts(path) == {"a": 3}
    path.write_text('{"a": 3')
    with pytest.raises(ValueError, match="n.json is not JSON .*line 1.*correct it"):
        read_counts(path)
    path.write_bytes(b'{"\xff": 3}')
    with pytest.raises(ValueError, match="n.json is not JSON"):
        read_counts(path)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_counts(tmp_path / "m.json")


# --- faults ---


def packed(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BROKEN = {
    "empty": b"",
    "short": b"\x08\x00",
    "no header": struct.pack("<Q", 100) + b"{}",
    "huge header": struct.pack("<Q", 1 << 60) + b"{}",
    "not json": packed(b"{w"),
    "list": packed([1]),
    "truncated": packed({"w": entry()}, b"\0" * 7),
    "longer than said": packed({"w": entry()}, b"\0" * 9),
    "wrong offsets": packed({"w": entry(offsets=(0, 4))}, b"\0" * 8),
    "hole": packed({"w": entry(offsets=(4, 12))}, b"\0" * 12),
    "negative": packed({"w": entry(shape=(-2,))}, b"\0" * 8),
    "overlap": packed({"w": entry(), "v": entry(offsets=(4, 12))}, b"\0" * 12),
    "unknown dtype": packed({"w": entry(dtype="X7")}, b"\0" * 8),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_file_is_named(kind, call):
    bad = call.folder / "client-1.safetensors"
    bad.write_bytes(BROKEN[kind])
    before = sorted(path.name for path in call.folder.iterdir())
    with pytest.raises(ValueError, match="client-1.safetensors is not a whole safetensors file"):
        call()
    assert nothing_new(call.folder, before)


def test_dtypes_that_are_not_averaged_are_named(call):
    bad = call.folder / "client-1.safetensors"
    bad.write_bytes(packed({"w": entry("F8_E4M3", (8,))}, b"\0" * 8))
    with pytest.raises(
        ValueError, match="client-1.*tensor 'w' is F8_E4M3, which cannot be averaged"
    ):
        call()


def test_files_that_are_not_there_or_may_not_be_read(call, monkeypatch):
    with pytest.raises(FileNotFoundError, match="nobody: there is no such file"):
        call(files=[call.folder / "nobody"])
    os.mkfifo(call.folder / "pipe")
    with pytest.raises(ValueError, match="pipe is not a whole safetensors file .*not a regular"):
        call(files=[call.folder / "pipe"])
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        call(out="pipe", overwrite=True)
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        call(files=[call.folder])
    if os.geteuid():
        (call.folder / "client-1.safetensors").chmod(0)
        with pytest.raises(PermissionError, match="client-1.safetensors: you may not read"):
            call()


def test_targets_that_cannot_be_written(call, monkeypatch):
    with pytest.raises(FileNotFoundError, match="there is no folder .*none; make it first"):
        call(out="none/new")
    with pytest.raises(ValueError, match="is not a regular file"):
        call(out=".", overwrite=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="you may not write to the folder"):
        call()


def test_nothing_is_written_when_the_disk_is_full(call):
    before = sorted(path.name for path in call.folder.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    script = f"""
import resource, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from fedsdg.aggregation import aggregate_files
from pathlib import Path
folder = Path({str(call.folder)!r})
files = sorted(folder.glob("client-*"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, {limits[1]}))
try:
    aggregate_files("fedsdg", folder / "g", files, folder / "new")
except OSError as error:
    print(error.errno, error)
"""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.startswith(f"{errno.EFBIG}"), done.stderr
    assert "new cannot be written" in done.stdout and nothing_new(call.folder, before)


def test_a_file_has_one_part(call):
    first = call.folder / "client-0.safetensors"
    os.link(first, call.folder / "copy")
    for files, sentence in (
        ([first, first], "client-0.safetensors is given twice"),
        ([first, call.folder / "copy"], "copy is given twice"),
        ([first, call.folder / "g"], "g is given twice"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call(files=files)
    for out in ("client-0.safetensors", "copy"):
        with pytest.raises(ValueError, match="is to be written, but is also read"):
            call(out=out, overwrite=True)
    counts = {"client_samples": [1] * 5}
    for state_out in ("g", "new", "client-0.safetensors"):
        with pytest.raises(ValueError, match="is to be written, but is also read"):
            call("cgsv", state_out=state_out, overwrite=True, **counts)
    with pytest.raises(ValueError, match="also read"):
        check_not_read(call.folder / "copy", [first])
    check_not_read(call.folder / "new", [first])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop("a.b"), "tensor 'a.b' is missing, but torch.float32 of shape \\(5,\\)"),
        (lambda t: t.update(extra=torch.ones(1)), "'extra' is torch.float32 .*, but missing"),
        (lambda t: t.update({"a.b": torch.ones(6)}), "'a.b' is torch.float32 of shape \\(6,\\)"),
        (lambda t: t.update({"a.b": torch.ones(5).double()}), "'a.b' is torch.float64"),
    ],
)
def test_files_with_other_tensors(call, change, sentence):
    path = call.folder / "client-3.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(
        ValueError, match=f"client .*client-3.safetensors: tensor {sentence}|client-3.*{sentence}"
    ):
        call()


@pytest.mark.parametrize("how", ["touched", "cut short", "removed"])
def test_a_file_that_changes_meanwhile(call, how):
    path = call.folder / "client-4.safetensors"

    def progress(title, done, total):
        if title != "pass 1" or done == 0 or not path.exists():
            return
        if how == "removed":
            path.unlink()
        elif how == "touched":
            os.utime(path, ns=(1, 1))
        else:
            path.write_bytes(path.read_bytes()[:-4])

    before = sorted(p.name for p in call.folder.iterdir())
    with pytest.raises(ValueError, match="client-4.safetensors (was changed|cannot be read)"):
        call(progress=progress)
    assert not (call.folder / "new").exists()
    assert {p.name for p in call.folder.iterdir()} <= set(before)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"memory": 5}, "memory=5 is too little"),
        ({"memory": "1 GB"}, "memory='1 GB' is too little"),
        ({"on_nonfinite": "skip"}, "on_nonfinite='skip': use one of"),
        ({"buffers": "mean"}, "buffers='mean': use one of"),
        ({"rule": "focus"}, "reads losses"),
        ({"rule": "scaffold", "num_clients": 5, "state_out": "s"}, "upload 'control' has 0 rows"),
        ({"uploads": {"update": ["x"]}}, "uploads are \\['update'\\]; give those .* beside"),
        ({"rule": {"type": "krum", "f": 2}}, "needs at least 2f\\+3 = 7 .* has 5"),
        ({"rule": "fedavg"}, "weighs clients by num_samples"),
    ],
)
def test_requests_that_are_refused_leave_nothing(call, options, sentence):
    before = sorted(path.name for path in call.folder.iterdir())
    with pytest.raises(ValueError, match=sentence):
        call(**options)
    assert nothing_new(call.folder, before)


def test_client_files_are_several(call):
    with pytest.raises(ValueError, match="no clients; give at least one"):
        aggregate_files("fedsdg", call.folder / "g", [], call.folder / "new")
    with pytest.raises(ValueError, match="client_files is the path .*; give a list"):
        call(files=str(call.folder / "client-0.safetensors"))
    assert call(files=call.folder.glob("client-*")).num_parameters == 53


def test_memory_does_not_grow_with_the_files(tmp_path):
    """The peak of a process that aggregates 160 MB within blocks of 8 MB."""
    d = 2_000_000
    for name in ("g", *(f"{k}.safetensors" for k in range(20))):
        values = np.random.default_rng(len(name)).random(d, dtype=np.float32)
        save_file({"w": torch.from_numpy(values)}, tmp_path / name)
    script = f"""
import resource, sys
sys.path.insert(0, {str(ROOT)!r})
from fedsdg.aggregation import aggregate_files
from pathlib import Path
folder = Path({str(tmp_path)!r})
files = sorted(folder.glob("*.safetensors"))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
aggregate_files("fedsdg", folder / "g", files[:2], folder / "few", memory=8 << 20)
before = peak()
aggregate_files("fedsdg", folder / "g", files, folder / "many", memory=8 << 20)
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 40
