"""Files that must not change: their hashes beside them, compared before they are read."""

import os
import shutil
import subprocess

import pytest

from fedsdg.files import HASHES, changed_file, read_json, write_hashes, write_json


@pytest.fixture
def folder(tmp_path):
    """Two files of which one is listed."""
    write_json(tmp_path / "listed.json", {"accuracy": 0.5})
    write_json(tmp_path / "other.json", {})
    write_hashes(tmp_path, ["listed.json"])
    return tmp_path


def flipped(file, bit=3):
    """Flip one bit of a file, and keep its time as a failing disk would."""
    at = file.stat()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1 << bit
    file.write_bytes(content)
    os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))


def test_what_has_not_changed_is_read(folder):
    assert changed_file(folder) is None
    assert read_json(folder / "listed.json") == {"accuracy": 0.5}


@pytest.mark.parametrize("name", ["listed.json", HASHES])
@pytest.mark.parametrize("bit", range(8))
def test_one_flipped_bit_is_noticed(folder, name, bit):
    flipped(folder / name, bit)
    assert str(folder) in changed_file(folder)


def test_a_changed_file_is_not_read_and_the_sentence_names_it(folder):
    flipped(folder / "listed.json")
    with pytest.raises(ValueError, match=r"listed\.json is damaged or was edited .* make it again"):
        read_json(folder / "listed.json")
    assert read_json(folder / "other.json") == {}


def test_what_is_missing_is_named(folder):
    (folder / "listed.json").unlink()
    assert changed_file(folder) == f"{folder} lacks listed.json"
    (folder / HASHES).unlink()
    assert changed_file(folder) == f"{folder} has no {HASHES}"


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum")
def test_sha256sum_reads_the_hashes(folder):
    def check():
        return subprocess.run(["sha256sum", "--check", HASHES], cwd=folder).returncode

    assert check() == 0
    flipped(folder / "listed.json")
    assert check() != 0
