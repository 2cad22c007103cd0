"""Rounds of whole federations as a table: ours and others' times, and the share of the peak."""

from __future__ import annotations

from itertools import groupby

import pandas as pd

from fedsdg.analysis.formatting import MISSING, amount
from fedsdg.analysis.measurements import Measurements, Row
from fedsdg.analysis.names import method_title
from fedsdg.analysis.tables.layout import Block, Entry, Table, block

#: The codes that are compared.
CODES = {
    "ours": "ours",
    "plain": "plain loop",
    "peft": "plain loop, adapters of peft",
    "flower": "Flower's simulation",
    "flower-fresh": "Flower's simulation, a new model for each message",
}
MODELS = {"digits": "digits", "vit-tiny": "ViT-Tiny, 32×32"}

_CAPTION = (
    "One round of a federation, without evaluation, on one thread: all codes do the same round in "
    "turns, best time of each; operations are those of all products, counted as they are "
    "dispatched, and the peak is the rate of a product of two square matrices of 1,024 in the same "
    "precision, in the same turns; in the last columns how many times as long as ours"
)


def throughput(measured: Measurements) -> Table:
    """One block for each model and method, then aims and bars."""
    blocks = []
    for _, rows in groupby(measured.rounds, key=lambda row: (row["model"], row["method"])):
        blocks.append(_rounds(list(rows)))
    verdicts = {True: "reached", False: "not reached", None: "not judged"}
    aims = [
        (
            f"{MODELS[aim['model']]}, {method_title(aim['method'])}",
            f"{CODES[aim['code']]} in {aim['precision']}, ours in {aim['ours']}",
            f"≥ {aim['bound']:g}×",
            f"{aim['value']:.2f}×",
            verdicts[aim["met"]],
        )
        for aim in measured.round_aims
    ]
    if aims:
        blocks.append(block("Aims", ("Round", "compared", "aim", "measured", ""), aims))
    bars = [
        (
            f"{MODELS[bar['model']]}, {method_title(bar['method'])}",
            f"≥ {bar['least']:g}×",
            f"{bar['ratio']:.2f}×",
            bar["verdict"],
        )
        for bar in measured.round_bars
    ]
    if bars:
        heads = ("Round", "ours against the plain loop", "measured", "")
        blocks.append(block("Bars", heads, bars))
    caption = f"{_CAPTION}. {measured.where}"
    raw = pd.DataFrame(list(measured.rounds))
    return Table("throughput", caption, tuple(blocks), tuple(_notes(measured)), raw)


def _rounds(rows: list[Row]) -> Block:
    own = {row["precision"]: row["seconds"] for row in rows if row["code"] == "ours"}
    columns = [("", "Code"), ("", "precision"), ("", "rounds/s"), ("", "samples/s")]
    columns += [("", "MFLOP per sample"), ("", "GFLOP/s"), ("", "of the peak")]
    columns += [("time / ours", precision) for precision in own]
    lines = []
    for row in rows:
        cells = [CODES[row["code"]], row["precision"]]
        cells += [f"{1 / row['seconds']:.3f}", f"{row['samples'] / row['seconds']:,.0f}"]
        if (count := row.get("operations")) is None:
            cells += [MISSING] * 3
        else:
            rate = count / row["seconds"]
            cells += [amount(count / row["samples"], 1e6), amount(rate, 1e9)]
            cells += [f"{rate / row['peak']:.2f}"]
        cells += [f"{row['seconds'] / seconds:.2f}×" for seconds in own.values()]
        lines.append(tuple(map(Entry, cells)))
    first = rows[0]
    title = f"{MODELS[first['model']]}, {method_title(first['method'])}: {first['clients']} clients"
    title += f", batch {first['batch_size']}, {first['samples']:,} samples on the {first['device']}"
    return Block(title, tuple(columns), tuple(lines))


def _notes(measured: Measurements) -> list[str]:
    peaks = {row["precision"]: row["peak"] for row in measured.rounds if row.get("peak")}
    notes = [f"peak in {name}: {amount(rate, 1e9)} GFLOP/s" for name, rate in peaks.items()]
    for row in measured.rounds:
        if "start_seconds" in row:
            notes.append(
                f"{CODES[row['code']]}, {method_title(row['method'])}: starting and stopping took "
                f"{row['start_seconds']:.0f} s more, which are not counted"
            )
    if all(row["code"] != "flower" for row in measured.rounds):
        notes.append(
            "Flower's simulation: flwr and ray are not both installed "
            "(benchmarks/requirements.txt), so not compared"
        )
    if busy := sum(row["refused"] is not None for row in measured.rounds):
        notes.append(
            f"beside {busy} of {len(measured.rounds)} measurements other programs were at work: "
            f"these are reported and not judged"
        )
    return notes
