"""Numbers in sentences: those in the marked result sections of README and findings.

Between ``<!-- results -->`` and ``<!-- /results -->`` every paragraph and every item of a list that
holds a numeral links to what states it by its id: ``([gates-help](docs/claims.md#gates-help))``; so
may the row of a table. Each numeral must then be a number of the entries that are linked there,
rounded to the decimals that are written: effect, interval, n, threshold, visible difference, means,
a number of its sentence, or a fact of the runs (clients, cohort, rounds, epochs, the number in the
skew's name). The 95 of a confidence may stand everywhere. A numeral with a sign must have the sign
of the entry.

Not compared are numerals that belong to a name (CIFAR-100, top5, η_1), code, images, targets of
links, headings, rows of a table without an id, HTML comments, and numbers written as words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: The pages with marked sections.
PAGES = ("README.md", "docs/findings.md")

_MARKS = {"<!-- results -->": True, "<!-- /results -->": False}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]*)#([\w+.-]+)\)")
_ITEM = re.compile(r"([-*]|\d+\.)\s+")
_NUMERAL = re.compile(
    r"(?<![\w.,])(?<!\w[-/])(?P<sign>[+−-])?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
    r"(?P<power>e[-−+]?\d+)?(?![\w])"
)
#: HTML comments, code and images.
_UNSEEN = re.compile(r"<!--.*?-->|```.*?```|`[^`]*`|!\[[^\]]*\]\([^)]*\)", re.DOTALL)


class Numeral(NamedTuple):
    """A number as it is written; ``half`` is half of its last digit."""

    written: str
    value: float
    half: float


class Block(NamedTuple):
    """A paragraph, an item of a list or a row of a table, and its lines in the file."""

    lines: range
    text: str


def blocks(text: str) -> Iterator[Block]:
    """Yield the paragraphs, items of lists and table rows with an id of the marked sections."""
    inside, first, lines = False, 0, list[str]()
    for number, line in enumerate([*map(str.strip, text.splitlines()), ""], start=1):
        if lines and (not line or line in _MARKS or line[0] in "|#" or _ITEM.match(line)):
            yield Block(range(first, number), " ".join(lines))
            lines = []
        inside = _MARKS.get(line, inside)
        aside = line in _MARKS or line.startswith("#")
        aside = aside or (line.startswith("|") and not _LINK.search(line))
        if inside and line and not aside:
            first = first if lines else number
            lines.append(_ITEM.sub("", line, count=1) if _ITEM.match(line) else line)


def links(block: str) -> dict[str, str]:
    """Return the ids that a block links to, and the file of each: links named by the anchor."""
    return {
        anchor: target for text, target, anchor in _LINK.findall(block) if text.strip("`") == anchor
    }


def numerals(block: str) -> list[Numeral]:
    """Return the numerals of a block; signs where given."""
    text = _UNSEEN.sub(" ", block)
    text = _LINK.sub(lambda link: " " if link[1].strip("`") == link[3] else link[1], text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    written = []
    for match in _NUMERAL.finditer(text):
        number, power = match["number"].replace(",", ""), (match["power"] or "").replace("−", "-")
        scale = 10.0 ** int(power[1:]) if power else 1.0
        value = float(number) * scale * (-1 if match["sign"] in ("−", "-") else 1)
        half = 0.5 * 10.0 ** -len(number.partition(".")[2]) * scale
        written.append(Numeral(match[0], value, half))
    return written


def numbers(entry: Any) -> list[float]:
    """Return every number of an entry and of its texts, but for those that only name the claim."""
    if isinstance(entry, bool) or entry is None:
        return []
    if isinstance(entry, int | float):
        return [float(entry)]
    if isinstance(entry, str):
        return [abs(numeral.value) for numeral in numerals(entry)]
    if isinstance(entry, Mapping):
        names = ("id", "source", "section", "origin", "seen_in")
        entry = [value for key, value in entry.items() if key not in names]
    return [number for value in entry for number in numbers(value)]


def sentence_faults(text: str, entries: Mapping[str, Any]) -> tuple[int, list[tuple[str, str]]]:
    """Compare the numerals of the marked sections of a page with the entries that they link to.

    Args:
        text: The page.
        entries: Entries of the ledger, or facts of a comparison, by their ids.

    Returns:
        How many numerals there are, and for each fault where it is and a sentence.
    """
    count, faults = 0, []
    for block in blocks(text):
        cited, written = links(block.text), numerals(block.text)
        count += len(written)
        start = " ".join(block.text.split()[:6])
        where = f"the paragraph from line {block.lines.start} on ({start} …)"
        unknown = [name for name in cited if name not in entries]
        faults += [(where, f"{name!r} is no id of the ledger; correct it") for name in unknown]
        if written and not cited:
            faults.append((where, f"{written[0].written} has no id; link the claim that says it"))
        if unknown or not cited:
            continue
        stated = [95.0, *(number for name in cited for number in numbers(entries[name]))]
        for numeral in written:
            if not any(_same(numeral, number) for number in stated):
                gaps = {abs(abs(number) - abs(numeral.value)): number for number in stated}
                because = f"{numeral.written} stands in none of {', '.join(cited)}, where the "
                because += f"nearest number is {gaps[min(gaps)]:g}; write what they say"
                faults.append((where, because))
    return count, faults


def _same(written: Numeral, number: float) -> bool:
    """Return whether a number is printed so; without a sign only its size is compared."""
    number = number if written.written[0] in "+−-" else abs(number)
    gap = abs(written.value - number)
    return gap <= written.half * (1 + 1e-6) + 1e-9 * abs(number)
