"""Machine code that is kept on disk, and made again when a part of it was edited."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PART = """
import numba

@numba.njit
def more(x):
    return x + {added}
"""
WHOLE = """
import part
from fedsdg.compiling import compiled_with

def _more_twice(x):
    return part.more(part.more(x))

more_twice = compiled_with(_more_twice, (part,))
print(more_twice(1), sum(more_twice.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_an_edited_part_is_compiled_again_and_an_old_one_is_not(tmp_path):
    (tmp_path / "whole.py").write_text(WHOLE)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "kept")

    def said():
        command = [sys.executable, "-c", "import whole"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return done.stdout.strip()

    for added, expected in ((1, ["3 0", "3 1"]), (10, ["21 0", "21 1"])):
        (tmp_path / "part.py").write_text(PART.format(added=added))
        assert [said(), said()] == expected
