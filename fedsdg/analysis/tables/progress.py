"""What each method takes to a stated accuracy: rounds, local steps and bytes."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.formatting import MISSING, amount
from fedsdg.analysis.frames import groups, records
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.names import dataset_title, method_order, method_title, skew_title
from fedsdg.analysis.progress import SHARES, SMOOTHED, YARDSTICK
from fedsdg.analysis.progress import rounds_to_target as measure
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Block, Entry, Table

_CAPTION = (
    "Rounds, local steps of all clients together (thousands) and megabytes sent and received until "
    "the mean personal accuracy over seeds, smoothed over {smoothed} evaluations, first reaches a "
    "target: {shares} of what {yardstick} has in the end. –: never in this run"
)
_COSTS = (("round", "rounds", 1.0), ("steps", "steps (k)", 1e3), ("bytes", "MB", 1e6))
#: What columns are called among the raw numbers, with their units.
_RAW_NAMES = {"target": "target (share)", "bytes": "bytes (bytes)"}


def rounds_to_target(summary: Summary) -> Table:
    """A block for each cell: a row for each method, three numbers for each target."""
    rows = measure(summary)
    blocks = [
        _block(f"{dataset_title(place[0])}, {place[1]} clients, {skew_title(place[2])}", part)
        for place, part in groups(rows, "dataset", "clients", "skew")
    ]
    heads = (("", "Method"),)
    notes = (
        ()
        if blocks
        else (f"No cell of this experiment has a run of {method_title(YARDSTICK)} to measure by.",)
    )
    caption = _CAPTION.format(
        smoothed=SMOOTHED,
        shares=", ".join(f"{100 * share:.0f} %" for share in SHARES),
        yardstick=method_title(YARDSTICK),
    )
    return Table(
        "rounds_to_target",
        f"{caption}. {hyperparameters(summary.runs)}",
        tuple(blocks) or (Block("", heads, ()),),
        notes,
        rows.rename(columns=_RAW_NAMES),
    )


def _block(title: str, part: pd.DataFrame) -> Block:
    targets = part[["share", "target"]].drop_duplicates().itertuples(index=False, name=None)
    groups_of_heads = [(share, f"to {100 * target:.1f} %") for share, target in targets]
    heads = (
        ("", "Method"),
        *((group, name) for _, group in groups_of_heads for _, name, _ in _COSTS),
    )
    table = part.set_index(["method", "share"])
    where = records(part[["dataset", "clients", "skew"]])[0]
    lines = []
    for method in sorted(part["method"].unique(), key=method_order):
        place = {**where, "method": method}
        cells = [
            Entry(_number(table[column][method, share], unit)).of(
                _RAW_NAMES.get(column, column), {**place, "share": share}
            )
            for share, _ in groups_of_heads
            for column, _, unit in _COSTS
        ]
        lines.append((Entry(method_title(method)), *cells))
    return Block(title, heads, tuple(lines))


def _number(value: float, unit: float) -> str:
    if pd.isna(value):
        return MISSING
    return f"{value:.0f}" if unit == 1.0 else amount(value, unit)
