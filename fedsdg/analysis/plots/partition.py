"""Who holds what: clients × classes as bubbles, or as a heat map where clients are many."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedsdg.analysis.names import dataset_title, skew_order, skew_title
from fedsdg.analysis.plots.style import (
    MANY_CLIENTS,
    hide_unused,
    panels,
    shared_legend,
    ticks_within,
)
from fedsdg.analysis.summary import Summary

_BUBBLE: dict[str, Any] = {
    "color": "#0072B2",
    "alpha": 0.55,
    "linewidth": 0.3,
    "edgecolor": "white",
}


@dataclass(frozen=True)
class Shares:
    """Samples of every class at every client, train, validation and test together."""

    dataset: str
    skew: str
    seed: int
    counts: np.ndarray  # [K, classes]


def draw(summary: Summary, partitions: Sequence[Path]) -> Figure:
    """One panel per data set and skew, for the lowest seed among the files."""
    shares: dict[tuple[str, int, str], Shares] = {}
    for path in partitions:
        share = read_shares(path)
        key = (share.dataset, len(share.counts), share.skew)
        if key not in shares or share.seed < shares[key].seed:
            shares[key] = share
    settings = sorted({key[:2] for key in shares})
    skews = [sorted((k[2] for k in shares if k[:2] == s), key=skew_order) for s in settings]
    columns = max(len(row) for row in skews)
    figure, axes = panels(len(settings), columns, panel_height=3.0, sharey="row", sharex="row")
    bubbles = {key: share for key, share in shares.items() if key[1] <= MANY_CLIENTS}
    largest = max((int(share.counts.max()) for share in bubbles.values()), default=0)
    for row, setting in enumerate(settings):
        for column, skew in enumerate(skews[row]):
            panel = axes[row][column]
            counts = shares[(*setting, skew)].counts
            if (*setting, skew) in bubbles:
                _bubbles(panel, counts, _area(figure, columns, bubbles), largest)
            else:
                _heat_map(panel, counts)
            ticks_within(panel.xaxis, 0, counts.shape[0] - 1)
            ticks_within(panel.yaxis, 0, counts.shape[1] - 1, about=10)
            place = f"{dataset_title(setting[0])}, {setting[1]} clients\n"
            panel.set_title(f"{place if len(settings) > 1 else ''}{skew_title(skew)}")
            panel.set_xlabel("client")
        axes[row][0].set_ylabel("class")
        if setting[1] > MANY_CLIENTS:
            _share_one_scale(figure, axes[row])
    hide_unused(axes)
    if bubbles:
        _size_legend(figure, _area(figure, columns, bubbles), largest)
    return figure


def _area(figure: Figure, columns: int, shares: Mapping[tuple[str, int, str], Shares]) -> float:
    """Area of the largest bubble in points²: it may about fill the gap to its neighbours.

    Where clients and classes are many, bubbles may overlap rather than vanish.
    """
    clients = max(share.counts.shape[0] for share in shares.values())
    classes = max(share.counts.shape[1] for share in shares.values())
    # 72 points an inch; panels are about 2.3 inches high, and take 85 % of their column's width.
    pitch = 72 * min(figure.get_figwidth() / columns * 0.85 / clients, 2.3 / classes)
    return max(2.0 * pitch, 11.0) ** 2


def read_shares(path: Path) -> Shares:
    """Counts of one partition file; the global test set (client −1) is left out."""
    if not path.exists():
        raise FileNotFoundError(f"no partition at {path}: make it with 'fedsdg partition'")
    table = pq.read_table(path, columns=["label", "client"], partitioning=None)
    metadata = table.schema.metadata or {}
    if b"fedsdg" not in metadata:
        raise ValueError(f"{path} carries no facts of a partition; make it with 'fedsdg partition'")
    facts = json.loads(metadata[b"fedsdg"])
    label, client = (table[name].to_numpy() for name in ("label", "client"))
    counts = np.zeros((facts["num_clients"], facts["num_classes"]), dtype=np.int64)
    np.add.at(counts, (client[client >= 0], label[client >= 0]), 1)
    return Shares(facts["dataset"], facts["skew"], facts["seed"], counts)


def _bubbles(panel: Axes, counts: np.ndarray, area: float, largest: int) -> None:
    clients, classes = counts.shape
    client, label = np.nonzero(counts)
    panel.scatter(client, label, s=area * counts[client, label] / largest, **_BUBBLE)
    panel.set_xlim(-0.9, clients - 0.1)
    panel.set_ylim(-0.9, classes - 0.1)


def _heat_map(panel: Axes, counts: np.ndarray) -> None:
    """Of many clients a bubble each is a thicket: class × client in colours, white for none."""
    clients, classes = counts.shape
    panel.pcolormesh(
        np.arange(clients + 1) - 0.5,
        np.arange(classes + 1) - 0.5,
        np.ma.masked_equal(counts.T, 0),
        cmap="viridis_r",
        rasterized=True,
    )
    panel.grid(False)


def _share_one_scale(figure: Figure, row: Sequence[Axes]) -> None:
    """One logarithmic scale of samples, from 1 to the largest of the row's heat maps, and a bar."""
    meshes = [mesh for panel in row for mesh in panel.collections]
    most = max(float(np.ma.max(np.ma.asarray(mesh.get_array()))) for mesh in meshes)
    norm = LogNorm(1.0, max(most, 2.0))
    for mesh in meshes:
        mesh.set_norm(norm)
    bar = figure.colorbar(meshes[-1], ax=list(row), aspect=24, pad=0.01)
    bar.set_label("samples (logarithmic)")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.outline.set_visible(False)  # type: ignore[operator]


def _size_legend(figure: Figure, area: float, largest: int) -> None:
    """Bubbles of three round numbers of samples."""
    decade = 10 ** int(np.log10(max(largest, 1)))
    top = largest // decade * decade
    sizes = sorted({max(top // 10, 1), max(top // 2, 1), top})
    handles = [
        figure.axes[0].scatter([], [], s=area * size / largest, label=f"{size} samples", **_BUBBLE)
        for size in sizes
    ]
    shared_legend(figure, handles, columns=len(handles))
