"""Costs of methods: bytes, seconds, simulated time, and the cost of a target accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from fedsdg.analysis.formatting import amount
from fedsdg.analysis.frames import PLACE, groups, places
from fedsdg.analysis.horizon import horizon_notes
from fedsdg.analysis.names import GLOBAL, dataset_title, method_title, skew_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Block, Column, Table, number, pivot, table_of_views
from fedsdg.analysis.views import costs
from fedsdg.analysis.views.costs import LACKING, SHARES, SMOOTHED, YARDSTICK

_BYTES = (
    "Communication and storage, mean over the runs of all skews and seeds: bytes of what is "
    "serialised and sent, of the whole cohort (up: clients to server), and what one client keeps "
    "between rounds. 1 kB = 1000 bytes, 1 MB = 1000 kB"
)
_DISCLOSED = (
    "Data disclosed: the share of its training samples that a client gives away, which no other "
    "method does; these samples are not counted among the bytes"
)
_SECONDS = (
    "Time of one run on one machine, mean over the runs of all skews and seeds; the table depends "
    "on the machine and its load"
)
_STRAGGLERS = (
    "Simulated time of a whole run and what became of the clients' work, means over seeds: seconds "
    "on the simulated clock; seconds that clients stood idle, all together; uploads that were "
    "used, that missed the end of their round, and that were discarded (also as a share of all); "
    "clients that were drawn while still busy; clients that dropped out{lacking}; accuracy (%)"
)
_TARGETS = (
    "Rounds, local steps of all clients together (thousands) and megabytes sent and received until "
    "the mean personal accuracy over seeds, smoothed over {smoothed} evaluations, first reaches a "
    "target: {shares} of what {yardstick} has in the end. –: never in this run"
)
_PERSONAL_STEPS = (
    "Personal steps train what clients keep, with the fine-tuning before each evaluation, which "
    "local steps do not count"
)
_NO_PERSONAL_STEPS = (
    "Steps of fine-tuning before an evaluation are not counted: these records lack them"
)


def bytes_sent(summary: Summary) -> Table:
    """Bytes up and down per round and in total, client storage, numbers of parameters."""
    view = costs.traffic(summary)
    kilo, mega = partial(amount, unit=1e3), partial(amount, unit=1e6)
    whole = "{:,.0f}".format
    columns = [
        number("bytes up per round (bytes)", "up (kB)", kilo, "per round"),
        number("bytes down per round (bytes)", "down (kB)", kilo, "per round"),
        number("bytes up per run (bytes)", "up (MB)", mega, "per run"),
        number("bytes down per run (bytes)", "down (MB)", mega, "per run"),
        number("client storage (bytes)", "stored (kB)", kilo, "per client"),
        number("communicated parameters", "communicated", whole, "parameters"),
        number("private parameters", "private", whole, "parameters"),
    ]
    caption = _BYTES
    if "data disclosed" in view:
        percent = partial(amount, unit=0.01)
        columns.append(number("data disclosed", "data disclosed (%)", percent, "privacy"))
        caption += f". {_DISCLOSED}"
    return table_of_views(summary, "bytes", caption, _by_setting(summary, view, columns), view)


def seconds(summary: Summary) -> Table:
    """Wall seconds per run, seconds per round by phase, peak memory; differs between machines."""
    view = costs.seconds(summary)
    plain = partial(amount, unit=1.0)
    columns = [
        number(f"{phase} per round (s)", phase, plain, "per round (s)")
        for phase in ("train", "aggregate", "evaluate")
    ]
    columns += [
        number("wall time per run (s)", "wall", plain, "per run (s)"),
        number("standard deviation of wall time (s)", "std", plain, "per run (s)"),
        number("peak memory (MB)", "peak memory (MB)", plain, "process"),
    ]
    return table_of_views(summary, "seconds", _SECONDS, _by_setting(summary, view, columns), view)


def _by_setting(summary: Summary, view: pd.DataFrame, columns: Sequence[Column]) -> list[Block]:
    titles = {(setting.dataset, setting.clients): setting.title for setting in summary.settings()}
    return [
        pivot(titles[key], here, {"method": "Method"}, columns)
        for key, here in groups(view, "dataset", "clients")
    ]


def stragglers(summary: Summary) -> Table:
    """A block for each place: a row for each scenario and method with a simulated clock."""
    view = costs.costs_of_waiting(summary)
    columns = [
        number("simulated_seconds", "seconds", _long),
        number("idle_seconds", "idle", _long),
        number("arrived", "used", _tenths),
        number("late", "late", _tenths),
        number("discarded", "discarded", _tenths),
        number("discarded_share", "discarded (%)", _percent),
        number("passed_over", "passed over", _tenths),
        number("dropped", "dropped", _tenths),
    ]
    lacking = ""
    if LACKING in view:
        columns.append(number(LACKING, "out of time", _tenths))
        lacking = "; clients whose time did not suffice for an update"
    columns += [number(m.key, m.short, _percent) for m in (summary.personal, GLOBAL)]
    lines = {"scenario": "Scenario", "method": "Method"}
    blocks = [pivot(where, here, lines, columns) for where, here in places(view)]
    caption = f"{_STRAGGLERS.format(lacking=lacking)}, {summary.rounds[summary.reported]}"
    none = "No run of this experiment kept simulated time."
    notes = horizon_notes(summary)
    return table_of_views(summary, "stragglers", caption, blocks, view, notes, without=none)


_tenths: Callable[[float], str] = "{:,.1f}".format


def _percent(value: float) -> str:
    return _tenths(100 * value)


def _long(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else _tenths(value)


def rounds_to_target(summary: Summary) -> Table:
    """A block for each cell: a row for each method with the cost of each target."""
    named = {"target": "target (share)", "bytes": "bytes (bytes)"}
    view = costs.rounds_to_target(summary).rename(columns=named)
    thousands = partial(amount, unit=1e3)
    numbers = [
        number("round", "rounds", "{:.0f}".format),
        number("steps", "steps (k)", thousands),
        number("bytes (bytes)", "MB", partial(amount, unit=1e6)),
    ]
    counted = "personal_steps" in view
    if counted:
        numbers.insert(2, number("personal_steps", "personal steps (k)", thousands))
    blocks = []
    for (dataset, clients, skew), part in groups(view, *PLACE):
        columns = [
            replace(one, where={"share": of}, group=f"to {100 * target:.1f} %")
            for of, target in part.groupby("share")["target (share)"].first().items()
            for one in numbers
        ]
        title = f"{dataset_title(dataset)}, {clients} clients, {skew_title(skew)}"
        blocks.append(pivot(title, part, {"method": "Method"}, columns))
    caption = _TARGETS.format(
        smoothed=SMOOTHED,
        shares=", ".join(f"{100 * of:.0f} %" for of in SHARES),
        yardstick=method_title(YARDSTICK),
    )
    caption += f". {_PERSONAL_STEPS if counted else _NO_PERSONAL_STEPS}"
    none = f"No cell of this experiment has a run of {method_title(YARDSTICK)} to measure by."
    return table_of_views(summary, "rounds_to_target", caption, blocks, view, without=none)
