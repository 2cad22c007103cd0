"""A search's rows and their trials: scores, ranks, winners."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsdg.config.search import Axis
from fedsdg.experiment.points import edge, expected_best
from fedsdg.experiment.runs import Task

Outcome = float | str | None
"""Of a run: its validation accuracy, the sentence of its failure, or None if it is not done."""


@dataclass
class Trial:
    """A point of a row's space, and its runs."""

    number: int
    parameters: dict[str, Any]
    tasks: list[Task]
    outcomes: list[Outcome] = field(default_factory=list)
    "of its runs"

    @property
    def errors(self) -> list[str]:
        """The sentences of the runs that failed."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, str)]

    @property
    def score(self) -> float | None:
        """The mean over its runs, failed ones as 0; None until all are done."""
        scores = [0.0 if isinstance(one, str) else one for one in self.outcomes]
        known = [score for score in scores if score is not None]
        if not known or len(known) < len(scores):
            return None
        return round(sum(known) / len(known), 6)

    def facts(self) -> dict[str, Any]:
        """Return what the file of the search says of it."""
        return {
            "number": self.number,
            "parameters": self.parameters,
            "score": self.score,
            "errors": self.errors,
        }


@dataclass
class Row:
    """A row of the config, its space, and what was tried of it."""

    label: str
    space: dict[str, Axis]
    trials: list[Trial]
    finalists: list[Trial] = field(default_factory=list)

    def ranked(self) -> list[Trial]:
        """Return trials whose points differ, the best first; none until all are done."""
        if any(trial.score is None for trial in self.trials):
            return []
        distinct: list[Trial] = []
        for trial in sorted(self.trials, key=_best_first):
            if all(trial.parameters != other.parameters for other in distinct):
                distinct.append(trial)
        return distinct

    @property
    def winner(self) -> Trial | None:
        """The best finalist; of equal ones the first trial; None until all are done."""
        if not self.finalists or any(trial.score is None for trial in self.finalists):
            return None
        return min(self.finalists, key=_best_first)

    def facts(self) -> dict[str, Any]:
        """Return what the file of the search says of it."""
        winner = self.winner
        scores = [trial.score for trial in self.trials if trial.score is not None]
        return {
            "space": {name: _plain(axis) for name, axis in self.space.items()},
            "planned": len(self.trials),
            "failed": sum(bool(trial.errors) for trial in self.trials),
            "best": winner and {"trial": winner.number, **winner.facts()},
            "edges": {} if winner is None else self.edges(winner.parameters),
            "expected_best": [round(score, 6) for score in expected_best(scores)],
            "trials": [trial.facts() for trial in self.trials],
            "finalists": [trial.facts() for trial in self.finalists],
        }

    def edges(self, parameters: Mapping[str, Any]) -> dict[str, str]:
        """Return parameter → `low` or `high` where a point lies at an edge of its range."""
        sides = {name: edge(axis, parameters[name]) for name, axis in self.space.items()}
        return {name: side for name, side in sides.items() if side is not None}


def _best_first(trial: Trial) -> tuple[float, int]:
    return (-(trial.score or 0.0), trial.number)


def _plain(axis: Axis) -> Any:
    return list(axis) if isinstance(axis, tuple) else vars(axis)
