"""Primary comparisons: named in the config before anything is run, and alone in having verdicts.

An entry may also ask whether the subject is not below its rival by a margin, or whether its regret
over cells of several experiments is lower (``fedsdg.analysis.comparisons`` judges both).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsdg.experiment.config_values import SKEW, listed, parse_seeds
from fedsdg.files import hint
from fedsdg.files.records import METRICS, METRICS_OF_GROUPS
from fedsdg.parts import Declared, Range, mapping, shown

#: What may be compared: shares of 1, whose margin of equivalence is one point.
ACCURACIES = tuple(
    name for name in (*METRICS, *METRICS_OF_GROUPS) if not name.endswith(("_std", "_loss"))
)

#: What may be claimed of the subject and the rival.
KINDS = ("above", "not-below", "regret")
#: A cell of any experiment: ``cross-needs:iid@half``.
CELL = rf"[A-Za-z0-9][A-Za-z0-9._+-]*:({SKEW.pattern})(@[A-Za-z0-9][A-Za-z0-9._~-]*)?"

_KEYS = ("id", "subject", "rival", "metric", "cell", "dataset", "kind", "margin", "cells", "seeds")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class PrimaryComparison:
    """``subject`` minus each of ``rivals`` in ``metric``, in one cell of the grid.

    ``cell`` is a skew, under a scenario as ``{skew}@{scenario}``. With several rivals the subject
    is compared with each of them, and is ahead only where it is ahead of each.

    ``kind`` says what is claimed: ``above``; ``not-below`` by ``margin`` points; ``regret``: the
    points below the best row, summed over ``cells``, are fewer than the rival's (``dataset`` and
    ``cell`` are then empty). "": difference and equivalence are tested. ``seeds``: the only ones to
    be judged on; all where it is empty.
    """

    id: str
    subject: str
    rivals: tuple[str, ...]
    metric: str
    dataset: str
    clients: int
    cell: str
    kind: str = ""
    margin: float | None = None
    cells: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, as ``fedsdg summarise`` keeps them beside the runs."""
        found: dict[str, Any] = {
            "id": self.id,
            "subject": self.subject,
            "rivals": list(self.rivals),
            "metric": self.metric,
        }
        if not self.cells:
            found |= {"dataset": self.dataset, "clients": self.clients, "skew": self.cell}
        later = {
            "kind": self.kind,
            "margin": self.margin,
            "cells": list(self.cells),
            "seeds": list(self.seeds),
        }
        return found | {key: value for key, value in later.items() if value}


def parse_primary(
    value: Any,
    labels: Sequence[str],
    cells: Sequence[str],
    datasets: Sequence[str],
    clients: int,
    subject: str,
) -> tuple[PrimaryComparison, ...]:
    """Check the section ``primary``; ``ValueError`` names what is wrong with it.

    ``labels`` are those of the config's methods, ``cells`` its skews under each scenario,
    ``subject`` whoever is meant where an entry names none.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"primary is {value!r}, but must be a list of comparisons")
    found: list[PrimaryComparison] = []
    for number, entry in enumerate(value, 1):
        given = {"subject": subject, **mapping(entry, f"primary: entry {number}")}
        name = given.get("id")
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise ValueError(
                f"primary: the id of entry {number} is {name!r}, but must be made of letters, "
                "digits, '.', '_', '+' and '-'"
            )
        where = f"primary: {name}"
        if name in (one.id for one in found):
            raise ValueError(f"{where}: two comparisons have this id; give one another")
        for key in given:
            if key not in _KEYS:
                raise ValueError(f"{where} has an unknown key {key!r}{hint(key, _KEYS)}")
        found.append(_comparison(given, where, labels, cells, datasets, clients))
    return tuple(found)


def _comparison(
    given: Mapping[str, Any],
    where: str,
    labels: Sequence[str],
    cells: Sequence[str],
    datasets: Sequence[str],
    clients: int,
) -> PrimaryComparison:
    if "rival" not in given:
        raise ValueError(f"{where} has no 'rival': name a method of the config, or a list of them")
    subject = _one_of(given["subject"], labels, f"{where}.subject", "method")
    named = given["rival"] if isinstance(given["rival"], list) else [given["rival"]]
    if not named:
        raise ValueError(f"{where}.rival is an empty list; name at least one method")
    rivals = tuple(_one_of(rival, labels, f"{where}.rival", "method") for rival in named)
    if len(set(rivals)) < len(rivals) or subject in rivals:
        raise ValueError(f"{where} names a method twice; compare different methods")
    wanted = given.get("metric", "expected_accuracy")
    metric = _one_of(wanted, ACCURACIES, f"{where}.metric", "metric")
    kind, regret = given.get("kind", ""), given.get("kind") == "regret"
    if "kind" in given and kind not in KINDS:
        raise ValueError(
            f"{where}.kind is {shown(kind)}, but must be one of {', '.join(KINDS)}"
            f"{hint(str(kind), KINDS)}"
        )
    _require(given, "margin", kind == "not-below", "kind: not-below", where)
    _require(given, "cells", regret, "kind: regret", where)
    if regret and len(rivals) > 1:
        raise ValueError(f"{where}.rival names {len(rivals)} methods; name one, as its regret is")
    if misplaced := [key for key in ("cell", "dataset") if regret and key in given]:
        raise ValueError(
            f"{where} has a {misplaced[0]!r}, but a regret is summed over 'cells'; remove it"
        )
    margin = None
    if "margin" in given:
        points = Declared("margin", float, range=Range(0, 100)).check
        margin = points(given["margin"], f"{where}.margin")
        if not margin:
            raise ValueError(f"{where}.margin is 0; write kind: above, or points above 0")
    return PrimaryComparison(
        id=given["id"],
        subject=subject,
        rivals=rivals,
        metric=metric,
        dataset="" if regret else _only(given, "dataset", datasets, where),
        clients=clients,
        cell="" if regret else _only(given, "cell", cells, where),
        kind=kind,
        margin=margin,
        cells=_cells(given["cells"], f"{where}.cells") if regret else (),
        seeds=parse_seeds(given["seeds"], f"{where}.seeds") if "seeds" in given else (),
    )


def _require(given: Mapping[str, Any], key: str, wanted: bool, by: str, where: str) -> None:
    """Raise ``ValueError`` where a key is missing that is wanted, or there without need."""
    if wanted and key not in given:
        raise ValueError(f"{where} has no {key!r}, which {by} needs; add it")
    if not wanted and key in given:
        raise ValueError(f"{where} has {key!r}, which belongs to {by}; write that, or remove it")


def _cells(value: Any, where: str) -> tuple[str, ...]:
    """Cells of any experiments, which need not exist yet: their form alone is checked."""
    for cell in listed(value, where):
        if not isinstance(cell, str) or not re.fullmatch(CELL, cell):
            raise ValueError(
                f"{where} names {shown(cell)}, but must name experiment:cell, "
                "as 'cross-needs:iid@half'"
            )
    return tuple(value)


def _only(given: Mapping[str, Any], key: str, known: Sequence[str], where: str) -> str:
    """What is named, or the only one that there is."""
    if key not in given and len(known) > 1:
        raise ValueError(f"{where} has no {key!r}, but there are several: {', '.join(known)}")
    return _one_of(given.get(key, known[0]), known, f"{where}.{key}", key)


def _one_of(value: Any, known: Sequence[str], where: str, kind: str) -> str:
    if value not in known:
        raise ValueError(f"{where}: the config has no {kind} {value!r}{hint(str(value), known)}")
    return str(value)
