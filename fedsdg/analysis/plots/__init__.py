"""The figures of an experiment, each as PDF, SVG and PNG with a sidecar that names its inputs.

``FIGURES`` declares them: the view, the function of ``drawing`` and its arguments, the caption.
matplotlib is imported only when one is drawn. The same summary gives the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedsdg import __version__
from fedsdg.analysis.formatting import printed
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import DIFFERING, method_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views import accuracy, attacks, clients, costs, sweeps
from fedsdg.files import atomic_path, hint, sha256_file, source_hash, write_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plot:
    """A figure of the registry: a view, the function that draws it, and its caption.

    In the caption ``{subject}`` stands for the subject's title, ``{coloured}`` for the methods that
    are in colour wherever they were run, ``{intervals}`` for a clause on intervals.
    """

    view: Callable[..., pd.DataFrame]
    """Makes the frame from the summary, or from the files of partitions."""
    draw: str
    """A function of fedsdg.analysis.plots.drawing."""
    arguments: Mapping[str, Any]
    """Its arguments."""
    caption: str
    """The text below the figure, without its end on hyper-parameters and training."""
    empty: str
    """The sentence that stands instead of a figure without rows."""
    needs_partitions: bool = False
    """Whether the view takes partition files; the sidecar then has no numbers."""
    of_training: bool = True
    """Whether a line above the panels says which training was not steady."""
    leading: int | None = None
    """The most methods that are shown, chosen by ``cast.leads``; None: all."""

    def frame(self, summary: Summary, partitions: Sequence[Path] = ()) -> pd.DataFrame | None:
        """The rows that are drawn; None where partition files are needed and not given.

        Args:
            summary: The experiment.
            partitions: Partition files, for a view that takes them.
        """
        if self.needs_partitions:
            return self.view(partitions) if partitions else None
        rows = self.view(summary)
        if self.leading and len(rows):
            from fedsdg.analysis.plots.style import leads

            last = rows[rows["round"] == rows.groupby("method")["round"].transform("max")]
            merit = last.groupby("method")["mean"].mean()
            shown = leads([*merit.index], merit, summary.roles, self.leading)
            rows = rows[rows["method"].isin(shown)].reset_index(drop=True)
        return rows

    def label(self, summary: Summary, frame: pd.DataFrame | None) -> str:
        """The line above the panels on training of the methods shown that was not steady.

        Args:
            summary: The experiment.
            frame: The rows that are drawn.
        """
        if not self.of_training or frame is None or frame.empty:
            return ""
        from fedsdg.analysis.horizon import horizon_label

        named = [name for name in ("method", "subject", "rival") if name in frame]
        return horizon_label(summary, methods={label for name in named for label in frame[name]})

    def drawn(self, frame: pd.DataFrame) -> Figure:
        """Draw rows that ``frame`` gave, in the current style."""
        from fedsdg.analysis.plots import drawing, style

        if frame.empty:
            return style.sentence(self.empty)
        figure: Figure = getattr(drawing, self.draw)(frame, **self.arguments)
        return figure


_BAND = (
    "mean over seeds, with the 95 % Student-t band from three seeds on; where more than three "
    "lines are in colour, only the subject has its band, or else the first line of the legend"
)

FIGURES: Mapping[str, Plot] = MappingProxyType(
    {
        "convergence": Plot(
            costs.accuracy_by_round,
            "curves",
            {"down": "metric", "labels": ("round", "%")},
            "Personal accuracy (mean over clients) and global accuracy (shared parameters on the "
            f"global test set) by round: {_BAND}. At most five methods are in colour: "
            "{coloured}, and the best others. Local only has no global model.",
            "No run of this experiment was evaluated.",
        ),
        "under_attack": Plot(
            attacks.shared_accuracy_by_round,
            "curves",
            {"across": ("share",), "labels": ("round", "global accuracy (%)")},
            "Global accuracy by round, a panel for each share of the clients that attack: "
            f"{_BAND}.",
            "No run of this experiment has a global model.",
        ),
        "progress": Plot(
            costs.accuracy_of_differing,
            "curves",
            {"named": True, "height": 3.2, "across": ("metric", "cell")},
            "Accuracy by round of the clients that differ (B), or personal accuracy where clients "
            f"are of one kind, for six methods ({{coloured}}, and the best others): {_BAND}.",
            "No run of this experiment was evaluated.",
            leading=6,
        ),
        "accuracy_vs_alpha": Plot(
            accuracy.by_alpha,
            "curves",
            {
                "x": "alpha",
                "across": ("metric",),
                "labels": ("Dirichlet α (smaller: clients differ more)", "%"),
                "shape": "categories",
                "height": 3.4,
            },
            "Personal and global accuracy for each Dirichlet α (round selected on validation "
            "data): means over seeds; {intervals}. At most five methods are in colour.",
            "No run of this experiment has a Dirichlet skew.",
        ),
        "differences": Plot(
            accuracy.leads,
            "dots",
            {
                "y": "rival",
                "across": ("metric",),
                "down": "cell",
                "labels": ("points", ""),
                "against_zero": True,
            },
            "{subject} minus each other method, paired by seed (round selected on validation "
            "data), a panel for each metric: means, in percentage points; {intervals}. Right of "
            "zero {subject} is better; an open dot is a difference whose interval includes zero. "
            "An arrow stands for a difference beyond the axis, which is written there.",
            "No method was run at the same seeds as the subject.",
        ),
        "groups": Plot(
            accuracy.group_accuracy,
            "dots",
            {"mark": "metric", "by": DIFFERING.key, "labels": ("personal accuracy (%)", "")},
            "Personal accuracy (on the whole global test set as each client sees it) of the "
            "clients that agree (A) and of those that do not (B), the best for B on top: means "
            "over seeds; {intervals}.",
            "The clients of this experiment are all of one kind.",
        ),
        "personalisation": Plot(
            accuracy.headlines,
            "dots",
            {"mark": "metric", "by": "", "labels": ("accuracy (%)", "")},
            "Personal accuracy (mean over clients), the mean of its worst decile, and the accuracy "
            "of the shared model, the best personal accuracy on top: means over seeds; "
            "{intervals}. An arrow stands for a value beyond the axis.",
            "No run of this experiment is finished.",
        ),
        "tuning": Plot(
            sweeps.budgets,
            "dots",
            {
                "mark": "budget",
                "across": (),
                "by": "all trials",
                "labels": ("personal validation accuracy (%)", ""),
            },
            "The effect of the tuning budget: the expected best validation accuracy of a few "
            "trials of a method's hyper-parameters, drawn without replacement, and the best of "
            "all of its trials, by which methods are sorted.",
            "No search was made of this experiment's hyper-parameters.",
            of_training=False,
        ),
        "gates": Plot(
            clients.last_gates,
            "heat_map",
            {
                "x": "block",
                "y": "client",
                "value": "gate",
                "across": ("method", "cell"),
                "bar": "last gate m",
                "labels": ("block", "clients"),
                "height": 1.9,
            },
            "Last gates m of every client and block for the lowest seed, on a scale over the range "
            "of the gates shown; grey: a client that never trained, for it was never drawn or is "
            "held out. Where clients conflict, those that agree (A) stand above those that do not "
            "(B).",
            "No method of this experiment has gates.",
        ),
        "gate_dynamics": Plot(
            clients.gate_course,
            "curves",
            {"line": "group", "down": "measure", "labels": ("round", ""), "height": 1.9},
            "{subject}'s gates at each evaluation: means over the clients that were drawn, for "
            "clients that agree (A) and clients that do not (B) where there are such. The private "
            "share of a block is ‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖). ρ is Spearman's "
            "correlation of a client's mean gate with its local steps: near 1 a gate only counts "
            "steps. Bands are 95 % Student-t over seeds, from three seeds on.",
            "No method of this experiment has gates.",
        ),
        "weights": Plot(
            clients.weight_shares,
            "curves",
            {"line": "group", "labels": ("round", "% of an equal share"), "base": 100.0},
            "Aggregation weights of {subject} by round, in percent of an equal share: the mean "
            "weight of the clients that agree (A) and of those that do not (B); where clients are "
            "of one kind, the lowest, the median and the highest weight of a cohort. Means over "
            "seeds, with the 95 % Student-t band from three seeds on.",
            "No aggregation weights were recorded.",
        ),
        "partition": Plot(
            clients.class_counts,
            "heat_map",
            {
                "x": "client",
                "y": "label",
                "value": "samples",
                "bar": "samples",
                "labels": ("client", "class"),
                "height": 2.4,
                "wrap": 3,
            },
            "Samples of every class at every client (train, validation and test together) for "
            "the lowest seed.",
            "There is no partition.",
            needs_partitions=True,
            of_training=False,
        ),
        "byzantine": Plot(
            attacks.losses,
            "heat_map",
            {
                "x": "attack",
                "y": "method",
                "value": "mean",
                "scale": -100.0,
                "across": ("cell", "share"),
                "wrap": 1,
                "bar": "points lost",
                "written": True,
            },
            "Percentage points of global accuracy that an attack costs a rule, against the same "
            "rule without attackers, paired by seed (round selected on validation data): means "
            "over seeds, a panel for each share of attackers. Negative: more accurate than "
            "without. The table of the same name has accuracies with intervals.",
            "No run of this experiment was attacked.",
        ),
        "robustness": Plot(
            attacks.robustness,
            "curves",
            {
                "x": "share",
                "across": ("cell", "measure"),
                "labels": ("", ""),
                "shape": "categories",
            },
            "The trade-off of robust means over the share of attackers: distance from the "
            "aggregated step to the mean of the honest clients' updates (median over rounds), "
            "global accuracy in the round selected on validation data, and the time of one "
            "aggregation (median over rounds; it depends on the machine). Each for the median over "
            "the attacks, and for the attack that is worst for the rule at that share. Means over "
            "seeds.",
            "No run of this experiment was attacked.",
        ),
        "stragglers": Plot(
            costs.accuracy_over_time,
            "curves",
            {
                "x": "seconds",
                "line": "scenario",
                "across": ("method",),
                "down": "metric",
                "labels": ("simulated seconds", "%"),
                "shape": "steps",
            },
            "Global accuracy and personal accuracy against simulated seconds, a column for each "
            "method and a line for each way of dealing with slow clients: mean over seeds of the "
            "last evaluation until then. Lines go to the end of their longest run; a seed that is "
            "over by then keeps its last accuracy.",
            "No run of this experiment kept simulated time.",
        ),
        "label_noise": Plot(
            clients.credit_points,
            "scatter",
            {"across": ("cell", "method", "credit", "yardstick"), "named": ("yardstick", "credit")},
            "The value that methods see in clients whose labels are partly wrong; a point is a "
            "client at the lowest seed. The client's weight, averaged over the rounds (1: equal), "
            "and other credits that the method gives, against the share of wrong labels and, where "
            "it was computed, against the exact Shapley value in the last round. ρ is Spearman's "
            "correlation within a run, mean over all seeds.",
            "No client of this experiment has label noise.",
        ),
        "drift": Plot(
            clients.trajectories,
            "paths",
            {"across": ("cell", "method")},
            "Two clients' way through parameter space and the aggregates, measured in one run "
            "(the lowest seed) and drawn in the plane of the two first principal components of "
            "all its models, on one scale for all panels; the title says how much of their "
            "variance lies in it. Thin lines are local training, dots where a client ends, "
            "diamonds the server's model after each round, crosses where clients begin.",
            "No run of this experiment kept its path.",
            of_training=False,
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

    A figure without rows is a sentence that says why; its sidecar has no numbers.

    Args:
        summary_dir: The folder of a summary or record.
        name: A figure of ``FIGURES``.
        output_stem: The path of the files without suffix.
        partitions: Partition files, for a figure that needs them.

    Raises:
        ValueError: The name is unknown, or the figure needs partitions and there are none.
    """
    plot = known_figure(name)
    files = [Path(path) for path in partitions] if plot.needs_partitions else []
    if plot.needs_partitions and not files:
        raise ValueError(f"figure '{name}' needs partition files: name them with --partitions")
    from fedsdg.analysis.plots.style import put_above, styled

    summary = Summary(summary_dir)
    with styled(summary.roles):
        frame = plot.frame(summary, files)
        assert frame is not None
        figure = plot.drawn(frame)
        if label := plot.label(summary, frame):
            put_above(figure, label)
        facts = figure_facts(name, summary, None if files else frame)
        return save_figure(figure, output_stem, facts, (*summary.inputs, *files))


