"""Whether training had settled when it ended: only then is a comparison a result.

The last quarter of the rounds (round > 3R/4) is compared with the quarter before it
(R/2 < round ≤ 3R/4), each by the mean of its evaluations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from fedsdg.analysis.frames import groups
from fedsdg.analysis.names import method_title
from fedsdg.analysis.summary import Cell, Summary

#: Evaluations that either quarter must hold.
EVALUATIONS = 3
#: Below this, accuracies (shares of 1) and gates count as settled.
ACCURACY, GATES = 0.01, 0.02

SETTLED = "settled"
BEFORE = "before convergence"
UNJUDGED = "cannot be judged"

_RUN = ["dataset", "clients", "skew", "method", "seed"]
_ACCURACIES = ("val_accuracy", "global_val_accuracy")
_NAMED = 3  # methods that a label names; of more it says how many they are


@dataclass(frozen=True)
class Horizon:
    """How far a method of one cell was from where it stood a quarter of the rounds before.

    ``val_accuracy`` (personal, shares of 1), ``global_val_accuracy`` (θ_g alone) and ``gates``
    (mean |Δm| over clients and gates) are absolute changes of means over ``seeds``; None where the
    records or the method have no such number. ``evaluations`` is the smaller number of the two
    quarters.
    """

    cell: Cell
    method: str
    rounds: int
    seeds: int
    evaluations: int
    val_accuracy: float | None
    global_val_accuracy: float | None
    gates: float | None

    @property
    def verdict(self) -> str:
        """``SETTLED``, ``BEFORE`` or ``UNJUDGED`` (too few evaluations, or none on validation)."""
        if self.evaluations < EVALUATIONS or self.val_accuracy is None:
            return UNJUDGED
        changes = (
            (self.val_accuracy, ACCURACY),
            (self.global_val_accuracy, ACCURACY),
            (self.gates, GATES),
        )
        moved = any(change is not None and not change < most for change, most in changes)
        return BEFORE if moved else SETTLED

    @property
    def phrase(self) -> str:
        """What titles and captions say; nothing of what has settled."""
        phrases = {
            SETTLED: "",
            BEFORE: f"before convergence, round {self.rounds}",
            UNJUDGED: f"before convergence or not judged, round {self.rounds}",
        }
        return phrases[self.verdict]


@lru_cache(maxsize=8)
def horizons(summary: Summary) -> tuple[Horizon, ...]:
    """One ``Horizon`` for each cell and method with a run that is ok, in the summary's order."""
    rounds = summary.frame(
        "rounds", [*_RUN, "round", "evaluated"], list(_ACCURACIES), pc.field("evaluated")
    )
    lengths = {
        tuple(run[name] for name in _RUN): run["rounds"]
        for run in summary.runs
        if run["status"] == "ok" and run["rounds"]
    }
    # Of very many runs the gates of all rounds would not fit into the memory.
    late = pc.field("round") > min(lengths.values(), default=0) // 2
    gates = summary.frame(
        "clients",
        [*_RUN, "round", "client", "gates"],
        where=late & pc.field("gates").is_valid(),
    )
    of_gates = dict(groups(gates, *_RUN))
    judged: dict[tuple[str, int, str, str], list[_Run]] = {}
    for key, part in groups(rounds, *_RUN):
        if key in lengths:
            run = _run(part, of_gates.get(key), lengths[key])
            judged.setdefault(key[:4], []).append(run)
    return tuple(
        _horizon(cell, method, judged[place])
        for cell in summary.cells()
        for method in summary.methods(cell.setting)
        if (place := (cell.setting.dataset, cell.setting.clients, cell.skew, method)) in judged
    )


@dataclass(frozen=True)
class _Run:
    """Changes of one run; None where it has no number in one of the quarters."""

    rounds: int
    evaluations: int
    val_accuracy: float | None
    global_val_accuracy: float | None
    gates: float | None


