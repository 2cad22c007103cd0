"""From a committed number to the runs behind it.

The page on which the number stands is made again from its record, where every cell names a column
and a row of unrounded numbers. The identity columns of that row select the runs. Seed by seed the
page is made from the runs of that seed alone, as if there were no others.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from os.path import normpath
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
import pyarrow.parquet as pq

from fedsdg.analysis.comparisons import comparisons
from fedsdg.analysis.findings import DOCUMENTS
from fedsdg.analysis.formatting import printed
from fedsdg.analysis.frames import RUN, finished, records
from fedsdg.analysis.grids import published_grids
from fedsdg.analysis.ledger import Entry, judge_claims, read_claims, read_ledger
from fedsdg.analysis.names import method_title, metric_named, skew_title
from fedsdg.analysis.plots import FIGURES
from fedsdg.analysis.record import origins_of, read_origins
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES, to_latex, to_markdown
from fedsdg.analysis.tables.layout import Raw, Table
from fedsdg.analysis.tables.primary import MEAN_DIFFERENCE, difference_text
from fedsdg.analysis.views.attacks import ARENA, under_attack
from fedsdg.analysis.views.costs import YARDSTICK
from fedsdg.analysis.views.sweeps import LINE, swept_runs
from fedsdg.files import hint, places, read_json
from fedsdg.files.places import RECORDS, joined_setting, run_below, split_setting

#: Columns that name a row of a figure's numbers; the others are what was computed.
_NAMES = (
    *(*RUN, "attack", "share", "type", "key", "others", "metric"),
    *("group", "measure", "client", "kind", "step", "subject", "rival", "block", "credit"),
    *("yardstick", "budget"),
)
#: Columns that name a row in one figure and are computed in another.
_SOMETIMES = ("round", "seconds", "value")
#: Column -> what its values are called in print.
_TITLES: Mapping[str, Callable[[str], list[str]]] = MappingProxyType(
    {
        **dict.fromkeys(("method", "subject", "rival"), lambda label: [method_title(label)]),
        "skew": lambda skew: [skew_title(skew)],
        "metric": lambda key: [metric_named(key).title, metric_named(key).short],
    }
)
_HASHES = ("config_hash", "partition_hash", "backbone_hash", "source_hash")
_EXAMPLE = f"{RECORDS}/label-skew/main.md"
#: A link of a rendered finding: the file and the id of what it says.
_LINK = re.compile(r"\]\(([^)\s#]+)#([\w+.-]+)\)")
#: The id of a claim on the line that states it: on the page of the ledger, or in a record.
_CLAIM = re.compile(r'<a id="(?P<page>[^"]+)">|^- \*\*(?P<record>[^:*]+): ')
_OTHER_SHAPE = "it has other rows or columns than its record gives; run fedsdg verify"

#: A run and the summary that it is in.
_Run = tuple[Summary, dict[str, Any]]


class _Cell(NamedTuple):
    """A number of a page; ``names`` are all that it can be asked for by, in small letters."""

    line: str
    committed: str
    recomputed: str
    names: frozenset[str]
    raw: Raw


def trace(file: str | Path, row: str = "", column: str = "") -> dict[str, Any]:
    """Trace a number of a committed table, a figure's sidecar, the ledger, or a sentence.

    Args:
        file: A table (.md, .csv, .tex), a sidecar (.json), the ledger or its page, the claims of
            a record, README or findings; "FILE:7" means the row "line 7".
        row: Words that name the row, joined by commas: labels, titles, "line 7"; the id of a claim.
        column: Words that name the column.

    Returns:
        ``file``, ``line`` and ``experiment``; the number as ``committed`` (the whole line where it
        is another now), ``recomputed`` and ``unrounded``; ``of`` and ``where``, the column and the
        identity of its row; ``seeds``, what the runs of each seed alone give (None where that is no
        number); ``runs``, of each run its folder, hashes, config, and where and when it was made.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no such page, the words name no number or several, or no run stands
            behind the number.
    """
    name, _, number = str(file).rpartition(":")
    path, asked = Path(file), [row, column]
    if number.isdecimal():
        path, asked = Path(name), [f"line {number}", row, column]
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}: name a table of a record, as {_EXAMPLE}")
    above = path.resolve().parents
    root = next((folder for folder in above if (folder / "results").is_dir()), Path())
    if path.name in {Path(page).name for page in DOCUMENTS}:
        row, target = _cited(path, asked)
        path, asked = Path(normpath(path.parent / target)), [row]
    if path.stem == "claims":
        row = _claim_in(path, asked) or row
        if (path.parent / "runs.parquet").is_file():
            return _trace_comparison(path, row)
    is_claim = path.name == "ledger.json" or path.stem == "claims"
    return _trace_claim(path, root, row) if is_claim else _trace_cell(path, root, asked)


def _cited(path: Path, asked: Sequence[str]) -> tuple[str, str]:
    """Return the only id that a line of a page links to, or that is asked for, and its file."""
    cited: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        here = f"line {number}" in asked
        cited |= {name: to for to, name in _LINK.findall(line) if here or name in asked}
    cited = {name: to for name, to in cited.items() if name in asked} or cited
    if len(cited) != 1:
        where = ", ".join(filter(None, asked)) or "the whole page"
        raise ValueError(
            f"{path}, {where}: {', '.join(cited) or 'no claim'} cited; name one claim or a line "
            "that cites one, as --row gates-help or --row 'line 40'"
        )
    return next(iter(cited.items()))


def _claim_in(path: Path, asked: Sequence[str]) -> str:
    """Return the id of the claim that the line of a page states; "" where no line is asked for."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if f"line {number}" in asked:
            if stated := _CLAIM.search(line):
                return stated["page"] or stated["record"]
            raise ValueError(
                f"{path}, line {number}: no claim stands there; name one by its id, as "
                "--row gates-help"
            )
    return ""


