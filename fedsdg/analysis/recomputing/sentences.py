"""Numbers in sentences: those in the marked result sections of README and findings.

Between ``<!-- results -->`` and ``<!-- /results -->`` every paragraph and every item of a list that
holds a numeral links to what says it by its id: ``([gates-help](docs/claims.md#gates-help))``; so
may the row of a table. Each numeral must then be one of the numbers of the entries that are linked
there, to the decimals that are written: effect, interval, n, threshold, visible difference, means,
a number of its sentence, or a fact of the runs (clients, cohort, rounds, epochs, the number in the
skew's name). The 95 of a confidence may stand everywhere. A numeral with a sign must have the sign
of the entry.

No numeral of that kind is what belongs to a name (CIFAR-100, top5, η_1), code, an image, the target
of a link, a heading, a row of a table without an id, or an HTML comment. Numbers that are written
as words count as words.

Between ``<!-- main-table -->`` and ``<!-- /main-table -->`` stands a table of a record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fedsdg.analysis.recomputing.faults import Fault, text_faults

#: The pages with marked sections.
PAGES = ("README.md", "docs/findings.md")

_SECTION = re.compile(r"<!-- results -->\n(.*?)<!-- /results -->", re.DOTALL)
_TABLE = re.compile(r"<!-- main-table -->\n(.*?)<!-- /main-table -->", re.DOTALL)
_ID = re.compile(r"\[([^\]]+)\]\([^)\s]*#([\w+.-]+)\)")
_NUMERAL = re.compile(
    r"(?<![\w.,])(?<!\w[-/])(?P<sign>[+−-])?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
    r"(?P<power>e[-−+]?\d+)?(?![\w])"
)
_UNSEEN = (
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"```.*?```", re.DOTALL),
    re.compile(r"`[^`]*`"),
    re.compile(r"!\[[^\]]*\]\([^)]*\)"),
)


class Numeral(NamedTuple):
    """A number as it is written; ``half`` is half of its last place."""

    written: str
    value: float
    half: float


class Block(NamedTuple):
    """A paragraph or an item of a list, and the number of its first line in the file."""

    line: int
    text: str


def blocks(text: str) -> Iterator[Block]:
    """Paragraphs, items of lists and table rows with an id of the marked sections."""
    for section in _SECTION.finditer(text):
        first = 1 + text.count("\n", 0, section.start(1))
        parts: list[tuple[int, list[str]]] = [(first, [])]
        for number, line in enumerate(section[1].splitlines(), start=first):
            item = re.match(r"\s*([-*]|\d+\.)\s+", line)
            shown = line.lstrip()
            aside = shown.startswith("#") or (shown.startswith("|") and not _ID.search(shown))
            if not shown or item or shown.startswith(("|", "#")):
                parts.append((number, []))
            if shown and not aside:
                if not parts[-1][1]:
                    parts[-1] = (number, [])
                parts[-1][1].append(line[item.end() :] if item else line)
        for number, lines in parts:
            if any(line.strip() for line in lines):
                yield Block(number, " ".join(lines).strip())


def numerals(block: str) -> list[Numeral]:
    """The numerals of a block; signs where given."""
    text = block
    for pattern in _UNSEEN:
        text = pattern.sub(" ", text)
    text = _ID.sub(lambda link: " " if link[1].strip("`") == link[2] else link[1], text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    found = []
    for match in _NUMERAL.finditer(text):
        number, power = match["number"].replace(",", ""), (match["power"] or "").replace("−", "-")
        places = len(number.partition(".")[2])
        scale = 10.0 ** int(power[1:]) if power else 1.0
        value, half = float(number) * scale, 0.5 * 10.0**-places * scale
        # A hyphen between two numbers is a dash: 5-10.
        signed = -value if match["sign"] in ("−", "-") else value
        found.append(Numeral(match[0], signed, half))
    return found


def ids(block: str) -> list[str]:
    """The ids that a block links to: links whose text is the anchor itself."""
    return [anchor for text, anchor in _ID.findall(block) if text.strip("`") == anchor]


def numbers(entry: Any) -> list[float]:
    """Every number of an entry and of its texts, but for those that say where the claim stands."""
    if isinstance(entry, bool) or entry is None:
        return []
    if isinstance(entry, int | float):
        return [float(entry)]
    if isinstance(entry, str):
        return [abs(one.value) for one in numerals(entry)]
    if isinstance(entry, Mapping):
        apart = ("id", "source", "section", "origin", "seen_in")
        told = [value for key, value in entry.items() if key not in apart]
        return [number for value in told for number in numbers(value)]
    return [number for value in entry for number in numbers(value)]


def sentence_faults(file: str, text: str, known: Mapping[str, Any]) -> tuple[int, list[Fault]]:
    """How many numerals the marked sections of a page hold, and what is wrong with them.

    ``known``: id → entry of the ledger, or facts of a comparison.
    """
    count, found = 0, []
    for block in blocks(text):
        cited, written = ids(block.text), numerals(block.text)
        count += len(written)
        where = f"the paragraph from line {block.line} on ({' '.join(block.text.split()[:6])} …)"

        def fault(because: str, where: str = where) -> Fault:
            return Fault(file, where, "", "", because)

        unknown = [name for name in cited if name not in known]
        found += [fault(f"{name!r} is no id of the ledger; correct it") for name in unknown]
        if written and not cited:
            found.append(fault(f"{written[0].written} has no id; link the claim that says it"))
        if unknown or not cited:
            continue
        said = [95.0, *(n for name in cited for n in numbers(known[name]))]
        for one in written:
            if not any(_same(one, number) for number in said):
                near = min(said, key=lambda number: abs(abs(number) - abs(one.value)))
                found.append(
                    fault(
                        f"{one.written} stands in none of {', '.join(cited)}, where the nearest "
                        f"number is {near:g}; write what they say"
                    )
                )
    return count, found


def _same(written: Numeral, number: float) -> bool:
    """Whether a number is printed so; without a sign its size alone is compared."""
    number = number if written.written[0] in "+−-" else abs(number)
    gap = abs(written.value - number)
    return gap <= written.half * (1 + 1e-6) + 1e-9 * abs(number)


def table_faults(file: str, text: str, tables: Sequence[str]) -> tuple[int, list[Fault]]:
    """How many tables of records a page shows, and where they differ from the nearest.

    ``tables``: the recomputed Markdown of the records. A page may show a part of a table: lines
    that follow one another.
    """
    count, found = 0, []
    for section in _TABLE.finditer(text):
        count += 1
        lines = section[1].strip("\n").splitlines()
        first = 1 + text.count("\n", 0, section.start(1)) + _leading(section[1])
        best = max(tables, key=lambda one: _common(lines, one), default="")
        if not _common(lines, best):
            because = "no table of the records has one of these lines"
            found.append(Fault(file, f"the table at line {first}", "", "", because))
            continue
        part = _aligned(lines, best.splitlines())
        found += text_faults(file, "\n".join(lines), partial(_always, part), first)
    return count, found


def _always(text: str, _: float) -> str:
    """Every version of a text that is made from versions no more."""
    return text


def _leading(text: str) -> int:
    return len(text) - len(text.lstrip("\n"))


def _common(lines: Sequence[str], table: str) -> int:
    """How many of the lines stand in a table."""
    return len({line for line in lines if line} & {*table.splitlines()})


def _aligned(lines: Sequence[str], table: Sequence[str]) -> str:
    """As many lines of the table, from where the first line that both have stands in both."""
    for i, line in enumerate(lines):
        if line and line in table:
            start = max(table.index(line) - i, 0)
            return "\n".join(table[start : start + len(lines)])
    return ""
