"""The claims of ``claims.yaml``, checked against the published grids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsdg.analysis.grids import Grid
from fedsdg.analysis.judge import REFUTED, SUPPORTED, Threshold
from fedsdg.analysis.measures import MEASURES
from fedsdg.files import hint
from fedsdg.files.strict_yaml import read_yaml

#: Required of every entry.
_TEXTS = ("id", "source", "origin", "section", "sentence")
SPECIFICATION, HYPOTHESIS, POST_HOC = "specification", "hypothesis", "post hoc"
#: Origins of claims: a specification; a hypothesis of ours, written before its runs; post hoc,
#: written after its quantity could be read somewhere.
ORIGINS = (SPECIFICATION, HYPOTHESIS, POST_HOC)
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
#: Kind of an entry → its required keys, and those that it may have.
_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (
        ("experiment", "cell", "method", "measure", "threshold"),
        ("dataset", "arguments", "minus", "over"),
    ),
    "cells": (("cells", "method", "measure", "threshold"), ("dataset", "arguments")),
    "needs": (("needs",), ("experiment",)),
    "proof": (("proof", "verdict"), ()),
}


@dataclass(frozen=True)
class Claim:
    """One entry of ``claims.yaml``.

    Of the three kinds of entry one is measured (``experiment`` and what belongs to it), one rests
    on a test of this repository (``proof`` and ``verdict``), and one is open (``needs``).
    ``minus`` and ``over`` change some of the arguments, or ``experiment``, ``cell``, ``method`` or
    ``dataset``; the effect is then a difference or a ratio paired over seeds. With several methods
    there the threshold holds against each. Experiments with several data sets need ``dataset``.
    ``cells``, pairs of an experiment and a cell, stand in place of both where the claim is that the
    threshold holds in each of them.

    ``origin`` is one of ``ORIGINS``; "post hoc" entries say in ``seen_in`` in which experiment or
    commit their quantity could be read before. The experiment of a hypothesis need not exist yet.
    """

    id: str
    source: str
    section: str
    sentence: str
    experiment: str | None = None
    cell: str = ""
    cells: tuple[tuple[str, str], ...] = ()
    method: str = ""
    dataset: str | None = None
    measure: str = ""
    threshold: Threshold | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    minus: Mapping[str, Any] | None = None
    over: Mapping[str, Any] | None = None
    needs: str | None = None
    proof: str | None = None
    verdict: str | None = None
    note: str | None = None
    origin: str = ""
    seen_in: str = ""

    @property
    def parts(self) -> tuple[Claim, ...]:
        """The claim about each of its cells; itself where it names one, none without a number."""
        if self.cells:
            return tuple(
                replace(self, experiment=experiment, cell=cell, cells=())
                for experiment, cell in self.cells
            )
        return (self,) if self.experiment is not None else ()

    @property
    def rivals(self) -> tuple[Claim, ...]:
        """What it is compared with: itself but for what changes, once for each method named."""
        changes: dict[str, Any] = {**(self.minus or {}), **(self.over or {})}
        if not changes:
            return ()
        if changes.get("experiment", self.experiment) != self.experiment:
            changes.setdefault("dataset", None)  # Another experiment has data of its own.
        place: dict[str, Any] = {
            name: changes.pop(name)
            for name in ("experiment", "cell", "method", "dataset")
            if name in changes
        }
        methods = place.pop("method", self.method)
        place |= {"arguments": {**self.arguments, **changes}, "minus": None, "over": None}
        named = [methods] if isinstance(methods, str) else methods
        return tuple(replace(self, **place, method=method) for method in named)

    @property
    def sides(self) -> tuple[Claim, ...]:
        """Itself and its rivals, in each of its cells."""
        return tuple(side for part in self.parts for side in (part, *part.rivals))

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments that it names, in their order."""
        return tuple(dict.fromkeys(str(side.experiment) for side in self.sides))

    @property
    def unit(self) -> str:
        """The unit printed behind the effect."""
        unit = MEASURES[self.measure].unit
        if self.over is not None:
            return "times"
        return "points" if self.minus is not None and unit == "%" else unit


