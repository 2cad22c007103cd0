"""Is aggregation slower than at another commit? Both measured here and now, one after the other.

    python -m benchmarks.compare main        (make bench-compare BASE=main)

The other commit is checked out into a temporary folder and measured with the benchmarks of this
one, so that like is compared with like. Fails where the best time of a rule is a quarter longer
than there, twice in a row.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.allocator import SETTINGS

ROOT = Path(__file__).parents[1]
LIMIT = "min:25%"
ATTEMPTS = 2


def measure(checkout: Path, storage: Path, *options: str) -> int:
    """Run the suite on the package of a checkout, which is its working folder; the exit code."""
    command = [sys.executable, "-m", "pytest", "benchmarks/bench_aggregation.py", "-q"]
    command += ["-p", "no:cacheprovider", "-k", "test_rule", "--ours-alone"]
    command += [f"--benchmark-storage={storage}", "--benchmark-columns=min,median,rounds", *options]
    environment = os.environ | SETTINGS | {"PYTHONPATH": str(checkout)}
    return subprocess.run(command, cwd=checkout, env=environment, check=False).returncode


def compare(base: str, options: Sequence[str] = ()) -> int:
    """0 where nothing is slower than at the commit `base`; other codes are pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        checkout, storage = Path(folder, "base"), Path(folder, "measured")
        git = ["git", "-C", str(ROOT), "worktree"]
        added = [*git, "add", "--quiet", "--detach", str(checkout), base]
        if subprocess.run(added, check=False).returncode:
            print(f"error: there is no commit {base!r} to compare with", file=sys.stderr)
            return 2
        try:
            shutil.rmtree(checkout / "benchmarks", ignore_errors=True)
            shutil.copytree(ROOT / "benchmarks", checkout / "benchmarks")
            for attempt in range(1, ATTEMPTS + 1):
                print(f"\nAttempt {attempt}: {base}", flush=True)
                if code := measure(checkout, storage, f"--benchmark-save={attempt}", *options):
                    return code
                print(f"\nAttempt {attempt}: the working tree against {base}", flush=True)
                against = [f"--benchmark-compare={attempt:04}", f"--benchmark-compare-fail={LIMIT}"]
                if not (code := measure(ROOT, storage, *against, *options)):
                    return 0
            return code
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=False)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("name a commit to compare with: python -m benchmarks.compare main")
    sys.exit(compare(sys.argv[1], sys.argv[2:]))
