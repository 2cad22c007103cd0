"""Whether every committed file says what the records give.

Each text is made again and compared line by line. Another processor sums in another order, so a
number may differ by one unit of its last printed digit. Words, hashes and, in documents, whole
numbers must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path

from fedsdg.analysis.gather import LISTED
from fedsdg.analysis.render import FIGURES_BELOW, committed
from fedsdg.files import HASHES, changed_file
from fedsdg.files.places import RECORDS

#: The files of a figure that are drawn, and compared with nothing.
_DRAWN = (".pdf", ".svg", ".png")
#: The files of a record that are made, or listed with their hashes.
_KINDS = (".csv", ".md", ".tex", *LISTED)
#: Significant digits of numbers in CSV and JSON, which write no trailing zeros.
DIGITS = 6
#: A number in print; parts of words such as hashes, versions and ``dirichlet~0.1`` are none.
_NUMBER = re.compile(
    r"(?:(?<![\w.~])[+−-])?(?<![\w.~])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|\.\d)"
)
_RULE = re.compile(r":?-{3,}:?")


def verify(root: str | Path = ".", say: Callable[[Path], None] = lambda _: None) -> Iterator[str]:
    """Make everything that is committed again, and compare.

    Args:
        root: The root of the repository.
        say: Called with every file before it is made.

    Yields:
        A sentence for each file that is not what the records give, "FILE:LINE: …"; of a damaged
        record its hash alone, since nothing is made of it.

    Raises:
        FileNotFoundError: There is no record.
    """
    root = Path(root)
    folders = sorted(file.parent for file in (root / RECORDS).glob("[!.]*/runs.parquet"))
    if not folders:
        raise FileNotFoundError(
            f"there is no record in {root / RECORDS}; call this in the root of the repository"
        )
    changed = [fault for folder in folders if (fault := changed_file(folder))]
    if changed:
        yield from changed
        return
    made = set()
    for file, make in committed(root):
        say(file)
        made.add(file)
        if fault := text_fault(file, make):
            yield fault
    for file in unmade(root, folders, made):
        yield f"{file}: nothing makes it, and no SHA256SUMS lists it; delete it"


def unmade(root: Path, folders: Sequence[Path], made: set[Path]) -> list[Path]:
    """Find tables, figures and data that nothing makes.

    Args:
        root: The root of the repository.
        folders: The folders of the records.
        made: The files that were made again.
    """
    present = {file for file in (root / FIGURES_BELOW).rglob("*") if file.is_file()}
    known = set(made)
    for folder in (*folders, root / RECORDS / "across"):
        present |= {file for file in folder.glob("*.*") if file.suffix in _KINDS}
        if (folder / HASHES).is_file():
            known |= {folder / name for name in (folder / HASHES).read_text().split()}
    stems = {file.with_suffix("") for file in made}
    drawn = {file for file in present if file.suffix in _DRAWN and file.with_suffix("") in stems}
    return sorted(present - known - drawn)


def text_fault(file: Path, make: Callable[[], str]) -> str:
    """Compare a committed text with what the records give.

    Args:
        file: The committed file.
        make: Makes its text again; a ``ValueError`` is a fault.

    Returns:
        A sentence on the first line that differs, and how many more do; "" if none does.
    """
    if not file.is_file():
        return f"{file}: it is missing; 'fedsdg render' makes it"
    try:
        texts = [file.read_text(encoding="utf-8"), make()]
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    if file.suffix == ".csv":
        texts = [text.replace(",", " , ") for text in texts]
    digits = DIGITS if file.suffix in (".csv", ".json") else 0
    faults = []
    lines = zip_longest(*(text.splitlines() for text in texts), fillvalue="")
    for number, (line, other) in enumerate(lines, start=1):
        for mine, made in zip_longest(_words(line), _words(other), fillvalue=""):
            if not same(mine, made, digits):
                faults.append(f"{file}:{number}: {mine!r} is committed, the records give {made!r}")
                break
    more = f"; {len(faults) - 1} more lines differ" if len(faults) > 1 else ""
    return faults[0] + more if faults else ""


def _words(line: str) -> list[str]:
    """Return the words of a line; rules of Markdown tables are all alike."""
    return _RULE.sub("---", line).split()


def same(text: str, other: str, digits: int = 0) -> bool:
    """Return whether two texts are equal but for the last digits of their numbers.

    Args:
        text: A word or more.
        other: The text to compare with.
        digits: How many significant digits a number has at least, written or not; 0: as many as are
            written, and whole numbers must be equal.
    """
    if text == other:
        return True
    if _NUMBER.sub("#", text) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(text), _NUMBER.findall(other), strict=True)
    return all(_close(number, again, digits) for number, again in pairs)


def _close(number: str, other: str, digits: int) -> bool:
    """Return whether two numbers differ by at most one unit of the last digit of either."""
    values = [Decimal(text.replace(",", "").replace("−", "-")) for text in (number, other)]
    last = min(int(value.as_tuple().exponent) for value in values)
    if digits:
        last = min(last, max(value.adjusted() for value in values) + 1 - digits)
    gap = abs(values[0] - values[1])
    return gap == 0 or (bool(digits or last < 0) and gap <= Decimal(1).scaleb(last))