def _trace_comparison(path: Path, name: str) -> dict[str, Any]:
    """Trace a primary comparison: of several rivals, the difference that decides it."""
    summary = Summary(path.parent)
    decisive = {each.named.id: each.decisive for each in comparisons(summary)}
    if name not in decisive:
        raise ValueError(f"{path} has no primary comparison {name!r}{hint(name, decisive)}")
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    stated = [(number, line) for number, line in lines if line.startswith(f"- **{name}: ")]
    if not stated:
        raise ValueError(f"{path}: {_OTHER_SHAPE}")
    (number, line), shown = stated[0], difference_text(decisive[name])
    raw = Raw(MEAN_DIFFERENCE, {"id": name, "rival": decisive[name].rival})
    committed = shown if shown in line else line
    cell = _Cell(f"line {number}", committed, shown, frozenset(), raw)
    return _traced(path, summary, TABLES["primary"], TABLES["primary"](summary), cell)


def _trace_claim(file: Path, root: Path, name: str) -> dict[str, Any]:
    """Trace the effect of a claim of the ledger."""
    ledger = {entry.id: entry for entry in read_ledger(root / RECORDS / "ledger.json")}
    if name not in ledger:
        raise ValueError(f"{file} has no claim {name!r}{hint(name, ledger)}")
    entry = ledger[name]
    if entry.effect is None:
        raise ValueError(f"{file}: no run stands behind {name!r}, {entry.verdict}: {entry.reason}")
    claims = read_claims(root / "claims.yaml", published_grids(root / "config"))
    claim = next(claim for claim in claims if claim.id == name)
    both: dict[str, _Run] = {}  # Sides that differ in their clients alone have the same runs.
    for side in claim.sides:
        summary = Summary(root / RECORDS / str(side.experiment))
        # Regret is that beside all rows of the cell.
        method = None if side.measure == "regret" else side.method
        row = {"skew": side.cell, "method": method, "dataset": side.dataset}
        behind = runs_behind(summary, row)
        both |= {f"{side.experiment}/{run_below(run)}": (summary, run) for run in behind}
    runs = [*both.values()]
    (now,) = judge_claims([claim], root / RECORDS)
    seeds = {
        seed: judge_claims([claim], root / RECORDS, partial(Summary, seed=seed))[0].effect
        for seed in _seeds(runs)
    }
    return {
        "file": file.as_posix(),
        "line": name,
        "experiment": entry.experiment,
        "committed": _effect(entry),
        "recomputed": _effect(now),
        "of": f"{entry.measure}: {entry.compared}",
        "where": {"id": name, "cell": entry.cell, "threshold": entry.threshold},
        "unrounded": now.effect,
        "seeds": {seed: effect for seed, effect in seeds.items() if effect is not None},
        "runs": [_facts_of(*run) for run in runs if seeds[run[1]["seed"]] is not None],
    }


