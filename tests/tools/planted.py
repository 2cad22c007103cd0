"""Do the tests find faults? Known ones are planted in a copy, one by one.

    python -m tests.tools.planted
    python -m tests.tools.planted --room models
    python -m tests.tools.planted --part 2/4

A fault is a line of tests/planted.yaml: ``file``, the ``old`` text of a line and the ``new`` one,
the ``room`` it is in, its ``kind``, and the ``test`` that finds it.
The named test is run first; where it passes, all tests of the room are. Whoever moves or changes
the line re-anchors the fault in the same commit; where its code is gone, one of the same kind in
the same room takes its place.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from benchmarks.compare import checked_out

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests/planted.yaml"
#: Longer than any named test takes on an idle core.
SECONDS = 900

Fault = Mapping[str, str]


def faults(file: Path = FAULTS) -> list[Fault]:
    """All faults, as the file has them."""
    found: list[Fault] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def planted(text: str, fault: Fault) -> str:
    """A file with a fault in it.

    Args:
        text: The file as it is.
        fault: What to change; lines are compared without the spaces around them.

    Raises:
        ValueError: The line is not there, or more than once.
    """
    lines = text.splitlines(keepends=True)
    places = [n for n, line in enumerate(lines) if line.strip() == fault["old"]]
    if len(places) != 1:
        raise ValueError(
            f"{fault['file']} has {len(places)} lines {fault['old']!r}; anchor the fault anew in "
            f"{FAULTS.name}"
        )
    line = lines[places[0]]
    indent = line[: len(line) - len(line.lstrip())]
    lines[places[0]] = f"{indent}{fault['new']}\n"
    return "".join(lines)


def room_tests(room: str) -> list[str]:
    """Where the tests of a room are; ``.`` are the modules that stand in none."""
    return ["tests/config/test_parts.py", "tests/test_rng.py"] if room == "." else [f"tests/{room}"]


def finds(checkout: Path, fault: Fault) -> str | None:
    """What finds a fault in a checkout that is whole again afterwards; None where nothing does."""
    file = checkout / fault["file"]
    whole = file.read_text(encoding="utf-8")
    try:
        file.write_text(planted(whole, fault), encoding="utf-8")
        if "test" in fault and _fails(checkout, [fault["test"]]):
            return fault["test"]
        return f"tests of {fault['room']}" if _fails(checkout, room_tests(fault["room"])) else None
    finally:
        file.write_text(whole, encoding="utf-8")


def _fails(checkout: Path, tests: Sequence[str]) -> bool:
    """Whether one of the tests fails, or takes longer than it can.

    Raises:
        RuntimeError: There is no such test.
    """
    # Bytecode is told apart by seconds and size, which two faults may share.
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode in (4, 5):
        raise RuntimeError(f"no test {' '.join(tests)}: {done.stdout.strip().splitlines()[-1:]}")
    return done.returncode != 0


def _with_changes(checkout: Path) -> None:
    """Put what is changed or new in this tree into a checkout of its commit."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "-mo", "--exclude-standard"]
    said = subprocess.run(listed, capture_output=True, check=True, text=True).stdout
    for name in filter(None, said.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, checkout / name)
        else:
            (checkout / name).unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every fault is found, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--room", help="only those of this room")
    parser.add_argument("--part", default="1/1", help="K/N: each N-th one, beginning with the K-th")
    given = parser.parse_args(arguments)
    first, of = map(int, given.part.split("/"))
    chosen = [fault for fault in faults() if given.room in (None, fault["room"])][first - 1 :: of]
    survivors = 0
    with checked_out("HEAD") as checkout:
        _with_changes(checkout)
        for number, fault in enumerate(chosen, 1):
            found = finds(checkout, fault)
            survivors += found is None
            word = f"found by {found}" if found else "survives"
            print(f"[{number}/{len(chosen)}] {fault['file']}: {fault['new']}: {word}", flush=True)
    print(f"{len(chosen)} faults, {survivors} of them found by no test")
    return int(survivors > 0)


if __name__ == "__main__":
    raise SystemExit(main())
