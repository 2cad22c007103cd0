"""Rows of clients come back as they were put in, wherever they lie, and nothing stays behind."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from fedsdg.federation.bank import ClientBank

CLIENTS, D, PRIVATE = 50, 3, 7
KEEPS = ("control", "other")


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path):
    limit = None if request.param == "memory" else 0
    return lambda initial: ClientBank(CLIENTS, initial, KEEPS, D, tmp_path / "deep", limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_equal_a_plain_matrix(make, dtype):
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(PRIVATE, generator=generator).to(dtype)
    bank = make(initial)
    plain = {"private": initial.expand(CLIENTS, -1).clone()}
    plain |= {name: torch.zeros(CLIENTS, D, dtype=dtype) for name in KEEPS}
    seen = set()
    for _ in range(20):
        cohort = torch.randperm(CLIENTS, generator=generator)[:4].sort().values
        rows = {name: torch.randn(4, table.shape[1], generator=generator).to(dtype)
                for name, table in plain.items()}  # fmt: skip
        bank.scatter(cohort, rows["private"], {name: rows[name] for name in KEEPS})
        seen |= set(cohort.tolist())
        for name, table in plain.items():
            table[cohort] = rows[name]
        asked = torch.randperm(CLIENTS, generator=generator)[:9]
        private, kept = bank.gather(asked)
        assert torch.equal(private, plain["private"][asked]) and private.dtype == dtype
        assert all(torch.equal(kept[name], plain[name][asked]) for name in KEEPS)
        private.zero_()  # a copy: the bank does not notice
        gates = torch.tensor([6, 1])
        for client in asked.tolist():
            asked = torch.tensor([client, 0])
            assert torch.equal(bank.entries(asked, gates), plain["private"][asked][:, gates])
    assert torch.nonzero(bank.trained).flatten().tolist() == sorted(seen)
    assert bank.bytes_per_client() == (PRIVATE + 2 * D) * dtype.itemsize
    assert bank.widths() == {"private": PRIVATE, "kept.control": D, "kept.other": D}


def test_who_was_written_since(make):
    bank = make(torch.zeros(PRIVATE))
    kept = {name: torch.ones(2, D) for name in KEEPS}
    moments = [bank.moment]
    for cohort in ([3, 9], [9, 1], [0, 3]):
        bank.scatter(torch.tensor(cohort), torch.ones(2, PRIVATE), kept)
        moments.append(bank.moment)
    assert [bank.written_since(moment).tolist() for moment in moments] == [
        [0, 1, 3, 9], [0, 1, 3, 9], [0, 3], [],
    ]  # fmt: skip
    bank.trained[0] = False  # its first round was undone
    assert bank.written_since(0).tolist() == [1, 3, 9]
    assert bank.rows_in_use() == 4


def test_a_bank_with_nothing_in_it(make):
    bank = ClientBank(CLIENTS, torch.zeros(0), (), D, limit=0)
    bank.scatter(torch.tensor([4]), torch.zeros(1, 0), {})
    assert bank.gather(torch.tensor([4, 5]))[0].shape == (2, 0)
    assert bank.written_since(0).tolist() == [4]


def test_up_to_the_limit_there_is_no_file(tmp_path):
    at = CLIENTS * (PRIVATE + 2 * D) * 4
    ClientBank(CLIENTS, torch.zeros(PRIVATE), KEEPS, D, tmp_path / "a", at)
    assert not (tmp_path / "a").exists()
    ClientBank(CLIENTS, torch.zeros(PRIVATE), KEEPS, D, tmp_path / "b", at - 1)
    assert (tmp_path / "b").is_dir() and not any((tmp_path / "b").iterdir())


KILLED = """
import sys, time, torch
from pathlib import Path
from fedsdg.federation.bank import ClientBank
bank = ClientBank(1000, torch.zeros(5000), (), 0, Path(sys.argv[1]), 0)
bank.scatter(torch.arange(1000), torch.ones(1000, 5000), {})
print("here", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")
def test_a_killed_process_leaves_no_file(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"here\n"
        mapped = [line for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                  if str(tmp_path) in line]  # fmt: skip
        assert len(mapped) == 1 and mapped[0].endswith("(deleted)"), "a file without a name"
        assert not any(tmp_path.iterdir())
        os.kill(process.pid, signal.SIGKILL)
    assert not any(tmp_path.iterdir())


def test_too_little_room_is_one_sentence(tmp_path):
    width = 2 * shutil.disk_usage(tmp_path).free // 4 // 1000
    with pytest.raises(OSError, match="No space left on device") as found:
        ClientBank(1000, torch.zeros(1).expand(width), (), 0, tmp_path, 0)
    message = str(found.value)
    assert f"{4 * width * 1000:,} bytes" in message and str(tmp_path) in message
    assert "FEDSDG_STORE" in message and "\n" not in message
    assert not any(tmp_path.iterdir())


@contextlib.contextmanager
def read_only_folder():
    """A folder that this process, then no longer root, may not write into."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_folder_is_one_sentence():
    with read_only_folder() as folder, pytest.raises(PermissionError) as found:
        ClientBank(CLIENTS, torch.zeros(PRIVATE), KEEPS, D, folder, 0)
    message = str(found.value)
    assert f"no file can be made in {folder} (Permission denied)" in message
    assert "FEDSDG_STORE" in message and "\n" not in message