def _effect(entry: Entry) -> str:
    """Return "3.4321 points [1.2, 5.6], supported"."""
    ends = "" if entry.low is None else f" [{entry.low}, {entry.high}]"
    return f"{entry.effect} {entry.unit}".strip() + f"{ends}, {entry.verdict}"


def _trace_cell(path: Path, root: Path, asked: Sequence[str]) -> dict[str, Any]:
    """Trace a number of a table or of a sidecar."""
    summary = Summary(_folder(path, root))
    make = TABLES[path.stem] if path.suffix != ".json" else FIGURES[path.stem].frame
    if (page := make(summary)) is None:
        raise ValueError(
            f"{path} holds no numbers, for the figure is drawn from the records at once; trace a "
            f"table of the same record, as {_EXAMPLE}"
        )
    try:
        cells = [*_cells(path, page)]
    except ValueError as error:
        raise ValueError(f"{path}: {_OTHER_SHAPE}") from error
    return _traced(path, summary, make, page, _chosen(cells, asked, path))


def _traced(
    path: Path, summary: Summary, make: Callable[[Summary], Any], page: Any, cell: _Cell
) -> dict[str, Any]:
    """Trace a number of a page that ``make`` makes from a summary."""
    rows = _rows(page, cell.raw)
    unrounded = _value(page, cell.raw)
    runs = [] if unrounded is None else _behind(summary, rows)
    if not runs:
        what = "no run stands behind" if unrounded is not None else "no number stands there, but"
        why = "; the trials of a search gave it: see search.json" if path.stem == "tuning" else ""
        raise ValueError(f"{path}, {cell.line}: {what} {cell.committed!r}{why}")
    return {
        "file": path.as_posix(),
        "line": cell.line,
        "experiment": summary.experiment,
        "committed": cell.committed,
        "recomputed": cell.recomputed,
        "of": cell.raw.column,
        "where": dict(cell.raw.row),
        "unrounded": unrounded,
        "seeds": {
            seed: _value(make(Summary(summary.folder, seed)), cell.raw) for seed in _seeds(runs)
        },
        "runs": [_facts_of(*run) for run in runs],
    }


def _behind(summary: Summary, rows: Iterable[Mapping[str, Any]]) -> list[_Run]:
    """Return the runs behind rows, each once; a regret has cells in several records."""
    behind: dict[tuple[str, str], _Run] = {}
    for row in rows:
        parts = []
        for cell in (row.get("cells") or "").split(", "):
            experiment, _, skew = cell.partition(":")
            there = Summary(summary.folder.parent / experiment) if experiment else summary
            own = runs_behind(there, {**row, "skew": skew} if skew else row)
            parts.append([(there, run) for run in own])
        common = set.intersection(*({run["seed"] for _, run in part} for part in parts))
        for there, run in chain.from_iterable(parts):
            if run["seed"] in common:
                behind[there.experiment, run_below(run)] = there, run
    return [*behind.values()]


def _seeds(runs: Iterable[_Run]) -> list[int]:
    return sorted({run["seed"] for _, run in runs})


def _folder(path: Path, root: Path) -> Path:
    """Return the folder of the summary that a page was made from: a record, or one made here."""
    drawn = path.resolve().is_relative_to(root / Path(places.PAPER_FIGURE).parts[0])
    pattern = places.RECORD if drawn else places.SUMMARY
    folders = [path.parent, root / places.filled(pattern, experiment=path.parent.name)]
    folder = next((folder for folder in folders if (folder / "runs.parquet").is_file()), None)
    if folder is None or path.suffix not in (".md", ".csv", ".tex", ".json"):
        raise ValueError(
            f"{path} is no table or figure's sidecar of a single record; name one of these, as "
            f"{_EXAMPLE}"
        )
    pages = [*(FIGURES if path.suffix == ".json" else TABLES)]
    if path.stem not in pages:
        raise ValueError(f"{path}: a record has no such page{hint(path.stem, pages)}")
    return folder


