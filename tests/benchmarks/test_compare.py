"""Two commits side by side, in a repository made here: a slower one is noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AGAIN = """
import time
_sound = step_of

def step_of(plan, rows, context):
    time.sleep(0.01)
    return _sound(plan, rows, context)
"""


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


#: One attempt will do: that a miss is measured again is not what is tested here.
ONCE = """
import sys
from benchmarks import compare
compare.ATTEMPTS = 1
sys.exit(compare.compare("main", ["--short", "-k", "10x130000-fedavg"]))
"""


@pytest.fixture
def repository(tmp_path) -> Path:
    folder = tmp_path / "repository"
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "fedsdg", "benchmarks"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in (*tracked, "pyproject.toml"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "As it is")
    return folder


@pytest.mark.slow
def test_a_slower_working_tree_fails_and_leaves_nothing_behind(repository):
    with (repository / "fedsdg/aggregation/plans.py").open("a") as source:
        source.write(AGAIN)
    # In a process that is a worker of xdist, nothing would be measured.
    alone = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    done = subprocess.run(
        [sys.executable, "-c", ONCE],
        cwd=repository,
        # The reference will do: kernels would be compiled in every new checkout.
        env=alone | {"PYTHONPATH": str(repository), "FEDSDG_AGGREGATION_BACKEND": "torch"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    assert "Performance has regressed" in done.stdout
    worktrees = subprocess.run(
        ["git", "-C", str(repository), "worktree", "list"], capture_output=True, text=True
    ).stdout
    assert len(worktrees.splitlines()) == 1
