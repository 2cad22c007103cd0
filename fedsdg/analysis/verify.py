"""Everything that is committed and states a number, rendered again from the records and compared.

Tables in each format, claims, sidecars of figures, the ledger with its page, and the numbers in
README and findings; and whether the backbones, partitions and origins of a record belong to its
runs. Left out is what depends on the day: the sources that drew a figure, and its pixels.

Another processor sums in another order, so a mean that lies between two printed numbers may be
printed as either. A number may therefore differ from the recomputed one by one unit of its last
printed digit. Whole numbers are counts and must be equal, as must every word and hash.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq

from fedsdg.analysis import findings
from fedsdg.analysis.claims import claims_page
from fedsdg.analysis.grids import published_grids
from fedsdg.analysis.ledger import Entry, judge_claims, read_claims
from fedsdg.analysis.ledger.frozen import changed_origins
from fedsdg.analysis.ledger.page import page
from fedsdg.analysis.plots import FIGURES, figure_facts, known_figure
from fedsdg.analysis.record import ORIGINS, read_origins
from fedsdg.analysis.regret import across_facts, regret_table
from fedsdg.analysis.speed import Measurements, kernels, throughput
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES, to_csv, to_latex, to_markdown
from fedsdg.analysis.tables.layout import Table
from fedsdg.files import canonical_json, changed_file, read_json, sha256_file
from fedsdg.files.places import DIVISION, PAPER_FIGURE, RECORDS, filled, run_below, split_setting

CLAIMS, CONFIGS = "claims.yaml", "config"
LEDGER, LEDGER_PAGE = f"{RECORDS}/ledger.json", "docs/claims.md"
#: Kinds of things compared, in the order of the counts.
KINDS = ("tables", "claims", "sidecars", "verdicts", "documents")

#: How a table is written, by the ending of its file.
FORMATS: Mapping[str, Callable[[Table], str]] = MappingProxyType(
    {".csv": to_csv, ".md": to_markdown, ".tex": to_latex}
)
#: Keys of a sidecar that depend on the day on which its figure was drawn.
_OF_THE_DAY = ("source_sha256", "version")
#: A number in print, not part of a word such as a hash, a version or ``dirichlet~0.1``.
_NUMBER = re.compile(r"(?:(?<![\w.~])[+−-])?(?<![\w.~])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|\.\d)")
_RULE = re.compile(r":?-{3,}:?")
#: Numbers in CSV and JSON have at least so many significant digits; trailing zeros are not written.
_DIGITS = 5
_ABSENT = "nothing"


@dataclass(frozen=True)
class Fault:
    """Part of a committed file that does not say what the records give."""

    file: str
    """Relative to the root of the repository."""
    place: str = ""
    """A line, in CSV with its column, or the keys of a value of JSON."""
    committed: str = ""
    recomputed: str = ""
    because: str = ""
    """A sentence, where it is not a value that differs."""

    def __str__(self) -> str:
        """One line: the file, the place in it, and what is wrong."""
        where = f"{self.file}, {self.place}: " if self.place else f"{self.file}: "
        if self.because:
            return f"{where}{self.because}"
        return f"{where}{self.committed} is committed, but the records give {self.recomputed}"


def verify(
    root: Path, say: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, int], list[Fault]]:
    """Compare everything committed with what the records give.

    Args:
        root: The root of the repository.
        say: Called with what is compared next.

    Returns:
        How much of each of ``KINDS`` was compared, and every difference.

    Raises:
        FileNotFoundError: There is no record.
        ValueError: A record cannot be read.
    """
    records = sorted(file.parent for file in (root / RECORDS).glob("*/runs.parquet"))
    if not records:
        raise FileNotFoundError(
            f"there is no record in {root / RECORDS}: call this in the root of the repository"
        )
    counts, faults = dict.fromkeys(KINDS, 0), list[Fault]()
    summary_of = cache(Summary)
    for folder in records:
        say(folder.name)
        if because := changed_file(folder):
            faults.append(Fault(_shown(root, folder), because=because))
        summary = summary_of(folder)
        for kind, different in record_faults(root, summary):
            counts[kind] += 1
            faults += different
        faults += _source_faults(root, summary)
    say("what spans arenas")
    for kind, different in (*_measured_faults(root), *across_faults(root, summary_of)):
        counts[kind] += 1
        faults += different
    say("ledger, README and findings")
    entries, different = _ledger_faults(root, summary_of)
    counts["verdicts"] = len(entries)
    faults += different
    for different in document_faults(root, entries):
        counts["documents"] += 1
        faults += different
    return counts, faults


def document_faults(root: Path, entries: Sequence[Entry]) -> Iterator[list[Fault]]:
    """Compare the rendered findings of every document.

    Args:
        root: The root of the repository.
        entries: The judged claims.

    Yields:
        The faults of each document; those of the findings themselves come alone and first.
    """
    if not (root / CLAIMS).is_file():
        return
    sentences = findings.read_findings(root / CLAIMS)
    known = findings.statements(entries, findings.primary_comparisons(root / RECORDS))
    if wrong := [*findings.faults(sentences, known)]:
        yield [Fault(CLAIMS, name, because=because) for name, because in wrong]
        return
    for name in findings.DOCUMENTS:
        if (root / name).is_file():
            text = (root / name).read_text(encoding="utf-8")
            yield text_faults(name, text, findings.rendered(text, sentences, known, name))


def record_faults(root: Path, summary: Summary) -> Iterator[tuple[str, list[Fault]]]:
    """Compare the tables, the claims and the sidecars of a record; nothing is drawn.

    Args:
        root: The root of the repository.
        summary: That of the record's folder.

    Yields:
        The kind and the faults of each of them.
    """
    folder = summary.folder
    pages = read_json(folder / "pages.json") if (folder / "pages.json").is_file() else {}
    stems = {file.stem for file in folder.iterdir() if file.suffix in FORMATS} - {"claims"}
    for name in sorted({*stems, *pages.get("tables", [])}):
        if name in TABLES:
            yield "tables", _table_faults(root, folder / name, TABLES[name](summary))
        else:
            because = f"there is no table {name!r}, so nothing says what should stand in it"
            yield "tables", [Fault(_shown(root, folder / name), because=because)]
    yield "claims", _file_faults(root, folder / "claims.md", claims_page(summary))
    figures = (root / filled(PAPER_FIGURE, experiment=folder.name, figure="any")).parent
    stems = {file.stem for file in figures.glob("*.json")}
    for name in sorted({*stems, *pages.get("figures", [])}):
        sidecar = figures / f"{name}.json"
        if name in FIGURES:
            made = figure_facts(name, summary, known_figure(name).frame(summary))
            yield "sidecars", _sidecar_faults(root, sidecar, made)
        else:
            yield "sidecars", [Fault(_shown(root, sidecar), because=f"there is no figure {name!r}")]


def _table_faults(root: Path, stem: Path, table: Table) -> list[Fault]:
    """Compare a table in all of the formats that are there, at least one."""
    files = [file for suffix in FORMATS if (file := stem.with_suffix(suffix)).is_file()]
    return [
        fault
        for file in files or [stem.with_suffix(".csv")]
        for fault in _file_faults(root, file, FORMATS[file.suffix](table))
    ]


def _file_faults(root: Path, file: Path, made: str) -> list[Fault]:
    shown = _shown(root, file)
    if not file.is_file():
        return [Fault(shown, because="it is not there")]
    return text_faults(shown, file.read_text(encoding="utf-8"), made)


def _sidecar_faults(root: Path, file: Path, made: Any) -> list[Fault]:
    """Compare the caption and the numbers of a figure, and the hashes of what it was drawn from."""
    shown = _shown(root, file)
    if not file.is_file():
        return [Fault(shown, because="it is not there")]
    sidecar = read_json(file)
    inputs = sidecar.pop("inputs", {})
    faults = (
        [] if inputs else [Fault(shown, "inputs", because="it names no file it was drawn from")]
    )
    for name, digest in inputs.items():
        now = sha256_file(root / name) if (root / name).is_file() else "no such file"
        if now != digest:
            faults.append(Fault(shown, f"inputs.{name}", digest, now))
    kept = {key: value for key, value in sidecar.items() if key not in _OF_THE_DAY}
    return faults + json_faults(shown, kept, made)


def _measured_faults(root: Path) -> Iterator[tuple[str, list[Fault]]]:
    """Compare the tables of speed with the measurements beside them."""
    folder = root / RECORDS / "performance"
    if (folder / "measured.json").is_file():
        measured = Measurements.read(folder / "measured.json")
        for name, table in (("kernels", kernels), ("throughput", throughput)):
            if any(folder.glob(f"{name}.*")):
                yield "tables", _table_faults(root, folder / name, table(measured))


def across_faults(
    root: Path, read: Callable[[Path], Summary] = Summary
) -> Iterator[tuple[str, list[Fault]]]:
    """Compare the figure that spans arenas, whose sidecar names them, and its tables.

    Args:
        root: The root of the repository.
        read: Opens the summary in a folder.

    Yields:
        The kind and the faults of each of them.
    """
    sidecar = root / f"{filled(PAPER_FIGURE, experiment='across', figure='regret')}.json"
    if sidecar.is_file():
        content = read_json(sidecar)
        summaries = [read(root / RECORDS / name) for name in content["arenas"]]
        made = across_facts(summaries, content["metric"])
        yield "sidecars", _sidecar_faults(root, sidecar, made)
        table = regret_table(summaries, content["metric"])
        yield "tables", _table_faults(root, root / RECORDS / "across" / table.name, table)


def _ledger_faults(root: Path, read: Callable[[Path], Summary]) -> tuple[list[Entry], list[Fault]]:
    """Judge the claims again; one that changed since it was frozen and run is a fault, too."""
    if not (root / LEDGER).is_file():
        return [], []
    claims = read_claims(root / CLAIMS, published_grids(root / CONFIGS))
    entries = judge_claims(claims, root / RECORDS, read)
    rows = json.loads(canonical_json([entry.to_dict() for entry in entries]))
    # The order is that of the claims; a value is more easily found by the id of its claim.
    trees = [{row["id"]: row for row in listed} for listed in (read_json(root / LEDGER), rows)]
    changed = changed_origins(claims, root / RECORDS)
    return entries, [
        *json_faults(LEDGER, *trees),
        *(Fault(CLAIMS, name, because=because) for name, because in changed),
        *_file_faults(root, root / LEDGER_PAGE, page(entries)),
    ]


def _source_faults(root: Path, summary: Summary) -> Iterator[Fault]:
    """Find hashes that the runs of a record do not have, and runs without an origin."""
    folder = summary.folder
    done = [run for run in summary.runs if run["status"] == "ok"]
    stated: dict[Path, Any] = {}
    for run in done:
        name = json.loads(run["config"]).get("backbone")
        backbone = folder / "backbones" / f"{name}.json"
        division = DIVISION.format_map({**run, "skew": split_setting(run["skew"])[0]})
        partition = folder / "partitions" / division
        for file, used in ((backbone, "backbone_hash"), (partition, "partition_hash")):
            if file not in stated:
                stated[file] = _stated_hash(file)
            if stated[file] not in (_ABSENT, run[used]):
                yield Fault(_shown(root, file), "sha256", str(stated[file]), str(run[used]))
                stated[file] = _ABSENT  # Once is enough.
    runs = [run_below(run) for run in done]
    covered = {name for origin in read_origins(folder, runs) for name in origin["runs"]}
    if left := [name for name in runs if name not in covered]:
        because = f"it does not say where {len(left)} runs were made, the first {left[0]}"
        yield Fault(_shown(root, folder / ORIGINS), because=because)


def _stated_hash(file: Path) -> Any:
    """Return the hash that the facts of a backbone or a partition state; records keep a few."""
    if not file.is_file():
        return _ABSENT
    if file.suffix == ".json":
        return read_json(file).get("sha256")
    facts_of_partition = (pq.read_schema(file).metadata or {}).get(b"fedsdg", b"{}")
    return json.loads(facts_of_partition).get("sha256")


def text_faults(file: str, committed: str, made: str) -> list[Fault]:
    """Compare a text word by word, a CSV field by field.

    Spaces and rules that only make columns line up do not count.

    Args:
        file: Its name, for the faults.
        committed: What the file holds.
        made: What the records give.

    Returns:
        A fault for each line that differs, or one for all if their number does.
    """
    is_csv = file.endswith(".csv")
    split, digits = (_fields, _DIGITS) if is_csv else (_words, 0)
    lines, recomputed = committed.splitlines(), made.splitlines()
    if len(lines) != len(recomputed):
        pairs = enumerate(zip_longest(lines, recomputed), start=1)
        first = next(number for number, (mine, other) in pairs if mine != other)
        because = f"it has {len(lines)} lines, but the records give {len(recomputed)}"
        return [Fault(file, f"from line {first} on", because=because)]
    faults = []
    for number, (line, other) in enumerate(zip(lines, recomputed, strict=True), start=1):
        if unlike := _first_unlike(split(line), split(other), digits):
            at, *values = unlike
            column = f", column {split(lines[0])[at]!r}" if is_csv else ""
            faults.append(Fault(file, f"line {number}{column}", *map(repr, values)))
    return faults


def json_faults(file: str, committed: Any, made: Any) -> list[Fault]:
    """Compare two trees of plain JSON value by value.

    Args:
        file: Its name, for the faults.
        committed: What the file holds.
        made: What the records give.

    Returns:
        A fault for each value that differs.
    """
    ours, theirs = dict(_leaves(committed)), dict(_leaves(made))
    faults = []
    for keys in {**ours, **theirs}:
        value, other = ours.get(keys, _ABSENT), theirs.get(keys, _ABSENT)
        if isinstance(value, str) and isinstance(other, str):
            if unlike := _first_unlike(value.split(), other.split()):
                faults.append(Fault(file, keys, *map(repr, unlike[1:])))
        elif not _same_value(value, other):
            faults.append(Fault(file, keys, str(value), str(other)))
    return faults


def _leaves(tree: Any, keys: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys and the value of every leaf: {"a": [{"b": 1}]} has 1 at a[0].b."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from _leaves(part, f"{keys}.{key}" if keys else str(key))
    elif isinstance(tree, list):
        for i, part in enumerate(tree):
            yield from _leaves(part, f"{keys}[{i}]")
    else:
        yield keys, tree


def _same_value(value: Any, other: Any) -> bool:
    """Return whether two leaves are equal, or fractions with the same digits but for the last."""
    if isinstance(value, float) and isinstance(other, float):
        return _close(repr(value), repr(other), _DIGITS)
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _first_unlike(
    words: Iterable[str], others: Iterable[str], digits: int = 0
) -> tuple[int, str, str] | None:
    """Return the first pair of words that differ, and how many come before it."""
    pairs = enumerate(zip_longest(words, others, fillvalue=""))
    return next(((at, *pair) for at, pair in pairs if not _alike(*pair, digits)), None)


def _alike(word: str, other: str, digits: int) -> bool:
    """Return whether two words are equal but for the last digits of their numbers."""
    if word == other:
        return True
    if _NUMBER.sub("#", word) != _NUMBER.sub("#", other):
        return False
    numbers = zip(_NUMBER.findall(word), _NUMBER.findall(other), strict=True)
    return all(_close(*pair, digits) for pair in numbers)


def _close(number: str, other: str, digits: int) -> bool:
    """Return whether two printed numbers differ by one unit of the last digit at most.

    ``digits``: so many significant ones a number has at least, written or not; 0 for numbers with
    fixed decimals, of which whole ones must be equal.
    """
    a, b = (Decimal(text.replace(",", "").replace("−", "-")) for text in (number, other))
    if digits:
        a, b = a.normalize(), b.normalize()
    last = min(int(each.as_tuple().exponent) for each in (a, b))
    if digits:
        last = min(last, max(a.adjusted(), b.adjusted()) + 1 - digits)
    return a == b or ((digits > 0 or last < 0) and abs(a - b) <= Decimal(1).scaleb(last))


def _words(line: str) -> list[str]:
    """Split a line; rules of a table are all alike."""
    return ["---" if _RULE.fullmatch(word) else word for word in line.split()]


def _fields(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _shown(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()