def _cells(path: Path, page: Table | pd.DataFrame) -> Iterator[_Cell]:
    """Yield the numbers of a page; ValueError where the file has another shape."""
    text = path.read_text(encoding="utf-8")
    if isinstance(page, pd.DataFrame):
        numbers = read_json(path).get("numbers", [])
        yield from _cells_of_frame(page, _NAMES, numbers, "numbers[{}]", 0)
    elif path.suffix == ".csv":
        entries = [entry for block in page.blocks for row in block.rows for entry in row]
        names = {name for entry in entries if entry.raw for name in entry.raw.row}
        lines = [*csv.DictReader(text.splitlines())]
        yield from _cells_of_frame(page.raw, names, lines, "line {}", 2)
    else:
        yield from _cells_in_print(text, page, to_markdown if path.suffix == ".md" else to_latex)


def _cells_of_frame(
    frame: pd.DataFrame,
    names: Collection[str],
    lines: Sequence[Mapping[str, Any]],
    title: str,
    first: int,
) -> Iterator[_Cell]:
    """Yield the numbers of a file whose lines are the rows of a frame; ``names`` tell the rows."""
    identity = [str(name) for name in frame if name in names]
    for name in (*_NAMES, *_SOMETIMES):
        if name in frame and name not in identity and frame.duplicated(identity).any():
            identity.append(name)
    for number, (line, row) in enumerate(zip(lines, records(frame), strict=True), start=first):
        where = {name: row[name] for name in identity}
        line_name = title.format(number)
        for name, text in line.items():
            value = row[name]
            if name not in where and value is not None:
                raw = Raw(name, where)
                called = _called(raw, [line_name, name.partition(" (")[0]])
                shown = printed(value) if isinstance(value, float) else value
                yield _Cell(line_name, f"{text}", f"{shown}", called, raw)


def _cells_in_print(page: str, table: Table, write: Callable[[Table], str]) -> Iterator[_Cell]:
    """Yield the numbers of a table in Markdown or LaTeX: its rows stand below rules, in order."""
    rows = iter([(block, row) for block in table.blocks for row in block.rows])
    below = False
    pairs = zip(page.splitlines(), write(table).splitlines(), strict=True)
    for number, (line, made) in enumerate(pairs, start=1):
        if made.strip().startswith(("| --", r"\midrule")):
            below = True
        elif not made.startswith("|") and not made.endswith(r"\\"):
            below = False
        elif below:
            block, row = next(rows)
            same = line.split() == made.split()
            labels = [entry.text for entry in row if entry.raw is None]
            for entry, head in zip(row, block.columns, strict=True):
                if entry.raw is not None:
                    heads = [", ".join(filter(None, head)), *head, block.title]
                    called = _called(entry.raw, [f"line {number}", *heads, *labels])
                    text = entry.text if same else line
                    yield _Cell(f"line {number}", text, entry.text, called, entry.raw)


def _called(raw: Raw, names: Iterable[str]) -> frozenset[str]:
    """Return all names of a number: those given, and what its row says, in words and titles."""
    called = [*names, raw.column]
    for name, value in raw.row.items():
        if isinstance(value, str):
            called += [value, *_TITLES.get(name, lambda _: [])(value)]
        else:
            called.append(f"{name} {value}")
    return frozenset(map(_small, called)) - {""}


def _small(name: str) -> str:
    return " ".join(name.casefold().split())


def _parts(name: str) -> list[str]:
    return [*filter(None, map(_small, name.split(",")))]


def _chosen(cells: Sequence[_Cell], asked: Sequence[str], path: Path) -> _Cell:
    """Return the only number that has all of the names that are asked for.

    "IID, half" is one name, and "iid" and "half" are parts of it: whole names come before parts.
    """
    whole = {name for cell in cells for name in cell.names}
    words = set[str]()
    for name in map(_small, asked):
        words |= {name} if name in whole else set(_parts(name))
    words.discard(_small(path.parent.name))  # The experiment, which all numbers share.
    in_parts = [cell.names.union(*map(_parts, cell.names)) for cell in cells]
    if lacking := words.difference(*in_parts):
        word = min(lacking)
        raise ValueError(f"{path} has no number called {word!r}{hint(word, sorted(whole))}")
    possible = [cell for cell, names in zip(cells, in_parts, strict=True) if words <= names]
    meant = [cell for cell in possible if words & whole <= cell.names] or possible
    if len(meant) != 1:
        everywhere = frozenset.intersection(*(cell.names for cell in meant or cells))
        apart = sorted({name for cell in meant for name in cell.names} - everywhere)
        why = f"; add a word, as {apart[0]!r}" if apart else ""
        words_asked = ", ".join(filter(None, asked))
        raise ValueError(f"{path}: {len(meant) or 'no'} numbers are called {words_asked!r}{why}")
    return meant[0]


