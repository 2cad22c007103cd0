"""Figures: four ways to draw a tidy frame, and the figures that are drawn by them.

Colours, markers and order of methods are declared once. Every figure is written as PDF, SVG and
PNG with the numbers that it shows (.csv) and their sources (.json).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.next_analysis.metrics import METRICS, values
from fedsdg.next_analysis.names import cell_title, method_order, method_title
from fedsdg.next_analysis.records import KEY, Record
from fedsdg.next_analysis.statistics import interval
from fedsdg.next_analysis.tables import MISSING, difference, losses, regrets, tidy

#: Okabe and Ito's colours, readable by the colour-blind; black for the subject.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442")
_MARKERS = "osD^vPX"
_GREY = "#b0b0b0"
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "fedsdg",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "figure.dpi": 200,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "savefig.bbox": "tight",
}


def look(merit: pd.Series, subject: str = "fedsdg", most: int = 6) -> dict[str, dict]:
    """Return colour and marker of every label: the subject, FedAvg and the best; others are grey."""
    order = sorted(merit.index, key=lambda m: (m != subject, m != "fedavg", -merit[m]))
    styles = {}
    for i, label in enumerate(order):
        colour = "black" if label == subject else _COLOURS[i - 1] if i <= most else _GREY
        styles[label] = {
            "color": colour,
            "marker": _MARKERS[i % len(_MARKERS)] if i <= most else "",
        }
    return styles


def panels(frame: pd.DataFrame, by: str, height: float, width: float = 3.2) -> tuple[Figure, dict]:
    """Return a figure and an axes for every value of a column."""
    keys = list(dict.fromkeys(frame[by]))
    figure = Figure(figsize=(width * len(keys), height))
    axes = figure.subplots(1, len(keys), squeeze=False, sharey=True)[0]
    return figure, dict(zip(keys, axes, strict=True))


def dots(frame: pd.DataFrame, *, mark: str, label: str, by: str = "cell") -> Figure:
    """Draw means with intervals: a line per method, best on top, a dot per value of ``mark``."""
    order = frame.groupby("method")["mean"].min().sort_values().index
    figure, axes = panels(frame, by, 0.7 + 0.15 * len(order))
    for key, panel in axes.items():
        for (value, own), colour, marker in zip(
            frame[frame[by] == key].groupby(mark, sort=False), _COLOURS, _MARKERS
        ):
            own = own.set_index("method").reindex(order)
            ends = [(own["mean"] - own["low"]).fillna(0), (own["high"] - own["mean"]).fillna(0)]
            y = np.arange(len(order))
            panel.errorbar(
                own["mean"], y, xerr=ends, fmt=marker, ms=3, lw=1, color=colour, label=_title(value)
            )
        panel.set(title=cell_title(key), xlabel=label, ylim=(-1, len(order)))
        panel.set_yticks(range(len(order)), [method_title(m) for m in order])
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center")
    return figure


def _title(value: str) -> str:
    return METRICS[value].title if value in METRICS else str(value)


def heat_map(
    frame: pd.DataFrame, *, x: str, y: str, value: str, label: str, full: float, bold: str = ""
) -> Figure:
    """Draw numbers as colours with the number in each field; rows are sorted by their worst."""
    wide = frame.pivot(index=y, columns=x, values=value)[[*dict.fromkeys(frame[x])]]
    wide = wide.loc[wide.max(axis=1).sort_values().index]
    strong = (
        frame.pivot(index=y, columns=x, values=bold).reindex_like(wide)
        if bold
        else wide.notna() & False
    )
    figure = Figure(figsize=(2.4 + 1.2 * wide.shape[1], 0.8 + 0.17 * len(wide)))
    panel = figure.subplots()
    image = panel.imshow(wide, cmap="OrRd", vmin=0, vmax=full, aspect="auto")
    for (i, j), number in np.ndenumerate(wide.to_numpy()):
        text = MISSING if np.isnan(number) else f"{number:.1f}".replace("-", "−")
        weight = "bold" if strong.iat[i, j] is True or strong.iat[i, j] == True else "normal"  # noqa: E712
        panel.text(
            j,
            i,
            text,
            ha="center",
            va="center",
            weight=weight,
            color="white" if number > 0.6 * full else "black",
        )
    panel.set_xticks(range(wide.shape[1]), wide.columns)
    panel.xaxis.tick_top()
    panel.set_yticks(range(len(wide)), wide.index)
    panel.grid(False)
    figure.colorbar(image, label=label, shrink=0.6)
    return figure


def curves(
    frame: pd.DataFrame,
    *,
    x: str,
    label: str,
    line: str = "method",
    by: str = "cell",
    log: bool = False,
) -> Figure:
    """Draw means over ``x`` with bands, a panel per value of ``by``; names stand in the legend."""
    figure, axes = panels(frame, by, 2.8)
    styles = look(frame[frame[x] == frame[x].max()].groupby(line)["mean"].mean())
    for key, panel in axes.items():
        for name, own in frame[frame[by] == key].groupby(line, sort=False):
            own, style = own.sort_values(x), styles[name]
            lead = style["color"] != _GREY
            panel.plot(
                own[x],
                own["mean"],
                **style,
                ms=3,
                lw=1.4 if lead else 0.6,
                markevery=0.2,
                label=method_title(name) if lead else None,
                zorder=2 + lead,
            )
            if lead and own["low"].notna().any():
                panel.fill_between(
                    own[x], own["low"], own["high"], color=style["color"], alpha=0.12, lw=0
                )
        panel.set(title=cell_title(key), xlabel=x, xscale="log" if log else "linear")
    next(iter(axes.values())).set_ylabel(label)
    panel.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def accuracy_by_round(record: Record, metric: str = "expected_accuracy") -> pd.DataFrame:
    """Return means over seeds at each evaluation."""
    rows = record.rows("rounds", ["round", metric], record.finished).dropna(subset=[metric])
    return interval(rows.assign(value=100 * rows[metric]), [*KEY, "round"])


def scatter(frame: pd.DataFrame, *, label: tuple[str, str], by: str = "method") -> Figure:
    """Draw points, a panel per value of ``by``."""
    figure, axes = panels(frame, by, 2.4)
    for key, panel in axes.items():
        own = frame[frame[by] == key]
        panel.scatter(own["x"], own["y"], s=14, color=_COLOURS[0], alpha=0.8)
        panel.set(title=method_title(key), xlabel=label[0])
    next(iter(axes.values())).set_ylabel(label[1])
    return figure


def paths(frame: pd.DataFrame) -> Figure:
    """Draw two clients' ways through the plane and the aggregates, a panel per cell."""
    figure, axes = panels(frame, "cell", 3.0)
    for key, panel in axes.items():
        own = frame[frame["cell"] == key]
        for client, way in own.dropna(subset=["client"]).groupby("client"):
            for _, local in way.groupby("round"):
                panel.plot(
                    local["x"], local["y"], lw=0.7, color=_COLOURS[int(client) % len(_COLOURS)]
                )
        server = own[own["client"].isna()].sort_values("round")
        panel.plot(server["x"], server["y"], "D-", ms=4, lw=1, color="black")
        panel.set(
            title=f"{cell_title(key)}\n{100 * own['plane_share'].max():.0f} % of the variance",
            aspect="equal",
        )
    return figure


