"""Does every committed table say what it says at another commit, cell by cell?

    python -m benchmarks.same_tables main        (make same-tables BASE=main)

Compared are the tables of results/reference, as csv and as Markdown, in this tree and at the other
commit; `make verify` shows that those of this tree are what its code makes of the records. What
columns and files were called before, and which columns one side alone has, stands in
same_bytes.yaml, under ``tables``, like that of runs.
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.same_bytes import ROOT, allowed

TABLES = "results/reference"
SUFFIXES = (".csv", ".md")

Rows = list[list[str]]


def rows_of(text: str, suffix: str) -> Rows:
    """The cells of a table, its heads first; what is no table in Markdown is a row of one cell."""
    if suffix == ".csv":
        return list(csv.reader(io.StringIO(text)))
    lines = (line.strip() for line in text.splitlines())
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]


def _has_columns(table: Rows) -> bool:
    return len(set(table[0])) == len(table[0]) and all(len(row) == len(table[0]) for row in table)


def differences(before: Rows, after: Rows, allow: Mapping[str, Any]) -> Iterator[str]:
    """What is not the same in two tables, a sentence each.

    Args:
        before, after: The tables, their heads first.
        allow: ``renamed``: old head -> new; ``added``, ``dropped``: heads that one side alone has.
    """
    renamed = allow["renamed"].get("tables", {})
    aside = {*allow["added"].get("tables", ()), *allow["dropped"].get("tables", ())}
    heads = [renamed.get(head, head) for head in before[0]], after[0]
    if all(map(_has_columns, (before, after))):
        for head in (*heads[0], *heads[1]):
            if (head in heads[0]) != (head in heads[1]) and head not in aside:
                side = "before" if head in heads[0] else "after"
                yield f"the column {head!r} is there {side} alone"
        common = [head for head in heads[0] if head in heads[1] and head not in aside]
        chosen = [[side.index(head) for head in common] for side in heads]
        first = 1
    else:  # text around a table, or columns of one name: every row is compared by position
        common = [f"cell {n + 1}" for n in range(max(map(len, (*before, *after))))]
        chosen = [list(range(len(common)))] * 2
        first = 0
    if len(before) != len(after):
        yield f"{len(before) - 1} rows before and {len(after) - 1} after"
        return
    for n, (once, again) in enumerate(zip(before[first:], after[first:], strict=True), first):
        cells = [
            [row[k] for k in places if k < len(row)]
            for row, places in zip((once, again), chosen, strict=True)
        ]
        if len(cells[0]) != len(cells[1]):
            yield f"row {n} has {len(cells[0])} cells before and {len(cells[1])} after"
        for head, old, new in zip(common, *cells, strict=False):
            if old != new:
                yield f"{head} in row {n} was {old!r} and is {new!r}"


def _listed(base: str) -> list[str]:
    """The tables of a commit.

    Raises:
        LookupError: There is no such commit.
    """
    asked = ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", base, TABLES]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        raise LookupError(f"there is no commit {base!r} to compare with")
    return [name for name in done.stdout.splitlines() if Path(name).suffix in SUFFIXES]


def _at(base: str, name: str) -> str:
    asked = ["git", "-C", str(ROOT), "show", f"{base}:{name}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all is the same, 1 where something is not, 2 where it could not be compared."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", help="a commit")
    given = parser.parse_args(arguments)
    try:
        before, allow = set(_listed(given.base)), allowed(given.base)
    except (LookupError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    files = [file for file in sorted((ROOT / TABLES).rglob("*")) if file.suffix in SUFFIXES]
    here = {file.relative_to(ROOT).as_posix(): file for file in files}
    there = {name: allow["files"].get(name, name) for name in here}
    gone = sorted(before - set(there.values()))
    found = {name: ["there before alone"] for name in gone}
    cells = 0
    for name, file in here.items():
        if there[name] not in before:
            found[name] = ["there after alone"]
            continue
        text = file.read_text(encoding="utf-8")
        tables = [rows_of(said, file.suffix) for said in (_at(given.base, there[name]), text)]
        cells += sum(map(len, tables[1]))
        found[name] = [] if tables[0] == tables[1] else list(differences(*tables, allow))
    for name, sentences in found.items():
        for sentence in sentences:
            print(f"{name}: {sentence}")
    wrong = sum(map(bool, found.values()))
    print(f"{len(found)} tables, {cells} cells; {wrong} tables not the same")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
