"""Measured speed of aggregation and training: tables, and the roofline figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedsdg.analysis.layout import MISSING, SETTING, Table, amount
from fedsdg.files import read_json, sha256_file, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_PARTS = ("machine", "timings", "accuracy", "aims", "rounds")
#: The codes that aggregation is compared with, in the order of the columns.
CODES = {
    "reference": "torch reference",
    "plain": "formulas, plainly",
    "numpy": "numpy.median",
    "torch": "torch.median",
    "flower": "Flower",
    "byzfl": "byzfl",
}
#: The codes whose rounds of whole federations are compared, and the models that they train.
ROUND_CODES = {
    "ours": "ours",
    "plain": "plain loop",
    "peft": "plain loop, adapters of peft",
    "flower": "Flower's simulation",
    "flower-fresh": "Flower's simulation, a new model for each message",
}
MODELS = {"digits": "digits", "vit-tiny": "ViT-Tiny, 32×32"}


@dataclass(frozen=True)
class Measurements:
    """What ``make bench`` measured on one machine, as lists of rows."""

    path: Path
    machine: Row
    timings: Sequence[Row]
    accuracy: Sequence[Row]
    aims: Sequence[Row]
    rounds: Sequence[Row]

    @classmethod
    def read(cls, path: str | Path) -> Measurements:
        """Read a file of measurements.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It lacks a part.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; make it with: make bench")
        data = {"rounds": (), **read_json(path)}
        try:
            return cls(path, *(data[part] for part in _PARTS))
        except KeyError as part:
            raise ValueError(f"{path} has no {part}; make it again with: make bench") from part

    def suite(self, name: str) -> list[Row]:
        """Return the timings of one suite."""
        return [row for row in self.timings if row["suite"] == name]

    def ours(self, suite: str) -> list[Row]:
        """Return the timings of our own code in one suite."""
        return [row for row in self.suite(suite) if row["code"] == "ours"]

    @property
    def where(self) -> str:
        """Return one sentence on the machine."""
        m = self.machine
        commit = m["commit"][:8] + (" with changes" if m["dirty"] else "")
        return f"{m['processor']}, {m['threads']} of {m['cores']} cores; commit {commit}."


def kernels(measured: Measurements) -> Table:
    """Return time and rate of every rule and size, and how long other codes took."""
    rows = pd.DataFrame([row for row in measured.suite("sizes") if row.get("seconds")])
    columns = ["clients", "parameters", "rule"]
    others = rows[rows["code"] != "ours"].set_index([*columns, "code"])["ratio"].unstack()
    ours = rows[rows["code"] == "ours"].set_index(columns).join(others).reset_index()
    ours = ours.assign(size=ours["clients"] * ours["parameters"])
    lines = []
    for row in ours.sort_values(["size", "clients"], kind="stable").to_dict("records"):
        line = {
            SETTING: f"M = {row['clients']}, d = {row['parameters']:,}",
            "Rule": row["rule"],
            "ms": f"{1e3 * row['seconds']:.2f}",
            "GB/s": f"{row['least_bytes'] / row['seconds'] / 1e9:.1f}",
            "of a bare read": f"{row['floor']:.2f}",
        }
        ratios = {title: row.get(code) for code, title in CODES.items()}
        lines.append(line | {t: MISSING if pd.isna(r) else f"{r:.1f}×" for t, r in ratios.items()})
    caption = (
        "Aggregation of the updates of M clients with d parameters each: best time, rate at which "
        "bytes were moved, its share of a bare read's, and how many times as long other codes "
        f"took. {measured.where}"
    )
    return Table("kernels", caption, pd.DataFrame([*measured.timings]), pd.DataFrame(lines))


def throughput(measured: Measurements) -> Table:
    """Return rounds and samples per second of whole federations, by ours and by other codes."""
    ours = {
        (row["model"], row["method"], row["precision"]): row["seconds"]
        for row in measured.rounds
        if row["code"] == "ours"
    }
    lines = []
    for row in measured.rounds:
        key = row["model"], row["method"], row["precision"]
        lines.append(
            {
                SETTING: f"{MODELS[row['model']]}, {row['method']}, {row['clients']} clients",
                "Code": f"{ROUND_CODES[row['code']]}, {row['precision']}",
                "rounds/s": f"{1 / row['seconds']:.3f}",
                "samples/s": amount(row["samples"] / row["seconds"]),
                "time / ours": f"{row['seconds'] / ours[key]:.2f}×",
            }
        )
    caption = (
        "One round of a federation, without evaluation, best time; time / ours: in the same "
        f"precision. {measured.where}"
    )
    return Table("throughput", caption, pd.DataFrame([*measured.rounds]), pd.DataFrame(lines))


def write_kernels(measured: str | Path, table: str | Path, figure: str | Path) -> list[Path]:
    """Write the table of aggregation and the roofline figure.

    Args:
        measured: The file of measurements.
        table: Path of the table, kernels, without suffix.
        figure: Path of the figure without suffix.

    Returns:
        The files.
    """
    from fedsdg.analysis.drawing import save, styled

    read = Measurements.read(measured)
    with styled():
        files = save(roofline(read), figure)
    facts = {
        "figure": "roofline",
        "caption": f"Speed of aggregation, in percent of a bare read of its bytes. {read.where}",
        "inputs": {str(measured): sha256_file(Path(measured))},
    }
    write_json(Path(f"{figure}.json"), facts)
    return [*kernels(read).write(Path(table).parent), *files, Path(f"{figure}.json")]


def write_throughput(measured: str | Path, table: str | Path) -> list[Path]:
    """Write the table of training and return the files.

    Args:
        measured: The file of measurements.
        table: Path of the table, throughput, without suffix.

    Raises:
        ValueError: The file holds no rounds of federations.
    """
    read = Measurements.read(measured)
    if not read.rounds:
        raise ValueError(
            f"{read.path} holds no rounds of federations; measure them with: "
            "pytest benchmarks/bench_training.py --measured FILE"
        )
    return throughput(read).write(Path(table).parent)


def roofline(measured: Measurements) -> Figure:
    """Draw the share of a bare read's speed of every rule, by clients and by parameters."""
    from matplotlib.figure import Figure

    from fedsdg.analysis.drawing import INK, WIDTH, styles

    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, key in zip(panels, ("clients", "parameters"), strict=True):
        rows = pd.DataFrame(measured.ours(key), columns=["rule", key, "floor"])
        for rule, style in styles([*rows["rule"].unique()]).items():
            line = rows[rows["rule"] == rule].sort_values(key)
            panel.plot(line[key], 100 * line["floor"], label=rule, **style)
        panel.axhline(100, color=INK, linewidth=1)
        panel.set(xscale="log", yscale="log", xlabel=key)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter("{x:,.0f}")
            axis.set_minor_formatter("")
    panels[0].set_ylabel("% of the speed of a bare read")
    lines = panels[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=4)
    return figure
