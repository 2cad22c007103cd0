"""The figures of an experiment, each as PDF, SVG and PNG with a sidecar that names its inputs.

``FIGURES`` maps a name to a ``Plot``; matplotlib is imported only when one is drawn. The same
summary gives the same bytes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsdg import __version__
from fedsdg.analysis.formatting import printed
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.names import method_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views import accuracy, attacks, clients, costs, sweeps
from fedsdg.files import atomic_path, hint, sha256_file, source_hash, write_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plot:
    """A figure of the registry: the module whose ``draw`` makes it, and its caption.

    ``draw`` takes the summary, with the files of partitions where it needs them; or, with
    ``numbers``, the frame that this function of fedsdg.analysis makes of the summary. The
    sidecar then holds the frame's rows: the very numbers that are drawn. What is ``of_training``
    says above its panels which training was not steady. In the caption ``{subject}`` stands for
    the subject's title, ``{coloured}`` for whoever is in colour wherever it was run.
    """

    module: str
    caption: str
    needs_partitions: bool = False
    numbers: Callable[[Summary], pd.DataFrame] | None = None
    of_training: bool = True

    def frame(self, summary: Summary) -> pd.DataFrame | None:
        """The numbers that are drawn; None where ``draw`` reads the summary itself."""
        return None if self.numbers is None else self.numbers(summary)

    def label(self, summary: Summary) -> str:
        """The line above the panels that names training that was not steady, where it matters."""
        from fedsdg.analysis.horizon import horizon_label

        return horizon_label(summary) if self.of_training else ""

    def __call__(self, summary: Summary, partitions: Sequence[Path] = ()) -> Figure:
        """Draw the figure in the current style."""
        return self.drawn(summary, partitions, self.frame(summary))

    def drawn(
        self, summary: Summary, partitions: Sequence[Path], frame: pd.DataFrame | None
    ) -> Figure:
        """Draw the figure from what ``frame`` gave."""
        draw = importlib.import_module(f"{__name__}.{self.module}").draw
        if frame is not None:
            figure: Figure = draw(frame)
        else:
            figure = draw(summary, partitions) if self.needs_partitions else draw(summary)
        return figure


FIGURES: Mapping[str, Plot] = MappingProxyType(
    {
        "convergence": Plot(
            "convergence",
            "Personal accuracy (mean over clients; top) and global accuracy (shared parameters "
            "on the global test set; bottom) by round: mean over seeds, with the 95 % Student-t "
            "band from three seeds on, cut at 0 and 100 %. At most five methods are in colour: "
            "{coloured}, and the best others. Local only has no global model.",
        ),
        "accuracy_vs_alpha": Plot(
            "accuracy_vs_alpha",
            "Personal and global accuracy for each Dirichlet α (round selected on validation "
            "data): mean over seeds; bars are 95 % Student-t intervals, from five seeds on and "
            "cut at 0 and 100 %. At most five methods are in colour. An arrow stands for a value "
            "far below all others, which is written there.",
        ),
        "differences": Plot(
            "differences",
            "{subject} minus each other method, paired by seed (round selected on validation "
            "data), a panel for each metric: mean, and 95 % Student-t interval from five seeds "
            "on. Right of zero {subject} is better. An arrow stands for a difference beyond the "
            "axis, which is written there.",
        ),
        "gates": Plot(
            "gates",
            "Last gates m of every client for the lowest seed, on a scale from 0 to 1 that is "
            "white at one half; grey: a client that was never drawn. Where clients conflict, "
            "those that agree (A) stand above those that do not (B). Of one method with gates: "
            "below, quantiles over the clients recorded in a round, all seeds together. Of "
            "several: a panel for each, the gates of one place side by side.",
        ),
        "weights": Plot(
            "weights",
            "Aggregation weights of {subject}. Top: every client's weight in every round, all "
            "seeds, with the median and the range; of more than 30 clients a heat map of the "
            "lowest seed (grey: not in the cohort). Bottom: effective number of clients e^H, H "
            "being the entropy of the weights, and number of clients with weight zero.",
        ),
        "partition": Plot(
            "partition",
            "Samples of every class at every client (train, validation and test together) for "
            "the lowest seed: the area of a bubble is the number of samples, on one scale for "
            "all panels; of more than 30 clients a heat map.",
            needs_partitions=True,
            of_training=False,
        ),
        "byzantine": Plot(
            "byzantine",
            "Global accuracy in the round selected on validation data against the share of "
            "attackers, a panel for each attack: mean over seeds; share 0 is the same run in "
            "every panel. The table of the same name has the intervals.",
            numbers=attacks.accuracy_by_share,
        ),
        "robustness": Plot(
            "robustness",
            "The trade-off of robust means over the share of attackers. Top: distance from the "
            "aggregated step to the mean of the honest clients' updates (median over rounds), "
            "global accuracy in the round selected on validation data, and the time of one "
            "aggregation (median over rounds; it depends on the machine), each for the attack in "
            "the middle. Bottom: distance and accuracy under the attack that is worst for the "
            "rule at that share, and that accuracy against the time at the smallest share. Means "
            "over seeds.",
            numbers=attacks.trade_off,
        ),
        "stragglers": Plot(
            "stragglers",
            "Global accuracy (top) and personal accuracy (bottom) against simulated seconds, a "
            "column for each method and a line for each way of dealing with slow clients: mean "
            "over seeds of the last evaluation until then. Lines go to the end of their longest "
            "run; a seed that is over by then keeps its last accuracy.",
            numbers=costs.accuracy_over_time,
        ),
        "label_noise": Plot(
            "label_noise",
            "What methods make of clients whose labels are partly wrong; a point is a client in "
            "one run. Top: the client's weight, averaged over the rounds (1: equal), and what "
            "else the method says a client is worth, against the share of wrong labels. Bottom, "
            "where it was computed: both against the exact Shapley value in the last round. ρ is "
            "Spearman's correlation within a run, mean over seeds; there is none where all "
            "clients are alike.",
            numbers=clients.credits,
        ),
        "sensitivity": Plot(
            "sensitivity",
            "Personal accuracy (upper row of each pair) and global accuracy (lower row) against "
            "a setting's values: mean over seeds; bars are 95 % Student-t intervals, from five "
            "seeds on and cut at 0 and 100 %. Where other settings vary too, a thin line is one "
            "combination of them and the thick line their mean.",
            numbers=sweeps.sweeps,
        ),
        "personalisation": Plot(
            "personalisation",
            "Top: personal accuracy, mean over clients (filled) and mean of the worst decile "
            "(open), the best mean over all places first; bars are 95 % Student-t intervals over "
            "seeds, from five seeds on and cut at 0 and 100 %. Bottom: personal against global "
            "accuracy, with the diagonal where both are equal; methods far outside are named "
            "with both values. The dashed vertical lines are training on pooled data, where it "
            "was run.",
            numbers=accuracy.headlines,
        ),
        "drift": Plot(
            "drift",
            "Two clients' way through parameter space and the aggregates, measured in one run "
            "(the lowest seed) and drawn in the plane of the two first principal components of "
            "all its models; the title says how much of their variance lies in it. Thin lines "
            "are local training, dots where a client ends, diamonds the server's model after "
            "each round, crosses where clients begin.",
            numbers=clients.trajectories,
            of_training=False,
        ),
        "tuning": Plot(
            "tuning",
            "What trials of hyper-parameters bring: dots are trials in the order they were drawn "
            "in, their score the personal validation accuracy over search seeds and skews; the "
            "line is the expected best of so many of them, drawn without replacement. Grey: the "
            "other methods. Trials below the panel are counted in its corner.",
            numbers=sweeps.search_curves,
            of_training=False,
        ),
        "progress": Plot(
            "progress",
            "Personal accuracy against rounds, local steps (of all clients together, without the "
            "fine-tuning before an evaluation) and bytes (up and down), a row for each place: mean "
            "over seeds, with the 95 % Student-t band from three seeds on. At most five methods "
            "are in colour. A marker is where a method ends.",
            numbers=costs.progress,
        ),
        "gate_dynamics": Plot(
            "gate_dynamics",
            "What {subject}'s gates do, at each evaluation: means over the clients that were "
            "drawn, for clients that agree (A) and clients that do not (B) where there are such. "
            "The private share of a block is ‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖). Shares of "
            "gates are taken within each client. ρ is Spearman's correlation of a client's mean "
            "gate with its local steps: near 1 a gate only counts steps. Bands are 95 % "
            "Student-t over seeds, cut at the values seen; of fewer than three seeds each is a "
            "thin line.",
            numbers=clients.gate_dynamics,
        ),
        "groups": Plot(
            "groups",
            "Personal accuracy (on the whole global test set as each client sees it) of the "
            "clients that agree (A) and of those that do not (B), the best for B on top: means "
            "over seeds; thick bars are 95 % Student-t intervals, from five seeds on and cut at 0 "
            "and 100 %.",
            numbers=accuracy.group_accuracy,
        ),
    }
)

#: The figures of an experiment whose config names none.
USUAL_FIGURES = (
    "convergence",
    "accuracy_vs_alpha",
    "differences",
    "gates",
    "weights",
    "partition",
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

    The sidecar holds the inputs with their SHA-256, a hash of the sources, the caption, the
    package's version and, for figures with ``Plot.numbers``, the numbers drawn. ``partitions`` are
    partition files, used by the figure ``partition``.
    Raises ``ValueError`` for an unknown name, and for ``partition`` without files.
    """
    plot = known_figure(name)
    files = [Path(path) for path in partitions] if plot.needs_partitions else []
    if plot.needs_partitions and not files:
        raise ValueError(f"figure '{name}' needs partition files: name them with --partitions")
    from fedsdg.analysis.plots.style import put_above, styled

    summary = Summary(summary_dir)
    with styled(summary.roles):
        frame = plot.frame(summary)
        figure = plot.drawn(summary, files, frame)
        if label := plot.label(summary):
            put_above(figure, label)
        facts = figure_facts(name, summary, frame)
        return save_figure(figure, output_stem, facts, (*summary.inputs, *files))


