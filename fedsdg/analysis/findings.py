"""Findings in sentences: texts of claims.yaml whose numbers and verdicts come from the ledger.

In a text ``{gates-follow-need}`` stands for what the ledger, or a primary comparison, says under
that id: effect, interval, verdict, seeds, horizon where it was not steady, and a link. Between
``<!-- findings: NAME -->`` and ``<!-- /findings -->`` a document shows the findings whose
``blocks`` hold that name; ``fedsdg render ledger`` renders them, and nobody writes a number there
by hand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedsdg.analysis.comparisons import Comparison, comparisons
from fedsdg.analysis.formatting import difference
from fedsdg.analysis.horizon import STEADY
from fedsdg.analysis.ledger.entries import ADJUSTED, Entry
from fedsdg.analysis.ledger.page import effect_text
from fedsdg.analysis.summary import Summary
from fedsdg.files import atomic_path, hint, read_json
from fedsdg.files.places import NAMED
from fedsdg.files.strict_yaml import read_yaml

#: The documents with rendered blocks, relative to the root of the repository.
DOCUMENTS = ("README.md", "docs/findings.md", "docs/index.md")
_BLOCK = re.compile(r"<!-- findings: ([\w-]+) -->\n(.*?)<!-- /findings -->", re.DOTALL)
#: An id that a text cites, in braces.
CITED = re.compile(r"\{([\w+.-]+)\}")
#: The page of the ledger, relative to the root of the repository.
LEDGER = "docs/claims.md"


@dataclass(frozen=True)
class Finding:
    """A sentence or two about the record.

    ``text`` holds ids in braces; ``blocks`` are the names of the places where it is shown.
    ``presumes`` names verdicts (id → word) without which the text would be wrong.
    """

    id: str
    text: str
    blocks: tuple[str, ...]
    presumes: Mapping[str, str] = field(default_factory=dict)

    @property
    def cited(self) -> list[str]:
        """The ids that the text names."""
        return CITED.findall(self.text)


@dataclass(frozen=True)
class Statement:
    """A judged id: its verdict, its rendered text, the file that holds it, seeds and horizon."""

    verdict: str
    text: str
    file: str
    horizon: str = ""
    seeds: int = 0

    def shown(self, name: str, document: str) -> str:
        """Render for a document: +9.1 points [+7.9, +10.3] ([supported](claims.md#id); 10 seeds).

        The seeds are left out where the verdict names them ("2 seeds, no verdict") or there are
        none; the horizon stands last.

        Args:
            name: The id of the statement, which is the anchor of the link.
            document: The document, relative to the root of the repository; the link starts from its
                folder.
        """
        link = os.path.relpath(self.file, Path(document).parent).replace(os.sep, "/")
        verdict, *notes = self.said
        return f"{self.text} ([{verdict}]({link}#{name}){''.join(f'; {one}' for one in notes)})"

    @property
    def said(self) -> list[str]:
        """What stands behind the text: the verdict first, then its remarks, seeds and horizon."""
        verdict, _, more = self.verdict.removesuffix(")").partition(" (")
        seeds = f"{self.seeds} seeds" if self.seeds and "seed" not in verdict else ""
        return [verdict, *(text for text in (more, seeds, self.horizon) if text)]


def read_findings(file: str | Path) -> tuple[Finding, ...]:
    """The findings of claims.yaml.

    Raises:
        ValueError: One lacks an id, a text or a block, or has an unknown key.
    """
    content = read_yaml(Path(file))
    given = content.get("findings", []) if isinstance(content, Mapping) else []
    findings = []
    for number, one in enumerate(given, start=1):
        where = f"finding {one.get('id', number)}"
        for key in ("id", "text", "blocks"):
            if not one.get(key):
                raise ValueError(f"{where} lacks {key!r}; add it")
        if not isinstance(one["blocks"], list):
            raise ValueError(f"{where}: 'blocks' is {one['blocks']!r}; write a list of names")
        keys = ("id", "text", "blocks", "presumes")
        if unknown := [key for key in one if key not in keys]:
            raise ValueError(f"{where} has an unknown key {unknown[0]!r}{hint(unknown[0], keys)}")
        text = " ".join(str(one["text"]).split())
        findings.append(
            Finding(str(one["id"]), text, tuple(one["blocks"]), dict(one.get("presumes", {})))
        )
    return tuple(findings)


def statements(
    entries: Sequence[Entry], primary: Mapping[str, Sequence[Comparison]]
) -> dict[str, Statement]:
    """Collect the statements of the ledger and of the primary comparisons, by id.

    Args:
        entries: The judged claims.
        primary: The primary comparisons of each experiment.

    Returns:
        A statement for each id.
    """
    known = {
        entry.id: Statement(
            entry.verdict,
            effect_text(entry) if entry.n else entry.reason,
            LEDGER,
            _horizon(entry),
            entry.n,
        )
        for entry in entries
    }
    for experiment, compared in primary.items():
        file = f"results/reference/{experiment}/claims.md"
        known |= {
            one.named.id: Statement(one.verdict, _of_comparison(one), file, seeds=one.n)
            for one in compared
        }
    return known


def primary_comparisons(records: str | Path) -> dict[str, list[Comparison]]:
    """Experiment → its primary comparisons, of all records that name some."""
    folders = sorted(file.parent for file in Path(records).glob(f"*/{NAMED}"))
    compared = {
        folder.name: comparisons(Summary(folder)) for folder in folders if read_json(folder / NAMED)
    }
    return compared


def _horizon(entry: Entry) -> str:
    """The horizon, unless it is steady, and why a clear interval is undecided."""
    parts = [entry.reason] if entry.quarter or entry.reason == ADJUSTED else []
    if entry.horizon and set(entry.horizon.split(" − ")) != {STEADY}:
        parts.append(f"training: {entry.horizon.replace(' − ', ', ')}")
    return "; ".join(parts)


def _of_comparison(one: Comparison) -> str:
    judged = one.decisive.judged
    if judged is None:
        return "not run yet"
    mean, _, ends = difference(judged.n, judged.effect, judged.low, judged.high).partition(" ")
    return " ".join(filter(None, (mean, "points", ends)))


def faults(
    findings: Sequence[Finding], known: Mapping[str, Statement]
) -> Iterator[tuple[str, str]]:
    """Yield (id, sentence) of findings that cite an unknown id or presume another verdict.

    Args:
        findings: The findings of claims.yaml.
        known: The statements of the ledger and of the primary comparisons, by id.
    """
    for one in findings:
        for name in (*one.cited, *one.presumes):
            if name not in known:
                yield (
                    one.id,
                    f"finding {one.id} cites {name!r}, no id of the ledger{hint(name, known)}",
                )
        for name, verdict in one.presumes.items():
            if name in known and known[name].verdict != verdict:
                yield (
                    one.id,
                    f"finding {one.id} presumes that {name} is {verdict!r}, but it is "
                    f"{known[name].verdict!r}; correct the finding",
                )


def block(
    name: str, findings: Sequence[Finding], known: Mapping[str, Statement], document: str
) -> str:
    """The list of findings that a block shows, in Markdown, for a document at this place.

    Args:
        name: The name of the block.
        findings: All findings; the block shows those whose ``blocks`` hold its name, in this order.
        known: The statements by id; every id that a finding cites must be there.
        document: The document, relative to the root of the repository; links start from its folder.

    Returns:
        One item per finding; "" where the block shows none.
    """
    lines = [
        "- " + CITED.sub(lambda match: known[match[1]].shown(match[1], document), one.text)
        for one in findings
        if name in one.blocks
    ]
    return "\n".join(lines) + "\n" if lines else ""


def rendered(
    text: str, findings: Sequence[Finding], known: Mapping[str, Statement], document: str
) -> str:
    """A document with all of its blocks rendered.

    Args:
        text: The document in Markdown; what stands between the markers of a block is replaced.
        findings: All findings.
        known: The statements by id; every id that a finding cites must be there.
        document: The document, relative to the root of the repository; links start from its folder.
    """
    return _BLOCK.sub(
        lambda match: (
            f"<!-- findings: {match[1]} -->\n{block(match[1], findings, known, document)}"
            "<!-- /findings -->"
        ),
        text,
    )


def write_findings(
    root: Path, findings: Sequence[Finding], known: Mapping[str, Statement]
) -> list[Path]:
    """Render the blocks of all documents below ``root``, and return the files that changed.

    Args:
        root: The root of the repository; those of ``DOCUMENTS`` that are missing are skipped.
        findings: The findings of claims.yaml.
        known: The statements of the ledger and of the primary comparisons, by id.

    Raises:
        ValueError: A finding cites an unknown id, or presumes a verdict that is another one.
    """
    if wrong := next(faults(findings, known), None):
        raise ValueError(wrong[1])
    changed = []
    for name in DOCUMENTS:
        file = root / name
        if not file.is_file():
            continue
        before = file.read_text(encoding="utf-8")
        after = rendered(before, findings, known, name)
        if after != before:
            with atomic_path(file) as temporary:
                temporary.write_text(after, encoding="utf-8")
            changed.append(file)
    return changed
