"""Numbers in marked sections must be those of the entries that are linked there."""

import re
from pathlib import Path

import pytest

from fedsdg.analysis.sentences import PAGES, sentence_faults

ROOT = Path(__file__).parents[2]


def faults(text, known):
    return [because for _, because in sentence_faults(text, known)[1]]


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_have_marked_sections_with_numbers(page):
    """What `fedsdg verify` compares them with is the ledger, recomputed."""
    count, _ = sentence_faults((ROOT / page).read_text(encoding="utf-8"), {})
    assert count > 10


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
        f"| Do gates help? | 3.4 {CITED} | yes |",
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
        (["- Gates are worth 3.4 points."], "3.4 has no id"),
        (["- Gates are worth 3.5 points " + CITED], "3.5 stands in none of gates-help"),
        (["- Gates are worth −3.4 points " + CITED], "−3.4 stands in none"),
        (["- Gates are worth 3.44 points " + CITED], "3.44 stands in none"),
        (["- Worth 3.4 ([gates](docs/claims.md#gates))"], "'gates' is no id"),
        (["- One with an id, 3.4 " + CITED, "- and one without, 60."], "60 has no id"),
        (["A paragraph of [80.6 %](x.md)."], "80.6 has no id"),
        (["| Gates | 3.5 " + CITED + " |"], "3.5 stands in none of gates-help"),
        (["- Two lines,", "  the second with 8 " + CITED], "8 stands in none"),
        (["- Another text ([3.4](docs/claims.md#gates-help))."], "3.4 has no id"),
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


def test_the_paragraph_is_named_by_its_first_line():
    text = page("- One", f"  {CITED}.", "", f"- Worth 3.4 {CITED}.", f"- Worth 3.5 {CITED}.")
    _, ((place, because),) = sentence_faults(text, KNOWN)
    assert "from line 7 on" in place and "3.4321" in because
