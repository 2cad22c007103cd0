"""The doors for files: bytes of any kind under the names of safetensors files, and odd requests."""

import json
import math
import os
import shutil
import socket
import struct
from types import SimpleNamespace

import numpy as np
import torch
from fedsdg.aggregation.engines.files.streaming import aggregate_files, read_state
from safetensors import SafetensorError
from safetensors.torch import load

from . import arrays, references
from .outcomes import damaged, documented, pick

KINDS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
DOCUMENTED = (ValueError, FileNotFoundError, FileExistsError, PermissionError)
JUNK = [None, True, 3, 2.5, math.nan, "text", b"bytes", object(), [], {}, 10**400, np.ones((2, 2))]
RULES = ("fedavg-uniform", "coordinate-median", "fedavg", "krum", "fedsdg", "geometric-median")


def content(tensors, kinds, order=None, metadata=None):
    """The bytes of a safetensors file, and its header."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name in order or list(tensors):
        raw = np.asarray(tensors[name]).astype(KINDS[kinds[name]]).tobytes()
        header[name] = {
            "dtype": kinds[name],
            "shape": list(np.shape(tensors[name])),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    return packed(header, data), header, data


def packed(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def drawn_call(rng, folder):
    """Files that are right, in a folder of their own."""
    names = ["w", "b", "λ"][: int(rng.integers(1, 4))]
    shapes = {name: pick(rng, [(3,), (2, 2), (), (4, 1)]) for name in names}
    if not any(math.prod(shape) for shape in shapes.values()):
        shapes[names[0]] = (3,)
    kinds = {name: pick(rng, ["F32", "F32", "F64", "F16"]) for name in names}
    size = int(rng.integers(1, 7))
    theta = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    folder.mkdir()
    call = SimpleNamespace(
        rng=rng, folder=folder, names=names, shapes=shapes, kinds=kinds, rule=pick(rng, RULES),
        origin=folder / "global.safetensors", out=folder / "new", options={}, broken=False,
        files=[folder / f"client-{k}.safetensors" for k in range(size)],
    )  # fmt: skip
    call.origin.write_bytes(content(theta, kinds, metadata={"made": "here"})[0])
    for file in call.files:
        order = [names[k] for k in rng.permutation(len(names))]
        values = {
            name: theta[name] + 0.3 * rng.normal(size=shape) + 0.2 for name, shape in shapes.items()
        }
        file.write_bytes(content(values, kinds, order)[0])
    if call.rule == "fedavg":
        call.options["num_samples"] = rng.integers(1, 9, size=size).tolist()
    return call


def victim(call):
    return pick(call.rng, [call.origin, *call.files])


# --- what is done to files; the library says whether they can still be read ---


def other_bytes(call):
    file = victim(call)
    raw = file.read_bytes()
    file.write_bytes(damaged(call.rng, raw, min(len(raw), 8 + int.from_bytes(raw[:8], "little"))))


def made_up(call):
    """Random bytes that are taken for the header."""
    victim(call).write_bytes(packed(call.rng.bytes(int(call.rng.integers(60))), b""))


def other_header(call):
    """A header of another meaning over the same numbers."""
    file = victim(call)
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    name = pick(call.rng, call.names)
    entry = header.get(name, {})
    how = int(call.rng.integers(12))
    if how == 0:
        entry["dtype"] = pick(call.rng, ["I32", "F8_E4M3", "BOOL", "F32", "F64", "f32", 3, None])
    elif how == 1:
        entry["shape"] = pick(call.rng, [[], [1], [-1], [10**12], [2**63], [0], "3", [1.5], None])
    elif how == 2:
        entry["data_offsets"] = pick(
            call.rng, [[0, 0], [0, 10**9], [-4, 8], [8, 0], [0], "x", [0, 2**64], [1, 13]]
        )
    elif how == 3:
        header[pick(call.rng, ["more", "w ", "", "W", "x" * 500])] = entry
    elif how == 4:
        header.pop(name, None)
    elif how == 5:
        counted = {"num_samples": "x"}
        header["__metadata__"] = pick(call.rng, [{"n": 3}, "text", None, [], counted])
        if header["__metadata__"] == counted and file != call.origin:
            # No count, where files say theirs.
            call.broken = "num_samples" not in call.options
    elif how == 6:
        text = json.dumps(header).encode()
        double, call.broken = json.dumps({name: entry}).encode()[:-1], True
        file.write_bytes(packed(double + b", " + text[1:], data))
        return
    elif how == 7:
        texts = [
            b"[]",
            b"3",
            b"null",
            b"{}",
            b'"x"',
            b"{" * 500,
            b'{"a":' * 300,
            b" " * 64,
            b"\xff",
        ]
        file.write_bytes(packed(pick(call.rng, texts), data))
        return
    elif how == 8:
        text = json.dumps(header).encode()
        file.write_bytes(packed(text + b" " * int(call.rng.integers(1, 30)), data))
        return
    elif how == 9:
        file.write_bytes(
            struct.pack("<Q", pick(call.rng, [0, 1, 2**40, 2**63, 2**64 - 1])) + raw[8:]
        )
        return
    elif how == 10:
        entry["more"] = 1
    else:
        header = dict(reversed(header.items()))
    file.write_bytes(packed(header, data))


def not_finite(call):
    file = victim(call)
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
    name = pick(call.rng, call.names)
    start, _ = header[name]["data_offsets"]
    number = np.array(pick(call.rng, [np.nan, np.inf, -np.inf])).astype(KINDS[call.kinds[name]])
    data[start : start + number.nbytes] = number.tobytes()
    file.write_bytes(packed(header, bytes(data)))
    if call.rng.integers(2):
        call.options["on_nonfinite"] = "drop"


def no_regular_file(call):
    file = victim(call)
    file.unlink()
    how = int(call.rng.integers(6))
    if how == 0:
        os.mkfifo(file)
    elif how == 1:
        file.mkdir()
    elif how == 2:
        file.symlink_to(file)
    elif how == 3:
        file.symlink_to("/dev/zero")
    elif how == 4:
        with socket.socket(socket.AF_UNIX) as made:
            here = os.open(call.folder, os.O_RDONLY)
            try:
                made.bind(f"/proc/self/fd/{here}/{file.name}")
            finally:
                os.close(here)
    call.broken = True


def swapped(call):
    """Another file's contents, be it of another model."""
    file = victim(call)
    others = {"w": call.rng.normal(size=(3,)), "b": call.rng.normal(size=())}
    file.write_bytes(content(others, {"w": "F32", "b": "F64"})[0])


