"""What doors took for something else: overlapping buffers, odd strides, states, names, pipes."""

import os
import stat

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedsdg.aggregation import aggregate, aggregate_files, fedsdg_server_aggregate
from fedsdg.aggregation.engines.files.new_files import new_file
from fedsdg.aggregation.engines.files.streaming import read_state
from fedsdg.cli import main

# --- buffers that overlap ---


def whole(tensors):
    return {name: torch.zeros(tensor.shape) for name, tensor in tensors.items()}


def buffers(kind):
    base = torch.full((12,), 7.0)
    return {
        "the same twice": {"a": base[:6], "b": base[:6]},
        "slices that overlap": {"a": base[:6], "b": base[5:11]},
        "itself": {"a": torch.as_strided(base, (3, 4), (1, 2)), "b": torch.zeros(2)},
    }[kind]


@pytest.mark.parametrize("kind", ["the same twice", "slices that overlap", "itself"])
def test_an_out_whose_numbers_share_places_is_refused(kind):
    out = buffers(kind)
    theta = whole(out)
    before = {name: tensor.clone() for name, tensor in out.items()}
    clients = [{name: tensor + k for name, tensor in theta.items()} for k in (1, 2)]
    with pytest.raises(ValueError, match="share memory"):
        aggregate("fedavg-uniform", theta, clients, out=out)
    assert all(torch.equal(out[name], before[name]) for name in out)


def test_an_out_of_interleaved_views_is_none_of_these():
    base = torch.zeros(12)
    odd = torch.as_strided(torch.zeros(30), (2, 3), (3, 5))  # 0 5 10 3 8 13: each place once.
    out = {"a": base[0::2], "b": base[1::2], "c": odd}
    theta = whole(out)
    clients = [{name: tensor + k for name, tensor in theta.items()} for k in (1.0, 2.0)]
    aggregate("fedavg-uniform", theta, clients, out=out)
    assert (base == 1.5).all()
    assert (odd == 1.5).all()


def test_numpy_buffers_that_overlap_are_refused():
    base = np.zeros(5)
    theta = [np.zeros(3), np.zeros(3)]
    with pytest.raises(ValueError, match=r"tensors '\[0\]' and '\[1\]' share memory"):
        aggregate("fedavg-uniform", theta, [theta, theta], out=[base[:3], base[2:]])


# --- what is valid though it looks odd ---


def test_an_array_of_one_number_read_backwards():
    one = np.ones(1)
    aggregate("fedavg-uniform", one[::-1], [one[::-1] + 1, one[::-1]], out=one[::-1])
    assert one.tolist() == [1.5]
    assert aggregate("fedavg-uniform", np.ones(1)[::-1], [np.zeros(1)[::-1]]).parameters == [0]


def test_an_out_of_arrays_without_numbers():
    theta = {"none": np.zeros((0, 3)), "some": np.zeros(2)}
    clients = [{"none": np.zeros((0, 3)), "some": np.full(2, k)} for k in (1.0, 2.0)]
    out = {"none": np.zeros((0, 3)), "some": np.ones(2)}
    aggregate("fedavg-uniform", theta, clients, out=out)
    assert out["some"].tolist() == [1.5, 1.5]


def test_rows_of_one_number_each():
    found = aggregate("fedavg-uniform", np.array(0.0), np.array([1.0, 2.0]))
    assert found.parameters.shape == ()
    assert found.parameters == 1.5
    assert aggregate("fedavg-uniform", torch.tensor(0.0), torch.tensor([1.0, 2.0])).weights == [
        0.5,
        0.5,
    ]


# --- states and words ---

