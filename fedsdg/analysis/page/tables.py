"""The tables of the page: columns are declared, cells are text with what it is sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from fedsdg.analysis.formatting import MISSING, amount, percent, points
from fedsdg.analysis.frames import places
from fedsdg.analysis.horizon import STEADY, horizon_label, horizon_of
from fedsdg.analysis.hyperparameters import ranges, settings
from fedsdg.analysis.inference import SHOWN_FROM, mean_interval, shown_half_width
from fedsdg.analysis.ledger.entries import VERDICTS, Entry
from fedsdg.analysis.ledger.page import SOURCES, effect_text
from fedsdg.analysis.names import Metric, method_title
from fedsdg.analysis.page.arenas import Arena, family
from fedsdg.analysis.page.runs import metrics_of
from fedsdg.analysis.regret import regret_table
from fedsdg.analysis.standing import Standing
from fedsdg.analysis.summary import Cell as Place
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.accuracy import reasons
from fedsdg.analysis.tables.layout import Block, pivot
from fedsdg.analysis.tables.layout import Column as Printed
from fedsdg.analysis.tables.layout import Row as Line
from fedsdg.analysis.tables.standing import differences_of
from fedsdg.analysis.views.attacks import losses

#: Costs of a run: column, heading, what it is, and how many of the counted are one in print.
_COSTS = (
    ("bytes", "MB", "megabytes sent in a whole run, up and down", 1e6),
    ("steps", "k steps", "thousands of local steps of all clients in a whole run", 1e3),
)
#: Points at which the colour of a field of a map is full.
_FULL = 20.0


@dataclass(frozen=True)
class Column:
    """A column: ``key`` names it for the script, ``told`` is what a pointer on it is told."""

    heading: str
    key: str = ""
    told: str = ""
    group: str = ""
    is_number: bool = True


@dataclass(frozen=True)
class Cell:
    """A cell: its text, a note in small print behind it, and the value that it is sorted by.

    ``told`` is what a pointer is told, ``full`` how full its colour is (0 to 1), ``kind`` a class
    of page.css; a cell that ``opens`` is a button.
    """

    text: str
    value: float | None = None
    note: str = ""
    told: str = ""
    full: float = 0.0
    kind: str = ""
    is_best: bool = False
    opens: bool = False


Row = tuple[Mapping[str, str], Sequence[Cell]]


@dataclass(frozen=True)
class Sheet:
    """A table of the page; a row is its attributes in HTML and its cells, the name first."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Groups of neighbouring columns and the number of their columns; empty without any."""
        named = [column.group for column in self.columns]
        return [(name, len([*same])) for name, same in groupby(named)] if any(named) else []


