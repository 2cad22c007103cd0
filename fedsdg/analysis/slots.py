"""Where verdicts stand in documents: docs/claims.md, its numbers, and slots in the prose.

    … by <!-- private-branch-helps supported -->[+32.3 points …](docs/claims.md#…)<!-- / -->.
    <!-- table needs/iid@half:accuracy_b:in_conflict fedrep,fedper -->…<!-- / -->

A slot names a claim and the verdict that its sentence presumes, or the columns and the methods of a
table that may span several arenas.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import pandas as pd

from fedsdg.analysis.claims import RULE, WORDS, Verdict, judge, read_claims
from fedsdg.analysis.layout import Table, arranged
from fedsdg.analysis.means import best, means, printed
from fedsdg.analysis.metrics import METRICS
from fedsdg.analysis.records import record
from fedsdg.errors import require_one_of
from fedsdg.files import write_bytes

RECORDS = Path("results/reference")
PAGE = Path("docs/claims.md")
NUMBERS = RECORDS / "across/claims.csv"
_END = "<!-- / -->"
#: Code, in which nothing is filled; or a comment, with all up to its end if it is a slot.
_SLOT = re.compile(rf"`[^`\n]*`|<!-- ([^>\n]+) -->((?:(?!<!--).)*{_END})?", re.DOTALL)


def page(verdicts: Collection[Verdict]) -> str:
    """Return docs/claims.md: the rule, and a line for each claim, by origin."""
    origins = list(dict.fromkeys(verdict.claim.origin for verdict in verdicts))
    lines = [
        (
            verdict.claim.origin,
            f'<a id="{verdict.claim.id}"></a>`{verdict.claim.id}` {verdict.claim.claim}',
            f"**{verdict.word}**",
            verdict.number,
            verdict.n or "–",
            verdict.claim.test,
        )
        for verdict in sorted(verdicts, key=lambda one: origins.index(one.claim.origin))
    ]
    heads = ["origin", "claim", "verdict", "number", "n", "compared"]
    rows = pd.DataFrame(lines, columns=heads).to_markdown(index=False, disable_numparse=True)
    counts = Counter(verdict.word for verdict in verdicts)
    told = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    return (
        f"# Claims\n\n> {RULE}\n\n{len(lines)} claims: {told}. Numbers are means over n seeds with "
        "95 % intervals, at the selected round; of several rivals, the one that decides. "
        f"[All intervals](../{NUMBERS}), at both readings and levels. Claims are declared in "
        "[claims.yaml](../claims.yaml); `fedsdg trace ID` shows the runs behind one, and "
        f"`fedsdg render claims` writes this page.\n\n{rows}\n"
    )


def intervals(verdicts: Collection[Verdict]) -> Table:
    """Return the intervals of every comparison of every claim, at each reading."""
    parts = {
        verdict.claim.id: verdict.tests.assign(metric=verdict.claim.metric, verdict=verdict.word)
        for verdict in verdicts
        if verdict.n
    }
    columns = ["metric", "at", "n", "mean", "low", "high", "low_99", "high_99", "verdict"]
    columns = ["claim", "of", "against", *columns]
    if not parts:
        parts = {"": pd.DataFrame(columns=columns[1:])}
    numbers = pd.concat(parts, names=["claim"]).reset_index("claim")[columns]
    return Table("claims", RULE, numbers, numbers)


def rendered(file: Path, root: Path) -> str:
    """Return a document with its slots filled.

    Args:
        file: The document, below the root.
        root: The root of the repository.

    Raises:
        ValueError: Names file and line of a slot that presumes another verdict, whose claim or
            table does not exist, or that does not end.
    """
    text = (root / file).read_text(encoding="utf-8")
    verdicts = judged(root)

    def filled(slot: re.Match[str]) -> str:
        kind, *arguments = (slot[1] or "code").split()
        if slot[2] is None and kind not in {*verdicts, "table", "/"}:
            return slot[0]
        try:
            if slot[2] is None:
                raise ValueError(f"the slot lacks its beginning or its end, {_END}")
            if kind == "table":
                content = _lines(arguments, root)
            else:
                content = _number(verdicts, kind, " ".join(arguments), file)
        except (ValueError, FileNotFoundError) as error:
            line = text.count("\n", 0, slot.start()) + 1
            raise ValueError(f"{file}:{line}: {error}") from error
        return f"<!-- {slot[1]} -->{content}{_END}"

    return _SLOT.sub(filled, text)


def _number(verdicts: Mapping[str, Verdict], name: str, presumed: str, file: Path) -> str:
    """Return the number of a claim as a link to its line of docs/claims.md."""
    require_one_of(verdicts, name, "there is no claim")
    told = f"{verdicts[name].word} ({verdicts[name].number})"
    if presumed != verdicts[name].word:
        raise ValueError(f"{name} is presumed {presumed!r} and is {told}; mend the sentence")
    page = Path(os.path.relpath(PAGE, file.parent)).as_posix()
    return f"[{verdicts[name].number}]({page}#{name})"


def _lines(arguments: Sequence[str], root: Path) -> str:
    """Return a table: a column for each metric of a cell, the method with the highest first."""
    if len(arguments) != 2 or arguments[0].count(":") != 2 * len(arguments[0].split(",")):
        raise ValueError("write <!-- table ARENA/CELL:METRIC:HEADING,… LABEL,LABEL -->")
    columns, labels = (argument.split(",") for argument in arguments)
    numbers = pd.concat([_column(column, root) for column in columns])
    text = arranged(numbers, printed, setting="at", best=best)
    first = numbers.groupby("method", sort=False)["mean"].first()
    labels.sort(key=lambda label: -first.get(label, 0))
    return f"\n{Table('table', '', numbers, text).rows(labels)}\n"


def _column(place: str, root: Path) -> pd.DataFrame:
    """Return the means of a metric in a cell, at the selected round, with their heading."""
    key, metric, head = place.split(":")
    arena, _, cell = key.partition("/")
    require_one_of(METRICS, metric, "there is no metric")
    numbers = means(record(root / RECORDS / arena), [metric])
    numbers = numbers[(numbers["cell"] == cell) & (numbers["at"] != "end")].assign(at="selected")
    if numbers.empty:
        raise ValueError(f"no run of {key} has the metric {metric!r}")
    return numbers.assign(head=head.replace("_", " "))


def documents(root: str | Path = ".") -> Iterator[tuple[Path, Callable[[], str]]]:
    """Yield docs/claims.md, its numbers and every document with slots, each with its maker.

    Args:
        root: The root of the repository.
    """
    root = Path(root)
    if not (root / "claims.yaml").is_file():
        return
    yield root / PAGE, lambda: page(judged(root).values())
    yield root / NUMBERS, lambda: intervals(judged(root).values()).csv()
    for file in (root / "README.md", *sorted(root.glob("docs/**/*.md"))):
        if file != root / PAGE and file.is_file() and _END in file.read_text(encoding="utf-8"):
            yield file, partial(rendered, file.relative_to(root), root)


@cache
def judged(root: Path) -> dict[str, Verdict]:
    """Return the verdicts of a repository's claims.yaml by id, judged once in a process."""
    claims = read_claims(root / "claims.yaml")
    return {claim.id: judge(claim, root / RECORDS) for claim in claims}


def render_documents(root: str | Path = ".") -> list[Path]:
    """Write docs/claims.md and its numbers, and fill the slots of all documents in place.

    Args:
        root: The root of the repository.

    Returns:
        The files.

    Raises:
        ValueError: A slot is wrong; then nothing is written.
    """
    texts = {file: make() for file, make in documents(root)}
    for file, text in texts.items():
        write_bytes(file, text.encode())
    return [*texts]
