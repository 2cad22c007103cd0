"""Findings: rendered from the ledger, refused where they cite or presume what is not so."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fedsdg.analysis import findings as room
from fedsdg.analysis.findings import Statement, faults, read_findings, rendered, statements
from fedsdg.analysis.ledger import read_ledger

ROOT = Path(__file__).parents[2]
KNOWN = {
    "gates-help": Statement("supported", "+3.4 points [+2.7, +4.1]", "docs/claims.md", seeds=10),
    "half-a": Statement(
        "undecided (selected round: undecided; last quarter: higher)",
        "+0.5 points [−0.7, +1.8]",
        "results/reference/arena/claims.md",
        "training: rising",
        seeds=5,
    ),
    "few": Statement("2 seeds, no verdict", "+1.0 points", "docs/claims.md", seeds=2),
    "open": Statement("open", "not run yet", "docs/claims.md"),
}
FINDINGS = [
    {
        "id": "gates",
        "blocks": ["readme", "needs"],
        "presumes": {"gates-help": "supported"},
        "text": "**Gates** help by {gates-help};\n  those that agree get {half-a}.\n",
    },
    {"id": "more", "blocks": ["needs"], "text": "Nothing with a number."},
]


@pytest.fixture
def findings(tmp_path):
    def read(*given):
        file = tmp_path / "claims.yaml"
        file.write_text(yaml.safe_dump({"claims": [], "findings": list(given)}))
        return read_findings(file)

    return read


def test_a_block_lists_its_findings_with_effect_verdict_link_seeds_and_horizon(findings) -> None:
    text = "# A\n<!-- findings: needs -->\nwhat was here\n<!-- /findings -->\nB\n"
    assert rendered(text, findings(*FINDINGS), KNOWN, "docs/findings.md") == (
        "# A\n<!-- findings: needs -->\n"
        "- **Gates** help by +3.4 points [+2.7, +4.1] ([supported](claims.md#gates-help); 10 "
        "seeds); those that agree get +0.5 points [−0.7, +1.8] ([undecided](../results/reference/"
        "arena/claims.md#half-a); selected round: undecided; last quarter: higher; 5 seeds; "
        "training: rising).\n"
        "- Nothing with a number.\n"
        "<!-- /findings -->\nB\n"
    )


def test_links_are_relative_to_the_document_and_seeds_are_said_once(findings) -> None:
    text = "<!-- findings: readme -->\n<!-- /findings -->\n"
    shown = rendered(text, findings(*FINDINGS), KNOWN, "README.md")
    assert "(docs/claims.md#gates-help)" in shown and "Nothing" not in shown
    again = rendered(shown, findings(*FINDINGS), KNOWN, "README.md")
    assert again == shown, "rendering is idempotent"
    few = "+1.0 points ([2 seeds, no verdict](claims.md#few))"
    assert KNOWN["few"].shown("few", "docs/a.md") == few
    assert KNOWN["open"].shown("open", "docs/a.md") == "not run yet ([open](claims.md#open))"


def test_a_finding_that_presumes_another_verdict_is_refused(findings, tmp_path) -> None:
    other = {**KNOWN, "gates-help": Statement("refuted", "", "docs/claims.md")}
    found = dict(faults(findings(*FINDINGS), other))
    assert list(found) == ["gates"]
    assert "presumes that gates-help is 'supported', but it is 'refuted'" in found["gates"]
    (tmp_path / "README.md").write_text("<!-- findings: readme -->\n<!-- /findings -->\n")
    with pytest.raises(ValueError, match="presumes"):
        room.write_findings(tmp_path, findings(*FINDINGS), other)
    assert (tmp_path / "README.md").read_text() == (
        "<!-- findings: readme -->\n<!-- /findings -->\n"
    )


def test_an_unknown_id_is_named_with_what_was_meant(findings) -> None:
    wrong = {"id": "x", "blocks": ["needs"], "text": "By {gate-helps}."}
    ((_, sentence),) = faults(findings(wrong), KNOWN)
    assert "cites 'gate-helps', no id of the ledger; did you mean 'gates-help'" in sentence


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": "x", "blocks": ["needs"]}, "finding x lacks 'text'"),
        ({"text": "A.", "blocks": ["needs"]}, "finding 1 lacks 'id'"),
        ({"id": "x", "text": "A.", "blocks": "needs"}, "'blocks' is 'needs'; write a list"),
        ({"id": "x", "text": "A.", "blocks": ["n"], "presume": {}}, "did you mean 'presumes'"),
    ],
)
def test_a_bad_finding_is_named(findings, given, message) -> None:
    with pytest.raises(ValueError, match=message):
        findings(given)


def test_every_finding_is_shown_and_every_block_has_one() -> None:
    texts = "".join((ROOT / name).read_text("utf-8") for name in room.DOCUMENTS)
    known = read_findings(ROOT / "claims.yaml")
    blocks = {name for one in known for name in one.blocks}
    assert blocks == {name for name in blocks if f"<!-- findings: {name} -->" in texts}
    assert texts.count("<!-- findings: ") == texts.count("<!-- /findings -->")
    for one in known:
        assert not any(character.isdigit() and "{" not in one.text for character in one.text), (
            f"{one.id} has a number and cites nothing"
        )


def test_statements_are_those_of_the_committed_ledger() -> None:
    entries = read_ledger(ROOT / "results/reference/ledger.json")
    known = statements(entries, {})
    for entry in entries:
        assert known[entry.id].verdict == entry.verdict
        if entry.effect is None:
            assert known[entry.id].text == entry.reason


@pytest.mark.parametrize(
    ("horizon", "quarter", "shown"),
    [
        ("steady", "", ""),
        ("steady − steady", "", ""),
        ("", "", ""),
        ("rising − steady", "", "training: rising, steady"),
        ("rising", "supported", "both words; training: rising"),
        ("steady", "supported", "both words"),
    ],
)
def test_a_statement_has_the_horizon_unless_it_is_steady(horizon, quarter, shown) -> None:
    entry = next(one for one in read_ledger(ROOT / "results/reference/ledger.json") if one.n)
    changed = replace(entry, horizon=horizon, quarter=quarter, reason="both words")
    assert statements([changed], {})[entry.id].horizon == shown
