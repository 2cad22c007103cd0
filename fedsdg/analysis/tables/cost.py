"""What a method costs: bytes on the wire and on the client, and seconds of the machine."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedsdg.analysis.formatting import MISSING, amount
from fedsdg.analysis.frames import groups
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.inference import mean_interval
from fedsdg.analysis.names import method_title
from fedsdg.analysis.summary import Setting, Summary
from fedsdg.analysis.tables.layout import Block, Entry, Table

#: What tells a row of the raw numbers.
_KEYS = ("dataset", "clients", "method")
_BYTES_CAPTION = (
    "Communication and storage, mean over the runs of all skews and seeds: bytes of what is "
    "serialised and sent, of the whole cohort (up: clients to server), and what one client keeps "
    "between rounds. 1 kB = 1000 bytes, 1 MB = 1000 kB"
)
_DISCLOSED_CAPTION = (
    "Data disclosed: the share of its training samples that a client gives away, which no other "
    "method does; these samples are not counted among the bytes"
)
_SECONDS_CAPTION = (
    "Time of one run on one machine, mean over the runs of all skews and seeds; the table depends "
    "on the machine and its load"
)


def bytes_sent(summary: Summary) -> Table:
    """Bytes up and down per round and in total, client storage, numbers of parameters."""
    disclosed = _disclosed(summary)
    raw = pd.DataFrame(
        [
            _bytes_row(summary, setting, method)
            | {"data disclosed": disclosed.get((setting.dataset, setting.clients, method))}
            for setting in summary.settings()
            for method in summary.methods(setting)
        ]
    )
    shown: tuple[tuple[str, str, str, float | None], ...] = (
        ("per round", "up (kB)", "bytes up per round (bytes)", 1e3),
        ("per round", "down (kB)", "bytes down per round (bytes)", 1e3),
        ("per run", "up (MB)", "bytes up per run (bytes)", 1e6),
        ("per run", "down (MB)", "bytes down per run (bytes)", 1e6),
        ("per client", "stored (kB)", "client storage (bytes)", 1e3),
        ("parameters", "communicated", "communicated parameters", None),
        ("parameters", "private", "private parameters", None),
    )
    caption = _BYTES_CAPTION
    if raw["data disclosed"].notna().any():
        shown = (*shown, ("privacy", "data disclosed (%)", "data disclosed", 0.01))
        caption += f". {_DISCLOSED_CAPTION}"
    else:
        raw = raw.drop(columns="data disclosed")
    caption = f"{caption}. {hyperparameters(summary.runs)}"
    return Table("bytes", caption, _blocks(summary, raw, shown), (), raw)


def _disclosed(summary: Summary) -> dict[tuple[str, int, str], float]:
    """By data set, number of clients and method: what share of its data a client gives away."""
    keys = ["dataset", "clients", "method"]
    run = [*keys, "skew", "seed", "client"]
    # Once a client, however many rounds it has a row for.
    frame = summary.frame("clients", run, ["disclosed"]).dropna().drop_duplicates(run)
    return {key: float(part["disclosed"].mean()) for key, part in groups(frame, *keys)}


def _bytes_row(summary: Summary, setting: Setting, method: str) -> dict[str, object]:
    runs = [run for run in summary.of(setting) if run["method"] == method]
    ok = [run for run in runs if run["status"] == "ok"]

    def mean(name: str, per_round: bool = False) -> float | None:
        values = [
            run[name] / (run["rounds"] if per_round else 1) for run in ok if run[name] is not None
        ]
        return mean_interval(values).mean if values else None

    return {
        "dataset": setting.dataset,
        "clients": setting.clients,
        "method": method,
        "runs ok": len(ok),
        "bytes up per round (bytes)": mean("bytes_up", per_round=True),
        "bytes down per round (bytes)": mean("bytes_down", per_round=True),
        "bytes up per run (bytes)": mean("bytes_up"),
        "bytes down per run (bytes)": mean("bytes_down"),
        "client storage (bytes)": mean("client_storage_bytes"),
        "communicated parameters": mean("communicated_parameters"),
        "private parameters": mean("private_parameters"),
    }


def seconds(summary: Summary) -> Table:
    """Wall seconds per run, seconds per round by phase, peak memory; differs between machines."""
    frame = summary.frame("timings")
    ok = pd.MultiIndex.from_tuples(
        [
            (run["dataset"], run["clients"], run["skew"], run["method"], run["seed"])
            for run in summary.runs
            if run["status"] == "ok"
        ],
        names=["dataset", "clients", "skew", "method", "seed"],
    )
    keys = list(ok.names)
    phases = ["train_seconds", "aggregate_seconds", "evaluate_seconds"]
    per_run = frame.groupby(keys)[[*phases, "wall_seconds", "peak_rss_mb"]].agg("mean")
    per_run = per_run[per_run.index.isin(ok)]
    per_method = per_run.groupby(["dataset", "clients", "method"])
    means, deviations = per_method.mean(), per_method["wall_seconds"].std()
    rows = []
    for setting in summary.settings():
        for method in summary.methods(setting):
            key = (setting.dataset, setting.clients, method)
            row = {"dataset": setting.dataset, "clients": setting.clients, "method": method}
            known = key in means.index
            for name in phases:
                heading = f"{name.removesuffix('_seconds')} per round (s)"
                row[heading] = means.at[key, name] if known else None
            row["wall time per run (s)"] = means.at[key, "wall_seconds"] if known else None
            row["standard deviation of wall time (s)"] = deviations.at[key] if known else None
            row["peak memory (MB)"] = means.at[key, "peak_rss_mb"] if known else None
            rows.append(row)
    raw = pd.DataFrame(rows)
    shown = (
        ("per round (s)", "train", "train per round (s)", 1.0),
        ("per round (s)", "aggregate", "aggregate per round (s)", 1.0),
        ("per round (s)", "evaluate", "evaluate per round (s)", 1.0),
        ("per run (s)", "wall", "wall time per run (s)", 1.0),
        ("per run (s)", "std", "standard deviation of wall time (s)", 1.0),
        ("process", "peak memory (MB)", "peak memory (MB)", 1.0),
    )
    caption = f"{_SECONDS_CAPTION}. {hyperparameters(summary.runs)}"
    return Table("seconds", caption, _blocks(summary, raw, shown), (), raw)


def _blocks(
    summary: Summary, raw: pd.DataFrame, shown: Sequence[tuple[str, str, str, float | None]]
) -> tuple[Block, ...]:
    columns = (("", "Method"), *((group, heading) for group, heading, _, _ in shown))
    blocks = []
    for setting in summary.settings():
        here = raw[(raw["dataset"] == setting.dataset) & (raw["clients"] == setting.clients)]
        rows = [
            (
                Entry(method_title(row["method"])),
                *(
                    Entry(_cell(row[name], unit)).of(name, {key: row[key] for key in _KEYS})
                    for _, _, name, unit in shown
                ),
            )
            for row in here.to_dict("records")
        ]
        blocks.append(Block(setting.title, columns, tuple(rows)))
    return tuple(blocks)


def _cell(value: float | None, unit: float | None) -> str:
    if value is None or pd.isna(value):
        return MISSING
    return f"{value:,.0f}" if unit is None else amount(value, unit)
