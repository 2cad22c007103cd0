"""Files are there whole or not at all, and one for which there is no room is named."""

import contextlib
import errno
import os
import resource

import pytest

from fedsdg.files import appearing, atomic_path, write_bytes, write_json
from fedsdg.files.records import TIMINGS_SCHEMA, write_parquet

ROWS = [
    {"round": n, "train_seconds": n / 7, "aggregate_seconds": n / 9, "evaluate_seconds": n / 3}
    for n in range(1000)
]
WAYS = {
    "bytes": lambda file: write_bytes(file, bytes(10_000)),
    "json": lambda file: write_json(file, list(range(10_000))),
    "parquet": lambda file: write_parquet(file, ROWS, TIMINGS_SCHEMA),
}


@contextlib.contextmanager
def no_room():
    """No file may become larger than a thousand bytes: as on a disk that has no more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_for_which_there_is_no_room_is_named_and_the_old_one_stays(tmp_path, way):
    file = tmp_path / "file"
    file.write_text("as before")
    with no_room(), pytest.raises(OSError, match=rf"{file} cannot be written \(.*; make room"):
        WAYS[way](file)
    assert file.read_text() == "as before"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_of_two_files_that_appear_together_the_one_without_room_is_named(tmp_path):
    named = pytest.raises(OSError, match=rf"{tmp_path}/state cannot be written")
    with no_room(), named, atomic_path(tmp_path / "model"):
        write_bytes(tmp_path / "state", bytes(10_000))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_read_only_is_named_with_the_remedy(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EROFS, "Read-only file system", "/.x")

    monkeypatch.setattr("pathlib.Path.touch", refused)
    sentence = rf"{tmp_path}/file cannot be written .*; make its folder writable, and give"
    with pytest.raises(OSError, match=sentence):
        write_bytes(tmp_path / "file", b"")


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_modes_follow_the_umask_and_groups_the_folder(tmp_path, umask, mode):
    folder = tmp_path / "group"
    folder.mkdir()
    folder.chmod(0o2775)  # setgid: what is made within belongs to the folder's group
    before = os.umask(umask)
    try:
        for name, write in WAYS.items():
            write(folder / "runs" / name)
    finally:
        os.umask(before)
    assert (folder / "runs").stat().st_mode & 0o7777 == 0o2777 & ~umask
    for name in WAYS:
        status = (folder / "runs" / name).stat()
        assert status.st_mode & 0o777 == mode and status.st_gid == folder.stat().st_gid


@pytest.mark.parametrize("renames", range(3))
def test_a_folder_survives_a_process_that_is_killed_while_it_is_replaced(tmp_path, renames):
    folder = tmp_path / "record"
    folder.mkdir()
    (folder / "file").write_text("old")
    child = os.fork()
    if not child:  # It lives through `renames` of them.
        rename, lives = os.replace, iter(range(renames))
        os.replace = lambda *names: os._exit(9) if next(lives, None) is None else rename(*names)
        with appearing(folder) as inside:
            (inside / "file").write_text("new")
        os._exit(0)
    os.waitpid(child, 0)
    with contextlib.suppress(KeyError), appearing(folder):
        raise KeyError
    assert (folder / "file").read_text() == ("new" if renames == 2 else "old")
    assert [one.name for one in tmp_path.iterdir()] == ["record"]
