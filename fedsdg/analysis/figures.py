"""Figures of an experiment: functions from a record to the frame that is drawn.

``figure`` enters a function in ``FIGURES`` with the way it is drawn (see ``drawing``). Its
docstring is the caption, in which ``{method}`` stands for the only method of the frame. A frame
without rows is no figure: nothing is written. matplotlib is imported only to draw.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from fedsdg.analysis.layout import Table
from fedsdg.analysis.means import heading, means
from fedsdg.analysis.metrics import METRICS, relative_weights
from fedsdg.analysis.names import cell_title, method_order, method_title, natural_order
from fedsdg.analysis.records import KEY, RUN, Record
from fedsdg.analysis.settings import search
from fedsdg.analysis.statistics import interval
from fedsdg.analysis.tables import losses, paired, regrets, subject
from fedsdg.analysis.variance import design
from fedsdg.errors import hint
from fedsdg.files import sha256_file, write_bytes

#: The reading that figures show.
AT = ("selected",)
#: Fewest values that make a curve; most methods whose gates are shown.
LEAST_POINTS, MOST_GATED = 3, 8

_LOST = "accuracy of the shared model, without minus under attack (points)"
_REGRET = "accuracy of the best row minus this row (points)"
Frame = Callable[[Any], pd.DataFrame]


@dataclass(frozen=True)
class Plot:
    """A figure: its frame, the function of ``drawing``, the ``View``'s fields, and the caption."""

    frame: Frame
    draw: str
    view: Mapping[str, Any]
    caption: str
    reads: Sequence[str]
    """The files of a record that the frame is made from; patterns are allowed."""


#: Name → figure.
FIGURES: dict[str, Plot] = {}


def figure(draw: str, *reads: str, **view: Any) -> Callable[[Frame], Frame]:
    """Enter a function as the figure of its name; its docstring is the caption.

    Args:
        draw: A function of ``drawing``.
        reads: The files of a record that are read beside runs.parquet.
        view: Fields of ``drawing.View``.
    """

    def enter(frame: Frame) -> Frame:
        caption = " ".join(str(frame.__doc__).split())
        FIGURES[frame.__name__] = Plot(frame, draw, view, caption, ("runs.parquet", *reads))
        return frame

    return enter


def _in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows by cell and method, as they are printed."""
    ranks: dict[str, int] = {}
    for name, key in (("cell", natural_order), ("method", method_order)):
        ranks |= {value: rank for rank, value in enumerate(sorted(frame[name].unique(), key=key))}
    by_rank: Any = {"key": lambda column: column.map(ranks), "kind": "stable"}
    return frame.sort_values(["cell", "method"], **by_rank, ignore_index=True)


def _course(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return means over seeds by round and further columns, if there are enough rounds."""
    by_run = frame.groupby([*RUN, *by, "round"])["value"].mean().reset_index()
    found = _in_order(interval(by_run, [*KEY, *by, "round"]))
    return found[found.groupby(KEY)["round"].transform("nunique") >= LEAST_POINTS]


def _lowest_seed(record: Record) -> pd.DataFrame:
    return record.finished[record.finished["seed"] == record.finished["seed"].min()]


@figure("dots", y="method", by=("cell",))
def groups(record: Record) -> pd.DataFrame:
    """Accuracy of clients that agree with the majority (A) and of those that differ from it (B).

    Rows are sorted by the mean accuracy of B in all panels. Means over seeds, with 95 % intervals
    from five seeds on.
    """
    return means(record, ["accuracy_a", "accuracy_b"], AT)


@figure("curves", "rounds.parquet", x="round", line="method")
def progress(record: Record) -> pd.DataFrame:
    """Accuracy by round: of clients that differ (B), or of all clients and of the shared model.

    Means over seeds; bands: 95 % intervals. Grey: the other methods of the experiment; their lines
    may leave the axes.
    """
    metrics = ["accuracy", "accuracy_shared", "accuracy_b"]
    rows = record.rows("rounds", ["round", *metrics]).melt([*RUN, "round"], metrics, "metric")
    rows = rows.assign(value=100 * rows["value"].astype(float)).dropna()
    of_b = rows["metric"] == "accuracy_b"
    return _course(rows[of_b == rows["cell"].isin(rows["cell"][of_b])], "metric")