THETA, CLIENTS = np.zeros(3), np.eye(3)
FRESH = aggregate("cgsv", THETA, CLIENTS, client_samples=[1, 2, 3]).state


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("r", FRESH["r"].to_sparse(), "sparse"),
        ("r", FRESH["r"].to("meta"), "meta"),
        ("r", FRESH["r"].clone().requires_grad_(), "requires a gradient"),
        ("r", -FRESH["r"], "state 'r' holds negative"),
        ("participations", -FRESH["participations"], "state 'participations' holds negative"),
        ("participations", FRESH["participations"].bool(), "torch.bool"),
        ("participations", FRESH["participations"].to(torch.complex64), "complex"),
    ],
)
def test_states_that_are_none(name, value, message):
    with pytest.raises(ValueError, match=message):
        aggregate("cgsv", THETA, CLIENTS, client_samples=[1, 2, 3], state={**FRESH, name: value})


@pytest.mark.parametrize("value", [np.array([1, 2]), np.array(["drop"]), torch.ones(2), None, 1])
def test_on_nonfinite_is_a_word(value):
    with pytest.raises(ValueError, match="on_nonfinite=.*use 'raise' or 'drop'"):
        aggregate("fedsdg", THETA, CLIENTS, on_nonfinite=value)


@pytest.mark.parametrize(
    "options",
    [{"max_weight": "x"}, {"clip_norm": "x"}, {"epsilon": None}, {"temperature": []}],
)
def test_numbers_of_fedsdg_are_numbers(options):
    theta = {"w": torch.zeros(2)}
    with pytest.raises(ValueError, match=next(iter(options))):
        fedsdg_server_aggregate(theta, [theta], **options)


# --- files ---


@pytest.fixture
def files(tmp_path):
    save_file({"w": torch.zeros(3)}, tmp_path / "global.safetensors")
    clients = [tmp_path / f"client-{k}.safetensors" for k in range(2)]
    for k, client in enumerate(clients):
        save_file({"w": torch.full((3,), float(k))}, client)
    return tmp_path, clients


def test_a_pipe_or_device_as_a_file_is_refused_at_once(files):
    folder, clients = files
    os.mkfifo(folder / "pipe.safetensors")
    start = folder / "global.safetensors"
    for path in (folder / "pipe.safetensors", "/dev/zero"):
        with pytest.raises(ValueError, match="is not a regular file"):
            aggregate_files("fedavg-uniform", start, [clients[0], path], folder / "out.safetensors")
        with pytest.raises(ValueError, match="is not a regular file"):
            aggregate_files("fedavg-uniform", path, clients, folder / "out.safetensors")
        with pytest.raises(ValueError, match="is not a regular file"):
            read_state(path)


def test_names_of_300_letters_are_refused_and_of_250_are_not(files):
    folder, clients = files
    start, long = folder / "global.safetensors", "x" * 300
    for out in (folder / long, folder / long / "out", folder / "with\0null"):
        with pytest.raises((ValueError, FileNotFoundError)):
            aggregate_files("fedavg-uniform", start, clients, out)
    with pytest.raises(ValueError, match="x"):
        aggregate_files("fedavg-uniform", start, [folder / long], folder / "out")
    with pytest.raises(ValueError, match="x"):
        read_state(folder / long)
    aggregate_files("fedavg-uniform", start, clients, folder / ("é" * 125))
    assert (folder / ("é" * 125)).exists()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_obeys_the_umask_and_an_old_one_keeps_its_mode(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = tmp_path / "file"
        with new_file(path) as file:
            file.write(b"1")
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
        for mode in (0o640, 0o444, 0o600):
            path.chmod(mode)
            with new_file(path, overwrite=True) as file:
                file.write(b"2")
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("victim", ["global.safetensors", "client-1.safetensors", "link"])
def test_a_report_replaces_no_file_that_is_read(files, victim, capsys):
    folder, clients = files
    os.link(clients[0], folder / "link")
    before = (folder / victim).read_bytes()
    arguments = ["aggregate", "--rule", "fedavg-uniform"]
    arguments += ["--global", str(folder / "global.safetensors"), "--out", str(folder / "out")]
    arguments += ["--report", str(folder / victim), "--overwrite", "--clients"]
    assert main([*arguments, *map(str, clients)]) == 2
    assert "is to be written, but is also read" in capsys.readouterr().err
    assert (folder / victim).read_bytes() == before
    assert not (folder / "out").exists()