def figure_facts(name: str, summary: Summary, frame: pd.DataFrame | None) -> dict[str, Any]:
    """Return the facts of a figure for its sidecar, as far as they need no drawing.

    ``frame``: what ``Plot.frame`` gave.
    """
    from fedsdg.analysis.plots.cast import coloured

    plot, who = known_figure(name), summary.roles
    said = {"subject": method_title(who.subject), "coloured": coloured(who)}
    caption = f"{plot.caption.format_map(said)} {hyperparameters(summary.runs)}"
    if label := plot.label(summary):
        caption += f" Shown is what was {label}."
    facts = {"figure": name, "experiment": summary.experiment, "caption": caption}
    if frame is None:
        return facts
    from fedsdg.analysis.frames import records

    return {**facts, "numbers": _printed(records(frame))}


def _printed(value: Any) -> Any:
    """Numbers rounded, however deep they lie in lists and mappings."""
    if isinstance(value, Mapping):
        return {key: _printed(part) for key, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_printed(part) for part in value]
    return printed(value) if isinstance(value, float) else value


def known_figure(name: str) -> Plot:
    """The figure of this name, or a ``ValueError`` that says which was meant."""
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}{hint(name, FIGURES)}")
    return FIGURES[name]


def save_figure(
    figure: Figure, output_stem: str | Path, facts: Mapping[str, Any], inputs: Sequence[Path]
) -> list[Path]:
    """Write a figure in its formats, in the current style, and its sidecar; return the paths.

    The sidecar holds `facts`, the inputs with their hashes, and those of the sources.
    """
    from fedsdg.analysis.plots.style import format_powers

    format_powers(figure)
    written = []
    for suffix, metadata in _FORMATS.items():
        path = Path(f"{output_stem}.{suffix}")
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=suffix, metadata=metadata)
        written.append(path)
    sidecar = Path(f"{output_stem}.json")
    made_from = {
        "inputs": {_shown(path): sha256_file(path) for path in inputs},
        "source_sha256": source_hash("analysis", "files"),
        "version": __version__,
    }
    write_json(sidecar, {**facts, **made_from})
    return [*written, sidecar]


def _shown(path: Path) -> str:
    """The path from the working folder where it lies below it, so that checkouts agree."""
    relative = Path(os.path.relpath(path))
    return path.as_posix() if relative.parts[:1] == ("..",) else relative.as_posix()
