"""The aggregation benchmarks as a table: speed against the memory and others, accuracy, aims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING, amount
from fedsdg.analysis.measurements import CODES, Measurements, Row, rule_title
from fedsdg.analysis.tables.layout import Block, Entry, Table, block

_CAPTION = (
    "Aggregation of the updates of M clients with d parameters each: best time; the rate at which "
    "the bytes that have to be moved were moved, and its share of a bare read's rate at the same "
    "time (floor; in brackets where the updates fit into the cache); and how many times as long "
    "other code took, alternating with ours, best of each"
)


def kernels(measured: Measurements) -> Table:
    """One block for each size, then what the allocator is worth, accuracy, aims and bars."""
    blocks = [_size(measured, *size) for size in measured.sizes()]
    blocks += _allocator(measured.suite("allocator"))
    blocks += _accuracy(measured.accuracy)
    blocks += _files(measured.files)
    blocks += _aims(measured.aims)
    blocks += _bars(measured.bars)
    blocks += _dictionaries(measured.dictionaries)
    raw = pd.DataFrame(list(measured.timings))
    caption = f"{_CAPTION}. {measured.where}"
    return Table("kernels", caption, tuple(blocks), tuple(_notes(measured)), raw)


def _size(measured: Measurements, clients: int, parameters: int) -> Block:
    here = [
        row
        for row in measured.suite("sizes")
        if (row["clients"], row["parameters"]) == (clients, parameters)
    ]
    codes = [code for code in CODES if any(row["code"] == code for row in here)]
    columns = [("", "Rule"), ("ours", "ms"), ("ours", "GB/s"), ("ours", "of the floor")]
    columns += [("time / ours", CODES[code]) for code in codes]
    rows = []
    for row in (row for row in here if row["code"] == "ours"):
        others = {r["code"]: r for r in here if r["rule"] == row["rule"]}
        share = f"{row['floor']:.2f}"
        rate = row["least_bytes"] / row["seconds"] / 1e9
        cells = [rule_title(row["rule"]), f"{1e3 * row['seconds']:.2f}", f"{rate:.1f}"]
        cells += [f"({share})" if row["in_cache"] else share]
        cells += [_ratio(others.get(code)) for code in codes]
        rows.append(tuple(map(Entry, cells)))
    title = f"M = {clients}, d = {parameters:,} ({amount(4 * clients * parameters, 1e6)} MB)"
    return Block(title, tuple(columns), tuple(rows))


def _ratio(row: Row | None) -> str:
    if row is None:
        return MISSING
    return "fails" if row.get("ratio") is None else f"{row['ratio']:.1f}×"


def _allocator(rows: Sequence[Row]) -> list[Block]:
    theirs = {row["allocator"]: row for row in rows if row["code"] == "plain"}
    own = {row["allocator"]: row for row in rows if row["code"] == "ours"}
    if not theirs:
        return []
    names = {"kept": "memory kept by the allocator", "default": "allocator's defaults"}
    lines = [
        (names[key], f"{1e3 * own[key]['seconds']:.2f}", f"{1e3 * row['seconds']:.2f}", _ratio(row))
        for key, row in theirs.items()
    ]
    row = rows[0]
    title = f"FedSDG and its specification, M = {row['clients']}, d = {row['parameters']:,}"
    return [block(title, ("", "ours (ms)", "specification (ms)", "ratio"), lines)]


def _accuracy(rows: Sequence[Row]) -> list[Block]:
    lines = [
        (
            f"{rule_title(row['rule'])}: {row['measure']}",
            row["updates"],
            f"{row['clients']} × {row['parameters']:,}",
            "ours" if row["code"] == "ours" else CODES[row["code"]],
            row["shown"],
        )
        for row in rows
    ]
    heads = ("", "updates", "M × d", "code", "value")
    return [block("Accuracy, against float64", heads, lines)] if lines else []


def _files(rows: Sequence[Row]) -> list[Block]:
    lines = [
        (
            rule_title(row["rule"]),
            f"{row['clients']} × {row['parameters']:,}",
            amount(row["bytes_of_clients"], 1e9),
            f"{amount(row['peak_bytes'], 2**20)} of {amount(row['limit_bytes'], 2**20)}",
            f"{row['seconds_of_aggregation']:.1f}",
            f"{row['passes']}",
            amount(row["bytes_per_second"], 1e9),
            amount(row["bare_bytes_per_second"], 1e9),
        )
        for row in rows
        if "skipped" not in row
    ]
    heads = ("Rule", "M × d", "GB", "peak of memory (MiB)", "s", "reads", "GB/s", "bare read, GB/s")
    return [block("Files larger than the memory", heads, lines)] if lines else []


def _aims(rows: Sequence[Row]) -> list[Block]:
    verdicts = {True: "reached", False: "not reached", None: "not judged"}
    lines = []
    for row in rows:
        against = row["against"]
        limit = f"≤ {row['bound']:g} ms" if row["at_most"] else f"≥ {row['bound']:g}"
        unit = {"floor": " of the floor", "milliseconds": ""}
        limit += unit.get(against, f"× {CODES.get(against, against)}")
        size = f"{row['clients']} × {row['parameters']:,}"
        verdict = verdicts[row["met"]]
        lines.append((rule_title(row["rule"]), size, limit, f"{row['value']:.2f}", verdict))
    heads = ("Rule", "M × d", "aim", "measured", "")
    return [block("Aims", heads, lines)] if lines else []


def _bars(rows: Sequence[Row]) -> list[Block]:
    lines = [
        (
            rule_title(row["rule"]),
            f"{row['clients']} × {row['parameters']:,}",
            f"≥ {row['least']:g}×",
            f"{row['ratio']:.1f}×",
            row["verdict"],
        )
        for row in rows
    ]
    heads = ("Rule", "M × d", "kernels against the reference", "measured", "")
    return [block("Bars, on one thread", heads, lines)] if lines else []


def _dictionaries(rows: Sequence[Row]) -> list[Block]:
    lines = [
        (
            rule_title(row["rule"]),
            f"{row['clients']} × {row['tensors']} × {row['numbers']:,}",
            f"≤ {1 / row['least']:g}×",
            f"{1 / row['ratio']:.2f}×",
            row["verdict"],
        )
        for row in rows
    ]
    heads = ("Rule", "clients × arrays × numbers", "time of numpy on a stack", "measured", "")
    title = "Dictionaries of small arrays, processor time on one thread"
    return [block(title, heads, lines)] if lines else []


def _notes(measured: Measurements) -> list[str]:
    missing: list[Any] = measured.machine["missing"]
    notes = []
    if missing:
        names = " and ".join(CODES[name] for name in missing)
        notes.append(f"{names}: not installed (benchmarks/requirements.txt), so not compared")
    notes += [
        f"files larger than the memory: left out, {row['skipped']}"
        for row in measured.files
        if "skipped" in row
    ]
    failures = {
        f"{CODES[row['code']]}, {rule_title(row['rule'])}, M = {row['clients']}, "
        f"d = {row['parameters']:,}: fails with “{row['note']}”"
        for row in measured.suite("sizes")
        if row.get("note")
    }
    notes += sorted(failures)
    if measured.refusals:
        notes.append(
            f"beside {measured.refusals} of {len(measured.timings)} measurements other programs "
            f"were at work: these are reported and not judged"
        )
    return notes
