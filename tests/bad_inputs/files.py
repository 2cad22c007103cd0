"""The doors for files: bytes of any kind under the names of safetensors files, and odd requests."""

import json
import math
import os
import shutil
import struct
from types import SimpleNamespace

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from fedsdg.aggregation.files import aggregate_files, read_state

from . import arrays
from .outcomes import damaged, documented, pick

KINDS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
DOCUMENTED = (ValueError, OSError)
JUNK = [True, 3, 2.5, math.nan, "text", b"bytes", object(), [], {}, 10**400, np.ones((2, 2))]
RULES = ("fedavg-uniform", "coordinate-median", "fedavg", "krum", "fedsdg", "geometric-median")
SHAPES = [(3,), (2, 2), (), (4, 1)]


def packed(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def unpacked(file):
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def content(tensors, kinds, metadata=None):
    """Return the bytes of a safetensors file."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, values in tensors.items():
        raw = np.asarray(values).astype(KINDS[kinds[name]]).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        shape = list(np.shape(values))
        header[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": offsets}
        data += raw
    return packed(header, data)


def drawn_call(rng, folder):
    """Files that are right, in a folder of their own."""
    names = ["w", "b", "λ"][: int(rng.integers(1, 4))]
    shapes = {name: pick(rng, SHAPES) for name in names}
    kinds = {name: pick(rng, ["F32", "F32", "F64", "F16"]) for name in names}
    theta = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    size = int(rng.integers(1, 7))
    folder.mkdir()
    call = SimpleNamespace(
        rng=rng, folder=folder, names=names, kinds=kinds, rule=pick(rng, RULES), broken=False,
        origin=folder / "global.safetensors", out=folder / "new", options={},
        files=[folder / f"client-{k}.safetensors" for k in range(size)],
    )  # fmt: skip
    call.origin.write_bytes(content(theta, kinds, {"made": "here"}))
    for file in call.files:
        order = [names[k] for k in rng.permutation(len(names))]
        values = {name: theta[name] + 0.3 * rng.normal(size=shapes[name]) + 0.2 for name in order}
        file.write_bytes(content(values, kinds))
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


def no_header(call):
    """Bytes that are taken for a header, or a length that is none."""
    file = victim(call)
    texts = [call.rng.bytes(int(call.rng.integers(60))), b"[]", b"3", b"null", b"{}", b'"x"',
             b"{" * 500, b'{"a":' * 300, b" " * 64]  # fmt: skip
    length = struct.pack("<Q", pick(call.rng, [0, 1, 2**40, 2**63, 2**64 - 1]))
    lying = length + file.read_bytes()[8:]
    file.write_bytes(lying if call.rng.random() < 0.3 else packed(pick(call.rng, texts), b""))


def other_header(call):
    """A header of another meaning over the same numbers."""
    file = victim(call)
    header, data = unpacked(file)
    name = pick(call.rng, call.names)
    key, value = pick(call.rng, [
        ("dtype", pick(call.rng, ["I32", "F8_E4M3", "C64", "BOOL", "F32", "F64", "f32", 3, None])),
        ("shape", pick(call.rng, [[], [1], [-1], [10**12], [2**63], [0], "3", [1.5], None])),
        ("data_offsets", pick(call.rng, [[0, 0], [0, 10**9], [-4, 8], [8, 0], [0], "x", [0, 2**64],
                                         [1, 13]])),
        ("more", 1), ("gone", None), ("renamed", "w "), ("metadata", {"n": 3}), ("metadata", "x"),
        ("order", None), ("spaces", None),
    ])  # fmt: skip
    if key in ("gone", "renamed"):
        entry = header.pop(name)
        header |= {value: entry} if value else {}
    elif key == "metadata":
        header["__metadata__"] = value
    elif key == "order":
        header = dict(reversed(header.items()))
    elif key == "spaces":
        header = json.dumps(header).encode() + b" " * int(call.rng.integers(1, 30))
    else:
        header[name][key] = value
    file.write_bytes(packed(header, data))


def not_finite(call):
    file, name = victim(call), pick(call.rng, call.names)
    header, data = unpacked(file)
    start = header[name]["data_offsets"][0]
    number = np.array(pick(call.rng, [np.nan, np.inf, -np.inf])).astype(KINDS[call.kinds[name]])
    data = data[:start] + number.tobytes() + data[start + number.nbytes :]
    file.write_bytes(packed(header, data))
    if call.rng.integers(2):
        call.options["on_nonfinite"] = "drop"


def no_regular_file(call):
    file, call.broken = victim(call), True
    file.unlink()
    pick(call.rng, [os.mkfifo, os.mkdir, lambda f: f.symlink_to(f),
                    lambda f: f.symlink_to("/dev/zero"), lambda f: None])(file)  # fmt: skip


def swapped(call):
    """The contents of a file of another model."""
    others = {"w": call.rng.normal(size=(3,)), "b": call.rng.normal(size=())}
    victim(call).write_bytes(content(others, {"w": "F32", "b": "F64"}))


FILES = [
    *[other_bytes] * 4, no_header, *[other_header] * 3, not_finite, no_regular_file, swapped,
]  # fmt: skip


def bad_request(call):
    """Something that must be refused, whatever state the files are in."""
    call.broken, here, files = True, call.folder, call.files
    name, value = pick(call.rng, [
        ("rule", pick(call.rng, [*JUNK, "krumm", "screened", "focus", {"type": "krum", "f": 9}])),
        ("client_files", pick(call.rng, [
            [], (), str(files[0]), [*files, files[0]], [*files, call.origin], [here / "none"],
            [here / ("x" * 300)], ["with\0null"]])),
        ("global_file", pick(call.rng, [here, "/dev/null", "x" * 300, ""])),
        ("out", pick(call.rng, [here, "/dev/null", "x" * 300, "a\0b", files[0], "",
                                here / "no" / "new", call.origin, call.origin / "new"])),
        ("num_samples", pick(call.rng, [*JUNK, {"client-0": "x"}, [-1] * len(files)])),
        ("on_nonfinite", pick(call.rng, JUNK)), ("buffers", pick(call.rng, JUNK)),
        ("round", pick(call.rng, [0, None, "1", 1.5])),
        ("memory", pick(call.rng, [0, -1, "x", None, 1.5, math.nan])),
        ("uploads", pick(call.rng, [{"update": files}, {"control": files}, {"control": []}])),
        ("state", pick(call.rng, [{"r": 3}, {"r": torch.ones(3)}])),
        ("state_out", pick(call.rng, [call.out, files[0], call.origin, here])),
        ("num_clients", pick(call.rng, [0, -1, "x", 1.5, [1], 10**400])),
        ("client_samples", pick(call.rng, JUNK)),
    ])  # fmt: skip
    call.options[name] = value
    if name == "out" and value != call.origin:
        call.options["overwrite"] = bool(call.rng.integers(2))


def whole(call):
    """Nothing is wrong."""


# --- what comes of it ---


def contents(folder):
    """Return what is in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[path] = path.read_bytes() if plain else path.is_symlink()
    return found


def readable(call):
    """Return the tensors of all files as the library reads them, or why they must be refused."""
    loaded = []
    for file in (call.origin, *call.files):
        try:
            loaded.append(load(file.read_bytes()))
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
            return f"{file.name}: {error}", []
    facts = [{name: (t.shape, t.dtype) for name, t in tensors.items()} for tensors in loaded]
    if not facts[0] or any(fact != facts[0] for fact in facts):
        return "they differ", []
    floating = all(tensor.dtype in arrays.DTYPES.values() for tensor in loaded[0].values())
    return None if floating else "a dtype", loaded


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
    why, loaded = (None, []) if call.broken else readable(call)
    if loaded:
        theta, *rows = [
            np.concatenate([tensors[n].double().numpy().reshape(-1) for n in loaded[0]])
            for tensors in loaded
        ]
        rows, origin = np.array(rows), loaded[0].values()
        call.shapes, call.f = [tensor.shape for tensor in origin], 1
        call.dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in origin]
        call.counts = call.options.get("num_samples", [1] * len(rows))
        call.kept = np.isfinite(rows).all(1)
        if not call.kept.all() and call.options.get("on_nonfinite") != "drop":
            why = why or "not finite"
        if call.rule == "fedsdg" and not np.isfinite(theta).all():
            why = why or "not finite"
    with np.errstate(all="ignore"):
        try:
            aggregate_files(**arguments)
        except Exception as error:
            fault = documented(error, kinds=DOCUMENTED)
            if contents(call.folder) != before or sorted(os.listdir()) != here:
                fault = fault or "something was left behind or changed"
            if not (fault or call.broken or why or _large(call, theta, rows)):
                fault = f"refused: {error}"
            return fault
        if call.broken or why:
            return f"accepted, though {why}"
        after = contents(call.folder)
        made = load(after.pop(call.out))
        if after != before:
            return "another file was changed"
        numbers = np.concatenate([made[n].double().numpy().reshape(-1) for n in loaded[0]])
        if _large(call, theta, rows):
            return None
        return arrays.wrong_step(call, theta, rows[call.kept], numbers - theta)


def _large(call, theta, rows):
    """Return whether it must be refused, or numbers are so large that it may overflow."""
    kept = rows[call.kept]
    most = 1e150 if "float64" in call.dtypes else np.finfo(np.float32).max
    huge = np.abs(kept - theta).max(initial=0) > most or not np.isfinite(theta).all()
    return huge or arrays.must_refuse(call, theta, kept)


def check_state(rng, folder):
    """One damaged file for `read_state`; what is wrong with its outcome, or None."""
    call = drawn_call(rng, folder)
    try:
        call.files = []
        pick(rng, FILES)(call)
        if rng.random() < 0.1:
            call.origin = pick(rng, [folder, folder / "none", folder / ("x" * 300), "a\0b", ""])
        try:
            found = read_state(call.origin)
        except Exception as error:
            return documented(error, kinds=DOCUMENTED)
        same = load(call.origin.read_bytes())
        equal = found.keys() == same.keys() and all(
            found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
            for name, tensor in same.items()
            if torch.isfinite(tensor).all()
        )
        return None if equal else "another state than the library reads"
    finally:
        shutil.rmtree(folder)
