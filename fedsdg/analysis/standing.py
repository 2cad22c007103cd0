"""Rank of a new method among the rows of a record, paired over the seeds of both.

Its comparisons with all rivals, in all metrics and cells, are one family: Holm's correction runs
over them, for the tests of difference and of equivalence each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedsdg.analysis.comparisons import Comparison, Named, family
from fedsdg.analysis.horizon import STEADY, horizon_of
from fedsdg.analysis.inference import SHOWN_FROM, Interval, mean_interval
from fedsdg.analysis.names import AGREEING, DIFFERING, GLOBAL, Metric
from fedsdg.analysis.summary import Cell, Roles, Summary
from fedsdg.analysis.views.sweeps import searched


@dataclass(frozen=True)
class Line:
    """A method in one cell: what it reached, over the seeds of the newcomer.

    ``place`` counts from 1 by the mean of the headline among the methods that have all these seeds,
    None for one that lacks some. ``megabytes`` both ways and ``seconds`` are means a run; there are
    no seconds of another machine. ``steady``: training had come to rest, by the headline.
    """

    method: str
    place: int | None
    accuracies: dict[Metric, Interval]
    megabytes: float | None
    seconds: float | None
    steady: bool


@dataclass(frozen=True)
class Standing:
    """A newcomer among ``rivals``; everything else follows from the summary of both.

    ``elsewhere``: the runs of the rivals were made on another machine.
    """

    summary: Summary
    newcomer: str
    rivals: tuple[str, ...]
    elsewhere: bool = False

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics compared: the headline, and those of clients that agree and that differ."""
        groups = [m for m in (AGREEING, DIFFERING) if m in self.summary.metrics]
        return (self.summary.personal, *groups)

    @cached_property
    def shown(self) -> tuple[Metric, ...]:
        """The metrics shown: those compared, the worst decile and the shared model."""
        return (*self.metrics, self.summary.worst, GLOBAL)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells in which the newcomer was run."""
        ran = [cell for cell in self.summary.cells() if self._of(cell, self.metrics[0])]
        return tuple(ran)

    def seeds(self, cell: Cell) -> frozenset[int]:
        """The seeds of the newcomer there."""
        return frozenset(self._of(cell, self.metrics[0]))

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The newcomer minus each rival, in each metric and cell, adjusted for one another."""
        members = [
            Named(rival, self.newcomer, (rival,), metric, cell)
            for cell in self.cells
            for metric in self.metrics
            for rival in self.rivals
            if rival in self.summary.reported_values(cell, metric.key)
        ]
        return tuple(family(self.summary, members))

    def verdict(self, one: Comparison) -> str:
        """Return the verdict of five seeds or more: higher, lower, equivalent, undecided."""
        return one.decided(SHOWN_FROM)

    def lines(self, cell: Cell) -> list[Line]:
        """The newcomer and its rivals there, the best first; those that lack a seed last."""
        seeds = self.seeds(cell)
        values = {
            metric: self.summary.reported_values(cell, metric.key)
            for metric in dict.fromkeys(self.shown)
        }
        wall = self._seconds(cell)
        headline = values[self.metrics[0]]
        methods = [m for m in (self.newcomer, *self.rivals) if m in headline]
        whole = [m for m in methods if seeds <= headline[m].keys()]
        means = {m: mean_interval([headline[m][s] for s in sorted(seeds)]).mean for m in whole}
        ceiling = self.summary.roles.is_ceiling
        ranked = sorted((m for m in whole if not ceiling(m)), key=lambda m: -means[m])
        places = {method: 1 + ranked.index(method) for method in ranked}
        runs = {(run["method"], run["seed"]): run for run in self.summary.at(cell)}

        def line(method: str) -> Line:
            shared = sorted(seeds & headline[method].keys())
            sent = [runs[method, seed] for seed in shared]
            megabytes = [(run["bytes_up"] + run["bytes_down"]) / 1e6 for run in sent]
            here = method == self.newcomer or not self.elsewhere
            times = [wall[method, s] for s in shared if here and (method, s) in wall]
            return Line(
                method,
                places.get(method),
                {
                    metric: mean_interval([own[method][seed] for seed in shared])
                    for metric, own in values.items()
                    if set(shared) <= own.get(method, {}).keys()
                },
                mean_interval(megabytes).mean if megabytes else None,
                mean_interval(times).mean if times else None,
                horizon_of(self.summary, cell, method) == STEADY,
            )

        lines = [line(method) for method in methods if seeds & headline[method].keys()]
        last = len(lines)
        return sorted(lines, key=lambda one: (one.place or last + 1, one.method))

    @cached_property
    def tuned(self) -> bool:
        """Whether the newcomer's hyper-parameters come from a search, as those of the record do."""
        return self.newcomer in dict(searched(self.summary))

    def _of(self, cell: Cell, metric: Metric) -> dict[int, float]:
        return self.summary.reported_values(cell, metric.key).get(self.newcomer, {})

    def _seconds(self, cell: Cell) -> dict[tuple[str, int], float]:
        frame = self.summary.frame("timings").drop_duplicates(
            ["dataset", "clients", "skew", "method", "seed"]
        )
        frame = frame[cell.matches(frame)].dropna(subset=["wall_seconds"])
        keys = zip(frame["method"], frame["seed"], strict=True)
        return dict(zip(keys, frame["wall_seconds"], strict=True))


def rivals_of(methods: Sequence[str], roles: Roles) -> tuple[str, ...]:
    """The methods of a record that take part in a ranking: all but its ceiling.

    Args:
        methods: Labels of rows; their order is kept.
        roles: The roles of the record; variants of its ceiling are left out as well.
    """
    return tuple(method for method in methods if not roles.is_ceiling(method))
