"""Where a committed file and what the records give differ: text word by word, JSON value by value.

What is recomputed may differ from what is committed by rounding alone: another processor sums in
another order, and a mean that lies just between two printed numbers is printed as the other one.
So a number that is not the recomputed one is compared with two more *versions*, made from records
whose fractions are all a billionth smaller and larger (``nudged``); it may be any of the three.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

#: What the fractions of the records are multiplied by; the first is what they are.
FACTORS = (1.0, 1.0 - 1e-9, 1.0 + 1e-9)

#: From a factor to a version of what is recomputed.
Version = Callable[[float], Any]

_RULE = re.compile(r":?-{3,}:?")


@dataclass(frozen=True)
class Fault:
    """A place of a committed file that does not say what the records give.

    ``file`` is relative to the root of the repository; ``place`` a line with its row, or the keys
    of a value of JSON; ``because`` stands where it is not a number that differs.
    """

    file: str
    place: str
    committed: str
    recomputed: str
    because: str = ""

    def __str__(self) -> str:
        where = f"{self.file}, {self.place}: " if self.place else f"{self.file}: "
        if self.because:
            return f"{where}{self.because}"
        return f"{where}{self.committed} is committed, but the records give {self.recomputed}"


def text_faults(file: str, committed: str, version: Version, first: int = 1) -> list[Fault]:
    """One fault for each line of a text that differs from every version of it, word by word.

    Spaces and rules that only make columns line up do not count. ``first``: the number of the
    first line in its file. Words of a CSV are what stands between commas.
    """
    known = [str(version(FACTORS[0])).splitlines()]
    lines = committed.splitlines()
    split = _fields if file.endswith(".csv") else _words
    if [*map(split, lines)] == [*map(split, known[0])]:
        return []
    if len(lines) != len(known[0]):
        because = f"it has {len(lines)} lines, but the records give {len(known[0])}"
        different = [i for i, (a, b) in enumerate(zip(lines, known[0], strict=False)) if a != b]
        at = first + (different[0] if different else min(len(lines), len(known[0])))
        return [Fault(file, f"from line {at} on", "", "", because)]
    known += [str(version(factor)).splitlines() for factor in FACTORS[1:]]
    found = []
    for number, line in enumerate(lines):
        options = [split(one[number]) for one in known if number < len(one)]
        if unlike := _unlike(split(line), options):
            at, *pair = unlike
            place = f"line {first + number}{_row(line)}"
            if file.endswith(".csv"):
                place += f", column {dict(enumerate(split(lines[0]))).get(at, '')!r}"
            found.append(Fault(file, place, *map(repr, pair)))
    return found


def json_faults(file: str, committed: Any, version: Version) -> list[Fault]:
    """One fault for each value of a tree of plain JSON that differs from every version of it."""
    made = cache(version)
    if not [*_leaves(committed, [made(FACTORS[0])], "")]:
        return []
    return [
        Fault(file, place, _short(mine), _short(theirs))
        for place, mine, theirs in _leaves(committed, [made(factor) for factor in FACTORS], "")
    ]


def _leaves(one: Any, others: Sequence[Any], place: str) -> Iterator[tuple[str, Any, Any]]:
    """(place, committed, recomputed) of what differs."""
    kinds = (Mapping, list)
    for kind in kinds:
        if isinstance(one, kind) and all(isinstance(other, kind) for other in others):
            if isinstance(one, Mapping):
                for key in sorted({*one, *others[0]}):
                    inner = f"{place}.{key}" if place else str(key)
                    yield from _leaves(
                        one.get(key, _ABSENT), [o.get(key, _ABSENT) for o in others], inner
                    )
            elif len(one) != len(others[0]):
                yield place, f"a list of {len(one)}", f"one of {len(others[0])}"
            else:
                alike = [other for other in others if len(other) == len(one)]
                for i, part in enumerate(one):
                    yield from _leaves(part, [other[i] for other in alike], f"{place}[{i}]")
            return
    if isinstance(one, str) and all(isinstance(other, str) for other in others):
        if unlike := _unlike(_words(one), [_words(other) for other in others]):
            _, mine, theirs = unlike
            yield place, repr(mine), repr(theirs)
    elif not any(_same(one, other) for other in others):
        yield place, one, others[0]


_ABSENT = "nothing"


def _same(one: Any, other: Any) -> bool:
    """Equal, and of one kind: 1 is not True, and 0.0 may be −0.0."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _words(line: str) -> list[str]:
    """The words of a line; rules of a table are all alike."""
    return ["---" if _RULE.fullmatch(word) else word for word in line.split()]


def _fields(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _unlike(line: list[str], options: Sequence[list[str]]) -> tuple[int, str, str] | None:
    """The first word that stands in none of the versions: its place, and what should stand there.

    That is the first version's word.
    """
    alike = [option for option in options if len(option) == len(line)]
    compared = alike or [options[0]]
    for i, words in enumerate(zip_longest(line, *compared, fillvalue="")):
        if words[0] not in words[1:]:
            return i, words[0], words[1]
    return None


def _row(line: str) -> str:
    """The name of a row of a table, to find the line by."""
    cells = [cell.strip() for cell in line.strip("| ").split("|")] if "|" in line else []
    return f" ({cells[0]})" if cells and cells[0] else ""


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