FILES = [
    *[other_bytes] * 4, made_up, *[other_header] * 3, not_finite, no_regular_file, swapped,
]  # fmt: skip


# --- what is asked for ---


def bad_request(call):
    """Something that must be refused; whatever state the files are in."""
    rng, call.broken = call.rng, True
    name, value = pick(rng, [
        ("rule", pick(rng, [*JUNK, "krumm", "screened", "focus", {"type": "krum", "f": 9}])),
        ("client_files", pick(rng, [None, 3, [], (), {}, [3], [None], object(), [[]], [b"x"]])),
        ("client_files", [*call.files, call.files[0]]),
        ("client_files", [*call.files, call.origin]),
        ("client_files", [*call.files, call.folder / "none"]),
        ("client_files", [call.folder / ("x" * 300)]), ("client_files", ["with\0null"]),
        ("global_file", pick(rng, [None, 3, object(), call.folder, "/dev/null", "x" * 300, ""])),
        ("out", pick(rng, [None, 3, call.folder, "/dev/null", "x" * 300, "a\0b", call.files[0],
                           call.folder / "no" / "new", call.origin, call.origin / "new", ""])),
        ("num_samples", pick(rng, [*JUNK[1:], {"client-0": "x"}, [-1] * len(call.files)])),
        ("on_nonfinite", pick(rng, JUNK)), ("round", pick(rng, [0, None, "1", 1.5, *JUNK[5:]])),
        ("memory", pick(rng, [0, -1, "x", None, 1.5, math.nan, object()])),
        ("uploads", pick(rng, [3, "x", [1], {"update": call.files}, {"control": 3},
                               {"control": None}, {"control": call.files}, {3: [3]}])),
        ("state", pick(rng, [3, "x", {"r": 3}, {"r": torch.ones(3)}])),
        ("state_out", pick(rng, [call.out, call.files[0], call.origin, call.folder])),
        ("num_clients", pick(rng, [0, -1, "x", 1.5, [1], 10**400])),
        ("client_samples", pick(rng, JUNK[1:])),
    ])  # fmt: skip
    call.options[name] = value
    if rng.integers(2) and name == "out":
        call.options["overwrite"] = value != call.origin


def whole(call):
    """Nothing is wrong."""


# --- what comes of it ---


def contents(folder):
    found = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[path] = path.read_bytes() if plain else os.readlink(path) if path.is_symlink() else ""
    return found


