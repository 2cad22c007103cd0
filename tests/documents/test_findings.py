"""Numbers in the marked result sections of README and findings stand in the ledger, or fail here.

Between ``<!-- results -->`` and ``<!-- /results -->`` every paragraph and every item of a list that
holds a numeral links to what says it by its id: ``([gates-help](docs/claims.md#gates-help))``. Each
numeral must then be one of the numbers of the entries that are linked there, to the decimals that
are written: effect, interval, n, threshold, visible difference, means, a number of its sentence, or
a fact of the runs (clients, cohort, rounds, epochs, the number in the skew's name). The 95 of a
confidence may stand everywhere. A numeral with a sign must have the sign of the entry.

No numeral of that kind is what belongs to a name (CIFAR-100, top5, η_1), code, an image, the target
of a link, a heading, a row of a table, or an HTML comment. Numbers that are written as words count
as words.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedsdg.analysis.comparisons import comparisons, facts
from fedsdg.analysis.summary import Summary

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/findings.md")
LEDGER = "results/reference/ledger.json"
#: Records of experiments whose config names comparisons beforehand, each by an id.
COMPARISONS = "results/reference/*/primary.json"

_SECTION = re.compile(r"<!-- results -->\n(.*?)<!-- /results -->", re.DOTALL)
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


def sections(text: str) -> list[str]:
    """What stands between the marks."""
    return _SECTION.findall(text)


def blocks(section: str) -> list[str]:
    """Paragraphs and items of lists, without tables and headings."""
    found: list[list[str]] = [[]]
    for line in section.splitlines():
        item = re.match(r"\s*([-*]|\d+\.)\s+", line)
        shown = line.lstrip()
        if not shown or item or shown.startswith(("|", "#")):
            found.append([])
        if not shown.startswith(("|", "#")):
            found[-1].append(line[item.end() :] if item else line)
    return [" ".join(lines).strip() for lines in found if any(line.strip() for line in lines)]


def numerals(block: str) -> list[tuple[str, float, float]]:
    """(as written, value, half of its last place) of the numerals of a block; signs where given."""
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
        sign = match["sign"]
        found.append((match[0], -value if sign in ("−", "-") else value, half))
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
        return [abs(value) for _, value, _ in numerals(entry)]
    if isinstance(entry, dict):
        told = [value for key, value in entry.items() if key not in ("id", "source", "section")]
        return [number for value in told for number in numbers(value)]
    return [number for value in entry for number in numbers(value)]


def faults(text: str, known: dict[str, Any]) -> list[str]:
    """What is wrong with the marked sections of a page, one sentence each."""
    found = []
    for section in sections(text):
        for block in blocks(section):
            cited, written = ids(block), numerals(block)
            where = f"in the paragraph that begins with {' '.join(block.split()[:6])!r}"
            unknown = [name for name in cited if name not in known]
            found += [f"{name!r} {where} is no id of the ledger; correct it" for name in unknown]
            if written and not cited:
                found.append(f"{written[0][0]} {where} has no id; link the claim that says it")
            if unknown or not cited:
                continue
            said = [95.0, *(n for name in cited for n in numbers(known[name]))]
            found += [
                f"{shown} {where} stands in none of {', '.join(cited)}; write what they say"
                for shown, value, half in written
                if not any(_same(shown, value, half, number) for number in said)
            ]
    return found


def _same(shown: str, value: float, half: float, number: float) -> bool:
    """Whether a number is printed so; without a sign its size alone is compared."""
    number = number if shown[0] in "+−-" else abs(number)
    return abs(value - number) <= half * (1 + 1e-6) + 1e-9 * abs(number)


def entries() -> dict[str, Any]:
    """Id → entry, of the ledger and of the comparisons."""
    ledger = ROOT / LEDGER
    rows = json.loads(ledger.read_text()) if ledger.is_file() else []
    for file in sorted(ROOT.glob(COMPARISONS)):
        rows += [facts(one) for one in comparisons(Summary(file.parent))]
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("page", PAGES)
def test_every_number_in_a_result_section_stands_in_the_ledger(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert sections(text), "the page has no marked section of results"
    assert faults(text, entries()) == []


KNOWN = {
    "gates-help": {
        "effect": 3.4321,
        "low": -0.0123,
        "high": 6.91,
        "n": 10,
        "means": {"subject": 84.13, "compared": 80.6},
        "setting": {"rounds": 60, "skew": 0.1},
        "sentence": "In 4 of 10 labels.",
        "threshold": "> 0",
    },
    "large": {"effect": -22154.0, "visible": 0.0001},
}
CITED = "([gates-help](docs/claims.md#gates-help))"


def page(*lines: str) -> str:
    return "\n".join(["Before: 77.", "<!-- results -->", *lines, "<!-- /results -->", "After: 78."])


@pytest.mark.parametrize(
    "line",
    [
        f"- Gates are worth +3.4 points [0.0, 6.9] {CITED}.",
        f"- 84.1 against 80.6 %, n = 10, after 60 rounds at α = 0.1 {CITED}.",
        f"- The 95 % interval begins at −0.01 {CITED}.",
        f"- 3.43 points, or 3 {CITED}.",
        f"- Four labels of ten, or 4 of 10 {CITED}.",
        "- Few and small: 22,154 and 1e-4 ([large](claims.md#large)).",
        "- On CIFAR-100 with ViT-16 nothing holds, says [a page](x/2024.html) of `12` lines.",
        "No numeral at all.",
        "| 1 | 2 |",
        "## Section 5",
        "<!-- 3 -->",
        "![99 %](a.png)",
        f"1. The first of a numbered list: 3.4 {CITED}.",
    ],
)
def test_what_is_cited_and_right_passes(line):
    assert faults(page(line), KNOWN) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["- Gates are worth 3.4 points."], "3.4 .* has no id"),
        (["- Gates are worth 3.5 points " + CITED], "3.5 .* stands in none of gates-help"),
        (["- Gates are worth −3.4 points " + CITED], "−3.4 .* stands in none"),
        (["- Gates are worth 3.44 points " + CITED], "3.44 .* stands in none"),
        (["- Worth 3.4 ([gates](docs/claims.md#gates))"], "'gates' .* is no id"),
        (["- One with an id, 3.4 " + CITED, "- and one without, 60."], "60 .* has no id"),
        (["A paragraph of [80.6 %](x.md)."], "80.6 .* has no id"),
        (["- Two lines,", "  the second with 8 " + CITED], "8 .* stands in none"),
        (["- Another text ([3.4](docs/claims.md#gates-help))."], "3.4 .* has no id"),
    ],
)
def test_what_is_not_is_found(lines, said):
    found = faults(page(*lines), KNOWN)
    assert len(found) == 1
    assert re.search(said, found[0])


def test_a_changed_number_of_the_ledger_is_found():
    text = page(f"- Gates are worth +3.4 points {CITED}.")
    changed = {"gates-help": {**KNOWN["gates-help"], "effect": 3.6}}
    assert faults(text, KNOWN) == []
    assert len(faults(text, changed)) == 1


def test_nothing_outside_the_marks_is_read():
    assert faults("Before: 77.\n\nAfter: 78.", {}) == []
