"""The figures of an experiment, each as PDF, SVG and PNG with a sidecar that names its inputs.

``FIGURES`` maps a name to a ``Plot``; matplotlib is imported only when one is drawn. The same
summary gives the same bytes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedsdg import __version__
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.summary import Summary
from fedsdg.results import atomic_path, sha256_file, source_hash, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plot:
    """A figure of the registry: the module whose ``draw`` makes it, and its caption."""

    module: str
    caption: str
    needs_partitions: bool = False

    def __call__(self, summary: Summary, partitions: Sequence[Path] = ()) -> Figure:
        """Draw the figure in the current style."""
        draw = importlib.import_module(f"{__name__}.{self.module}").draw
        figure: Figure = draw(summary, partitions) if self.needs_partitions else draw(summary)
        return figure


FIGURES: Mapping[str, Plot] = MappingProxyType(
    {
        "convergence": Plot(
            "convergence",
            "Personal accuracy (mean over clients, each on its own test data; top) and global "
            "accuracy (shared parameters on the global test set; bottom) by round: mean over "
            "seeds with the 95 % Student-t band. Local only has no global model.",
        ),
        "accuracy_vs_alpha": Plot(
            "accuracy_vs_alpha",
            "Personal and global accuracy in the last round against the Dirichlet α: mean over "
            "seeds, bars are 95 % Student-t intervals. Methods of one α stand side by side.",
        ),
        "differences": Plot(
            "differences",
            "FedSDG minus each other method in the last round, paired by seed: mean and 95 % "
            "Student-t interval. Right of zero FedSDG is better. The top row is whichever "
            "weighting of FedAvg has the higher mean there.",
        ),
        "gates": Plot(
            "gates",
            "Gates m of FedSDG. Top: the last recorded value of every client and gate for the "
            "lowest seed; grey: a client that was never drawn. Bottom: quantiles over the clients "
            "recorded in a round, all seeds together.",
        ),
        "weights": Plot(
            "weights",
            "Aggregation weights of FedSDG. Top: every client's weight in every round, all seeds, "
            "with the median and the range. Bottom: effective number of clients e^H, H being the "
            "entropy of the weights, and number of clients with weight zero.",
        ),
        "partition": Plot(
            "partition",
            "Samples of every class at every client (train, validation and test together) for the "
            "lowest seed: the area of a bubble is the number of samples, on one scale for all "
            "panels.",
            needs_partitions=True,
        ),
    }
)

_FORMATS: Mapping[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}


def write_figure(
    summary_dir: str | Path,
    name: str,
    output_stem: str | Path,
    partitions: Sequence[str | Path] = (),
) -> list[Path]:
    """Write ``{output_stem}.pdf``, ``.svg``, ``.png`` and ``.json``, and return their paths.

    The sidecar holds the inputs with their SHA-256, a hash of the sources, the caption and the
    package's version. ``partitions`` are partition files, used by the figure ``partition``.
    Raises ``ValueError`` for an unknown name, and for ``partition`` without files.
    """
    if name not in FIGURES:
        raise ValueError(f"there is no figure '{name}'; known are {', '.join(FIGURES)}")
    plot = FIGURES[name]
    files = [Path(path) for path in partitions] if plot.needs_partitions else []
    if plot.needs_partitions and not files:
        raise ValueError(f"figure '{name}' needs partition files: name them with --partitions")
    from fedsdg.analysis.plots.style import styled

    summary = Summary(summary_dir)
    caption = f"{plot.caption} {hyperparameters(summary.runs)}"
    with styled():
        figure = plot(summary, files)
        facts = {"figure": name, "experiment": summary.experiment, "caption": caption}
        return save_figure(figure, output_stem, facts, (*summary.inputs, *files))


def save_figure(
    figure: Figure, output_stem: str | Path, facts: Mapping[str, Any], inputs: Sequence[Path]
) -> list[Path]:
    """Write a figure in its formats, in the current style, and its sidecar; return the paths.

    The sidecar holds `facts`, the inputs with their hashes, and those of the sources.
    """
    written = []
    for suffix, metadata in _FORMATS.items():
        path = Path(f"{output_stem}.{suffix}")
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=suffix, metadata=metadata)
        written.append(path)
    sidecar = Path(f"{output_stem}.json")
    made_from = {
        "inputs": {_shown(path): sha256_file(path) for path in inputs},
        "source_sha256": source_hash("analysis", "results.py"),
        "version": __version__,
    }
    write_json(sidecar, {**facts, **made_from})
    return [*written, sidecar]


def _shown(path: Path) -> str:
    """The path from the working folder where it lies below it, so that checkouts agree."""
    relative = Path(os.path.relpath(path))
    return path.as_posix() if relative.parts[:1] == ("..",) else relative.as_posix()