@figure("curves", x="alpha", line="method", by=("metric",), log=True)
def accuracy_by_alpha(record: Record) -> pd.DataFrame:
    """Accuracy at each level of label skew.

    Means over seeds; band: 95 % interval. Grey: the other methods of the experiment; their lines
    may leave the axes.
    """
    frame = means(record, ["accuracy", "accuracy_shared"], AT)
    alpha = frame["cell"].str.extract(r"^dirichlet~([\d.]+)$")[0].astype(float)
    frame = frame.assign(alpha=alpha).dropna(subset=["alpha"])
    return frame if frame["alpha"].nunique() >= LEAST_POINTS else frame.iloc[:0]


@figure("dots", y="rival", base=0.0, xlabel="{method} minus the row (points)")
def differences(record: Record) -> pd.DataFrame:
    """Accuracy of {method} minus that of every other method, in percentage points.

    Paired by seed: means, with 95 % intervals from five seeds on. Open: the interval includes 0.
    """
    metrics = ["accuracy", "accuracy_a", "accuracy_b", "accuracy_shared"]
    return paired(record, metrics, subject(record)).query("at in @AT")


def _with_gates(record: Record, runs: pd.DataFrame, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of clients with gates and their group, empty where all are of one kind."""
    rows = record.rows("clients", ["round", "client", "gates", "conflicts", *columns], runs)
    rows = rows.dropna(subset=["gates"])
    group = rows["conflicts"].map({True: "B", False: "A"})
    parted = group.notna().groupby(rows["cell"]).transform("any")
    return rows.assign(group=group.fillna("A").where(parted, ""))


@figure("heat_map", "clients.parquet", x="block", y="client", value="gate")
def gates(record: Record) -> pd.DataFrame:
    """Last gate of every client and block at the lowest seed.

    A: clients that agree with the majority, B: clients that differ from it. The scale is the range
    of the gates shown.
    """
    rows = _with_gates(record, _lowest_seed(record)).sort_values("round", kind="stable")
    shown = sorted(rows["method"].unique(), key=method_order)[:MOST_GATED]
    rows = rows[rows["method"].isin(shown)]
    last = rows.groupby([*RUN, "group", "client"])["gates"].last().rename("gate").reset_index()
    frame = last.explode("gate", ignore_index=True)
    block = frame.groupby([*KEY, "client"]).cumcount() + 1
    return _in_order(frame.assign(block=block).astype({"gate": float}))


@figure("curves", "clients.parquet", x="round", line="group", ylabel="mean over clients")
def gate_course(record: Record) -> pd.DataFrame:
    """Gates and private shares of {method} by round, for each group of clients (A, B).

    Means over clients and seeds; bands: 95 % intervals. The private share of a block is
    ‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖).
    """
    rows = _with_gates(record, record.finished, ["private_shares", "val_accuracy"])
    rows = rows.dropna(subset=["val_accuracy"])
    rows = rows[rows["method"] == min(rows["method"], key=method_order, default="")]
    shares = rows["private_shares"].map(lambda m: np.mean(m) if np.size(m) else np.nan)
    rows = rows.assign(gate=rows["gates"].map(np.mean), private_share=shares)
    long = rows.melt([*RUN, "round", "group"], ["gate", "private_share"], "metric").dropna()
    return _course(long, "metric", "group")


@figure(
    "curves",
    "clients.parquet",
    x="round",
    line="group",
    base=100.0,
    ylabel="weight (% of an equal share)",
)
def weights(record: Record) -> pd.DataFrame:
    """Aggregation weights of {method} by round, in percent of an equal share (dashed).

    A: clients that agree with the majority, B: clients that differ from it. Means over seeds;
    bands: 95 % intervals.
    """
    runs = record.finished[record.finished["method"] == subject(record)]
    rows = _weights(record, runs, "conflicts")
    rows = rows[rows.groupby("cell")["conflicts"].transform("nunique") > 1]
    group = rows["conflicts"].map({True: "B", False: "A"})
    return _course(rows.assign(group=group, value=100 * rows["weight"]), "group")


def _weights(record: Record, runs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return clients' weights in units of an equal share, with a column that they all have."""
    rows = record.rows("clients", ["round", "client", "weight", column], runs)
    rows = rows.dropna(subset=["weight", column])
    parts = [own.assign(weight=relative_weights(own)) for _, own in rows.groupby("run")]
    return pd.concat(parts) if parts else rows