def quarters(rounds: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the rounds in the last quarter of ``length`` rounds and in the one before it."""
    last = 4 * rounds > 3 * length
    return last, ~last & (2 * rounds > length)


def _run(evaluated: pd.DataFrame, gates: pd.DataFrame | None, length: int) -> _Run:
    rounds = evaluated["round"].to_numpy()
    last, before = quarters(rounds, length)
    changes = {}
    for name in _ACCURACIES:
        values = evaluated[name].to_numpy(dtype=float)
        end, start = _mean(values[last]), _mean(values[before])
        changes[name] = None if end is None or start is None else end - start
    if gates is not None:
        gates = gates[gates["round"].isin(rounds)]
    return _Run(
        length,
        int(min(last.sum(), before.sum())),
        changes["val_accuracy"],
        changes["global_val_accuracy"],
        None if gates is None else _gates(gates, length),
    )


def _mean(values: np.ndarray) -> float | None:
    """Over the values that are numbers; None where there are none."""
    known = ~np.isnan(values)
    return float(np.where(known, values, 0).sum() / known.sum()) if known.any() else None


def _gates(gates: pd.DataFrame, length: int) -> float | None:
    """Mean over clients and their gates of |mean of the last quarter − mean of that before|."""
    # Columns by themselves: a frame for each client takes ten times as long.
    clients, values = gates["client"].to_numpy(), gates["gates"].to_numpy()
    last, before = quarters(gates["round"].to_numpy(), length)
    moved = []
    for client in dict.fromkeys(clients.tolist()):
        parts = [(clients == client) & part for part in (last, before)]
        if all(part.any() for part in parts):
            ends = [np.stack(values[part]).mean(axis=0) for part in parts]
            moved.append(np.abs(ends[0] - ends[1]).mean())
    return float(np.mean(moved)) if moved else None


def _horizon(cell: Cell, method: str, runs: Sequence[_Run]) -> Horizon:
    return Horizon(
        cell=cell,
        method=method,
        rounds=max(run.rounds for run in runs),
        seeds=len(runs),
        evaluations=min(run.evaluations for run in runs),
        val_accuracy=_over_seeds(run.val_accuracy for run in runs),
        global_val_accuracy=_over_seeds(run.global_val_accuracy for run in runs),
        gates=_over_seeds(run.gates for run in runs),
    )


def _over_seeds(changes: Iterable[float | None]) -> float | None:
    known = [change for change in changes if change is not None]
    return abs(float(np.mean(known))) if known else None


def horizon_label(
    summary: Summary, cell: Cell | None = None, methods: Iterable[str] | None = None
) -> str:
    """What the title of a figure or table must say; empty where all that it shows has settled.

    "before convergence, round 20" where none of the methods shown has settled, in a cell or in
    all cells; where some have, the others are named, or counted where they are many:
    "before convergence, round 60: Krum, FedSGD". "before convergence or not judged" stands where
    there are too few evaluations to tell.
    """
    shown = None if methods is None else set(methods)
    everyone = [
        one
        for one in horizons(summary)
        if (cell is None or one.cell == cell) and (shown is None or one.method in shown)
    ]
    parts = []
    by_phrase: dict[str, list[Horizon]] = {}
    for one in everyone:
        by_phrase.setdefault(one.phrase, []).append(one)
    for phrase, found in by_phrase.items():
        if not phrase:
            continue
        if len(found) == len(everyone):
            return phrase
        names = list(dict.fromkeys(one.method for one in found))
        of_all = len({one.method for one in everyone})
        if len(names) <= _NAMED:
            parts.append(f"{phrase}: {', '.join(map(method_title, names))}")
        else:
            parts.append(f"{phrase}: {len(names)} of {of_all} methods")
    return "; ".join(parts)


def horizon_notes(summary: Summary) -> tuple[str, ...]:
    """The notes of a table: which methods are shown before convergence, and where."""
    everyone = horizons(summary)
    notes = []
    for phrase in dict.fromkeys(one.phrase for one in everyone if one.phrase):
        found = [one for one in everyone if one.phrase == phrase]
        text = phrase[0].upper() + phrase[1:]
        if len(found) == len(everyone):
            notes.append(f"{text}: all methods.")
            continue
        alike: dict[str, list[str]] = {}
        for method in dict.fromkeys(one.method for one in found):
            cells = [one.cell for one in found if one.method == method]
            everywhere = len(cells) == sum(one.method == method for one in everyone)
            where = "" if everywhere else f" ({'; '.join(map(summary.cell_name, cells))})"
            alike.setdefault(where, []).append(method_title(method))
        listed = "; ".join(f"{', '.join(names)}{where}" for where, names in alike.items())
        notes.append(f"{text}: {listed}.")
    return tuple(notes)