def last_gates(record: Record, method: str = "fedsdg") -> pd.DataFrame:
    """Return the last gates of every client at the lowest seed, clients that agree first."""
    runs = record.finished[record.finished["method"] == method]
    rows = record.rows(
        "clients",
        ["round", "client", "gates", "conflicts"],
        runs[runs["seed"] == runs["seed"].min()],
    )
    rows = (
        rows.dropna(subset=["gates"]).sort_values("round").groupby("client", as_index=False).last()
    )
    rows = rows.sort_values(["conflicts", "client"]).explode("gates")
    block = rows.groupby("client").cumcount() + 1
    name = rows["conflicts"].map({True: "B ", False: "A "}).fillna("") + rows["client"].astype(str)
    return rows[KEY].assign(client=name, block=block, value=rows["gates"].astype(float))


def by_group(record: Record, column: str, method: str = "fedsdg") -> pd.DataFrame:
    """Return a column of clients by round: means of clients that agree and that conflict."""
    runs = record.finished[record.finished["method"] == method]
    rows = record.rows("clients", ["round", column, "conflicts"], runs).dropna(subset=[column])
    kinds = np.where(rows["conflicts"].eq(True), "B", "A")
    by_run = rows.assign(group=kinds, value=rows[column].map(np.mean)).groupby(
        [*KEY, "seed", "group", "round"]
    )
    return interval(by_run["value"].mean().reset_index(), [*KEY, "group", "round"])


def class_counts(record: Record) -> pd.DataFrame:
    """Return the samples of every class at every client for the lowest seed."""
    file = sorted((record.folder / "partitions").rglob("*.parquet"))[0]
    rows = pd.read_parquet(file, columns=["label", "client"])
    counts = (
        rows[rows["client"] >= 0].value_counts(["client", "label"]).rename("value").reset_index()
    )
    return counts.sort_values(["client", "label"])


def trajectories(record: Record) -> pd.DataFrame:
    """Return the paths of clients and aggregates of the lowest seed."""
    runs = record.finished[record.finished["seed"] == record.finished["seed"].min()]
    ways = record.rows("clients", ["round", "client", "path_x", "path_y"], runs).dropna(
        subset=["path_x"]
    )
    models = record.rows("rounds", ["round", "model_x", "model_y", "plane_share"], runs).dropna(
        subset=["model_x"]
    )
    ways = ways.rename(columns={"path_x": "x", "path_y": "y"}).explode(["x", "y"])
    models = models.rename(columns={"model_x": "x", "model_y": "y"})
    return pd.concat([ways, models]).astype({"x": float, "y": float})