@figure("heat_map", "partitions/*/*/*/*.parquet", x="client", y="class", value="samples")
def partition(record: Record) -> pd.DataFrame:
    """Samples of every class at every client (training, validation and test), lowest seed."""
    files = [*record.folder.glob("partitions/*/*/*/*.parquet")]
    files.sort(key=lambda file: natural_order(str(file)), reverse=True)
    several = len({file.parents[2] for file in files}) > 1
    parts = [pd.DataFrame()]
    # Of every folder the file that comes last in this order, that of the lowest seed.
    for file in reversed({file.parent: file for file in files}.values()):
        rows = pq.read_table(file, columns=["label", "client"]).to_pandas().query("client >= 0")
        counts = pd.crosstab(rows["client"], rows["label"].rename("class"))
        place = {
            "experiment": record.name,
            "cell": f"{file.parents[2].name}:" * several + file.parent.name,
            "seed": file.stem.removeprefix("seed~"),
        }
        counts = counts.reset_index().assign(**place)
        parts.append(counts.melt([*place, "client"], value_name="samples"))
    return pd.concat(parts)


@figure("number_map", x="column", y="method", by=("panel",), xlabel=_LOST)
def attacks(record: Record) -> pd.DataFrame:
    """Points of accuracy that an attack costs a rule: its own runs without attackers minus with.

    Accuracy of the shared model, paired by seed; means over seeds.
    """
    frame = losses(record).query("at in @AT").sort_values("share", kind="stable")
    shares = (100 * frame["share"]).map("{:g} % attackers".format)
    cells = frame["clean"].str.split("@").str[0].map(cell_title)
    if frame["attack"].nunique() == 1:
        return frame.assign(column=shares, panel=cells)
    return frame.assign(column=frame["attack"], panel=cells + ", " + shares)