def sheet(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Sheet:
    """A table of what is printed; a column in which all is a number or missing is one of numbers.

    Args:
        title: What it shows.
        headings: Of its columns.
        lines: The texts of each row.
    """
    rows = [[Cell(text, _value(text)) for text in line] for line in lines]
    columns = []
    for heading, *cells in zip(headings, *rows, strict=True):
        known = [cell.text == MISSING or cell.value is not None for cell in cells]
        columns.append(Column(heading, is_number=all(known)))
    return Sheet(title, columns, [({}, row) for row in rows])


def _value(text: str) -> float | None:
    """The number of a printed cell such as "−1.2 [−3.0, 0.6]"."""
    try:
        return float(text.partition(" [")[0].replace("−", "-"))
    except ValueError:
        return None


# --- The leaderboard of an arena


def leaderboard(arena: Arena, values: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """A row for each method, by its headline, the highest first.

    Args:
        arena: The cell.
        values: Method → ``values`` of ``runs.methods_of``.
    """
    summary, metrics = arena.summary, metrics_of(arena.summary)
    # Of a definition "Name (%): what it is" the second half.
    meant = {metric: metric.definition.partition(": ")[2] or metric.title for metric in metrics}
    columns = [
        Column("Method", "method", is_number=False),
        *(Column(metric.short, metric.key, meant[metric]) for metric in metrics),
        *(Column(heading, name, what) for name, heading, what, _ in _COSTS),
        Column("seeds", "seeds", "runs that went well"),
        Column("Family", "family", is_number=False),
        Column("Horizon", "horizon", "where training stood when it ended", is_number=False),
    ]
    accuracies = [_accuracies(arena, metric, values) for metric in metrics]
    rows: list[Row] = []
    for method in arena.methods:
        runs, ok = arena.asked(method), len(values[method]["seeds"])
        word = horizon_of(summary, arena.cell, method) or MISSING
        steady, title = word == STEADY, method_title(method)
        cells = [
            Cell(title, note="†" * (not steady), told="" if steady else word, opens=True),
            *(column[method] for column in accuracies),
            *(_cost(unit, values[method][name]) for name, _, _, unit in _COSTS),
            Cell(str(ok) if ok == len(runs) else f"{ok} of {len(runs)}", ok, opens=True),
            Cell(family(method)),
            Cell(word),
        ]
        attributes = {"data-method": method, "data-family": family(method)}
        rows.append((attributes | {"data-words": f"{title} {method}"}, cells))
    rows.sort(key=lambda row: -(row[1][1].value if row[1][1].value is not None else -1.0))
    return Sheet(f"{arena.title}: {summary.rounds[summary.reported]}", columns, rows)


def _known(by_seed: Sequence[float | None]) -> list[float]:
    return [value for value in by_seed if value is not None]


def _accuracies(
    arena: Arena, metric: Metric, values: Mapping[str, Mapping[str, Any]]
) -> dict[str, Cell]:
    """The cell of every method; the highest mean is best, but a ceiling takes no part in that."""
    found = {}
    for method in arena.methods:
        if known := _known(values[method][metric.key]):
            interval = mean_interval(known)
            text = percent(interval.mean, shown_half_width(interval))
            found[method] = Cell(text, interval.mean, opens=True)
        else:
            why = reasons(arena.asked(method), [metric], arena.summary.reported)
            found[method] = Cell(MISSING, told="; ".join(why))
    is_ceiling = arena.summary.roles.is_ceiling
    shown = {
        method: round(100 * cell.value, 1)  # what prints alike is equally good
        for method, cell in found.items()
        if cell.value is not None and not is_ceiling(method)
    }
    best = max(shown.values(), default=None)
    winners = {method for method, value in shown.items() if value == best}
    return {method: replace(cell, is_best=method in winners) for method, cell in found.items()}


def _cost(unit: float, by_seed: Sequence[float | None]) -> Cell:
    if not (known := _known(by_seed)):
        return Cell(MISSING, told="the runs did not record it")
    mean = sum(known) / len(known)
    return Cell(amount(mean, unit), mean, opens=True)


def how_made(arena: Arena) -> list[Sheet]:
    """The hyper-parameters of the arena's runs: what all have in common, and what differs."""
    summary = arena.summary
    common, own = settings(summary.at(arena.cell))
    seeds = sorted({run["seed"] for method in arena.methods for run in arena.runs(method)})
    backbones = sorted({r["backbone_hash"][:8] for r in summary.runs if r["backbone_hash"]})
    common |= {"seeds": ranges(seeds), "backbone": ", ".join(backbones)}
    symbols = dict.fromkeys(symbol for said in own.values() for symbol in said)
    lines = [
        (method_title(method), *(own[method].get(symbol, MISSING) for symbol in symbols))
        for method in arena.methods
        if own.get(method)
    ]
    of_each = (
        "Of each method; η_g, η_p and η_m are the learning rates of the shared part, the private "
        "part and the gates"
    )
    shown = [pair for pair in common.items() if pair[1]]
    sheets = [sheet("Of all runs", ["parameter", "value"], shown)]
    return [*sheets, sheet(of_each, ["Method", *symbols], lines)] if lines else sheets


# --- Maps: fields of a printed table in colours


def regret_map(summaries: Sequence[Summary]) -> Sheet | None:
    """Methods by cells, points below the best row of each; None where no cell has a headline.

    Args:
        summaries: The runs of each experiment.
    """
    try:
        table = regret_table(summaries)
    except ValueError:
        return None
    (block,) = table.blocks
    caption = (
        "Points of personal accuracy below the best row of each cell: the best is chosen on half "
        "of the seeds and measured on the other half, both ways. Low is good, and a method that "
        "is good everywhere is low everywhere."
    )
    return _map(caption, block, 1.0, table.notes)


def attack_maps(summary: Summary) -> list[Sheet]:
    """For each place of a record of attacks: rules by attack and share, points lost.

    Args:
        summary: The runs of an experiment with attacks.
    """
    unsettled, found = horizon_label(summary), []
    for where, here in places(losses(summary)):
        columns = [
            Printed(
                f"{100 * share:g} %", _lost, where={"attack": attack, "share": share}, group=attack
            )
            for attack, share in sorted({*zip(here["attack"], here["share"], strict=True)})
        ]
        title = (
            f"{summary.experiment} ({where}): by attack and the share of the clients that carry it "
            "out"
        )
        note = f"{ranges(sorted({*here['n']}))} seeds{'; ' if unsettled else ''}{unsettled}."
        found.append(_map(title, pivot("", here, {"method": "Rule"}, columns), -1.0, [note]))
    return found


def _lost(row: Line) -> str:
    ends = f" [{points(row['low'])}, {points(row['high'])}]" if row["n"] >= SHOWN_FROM else ""
    return points(row["mean"]) + ends


def _map(title: str, block: Block, sign: float, notes: Sequence[str]) -> Sheet:
    """A block of cells such as "1.2 [0.3, 2.0]": the pointer is told the interval.

    ``sign``: that of a number which is bad, and so in colour.
    """
    (_, name), *heads = block.columns
    columns = [Column(name, is_number=False)]
    columns += [Column(heading, group=group) for group, heading in heads]
    rows: list[Row] = []
    for first, *entries in block.rows:
        # In the table of regret † is an oracle; on the page it is a row that was not steady.
        cells = [Cell(first.text.replace(" †", " (oracle)"))]
        for entry in entries:
            text, bracket, ends = entry.text.partition(" [")
            full = round(min(max(sign * (_value(text) or 0.0), 0.0) / _FULL, 1.0), 2)
            told = bracket[1:] + ends
            cells.append(Cell(text, _value(text), told=told, full=full, is_best=entry.bold))
        rows.append(({}, cells))
    return Sheet(title, columns, rows, notes)


# --- A newcomer minus each row, and the claims


def standing_sheet(standing: Standing, cell: Place) -> Sheet:
    """The newcomer of a comparison minus each row of the record, with verdicts from five seeds on.

    Args:
        standing: The newcomer.
        cell: One of its cells.
    """
    block = differences_of(standing, cell)
    headings = [heading for _, heading in block.columns]
    lines = [[entry.text for entry in row] for row in block.rows]
    what = "points, paired by seed, with the 95 % interval from five seeds on"
    note = (
        "Verdicts are adjusted for one another by Holm over all rows, metrics and cells."
        if "verdict" in headings
        else "Fewer than five seeds: no intervals and no verdicts."
    )
    return replace(sheet(f"{block.title}: {what}", headings, lines), notes=[note])


def ledger(entries: Sequence[Entry]) -> Sheet:
    """The claims by their verdicts, sources and names."""
    columns = [
        Column("Claim", is_number=False),
        Column("Verdict", is_number=False),
        Column("Effect", "effect"),
        Column("Threshold", "threshold", is_number=False),
        Column("n", "seeds"),
        Column("Measured as", "measured as", is_number=False),
        Column("Where", "where", is_number=False),
        Column("Horizon", "horizon", is_number=False),
    ]
    rows: list[Row] = []
    for one in sorted(entries, key=lambda e: (VERDICTS.index(e.verdict), e.source, e.id)):
        source = SOURCES.get(one.source, one.source)
        cells = [
            Cell(one.sentence, note=f"{source}, {one.section}; {one.id}"),
            Cell(one.verdict, note=one.reason, kind=f"verdict {one.verdict}"),
            Cell(effect_text(one), one.effect),
            Cell(f"{one.threshold} {one.unit}".strip() if one.threshold else MISSING),
            Cell(str(one.n or MISSING), one.n),
            Cell(f"{one.measure}: {one.compared}" if one.measure else MISSING),
            Cell(f"{one.experiment}, {one.cell}" if one.experiment else MISSING),
            Cell(one.horizon or MISSING),
        ]
        attributes = {"id": f"claim-{one.id}", "data-verdict": one.verdict}
        rows.append((attributes | {"data-source": one.source}, cells))
    return Sheet("Every claim with its verdict", columns, rows)