def credit(record: Record) -> pd.DataFrame:
    """Return weight against noise rate, client by client, for the lowest seed."""
    runs = record.finished[record.finished["seed"] == record.finished["seed"].min()]
    rows = record.rows("clients", ["round", "client", "weight", "noise_rate"], runs).dropna(
        subset=["noise_rate"]
    )
    rows = rows.assign(
        weight=rows["weight"] * rows.groupby([*KEY, "round"])["weight"].transform("count")
    )
    means = rows.groupby([*KEY, "client"], as_index=False)[["weight", "noise_rate"]].mean()
    return means.rename(columns={"noise_rate": "x", "weight": "y"})


@dataclass(frozen=True)
class Plot:
    """A figure: the frame that it shows, how it is drawn, and the caption."""

    frame: Callable[[Record], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]
    caption: str


FIGURES: Mapping[str, Plot] = {
    "groups": Plot(
        lambda r: interval(
            tidy(r, ["expected_accuracy_a", "expected_accuracy_b"]), [*KEY, "metric"]
        ),
        lambda f: dots(f, mark="metric", label="accuracy (%)"),
        "Accuracy of clients that agree (A) and that conflict (B): means, 95 % intervals",
    ),
    "progress": Plot(
        accuracy_by_round,
        lambda f: curves(f, x="round", label="personal accuracy (%)"),
        "Personal accuracy by round: means over seeds, 95 % bands",
    ),
    "shared_progress": Plot(
        lambda r: accuracy_by_round(r, "global_accuracy"),
        lambda f: curves(f, x="round", label="accuracy of the shared model (%)"),
        "Accuracy of the shared model by round: means over seeds, 95 % bands",
    ),
    "differences": Plot(
        lambda r: difference(r).numbers.rename(columns={"rival": "method"}),
        lambda f: dots(f, mark="metric", label="points"),
        "FedSDG minus others, paired by seed: means, 95 % intervals",
    ),
    "gates": Plot(
        last_gates,
        lambda f: heat_map(f, x="block", y="client", value="value", label="gate m", full=1),
        "Last gates of every client and block, lowest seed; B: clients that conflict",
    ),
    "gate_dynamics": Plot(
        lambda r: by_group(r, "gates"),
        lambda f: curves(f, x="round", line="group", label="mean gate m"),
        "Mean gates by round of clients that agree (A) and that conflict (B)",
    ),
    "weights": Plot(
        lambda r: by_group(r, "weight"),
        lambda f: curves(f, x="round", line="group", label="weight"),
        "Mean aggregation weights by round of clients that agree (A) and that conflict (B)",
    ),
    "partition": Plot(
        class_counts,
        lambda f: heat_map(f, x="client", y="label", value="value", label="samples", full=100),
        "Samples of every class at every client, lowest seed",
    ),
    "losses": Plot(
        lambda r: losses(r).numbers,
        lambda f: heat_map(f, x="cell", y="method", value="mean", label="points lost", full=50),
        "Points of accuracy that an attack costs a rule, paired by seed",
    ),
    "label_noise": Plot(
        credit,
        lambda f: scatter(f, label=("share of wrong labels", "weight (1: equal)")),
        "Weight of clients against their share of wrong labels, lowest seed",
    ),
    "drift": Plot(trajectories, paths, "Paths of two clients and of the aggregate, lowest seed"),
}


def regret_map(records: Sequence[Record]) -> Plot:
    """Return the heat map of regrets over experiments."""

    def draw(frame: pd.DataFrame) -> Figure:
        titled = frame.assign(
            cell=[
                f"{e}\n{cell_title(c)}"
                for e, c in zip(frame["experiment"], frame["cell"], strict=True)
            ],
            method=frame["method"].map(method_title),
        )
        return heat_map(
            titled,
            x="cell",
            y="method",
            value="mean",
            label="points below the best",
            full=20,
            bold="tied",
        )

    return Plot(lambda _: regrets(records).numbers, draw, regrets(records).caption)


def write_figure(plot: Plot, records: Sequence[Record], stem: str | Path) -> list[Path]:
    """Draw a figure and write it with its numbers and sources."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        frame = plot.frame(records[0])
        if frame.empty:
            figure = Figure(figsize=(4, 0.6))
            figure.text(0, 0.5, "No run of this experiment has these numbers.")
        else:
            figure = plot.draw(frame)
        dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
        for suffix, metadata in dates.items():
            figure.savefig(stem.with_suffix(f".{suffix}"), metadata=metadata)
    frame.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.6g", lineterminator="\n")
    inputs = {str(file): _sha256(file) for record in records for file in record.inputs}
    facts = {"caption": plot.caption, "inputs": inputs}
    stem.with_suffix(".json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    return [stem.with_suffix(f".{s}") for s in (*dates, "csv", "json")]


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