def read_claims(file: str | Path, grids: Mapping[str, Grid]) -> tuple[Claim, ...]:
    """The entries of ``claims.yaml``, checked against the published grids.

    Args:
        file: A YAML file with the list of entries, at the top or under ``claims``.
        grids: Experiment → its grid, as ``published_grids`` returns them.

    Returns:
        The claims in the order of the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: There is no list of claims, an entry is wrong, or two have the same id. The
            message is one sentence that names the entry and the remedy.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}; name the file of the claims with --claims")
    content = read_yaml(path)
    if isinstance(content, Mapping):
        content = content.get("claims")
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path} holds no list of claims")
    claims = tuple(_claim(given, number, grids) for number, given in enumerate(content, start=1))
    for name, times in Counter(claim.id for claim in claims).items():
        if times > 1:
            raise ValueError(f"{path}: {times} claims have the id {name!r}; rename all but one")
    return claims


def _claim(given: Any, number: int, grids: Mapping[str, Grid]) -> Claim:
    if not isinstance(given, Mapping) or not isinstance(given.get("id"), str):
        raise ValueError(f"claim {number} has no id; give it one")
    where = f"claim {given['id']}"
    kind = "proof" if "proof" in given else "cells" if "cells" in given else ""
    if not kind and given.get("experiment") is None:
        kind = "needs"
    required, optional = _KEYS[kind]
    for key in (*_TEXTS, *required):
        if given.get(key) in (None, ""):
            what = ": what it would take to test it, or name an experiment" * (key == "needs")
            raise ValueError(f"{where} lacks {key!r}; add it{what}")
    allowed = (*_TEXTS, *required, *optional, "note", "seen_in")
    for key in given:
        if key not in allowed:
            raise ValueError(f"{where} has an unknown key {key!r}{hint(key, allowed)}")
    read: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(("arguments", "minus", "over"), dict),
        "threshold": lambda value: Threshold.read(value, f"{where}: the threshold"),
        "cells": lambda value: _cells(value, where),
    }
    stated = {key: value for key, value in given.items() if value not in (None, "")}
    claim = Claim(**{key: read.get(key, _text)(value) for key, value in stated.items()})
    _check_origin(claim, where, grids)
    if claim.proof is not None and claim.verdict not in (SUPPORTED, REFUTED):
        raise ValueError(
            f"{where}: the verdict of a proof is {claim.verdict!r}; write {SUPPORTED} or {REFUTED}"
        )
    if claim.threshold is not None:
        _check(claim, where, grids)
    return claim


def _text(value: Any) -> str:
    return str(value).strip()


def _cells(given: Any, where: str) -> tuple[tuple[str, str], ...]:
    """Pairs of an experiment and a cell, from a list of "experiment:cell"."""
    named = given if isinstance(given, list) else [given]
    pairs = [str(one).partition(":") for one in named]
    if given is not named or not all(experiment and cell for experiment, _, cell in pairs):
        raise ValueError(
            f"{where}: 'cells' is {given!r}; write a list of experiment:cell, as "
            "[cross-needs:iid@half]"
        )
    if twice := [one for one, times in Counter(map(str, named)).items() if times > 1]:
        raise ValueError(f"{where} names the cell {twice[0]!r} twice; name each once")
    return tuple((experiment, cell) for experiment, _, cell in pairs)


def _check_origin(claim: Claim, where: str, grids: Mapping[str, Grid]) -> None:
    """Raise ``ValueError`` for an unknown origin, and where ``seen_in`` does not fit it."""
    origin, seen_in = claim.origin, claim.seen_in
    if origin not in ORIGINS:
        raise ValueError(
            f"{where}: the origin is {origin!r}, but must be one of {', '.join(ORIGINS)}"
            f"{hint(origin, ORIGINS)}"
        )
    if (origin == POST_HOC) != bool(seen_in):
        raise ValueError(
            f"{where} has 'seen_in', but is not post hoc; remove it, or say so"
            if seen_in
            else f"{where} is post hoc, but lacks 'seen_in'; name the experiment or the commit "
            "where its quantity could be read before"
        )
    if seen_in and seen_in not in grids and not _COMMIT.fullmatch(seen_in):
        raise ValueError(
            f"{where}: seen_in is {seen_in!r}, which is no experiment and no commit"
            f"{hint(seen_in, grids)}"
        )


def _check(claim: Claim, where: str, grids: Mapping[str, Grid]) -> None:
    """Raise unless the experiments, cells, rows, the measure and its options exist."""
    if claim.minus is not None and claim.over is not None:
        raise ValueError(f"{where} has both 'minus' and 'over'; remove one")
    for experiment in claim.experiments:
        if experiment not in grids and claim.origin != HYPOTHESIS:
            raise ValueError(
                f"{where} names the unknown experiment {experiment!r}; set it to null and say what "
                f"it needs, or correct it{hint(experiment, grids)}"
            )
    if claim.measure not in MEASURES:
        raise ValueError(
            f"{where} names the unknown measure {claim.measure!r}{hint(claim.measure, MEASURES)}"
        )
    for side in claim.sides:
        if len(side.rivals) > 1 and (claim.threshold is None or claim.threshold.high is not None):
            raise ValueError(
                f"{where}: against several methods the threshold is {{above: x}}, which must hold "
                "for each of them; name one method"
            )
        if side.experiment in grids:
            _check_place(where, grids[str(side.experiment)], side)
        _check_arguments(where, side)


def _check_arguments(where: str, side: Claim) -> None:
    """Raise unless the measure takes these arguments, and has those that it needs."""
    measure = MEASURES[side.measure]
    for name, value in side.arguments.items():
        if name not in measure.options:
            raise ValueError(
                f"{where}: the measure {side.measure!r} has no argument {name!r}; it takes "
                f"{', '.join(measure.options) or 'none'}"
            )
        choices = measure.options[name]
        if choices is not None and value not in choices:
            raise ValueError(
                f"{where}: the argument {name!r} is {value!r}, but must be one of "
                f"{', '.join(choices)}"
            )
    if lacking := [name for name in measure.needs if name not in side.arguments]:
        raise ValueError(f"{where}: the measure {side.measure!r} needs the argument {lacking[0]!r}")


def _check_place(where: str, grid: Grid, side: Claim) -> None:
    """Raise unless the experiment has this cell, this row and this data set."""
    dataset = side.dataset
    if dataset is None and len(grid.datasets) > 1:
        raise ValueError(
            f"{where}: {grid.experiment} has the data sets {', '.join(grid.datasets)}; name one "
            f"with 'dataset'"
        )
    if dataset is not None and dataset not in grid.datasets:
        raise ValueError(
            f"{where}: {grid.experiment} has no data set {dataset!r}{hint(dataset, grid.datasets)}"
        )
    if side.cell not in grid.cells:
        raise ValueError(
            f"{where}: {grid.experiment} has no cell {side.cell!r}; its cells are "
            f"{', '.join(grid.cells)}"
        )
    if side.method not in grid.rows:
        raise ValueError(
            f"{where}: {grid.experiment} has no row {side.method!r}{hint(side.method, grid.rows)}"
        )