def _rows(page: Any, raw: Raw) -> list[dict[str, Any]]:
    """Return the rows of unrounded numbers of a page that a cell stands for."""
    rows = records(page.raw if isinstance(page, Table) else page)
    return [row for row in rows if all(row.get(n) == value for n, value in raw.row.items())]


def _value(page: Any, raw: Raw) -> Any:
    """Return the mean over the rows of a number, and the first of anything else."""
    values = [row[raw.column] for row in _rows(page, raw) if row.get(raw.column) is not None]
    if not values or isinstance(values[0], str | bool):
        return next(iter(values), None)
    return sum(values) / len(values)


def runs_behind(summary: Summary, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs that the identity columns of a row of unrounded numbers select.

    Args:
        summary: What the row was computed from.
        row: Where its runs are (data set, clients, skew with or without its scenario, attack,
            value of a sweep), whose they are, and their seed, as far as it has these columns. A
            comparison stands on the seeds that both of its methods have.

    Returns:
        Rows of ``runs.parquet``; none if no column names a run, as in the trials of a search.
    """
    if "dataset" not in row and "skew" not in row:
        return []
    where = dict(row)
    if isinstance(row.get("clients"), str):  # A check names the group of clients so.
        where["clients"] = row.get("num_clients")
    read: tuple[Callable[[Summary], pd.DataFrame], list[str]] = (finished, RUN)
    if "attack" in row:
        read = under_attack, ARENA
    elif "key" in row:
        read = swept_runs, LINE
    elif "skew" in row and "scenario" not in row:
        where["skew"], where["scenario"] = split_setting(row["skew"])
    frame = read[0](summary)
    for name in {*read[1], "seed"} - {"method"}:
        if where.get(name) is not None:
            frame = frame[frame[name] == where[name]]
    names = (row.get("method"), row.get("subject"), row.get("rival_method") or row.get("rival"))
    methods = {name for name in names if name}
    # What is reached is a share of the yardstick's accuracy.
    if "target (share)" in row:
        methods.add(YARDSTICK)
    if methods:
        frame = frame[frame["method"].isin(methods)]
        there = frame.groupby("seed")["method"].nunique()
        frame = frame[frame["seed"].map(there) == len(methods)]
    selected = {
        (*run[:2], joined_setting(*run[2:4]), *run[4:])
        for run in frame[RUN].itertuples(index=False, name=None)
    }
    identity = ("dataset", "clients", "skew", "method", "seed")
    return [run for run in summary.runs if tuple(run[name] for name in identity) in selected]


def _facts_of(summary: Summary, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a run is, its hashes and its config, and where and when it was made.

    Runs that are not in the record itself, as those of a summary made here, are looked up in their
    folders, then in the record that they were joined with.
    """
    folder, experiment = run_below(run), summary.experiment
    results = summary.folder.resolve().parents[1]
    record = results / "reference" / experiment
    origins = [
        *read_origins(summary.folder, [folder]),
        *origins_of([folder], results / "runs" / experiment),
        *read_origins(record, [folder]),
    ]
    made = [{name: v for name, v in origin.items() if name != "runs"} for origin in origins]
    config = json.loads(run["config"])
    return {
        "experiment": experiment,
        "run": f"{places.filled(places.RUNS, experiment=experiment)}/{folder}",
        **{name: run[name] for name in ("dataset", "clients", "skew", "method", "seed", *_HASHES)},
        "backbone": config.get("backbone"),
        "config": config,
        "data_hash": _data_hash((summary.folder, results, record), run),
        "made": made[0] if made else None,
    }


def _data_hash(folders: Iterable[Path], run: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of the data set, from any partition of it that is kept."""
    for folder in folders:
        for file in sorted((folder / "partitions" / run["dataset"]).rglob("*.parquet")):
            facts = (pq.read_schema(file).metadata or {}).get(b"fedsdg")
            if facts:
                return str(json.loads(facts)["dataset_sha256"])
    return None
