"""A search in two stages, row by row: points on one seed, the best of them again on others.

What is tried next follows from the outcomes known so far and from nothing else, so a search goes on
from its file alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.experiment.config import Config
from fedsdg.experiment.method_entries import MethodConfig, settable
from fedsdg.experiment.search.found import (
    best_of,
    edges_of,
    entry_of,
    expected,
    failures,
    header_of,
    of_trial,
)
from fedsdg.experiment.search.scores import Outcome
from fedsdg.experiment.search.trials import Trial, TrialRun, trial_runs, trials_of
from fedsdg.experiment.search_space import (
    FINALISTS,
    LEAST_TRIALS,
    Axis,
    points_beyond,
    widened,
)

Outcomes = MutableMapping[tuple[Any, ...], Outcome]


@dataclass(frozen=True)
class Row:
    """What is tried of one row, as far as the outcomes known so far tell.

    ``first``: runs of the first stage by trial, on the first seed; ``beyond``: likewise those in
    the part of ``wider`` that the space lacks; ``finals``: the runs of the best trials on all
    seeds, None until they are known.
    """

    method: MethodConfig
    first: Mapping[int, Sequence[TrialRun]]
    wider: Mapping[str, Axis] | None = None
    beyond: Mapping[int, Sequence[TrialRun]] | None = None
    finals: Mapping[int, Sequence[TrialRun]] | None = None

    def missing(self, outcomes: Mapping[tuple[Any, ...], Outcome]) -> list[TrialRun]:
        """Runs that are planned and have no outcome, in the order in which they are done."""
        groups = [
            *self.first.values(),
            *(self.beyond or {}).values(),
            *(self.finals or {}).values(),
        ]
        return [run for group in groups for run in group if run.key not in outcomes]


class TwoStageSearch:
    """The rows of a search, what is left to do of each, and what the file says of them."""

    def __init__(
        self, config: Config, store: Path, backbone: Path | None, outcomes: Outcomes
    ) -> None:
        """Take a config that is ``resolved``, and the outcomes that are known, which are kept."""
        self._config, self._store, self._backbone = config, store, backbone
        self._outcomes = outcomes
        self._trials: dict[str, list[Trial]] = {}
        self._made: dict[tuple[str, int, tuple[int, ...]], list[TrialRun]] = {}
        for trial in trials_of(config):
            self._trials.setdefault(trial.method.label, []).append(trial)
        self._found = {label: self._described(self._row(label)) for label in self._labels()}

    def batches(self, only: Sequence[str]) -> Iterator[list[TrialRun]]:
        """Yield runs to be done, row by row; a row whose runs get no outcome is left."""
        for label in self._labels():
            if only and label not in only:
                continue
            while missing := self._row(label).missing(self._outcomes):
                yield missing
                if any(run.key not in self._outcomes for run in missing):
                    break

    def left(self, only: Sequence[str]) -> int:
        """Runs that are known to be left, and those of the second stage."""
        finals = FINALISTS * (len(self._config.search.seeds) - 1)
        count = 0
        for label in self._labels():
            if not only or label in only:
                row = self._row(label)
                count += len(row.missing(self._outcomes))
                count += 0 if row.finals is not None else finals * len(row.first[0])
        return count

    def keep(self, run: TrialRun, outcome: Outcome) -> None:
        """Take an outcome, rounded as the file holds it, so that both lead to the same choices."""
        self._outcomes[run.key] = {**outcome, "score": round(outcome["score"], 6)}
        label = run.trial.method.label
        self._found[label] = self._described(self._row(label))

    def found(self) -> dict[str, Any]:
        """What the file holds."""
        return {**header_of(self._config), "methods": dict(self._found)}

    def _labels(self) -> list[str]:
        return [one.label for one in self._config.methods if one.label in self._trials]

    def _runs(self, trials: Sequence[Trial], seeds: Sequence[int]) -> dict[int, list[TrialRun]]:
        """The runs of each trial; made once, since a row is planned anew after every outcome."""
        runs = {}
        for trial in trials:
            key = (trial.method.label, trial.number, tuple(seeds))
            if key not in self._made:
                made = trial_runs(self._config, [trial], self._store, self._backbone, seeds)
                self._made[key] = list(made)
            runs[trial.number] = self._made[key]
        return runs

    def _scored(self, runs: Mapping[int, Sequence[TrialRun]]) -> list[dict[str, Any]]:
        return [of_trial(group, self._outcomes) for group in runs.values()]

    def _row(self, label: str) -> Row:
        """Plan a row: the second stage, and what lies beyond an edge, follow from outcomes."""
        trials, seeds = self._trials[label], self._config.search.seeds
        method, space = self._config.method(label), self._config.search.space[label]
        first = self._runs(trials, seeds[:1])
        scored = self._scored(first)
        best = best_of(scored)
        if best is None or any(trial["score"] is None for trial in scored):
            return Row(method, first)
        known = settable(method.row, self._config.plugins)
        wider = widened(space, best["parameters"], known)
        beyond = None
        if wider != space:
            values = points_beyond(space, wider, min(seeds), label)
            further = [
                Trial(method.with_values(one), number, one)
                for number, one in enumerate(values, len(trials))
            ]
            trials = [*trials, *further]
            beyond = self._runs(further, seeds[:1])
            scored += self._scored(beyond)
            if any(trial["score"] is None for trial in scored):
                return Row(method, first, wider, beyond)
        return Row(method, first, wider, beyond, self._runs(_best(trials, scored), seeds))

    def _described(self, row: Row) -> dict[str, Any]:
        """What the file says of a row."""
        space = self._config.search.space[row.method.label]
        trials = self._scored(row.first)
        further = self._scored(row.beyond or {})
        finalists = self._scored(row.finals or {})
        scored = [trial for trial in trials if trial["score"] is not None]
        over = row.finals is not None and not row.missing(self._outcomes)
        best = best_of(finalists) if over else None
        wider = row.wider or space
        first = trials[:LEAST_TRIALS]
        grown = {name: axis.to_dict() for name, axis in wider.items() if axis != space[name]}
        return {
            "entry": entry_of(row.method),
            "space": {name: axis.to_dict() for name, axis in space.items()},
            "planned": len(trials),
            "failed": failures([t for t in (*scored, *further) if t["score"] is not None]),
            "best": best,
            "edges": edges_of(wider, best),
            # By the scores on the first seed; of the best of 12, of all, and what a stage adds.
            "best_of_12": best_of(first) if all(t["score"] is not None for t in first) else None,
            "best_of_all": best_of([*trials, *further]) if row.finals is not None else None,
            "expected_best": expected(scored),
            "trials": trials,
            "beyond": {"space": grown, "trials": further} if row.beyond is not None else None,
            "finalists": finalists,
        }


def _best(trials: Sequence[Trial], scored: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """The best trials whose points differ; of equal ones the first."""
    by_number = {trial.number: trial for trial in trials}
    chosen: list[Trial] = []
    for row in sorted(scored, key=lambda row: (-row["score"], row["number"])):
        trial = by_number[row["number"]]
        if all(trial.values != other.values for other in chosen):
            chosen.append(trial)
    return chosen[:FINALISTS]
