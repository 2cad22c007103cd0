"""Aggregated files are what the parameters in them give in memory, whatever their layout."""

import json
import os
import struct

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedsdg.aggregation.api import aggregate
from fedsdg.aggregation.engines.files.file_rows import Meter, block_width, finite_norm
from fedsdg.aggregation.engines.files.streaming import aggregate_files, read_state
from fedsdg.aggregation.engines.memory.rounding import Rounding
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Aggregate, StatelessRule

from ..api_cases import EVERY_RULE, beside_a_large_head, needs

SMALLEST = 1 << 20
"""Of memory; with it the parameters of `written` with 40 clients come in several blocks."""
SHAPES = {"blocks.0.w": (61, 53), "empty": (0, 2), "scalar": (), "head": (40, 30), "b": (7001,)}


def write_raw(path, tensors, metadata=None):
    """A safetensors file whose tensors lie in the order of the dict."""
    header, start = {}, 0
    kinds = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
    if metadata:
        header["__metadata__"] = metadata
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": kinds.get(tensor.dtype, "F64"),
            "shape": list(tensor.shape),
            "data_offsets": [start, start + size],
        }
        start += size
    text = json.dumps(header).encode()
    data = b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def drawn(seed, size, dtypes, shapes=SHAPES):
    """theta_g, and theta_k that have something in common."""
    generator = torch.Generator().manual_seed(seed)

    def normal(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    chosen = dict(zip(shapes, (dtypes * len(shapes))[: len(shapes)], strict=True))
    theta = {name: normal(shape) for name, shape in shapes.items()}
    drift = {name: 0.1 * normal(shape) for name, shape in shapes.items()}
    clients = [
        {
            name: (theta[name] + drift[name] + 0.2 * normal(shape)).to(chosen[name])
            for name, shape in shapes.items()
        }
        for _ in range(size)
    ]
    return {name: tensor.to(chosen[name]) for name, tensor in theta.items()}, clients


def written(folder, theta, clients, name="client"):
    """The files; those of clients have their tensors in orders of their own."""
    write_raw(folder / "global.safetensors", theta, {"made": "here"})
    files = []
    for k, params in enumerate(clients):
        names = list(params) if k % 2 else sorted(params, reverse=k % 4 == 0)
        files.append(folder / f"{name}-{k}.safetensors")
        write_raw(files[-1], {n: params[n] for n in names})
    return folder / "global.safetensors", files


def check_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
@pytest.mark.parametrize(
    "dtypes",
    [(torch.float32,), (torch.float64,), (torch.float32, torch.bfloat16), (torch.float16,)],
    ids=["float32", "float64", "mixed", "float16"],
)
def test_every_rule_gives_what_it_gives_in_memory(rule, dtypes, tmp_path):
    size = 40
    theta, clients = drawn(3, size, dtypes)
    controls = drawn(4, size, dtypes)[1]
    origin, files = written(tmp_path, theta, clients)
    facts = needs(rule, size, controls)
    sent = {}
    for upload in facts.get("uploads", ["control"]):
        (tmp_path / upload).mkdir()
        sent[upload] = written(tmp_path / upload, theta, controls)[1]
    expected = aggregate(rule, theta, dict(enumerate(clients)), **facts)
    facts.pop("uploads", None)
    stateful = bool(expected.state)
    found = aggregate_files(
        rule, origin, files, tmp_path / "new.safetensors", **facts, memory=SMALLEST,
        uploads=sent, state_out=tmp_path / "state" if stateful else None,
    )  # fmt: skip

    # The results may round differently where they fall between two numbers of a short dtype.
    tolerance = max(1e-6, *(2 * torch.finfo(d).eps for d in dtypes if d.itemsize == 2), 0)
    tolerance = 1e-12 if dtypes == (torch.float64,) else tolerance
    result = load_file(tmp_path / "new.safetensors")
    check_close(result, expected.parameters, tolerance)
    if expected.weights is None:
        assert found.weights is None
    else:
        np.testing.assert_allclose(found.weights, list(expected.weights.values()), atol=1e-6)
    assert found.diagnostics.keys() == expected.diagnostics.keys()
    for name, value in expected.diagnostics.items():
        if name == "winner":
            assert found.diagnostics[name] == str(files[value])
        else:
            np.testing.assert_allclose(found.diagnostics[name], value, rtol=1e-4, atol=1e-6)
    for name, value in expected.state.items():
        torch.testing.assert_close(found.state[name], value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(read_state(tmp_path / "state")[name], found.state[name])
    assert found.num_parameters == sum(t.numel() for t in theta.values())


PASSES = {
    "fedavg-uniform": 1, "coordinate-median": 1, "fedsdg": 2, "geometric-median": 2, "cgsv": 3,
    "scaffold": 2,
}  # fmt: skip


@pytest.mark.parametrize("rule", PASSES)
def test_files_are_gone_through_no_more_often_than_the_rule_needs(rule, tmp_path):
    theta, clients = drawn(0, 7, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    (tmp_path / "controls").mkdir()
    facts = needs(rule, 7)
    facts.pop("uploads", None)
    found = aggregate_files(
        rule, origin, files, tmp_path / "new.safetensors", **facts, state_out=tmp_path / "s",
        uploads={"control": written(tmp_path / "controls", theta, clients)[1]},
    )  # fmt: skip
    numbers = found.num_parameters
    assert found.passes == PASSES[rule]
    # Seven clients and the global parameters, these once more where the result is written; the
    # controls have no origin.
    vectors = 8 * found.passes + 1 - (rule == "scaffold")
    assert found.bytes_read == 4 * numbers * vectors


def test_of_krums_choice_only_the_winner_is_read_again(tmp_path):
    theta, clients = drawn(0, 9, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    found = aggregate_files({"type": "krum", "f": 2}, origin, files, tmp_path / "new.safetensors")
    assert found.bytes_read == 4 * found.num_parameters * (10 + 2 + 1)
    winner = files.index(next(f for f in files if str(f) == found.diagnostics["winner"]))
    check_close(load_file(tmp_path / "new.safetensors"), clients[winner], 1e-6)


@pytest.mark.parametrize("memory", [SMALLEST, 3 << 20, 256 << 20])
def test_the_width_of_blocks_changes_nothing_but_rounding(memory, tmp_path):
    theta, clients = drawn(1, 30, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    expected = aggregate("geometric-median", theta, clients).parameters
    aggregate_files("geometric-median", origin, files, tmp_path / "new", memory=memory)
    result = load_file(tmp_path / "new")
    check_close(result, expected, 1e-6)


def test_metadata_and_layout_are_those_of_the_global_file(tmp_path):
    theta, clients = drawn(0, 3, (torch.float32, torch.bfloat16))
    origin, files = written(tmp_path, theta, clients)
    aggregate_files("fedsdg", origin, files, tmp_path / "new.safetensors")
    start = 8 + int.from_bytes(origin.read_bytes()[:8], "little")
    new = (tmp_path / "new.safetensors").read_bytes()
    assert new[:start] == origin.read_bytes()[:start] and len(new) == origin.stat().st_size
    with safe_open(tmp_path / "new.safetensors", "pt") as file:
        assert file.metadata() == {"made": "here"}


def test_one_client_gives_its_parameters(tmp_path):
    theta, clients = drawn(0, 1, (torch.float64,))
    origin, files = written(tmp_path, theta, clients)
    for rule in ("fedsdg", "coordinate-median", "geometric-median"):
        found = aggregate_files(rule, origin, files, tmp_path / f"{rule}.safetensors")
        result = load_file(tmp_path / f"{rule}.safetensors")
        check_close(result, clients[0], 1e-14)
        assert found.weights in ([1.0], None)


def test_the_result_can_take_the_place_of_the_global_file(tmp_path):
    theta, clients = drawn(0, 4, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    aggregate_files("fedsdg", origin, files, tmp_path / "new.safetensors")
    aggregate_files("fedsdg", origin, files, origin, overwrite=True)
    assert origin.read_bytes() == (tmp_path / "new.safetensors").read_bytes()


def test_a_link_is_written_through(tmp_path):
    theta, clients = drawn(0, 4, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "new.safetensors")
    aggregate_files("fedsdg", origin, files, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load_file(tmp_path / "real" / "new.safetensors").keys() == theta.keys()


def test_opposite_updates_of_rounding_size_count_alike(tmp_path):
    """The guard against rounding noise: ||mean|| <= 1/2 eps max ||theta_k||, weights uniform."""
    theta = {"w": torch.full((1000,), 1.0), "b": torch.full((10,), 1.0, dtype=torch.float16)}
    step = torch.zeros(1000)
    step[0] = 2**-22
    clients = [
        {"w": theta["w"] + step, "b": theta["b"]},
        {"w": theta["w"] - step * 0.5, "b": theta["b"]},
        {"w": theta["w"], "b": theta["b"]},
    ]
    origin, files = written(tmp_path, theta, clients)
    rule = {"type": "fedsdg", "epsilon": 1e-30}  # Which leaves the guard as the only one.
    expected = aggregate(rule, theta, clients)
    found = aggregate_files(rule, origin, files, tmp_path / "new")
    assert expected.diagnostics["degenerate"] == 1
    assert found.diagnostics["degenerate"] == 1
    assert found.weights == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("noise", [False, True])
def test_adapters_in_files_are_compared_as_in_memory(noise, tmp_path):
    theta, *clients = (
        {name: torch.from_numpy(value) for name, value in params.items()}
        for params in beside_a_large_head(noise)
    )
    origin, files = written(tmp_path, theta, clients)
    rule = {"type": "fedsdg", "scope": "adapters", "epsilon": 1e-30}
    expected = aggregate(rule, theta, clients)
    found = aggregate_files(rule, origin, files, tmp_path / "new")
    assert found.diagnostics["degenerate"] == expected.diagnostics["degenerate"] == noise
    assert found.weights == pytest.approx(expected.weights, rel=1e-6)
    check_close(load_file(tmp_path / "new"), expected.parameters, 1e-6)
    with pytest.raises(ValueError, match="'adapters', which is formed from the client files"):
        aggregate_files(rule, origin, files, tmp_path / "other", uploads={"adapters": files})
    clients[1]["w"][3] = torch.inf
    origin, files = written(tmp_path, theta, clients)
    with pytest.raises(ValueError, match=r"client .*client-1.*: tensor 'w' has 1 non-finite"):
        aggregate_files(rule, origin, files, tmp_path / "other")
    clients[1]["w"][3], clients[2]["head.w"][0] = 0, torch.nan
    origin, files = written(tmp_path, theta, clients)
    found = aggregate_files(rule, origin, files, tmp_path / "other", on_nonfinite="drop")
    assert found.dropped == {str(files[2]): {"head.w": 1}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e-25, 1e-12, 1.0, 1e12, 1e19, 1e37, 1e200])
def test_norms_at_every_scale(dtype, scale):
    x = torch.tensor(np.random.default_rng(0).normal(size=20001) * scale).to(dtype)
    if not torch.isfinite(x).all():
        assert np.isnan(finite_norm(x))
        return
    peak = x.abs().max().double()
    exact = float(peak * (x.double() / (peak if peak > 0 else 1)).norm())
    assert finite_norm(x) == pytest.approx(exact, rel=1e-5)
    # The same as the door in memory takes it.
    assert 0.5 * torch.finfo(dtype).eps * finite_norm(x) == pytest.approx(
        float(Rounding({"x": x}, [{"x": x}]).norms[0]), rel=1e-5
    )
    for bad in (np.nan, np.inf, -np.inf):
        x[17000] = bad
        assert np.isnan(finite_norm(x))


@pytest.mark.parametrize("size", [1, 20, 200, 1000])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_blocks_fit_in_the_memory(size, itemsize):
    memory = 256 << 20
    width = block_width(size, itemsize, memory)
    assert 2 * size * width * itemsize <= memory
    assert size > 32 or width * itemsize >= 1 << 20


def test_state_goes_round_as_in_memory(tmp_path):
    samples, state = [10, 20, 30, 40, 50], None
    theta, clients = drawn(5, 3, (torch.float32,))
    chosen = {4: clients[0], 0: clients[1], 2: clients[2]}
    origin, _ = written(tmp_path, theta, [])
    files = []
    for k, params in chosen.items():
        files.append(tmp_path / f"round-7-client-{k:03}.safetensors")
        save_file(params, files[-1])
    memory_state = None
    for t in (1, 2, 3):
        expected = aggregate(
            "cgsv", theta, chosen, client_samples=samples, state=memory_state, round=t
        )
        found = aggregate_files(
            "cgsv", origin, files, tmp_path / f"new{t}", client_samples=samples, round=t,
            state=state, state_out=tmp_path / f"state{t}",
        )  # fmt: skip
        memory_state, state = expected.state, read_state(tmp_path / f"state{t}")
        np.testing.assert_allclose(found.weights, list(expected.weights.values()), rtol=1e-6)
        torch.testing.assert_close(state["r"], expected.state["r"], rtol=1e-6, atol=1e-9)
        assert state["participations"].tolist() == [t, 0, t, 0, t]


def test_counts_come_from_metadata_or_by_any_name_of_a_file(tmp_path):
    theta, clients = drawn(6, 3, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    shares = [0.1, 0.3, 0.6]
    by_name = {"client-0": 10, "client-1.safetensors": 30, str(files[2]): 60, "another": 5}
    for n, counts in enumerate(([10, 30, 60], by_name)):
        found = aggregate_files("fedavg", origin, files, tmp_path / f"{n}", num_samples=counts)
        assert found.weights == pytest.approx(shares)
    with pytest.raises(ValueError, match="give num_samples"):
        aggregate_files("fedavg", origin, files, tmp_path / "new")
    for file, params, count in zip(files, clients, (10, 30, 60), strict=True):
        save_file(params, file, metadata={"num_samples": str(count)})
    found = aggregate_files("fedavg", origin, files, tmp_path / "from-metadata")
    assert found.weights == pytest.approx(shares)


def test_batches_come_from_metadata_or_by_any_name_of_a_file(tmp_path):
    theta, clients = drawn(6, 3, (torch.float32,))
    batches = [3, 20, 7]
    expected = aggregate(Mean("batches"), theta, clients, num_batches=batches).parameters
    origin, files = written(tmp_path, theta, clients)
    path, name, stem = str(files[0]), files[1].name, files[2].stem
    keyed = dict(zip((path, name, stem), batches, strict=True))
    for k, given in enumerate([batches, keyed]):
        out = tmp_path / f"new{k}"
        aggregate_files(Mean("batches"), origin, files, out, num_batches=given)
        check_close(load_file(out), expected, 1e-6)
    with pytest.raises(ValueError, match=f"num_batches holds no count for .*{files[2].name}"):
        del keyed[stem]
        aggregate_files(Mean("batches"), origin, files, tmp_path / "new", num_batches=keyed)
    for params, count, file in zip(clients, batches, files, strict=True):
        save_file(params, file, metadata={"num_batches": str(count)})
    aggregate_files(Mean("batches"), origin, files, tmp_path / "new")
    check_close(load_file(tmp_path / "new"), expected, 1e-6)


def test_a_thousand_clients_need_no_thousand_open_files(tmp_path):
    resource = pytest.importorskip("resource")
    theta, clients = drawn(7, 300, (torch.float32,), {"w": (50,)})
    origin, files = written(tmp_path, theta, clients)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        aggregate_files("fedsdg", origin, files, tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    check_close(load_file(tmp_path / "new"), aggregate("fedsdg", theta, clients).parameters, 1e-6)


def test_progress_ends_at_the_total_of_every_pass(tmp_path):
    theta, clients = drawn(8, 20, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    told = []
    aggregate_files(
        "fedsdg", origin, files, tmp_path / "new", memory=SMALLEST,
        progress=lambda *what: told.append(what),
    )  # fmt: skip
    for title in ("pass 1: reading", "pass 2: writing"):
        shares = [done for name, done, _ in told if name == title]
        total = {all_ for name, _, all_ in told if name == title}
        assert shares[0] == 0 and shares == sorted(shares) and {shares[-1]} == total
        assert len(shares) > 1
    Meter().add(1)  # Nobody has to listen.


def test_the_report_is_json(tmp_path):
    theta, clients = drawn(9, 5, (torch.float32,))
    clients[3]["b"][5] = float("nan")
    origin, files = written(tmp_path, theta, clients)
    found = aggregate_files(
        {"type": "fedsdg", "max_weight": 0.4}, origin, files, tmp_path / "new", on_nonfinite="drop"
    )
    report = json.loads(json.dumps(found.report(), allow_nan=False))
    assert report["rule"]["type"] == "fedsdg" and report["rule"]["max_weight"] == 0.4
    assert report["num_clients"] == 5 and report["num_dropped"] == 1
    by_client = report["clients"]
    assert sum(facts["weight"] for facts in by_client.values()) == pytest.approx(1)
    assert by_client[str(files[3])]["dropped"] == {"b": 1}
    assert by_client[str(files[3])]["cosine"] is None
    assert by_client[str(files[0])]["alignment"] > 0
    assert report["diagnostics"]["degenerate"] == 0


def test_a_rule_that_wants_all_updates_at_once_is_sent_to_the_other_door(tmp_path):
    class Whole(StatelessRule):
        def __call__(self, uploads, context, state):
            return Aggregate(uploads["update"].mean(0, keepdim=True), None, {}, {})

    theta, clients = drawn(0, 2, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    with pytest.raises(ValueError, match=r"Whole .* use fedsdg\.aggregation\.aggregate"):
        aggregate_files(Whole(), origin, files, tmp_path / "new")
    assert isinstance(make_rule("fedsdg"), Alignment)


def test_too_few_clients_show_before_the_files_are_read(tmp_path):
    theta, clients = drawn(0, 7, (torch.float32,))
    origin, files = written(tmp_path, theta, clients)
    told = []
    for row in ({"type": "krum", "f": 3}, {"type": "multikrum", "f": 3}):
        with pytest.raises(ValueError, match="at least 2f\\+3 = 9 clients"):
            aggregate_files(
                row, origin, files, tmp_path / "new", progress=lambda *what: told.append(what)
            )
    assert not told
