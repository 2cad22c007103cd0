"""Thousands of generated inputs, wrong or odd, through every door that needs no other process.

Each gives the error that the door documents, one sentence of it, or the right answer, computed
another way; no input is altered, nothing is left half-written, and nothing hangs. The numbers are
fixed: a case that fails is `outcomes.generator(door, number)`. `make everything` runs as many again
through the doors for files and checkpoints.
"""

import pytest

from tests.bad_inputs import arrays, checkpoints, configs, files
from tests.bad_inputs.outcomes import EVERYTHING, judged

CHUNK = 1000
COUNTS = {"arrays": 5000, "dictionaries": 1000, "configs": 2000}
OF_FILES = {"files": 500, "states": 100, "texts": 100, "checkpoints": 200}


@pytest.mark.parametrize(
    ("door", "first"), [(door, k) for door, count in COUNTS.items() for k in range(0, count, CHUNK)]
)
def test_arguments(door, first):
    check = {
        "arrays": arrays.check,
        "dictionaries": arrays.check_dictionaries,
        "configs": configs.check,
    }[door]
    assert not judged(door, range(first, min(first + CHUNK, COUNTS[door])), check)


@pytest.mark.slow
@pytest.mark.parametrize("door", OF_FILES)
def test_files(door, tmp_path, monkeypatch):
    """What lies on the disk, and what is asked for there."""
    monkeypatch.chdir(tmp_path)
    if door == "checkpoints":
        made = checkpoints.Kept(tmp_path)
    checks = {
        "files": lambda rng: files.check(rng, tmp_path / "case"),
        "states": lambda rng: files.check_state(rng, tmp_path / "case"),
        "texts": lambda rng: configs.check_text(rng, tmp_path),
        "checkpoints": lambda rng: checkpoints.check(rng, tmp_path / "case", made),
    }
    count = 10_000 if EVERYTHING and door in ("files", "checkpoints") else OF_FILES[door]
    for first in range(0, count, CHUNK):
        assert not judged(door, range(first, min(first + CHUNK, count)), checks[door])