@figure("scatter", "clients.parquet", x="noise_rate", y="weight")
def label_noise(record: Record) -> pd.DataFrame:
    """Mean weight of a client over the rounds against its share of wrong labels, lowest seed.

    Left out: methods that weigh all clients equally, and variants of a method.
    """
    rows = _weights(record, _lowest_seed(record), "noise_rate")
    frame = rows.groupby([*RUN, "client"], as_index=False)[["noise_rate", "weight"]].mean()
    frame = _in_order(frame[frame.groupby(KEY)["weight"].transform(np.ptp) > 1e-6])
    first = {method_order(label)[0] // 2: label for label in reversed(frame["method"].unique())}
    return frame[frame["method"].isin(first.values())]


@figure("curves", x="place", line="method", by=(), xlabel="partitions, by their mean accuracy")
def variance(record: Record) -> pd.DataFrame:
    """Accuracy of each method on each partition, as the mean over training seeds.

    Partitions are sorted by their mean over methods. Where lines rise together partitions differ;
    where they cross, methods differ in which partitions suit them.
    """
    frame = design(record)
    places = frame.groupby("partition")["value"].mean().rank(method="first")
    frame = frame.assign(place=frame["partition"].map(places), cell="", metric="accuracy")
    points = frame.groupby([*KEY, "metric", "place"])["value"].mean().rename("mean")
    return _in_order(points.reset_index())


@figure("curves", "search.json", x="trials", line="method", ylabel="best of the trials (%)")
def tuning(record: Record) -> pd.DataFrame:
    """Validation accuracy of the best of k trials of a method's hyper-parameters, on one seed.

    Mean over all choices of k of its trials. Grey: the other methods that were searched; their
    lines may leave the axes.
    """
    best = {label: found["expected_best"] for label, found in search(record).items()}
    frame = pd.DataFrame({"method": best.keys(), "mean": best.values()}).explode("mean")
    frame = frame.assign(trials=frame.groupby("method").cumcount() + 1, metric="val_accuracy")
    frame = frame.assign(experiment=record.name, cell="", mean=100 * frame["mean"].astype(float))
    return _in_order(frame[[*KEY, "metric", "trials", "mean"]])


@figure("number_map", x="arena", y="method", by=(), xlabel=_REGRET)
def regret(records: Record | Sequence[Record]) -> pd.DataFrame:
    """Points of accuracy below the best row of a cell, chosen on all seeds but the one measured.

    Means over seeds; white: not run there. Rows are sorted by their worst cell. Bold: a paired test
    cannot tell the row from the best (Holm, 5 %). Below the line: oracles, which know the groups of
    clients or have all data in one place, and are never the best.
    """
    several = [records] if isinstance(records, Record) else records
    frame = regrets(several).query("at in @AT")
    arena = frame["experiment"] + ", " + frame["cell"].map(cell_title)
    frame = frame.assign(arena=arena, worst=frame.groupby("method")["mean"].transform("max"))
    order = {"oracle": True, "worst": True, "cell": False}
    return frame.sort_values([*order], ascending=[*order.values()], kind="stable")


def figure_named(name: str) -> Plot:
    """Return a figure of ``FIGURES``, or for the name of a metric its means as dots.

    Raises:
        ValueError: There is neither a figure nor a metric of the name.
    """
    if name in FIGURES:
        return FIGURES[name]
    if name not in METRICS:
        raise ValueError(f"there is no figure {name!r}{hint(name, [*FIGURES, *METRICS])}")
    return Plot(
        lambda record: means(record, [name], AT),
        "dots",
        {**FIGURES["groups"].view, "xlabel": heading(name)},
        f"{heading(name)}: means over seeds, with 95 % intervals from five seeds on.",
        ("runs.parquet", f"{METRICS[name].table}.parquet"),
    )


def sidecars(name: str, source: Record | Sequence[Record]) -> dict[str, str]:
    """Return the texts beside a figure, without drawing it.

    Args:
        name: A name that ``figure_named`` knows.
        source: The record; for ``regret`` as many as are compared.

    Returns:
        "csv": the numbers, six significant digits; "json": caption and SHA-256 of the files that
        they are made from. Nothing where there is no data for the figure.
    """
    plot = figure_named(name)
    frame = plot.frame(source)
    if frame.empty:
        return {}
    folders = [record.folder for record in ([source] if isinstance(source, Record) else source)]
    files = {file for folder in folders for read in plot.reads for file in folder.glob(read)}
    # Places in the repository, wherever that lies.
    places = {file: "".join(file.as_posix().rpartition("results/")[1:]) for file in sorted(files)}
    inputs = {place: sha256_file(file) for file, place in places.items()}
    facts = {"figure": name, "caption": _filled(plot.caption, frame), "inputs": inputs}
    return {
        "csv": Table(name, plot.caption, frame, frame).csv(),
        "json": json.dumps(facts, indent=2, ensure_ascii=False) + "\n",
    }


def _filled(text: str, frame: pd.DataFrame) -> str:
    return text.replace("{method}", method_title(next(iter(frame.get("method", [""])))))


def write_figure(name: str, source: Record | Sequence[Record], stem: str | Path) -> list[Path]:
    """Draw a figure and write it with its numbers and sources.

    Args:
        name: A name that ``figure_named`` knows.
        source: The record; for ``regret`` as many as are compared.
        stem: The path of the files without suffix.

    Returns:
        The files: .pdf, .svg, .png, .csv, .json; none where there is no data for the figure.
    """
    from fedsdg.analysis import drawing

    texts = sidecars(name, source)
    if not texts:
        return []
    plot = figure_named(name)
    frame = plot.frame(source)
    view: Any = {k: _filled(v, frame) if isinstance(v, str) else v for k, v in plot.view.items()}
    with drawing.styled():
        files = drawing.save(getattr(drawing, plot.draw)(frame, drawing.View(**view)), stem)
    for suffix, text in texts.items():
        write_bytes(f"{stem}.{suffix}", text.encode())
    return [*files, *(Path(f"{stem}.{suffix}") for suffix in texts)]
