"""Clients that attack or have wrong labels: loss of accuracy, detection, and weights."""

from __future__ import annotations

from fedsdg.analysis.formatting import few_seeds
from fedsdg.analysis.frames import ROW, groups, places
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import (
    Column,
    Row,
    Table,
    number,
    pivot,
    ranked,
    share,
    table_of_means,
    table_of_views,
)
from fedsdg.analysis.views.attacks import accuracy_by_share, detections
from fedsdg.analysis.views.clients import YARDSTICKS, correlations, credits

_BYZANTINE = (
    "Global accuracy (%), {round}, by attack and share of the clients that attack: mean "
    "± half-width of the 95 % Student-t interval over seeds; bold: highest mean of a column. "
    "Without attackers a run is the same under every attack"
)
_DETECTION = (
    "Whom a method blocked by the end of the run, and how many honest clients among them wrongly; "
    "precision is the share of attackers among the blocked, recall the share of the attackers that "
    "was blocked, delay the rounds from an attacker's first upload to its blocking. Means over "
    "seeds; precision and delay over the runs in which somebody, or an attacker, was blocked"
)
_LABEL_NOISE = (
    "Correlation over clients between what a method says they are worth (means over the rounds) "
    "and their share of wrong labels, or their exact Shapley value in the last round: Spearman's ρ "
    "within a run, mean over seeds by Fisher's z [95 % interval, Student-t of z], and Pearson's in "
    "round brackets. Good is −1 for wrong labels and +1 for Shapley values"
)


def byzantine(summary: Summary) -> Table:
    """A block for each attack: methods by share of attackers."""
    view = accuracy_by_share(summary)
    blocks = []
    for where, here in places(view):
        for attack, part in groups(here, "attack"):
            columns = [
                Column(f"{100 * of:.0f} %", share, "mean (share)", {"share": of}, "attackers")
                for of in sorted(part["share"].unique())
            ]
            title = f"{where}, {attack}"
            blocks.append(pivot(title, part, {"method": "Method"}, columns, ranked(summary)))
    none = "No run of this experiment was attacked."
    return table_of_means(summary, "byzantine", _BYZANTINE, blocks, view, none)


def detection(summary: Summary) -> Table:
    """A block for each place: a row for each scenario and method that blocks clients."""
    columns = [
        Column("runs", lambda row: str(row["runs"])),
        *(number(name, name, "{:.1f}".format) for name in ("attackers", "blocked", "wrongly")),
        number("precision", "precision (%)", lambda value: f"{100 * value:.0f}"),
        number("recall", "recall (%)", lambda value: f"{100 * value:.0f}"),
        number("delay", "delay (rounds)", "{:.1f}".format),
    ]
    runs = detections(summary)
    by_method = runs.groupby(ROW, sort=False)
    numbers = [column.raw for column in columns if column.raw]
    view = by_method[numbers].mean().assign(runs=by_method.size()).reset_index()
    lines = {"scenario": "Scenario", "method": "Method"}
    blocks = [pivot(where, here, lines, columns) for where, here in places(view)]
    none = "No method of this experiment blocks clients."
    return table_of_views(summary, "detection", _DETECTION, blocks, runs, without=none)


def label_noise(summary: Summary) -> Table:
    """A block for each place: a row for each scenario, method and measure."""
    view = correlations(credits(summary))
    columns = [
        Column(title, _correlation, "spearman", {"yardstick": yardstick})
        for yardstick, title in YARDSTICKS.items()
    ]
    lines = {"method": "Method", "measure": "Measure"}
    blocks = []
    for where, here in places(view):
        for scenario, part in groups(here, "scenario"):
            title = ", ".join(text for text in (where, scenario) if text)
            blocks.append(pivot(title, part, lines, columns))
    return table_of_views(
        summary,
        "label_noise",
        _LABEL_NOISE,
        blocks,
        view,
        few_seeds(view["runs"], SHOWN_FROM),
        without="No client of this experiment has label noise.",
    )


def _correlation(row: Row) -> str:
    shown = row["runs"] >= SHOWN_FROM
    interval = f" [{row['low']:+.2f}, {row['high']:+.2f}]" if shown else ""
    return f"{row['spearman']:+.2f}{interval} ({row['pearson']:+.2f})".replace("-", "−")
