"""Primary comparisons: named in the config before anything is run, and alone in having verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsdg.files import hint
from fedsdg.files.records import METRICS, METRICS_OF_GROUPS
from fedsdg.parts import mapping

#: More than these, adjusted for one another, would decide nothing.
MOST = 6

#: What may be compared: shares of 1, whose margin of equivalence is one point.
ACCURACIES = tuple(
    name for name in (*METRICS, *METRICS_OF_GROUPS) if not name.endswith(("_std", "_loss"))
)

_KEYS = ("id", "subject", "rival", "metric", "cell", "dataset")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class PrimaryComparison:
    """``subject`` minus each of ``rivals`` in ``metric``, in one cell of the grid.

    ``cell`` is a skew, under a scenario as ``{skew}@{scenario}``. With several rivals the subject
    is compared with each of them, and is ahead only where it is ahead of each.
    """

    id: str
    subject: str
    rivals: tuple[str, ...]
    metric: str
    dataset: str
    clients: int
    cell: str

    def to_dict(self) -> dict[str, Any]:
        """As ``fedsdg summarise`` keeps it beside the runs."""
        return {
            "id": self.id,
            "subject": self.subject,
            "rivals": list(self.rivals),
            "metric": self.metric,
            "dataset": self.dataset,
            "clients": self.clients,
            "skew": self.cell,
        }


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
    if len(value) > MOST:
        raise ValueError(
            f"primary names {len(value)} comparisons, but at most {MOST} are adjusted for one "
            "another; leave out what is not a headline"
        )
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
    return PrimaryComparison(
        id=given["id"],
        subject=subject,
        rivals=rivals,
        metric=metric,
        dataset=_only(given, "dataset", datasets, where),
        clients=clients,
        cell=_only(given, "cell", cells, where),
    )


def _only(given: Mapping[str, Any], key: str, known: Sequence[str], where: str) -> str:
    """What is named, or the only one that there is."""
    if key not in given and len(known) > 1:
        raise ValueError(f"{where} has no {key!r}, but there are several: {', '.join(known)}")
    return _one_of(given.get(key, known[0]), known, f"{where}.{key}", key)


def _one_of(value: Any, known: Sequence[str], where: str, kind: str) -> str:
    if value not in known:
        raise ValueError(f"{where}: the config has no {kind} {value!r}{hint(str(value), known)}")
    return str(value)
