"""The aggregation benchmarks in print: table and roofline figure from one file of measurements."""

from __future__ import annotations

from pathlib import Path

from fedsdg.analysis.measurements import Measurements
from fedsdg.analysis.plots import save_figure
from fedsdg.analysis.tables import save_table
from fedsdg.analysis.tables.kernels import kernels


def write_kernels(measured: str | Path, table: str | Path, figure: str | Path) -> list[Path]:
    """Write `{table}.csv`, .md, .tex and `{figure}.pdf`, .svg, .png, .json; return the paths.

    Raises FileNotFoundError or ValueError, naming the file, where there are no measurements.
    """
    from fedsdg.analysis.plots import roofline
    from fedsdg.analysis.plots.style import styled

    read = Measurements.read(measured)
    written = save_table(kernels(read), table)
    with styled():
        facts = {"figure": "roofline", "caption": f"{roofline.CAPTION} {read.where}."}
        return written + save_figure(roofline.draw(read), figure, facts, [read.path])