def expected(call):
    """(why it must be refused or None, all steps that the rule may take from the files)."""
    loaded = []
    for file in (call.origin, *call.files):
        try:
            loaded.append(load(file.read_bytes()))
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
            return f"{file.name}: {error}", None
    origin, *clients = loaded
    if not origin:
        return "no tensors", None
    for params in clients:
        alike = {name: (t.shape, t.dtype) for name, t in params.items()}
        if alike != {name: (t.shape, t.dtype) for name, t in origin.items()}:
            return "they differ", None
    if any(t.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
           for t in origin.values()):  # fmt: skip
        return "a dtype", None
    names = list(origin)
    theta, *rows = [
        np.concatenate([params[n].double().numpy().reshape(-1) for n in names]) for params in loaded
    ]
    rows = np.array(rows)
    kept = np.isfinite(rows).all(1)
    if not np.isfinite(theta).all() or not kept.any():
        return "not finite", None
    if not kept.all() and call.options.get("on_nonfinite") != "drop":
        return "not finite", None
    arguments = SimpleNamespace(
        rule=call.rule, f=1, counts=call.options.get("num_samples", [1] * len(rows)),
        dtypes=[str(t.dtype).removeprefix("torch.") for t in origin.values()],
        shapes=[t.shape for t in origin.values()],
    )  # fmt: skip
    with np.errstate(all="ignore"):
        x = rows[kept] - theta
        steps = arrays.accepted(arguments, theta, rows, kept)
        if not steps:
            return "too few", None
    slack = arrays.allowed(arguments, rows[kept], theta)
    wide = "float64" in arguments.dtypes
    most = np.concatenate([
        np.full(t.numel(), min(torch.finfo(t.dtype).max, 1e300)) for t in origin.values()
    ])  # fmt: skip
    huge = np.abs(x).max(initial=0) > torch.finfo(torch.float64 if wide else torch.float32).max
    if any((np.abs(theta + step) > most).any() for step in steps) or huge:
        return "it may overflow", steps
    return None, SimpleNamespace(names=names, theta=theta, x=x, steps=steps, slack=slack)


def check(rng, folder):
    """One call of `aggregate_files`; what is wrong with its outcome, or None."""
    call = drawn_call(rng, folder)
    try:
        edits = [pick(rng, [*FILES, whole])]
        if rng.random() < 0.3:
            edits.append(bad_request)
        for edit in edits:
            edit(call)
        fault = _outcome(call)
        return fault and f"{fault} [{call.rule}, {[e.__name__ for e in edits]}, {call.options}]"
    finally:
        shutil.rmtree(folder)


def _outcome(call):
    arguments = {"rule": call.rule, "global_file": call.origin, "client_files": call.files,
                 "out": call.out, **call.options}  # fmt: skip
    before, here = contents(call.folder), sorted(os.listdir())
    try:
        aggregate_files(**arguments)
    except Exception as error:
        fault = documented(error, kinds=DOCUMENTED)
        if fault is None and not call.broken and expected(call)[0] is None:
            fault = f"refused: {error}"
        if contents(call.folder) != before or sorted(os.listdir()) != here:
            fault = fault or "something was left behind or changed"
        return fault
    if call.broken:
        return "accepted"
    why, right = expected(call)
    if why is not None and right is None:
        return f"accepted, though {why}"
    after = contents(call.folder)
    written = after.pop(call.out)
    if after != before:
        return "another file was changed"
    if why is not None:
        return None
    made = load(written)
    found = np.concatenate([made[n].double().numpy().reshape(-1) for n in right.names])
    if call.rule == "geometric-median":
        room = len(right.x) * np.sqrt((right.slack**2).sum())
        if references.far_from_median(right.x, found - right.theta, 1e-6, room):
            return "no geometric median"
        return None
    for step in right.steps:
        if (np.abs(found - right.theta - step) <= right.slack).all():
            return None
    return f"{found - right.theta} instead of {right.steps[0]}"


def check_state(rng, folder):
    """One damaged file for `read_state`; what is wrong with its outcome, or None."""
    call = drawn_call(rng, folder)
    try:
        edit = pick(rng, FILES)
        call.files = []
        edit(call)
        if rng.random() < 0.1:
            call.origin = pick(rng, [folder, folder / "none", folder / ("x" * 300), "a\0b", ""])
        try:
            found = read_state(call.origin)
        except Exception as error:
            return documented(error, kinds=DOCUMENTED)
        same = load(call.origin.read_bytes())
        equal = found.keys() == same.keys() and all(
            found[n].dtype == t.dtype and found[n].shape == t.shape
            and found[n].numpy().tobytes() == t.numpy().tobytes()
            for n, t in same.items()
        )  # fmt: skip
        return None if equal else "another state than the library reads"
    finally:
        shutil.rmtree(folder)