def figure_facts(name: str, summary: Summary, frame: pd.DataFrame | None) -> dict[str, Any]:
    """Return the facts of a figure for its sidecar, as far as they need no drawing.

    Args:
        name: A figure of ``FIGURES``.
        summary: The experiment.
        frame: The result of ``Plot.frame`` without partition files.

    Returns:
        figure, experiment, caption, and the ``numbers`` drawn.
    """
    from fedsdg.analysis.plots.style import coloured

    plot, who = known_figure(name), summary.roles
    facts: dict[str, Any] = {"figure": name, "experiment": summary.experiment}
    if frame is not None and frame.empty:
        return {**facts, "caption": plot.empty, "numbers": []}
    words = {"subject": method_title(who.subject), "coloured": coloured(who)}
    caption = plot.caption.format_map({**words, "intervals": _intervals(frame)})
    caption += f" {hyperparameters(summary.runs)}"
    if label := plot.label(summary, frame):
        caption += f" Shown is what was {label}."
    if frame is None:
        return {**facts, "caption": caption}
    from fedsdg.analysis.frames import records

    numbers = [
        {name: printed(x) if isinstance(x, float) else x for name, x in row.items()}
        for row in records(frame)
    ]
    return {**facts, "caption": caption, "numbers": numbers}


def _intervals(frame: pd.DataFrame | None) -> str:
    """Say which intervals there are."""
    if frame is None or "n" not in frame or frame["n"].max() < SHOWN_FROM:
        return "there are no intervals, for no value has five seeds"
    return "bars are 95 % Student-t intervals, from five seeds on"


def known_figure(name: str) -> Plot:
    """The figure of this name; ``ValueError`` with the closest name where there is none."""
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}{hint(name, FIGURES)}")
    return FIGURES[name]


def save_figure(
    figure: Figure, output_stem: str | Path, facts: Mapping[str, Any], inputs: Sequence[Path]
) -> list[Path]:
    """Write a figure in its formats, in the current style, and its sidecar; return the paths.

    Args:
        figure: The figure.
        output_stem: The path of the files without suffix.
        facts: The content of the sidecar without the hashes of inputs and sources.
        inputs: The files that the figure was made from.
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
        "source_sha256": source_hash("analysis", "files"),
        "version": __version__,
    }
    write_json(sidecar, {**facts, **made_from})
    return [*written, sidecar]


def _shown(path: Path) -> str:
    """The path from the working folder where it lies below it, so that checkouts agree."""
    relative = Path(os.path.relpath(path))
    return path.as_posix() if relative.parts[:1] == ("..",) else relative.as_posix()
