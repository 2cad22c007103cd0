"""Claims: sentences with a test, declared in claims.yaml and judged by one rule.

    gates-follow-need:
      claim: Clients in conflict open their gates further than clients that agree.
      origin: specification 002      # or primary, hypothesis, post hoc
      metric: gate_b - gate_a        # a metric, or arithmetic of metrics of the same run
      of: needs/iid@half/fedsdg
      minus: fedavg                  # or over; optional: the other side, shortened to what differs
      holds: "> 0"                   # or "< x", "x..y", "x ± y"

A list under ``of``, ``minus`` or ``over``: the claim must hold for each. Keys joined by `` + ``:
the sum of their numbers, seed by seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.layout import signed
from fedsdg.analysis.metrics import METRICS, values
from fedsdg.analysis.records import record
from fedsdg.analysis.statistics import LEAST_SEEDS, interval
from fedsdg.errors import require_one_of
from fedsdg.files import git, read_json
from fedsdg.files.yaml_text import read_yaml, read_yaml_file

#: Printed wherever a verdict stands.
RULE = (
    "A claim is *supported* or *refuted*, from five seeds on, if the 99 % Student-t interval "
    "(paired by seed where rows are compared) lies inside or outside what is claimed, at the "
    "selected round and at the end of training alike; otherwise it is *undecided*. Numbers with "
    "one reading (gates, weights, penalties) are judged by it, counted ones by any seed. Against "
    "several rivals: supported if it is against each, refuted if against one. What was looked for "
    "afterwards (†) has an interval and no verdict."
)
OPEN = "open"
WORDS = ("supported", "refuted", "undecided", OPEN, "no verdict")
POST_HOC = "post hoc"
_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_NAME = r"\b[a-z_]\w*"
_TERM = rf"(?:{_NAME}|\d+(?:\.\d+)?)"
_KEY = r"[^/\s]+/[^/\s]+/[^/\s]+"
_SHORTENED = r"[^/\s]+(/[^/\s]+){0,2}"
#: Field of a claim → the pattern of its text.
_FIELDS = {
    "claim": r".*\S.*",
    "origin": rf"specification \d{{3}}|primary|hypothesis|{POST_HOC}",
    "metric": rf"(?=.*[a-z]){_TERM}(\s*[-+*/]\s*{_TERM})*",
    "of": rf"{_KEY}( \+ {_KEY})*",
    "minus": _SHORTENED,
    "over": _SHORTENED,
    "holds": rf"[<>]\s*{_NUMBER}|{_NUMBER}\s*(\.\.|±)\s*{_NUMBER}",
}
#: The same in words.
_ALLOWED = {
    "claim": "a sentence",
    "origin": f"specification NNN, primary, hypothesis or {POST_HOC}",
    "metric": "a metric, or arithmetic of metrics such as gate_b - gate_a",
    "of": "experiment/cell/method, or a list of them",
    "minus": "what differs of experiment/cell/method, or a list of it",
    "over": "what differs of experiment/cell/method, or a list of it",
    "holds": "'> x', '< x', 'x..y' or 'x ± y'",
}
_REQUIRED = ("claim", "origin", "metric", "of", "holds")
_SIDES = ("of", "minus", "over")
#: What identifies a comparison of a claim, and one reading of it.
_COMPARISON = ["of", "against"]
_TEST = [*_COMPARISON, "at"]


@dataclass(frozen=True)
class Claim:
    """A sentence with its test; the module explains the fields."""

    id: str
    claim: str
    origin: str
    metric: str
    of: tuple[str, ...]
    holds: str
    minus: tuple[str, ...] = ()
    over: tuple[str, ...] = ()

    @property
    def range(self) -> tuple[float, float]:
        """The closed range in which the number is claimed to lie; > and < exclude their bound."""
        first, *second = [float(number) for number in re.findall(_NUMBER, self.holds)]
        if ">" in self.holds:
            return np.nextafter(first, np.inf), np.inf
        if "<" in self.holds:
            return -np.inf, np.nextafter(first, -np.inf)
        if "±" in self.holds:
            return first - second[0], first + second[0]
        return min(first, second[0]), max(first, second[0])

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that the test reads."""
        return re.findall(_NAME, self.metric)

    @property
    def readings(self) -> tuple[str, ...]:
        """The readings that are judged: both if one of the metrics has two."""
        return max((METRICS[name].readings for name in self.metrics), key=len)

    @property
    def exact(self) -> bool:
        """Whether the number is counted, so that any seed decides."""
        return all(METRICS[name].exact for name in self.metrics)

    @property
    def test(self) -> str:
        """The test in Markdown: what is compared, and what must hold."""
        sides = {side: ", ".join(f"`{key}`" for key in getattr(self, side)) for side in _SIDES}
        other = "".join(f" {side} {keys}" for side, keys in sides.items() if keys and side != "of")
        return f"`{self.metric}` of {sides['of']}{other}: `{self.holds}`"


def read_claims(file: str | Path = "claims.yaml") -> list[Claim]:
    """Read and check the claims of a YAML file.

    Args:
        file: A mapping from the id of a claim to its fields; see the module.

    Returns:
        The claims, in the order of the file.

    Raises:
        ValueError: Names the claim and the field that is wrong, and what is allowed there.
    """
    entries = read_yaml_file(Path(file))
    if not isinstance(entries, Mapping):
        raise ValueError(f"{file} holds no claims; write an id and its fields below it")
    return [checked(name, entry) for name, entry in entries.items()]


def checked(name: str, entry: Any) -> Claim:
    """Return the claim of an entry of claims.yaml.

    Args:
        name: Its id.
        entry: Its fields; see the module.

    Raises:
        ValueError: Names the field that is wrong, and what is allowed there.
    """
    entry = entry if isinstance(entry, Mapping) else {}
    for key in (*entry, *_REQUIRED):
        require_one_of(_FIELDS, key, f"claim {name}: there is no field")
        value = entry.get(key)
        texts = value if key in _SIDES and isinstance(value, list) and value else [value]
        if not all(isinstance(text, str) and re.fullmatch(_FIELDS[key], text) for text in texts):
            raise ValueError(f"claim {name}: {key} is {value!r}; write {_ALLOWED[key]}")
    if "minus" in entry and "over" in entry:
        raise ValueError(f"claim {name}: minus and over exclude each other; keep one of them")
    claim = _claim(name, entry)
    for metric in claim.metrics:
        require_one_of(METRICS, metric, f"claim {name}: there is no metric")
    return claim


def _claim(name: str, entry: Mapping[str, Any]) -> Claim:
    """Return the claim of an unchecked entry."""
    sides = {side: entry.get(side, ()) for side in _SIDES}
    tuples = {k: (side,) if isinstance(side, str) else tuple(side) for k, side in sides.items()}
    return Claim(**{"id": name, **entry, **tuples})


def numbers(claim: Claim, root: str | Path) -> pd.DataFrame:
    """Return what a claim is about, seed by seed: this side minus, or over, each other one.

    Args:
        claim: The claim.
        root: The folder of the records.

    Returns:
        ``of``, ``against`` (the other side as the claim has it, "" if there is none), ``at``,
        ``seed``, ``value``; empty if a record, a row or a common seed is lacking.
    """
    parts = []
    for of, against in product(claim.of, claim.minus + claim.over or [""]):
        for at in claim.readings:
            value = by_seed(root, of, claim.metric, at)
            if against:
                other = by_seed(root, completed(against, of), claim.metric, at)
                value = (value - other if claim.minus else value / other).dropna()
            part = value.rename_axis("seed").reset_index(name="value")
            parts.append(part.assign(of=of, against=against, at=at))
    complete = all(len(part) for part in parts)
    return pd.concat(parts, ignore_index=True) if complete else parts[0].iloc[:0]


def by_seed(root: str | Path, key: str, metric: str, at: str = "selected") -> pd.Series:
    """Return a metric, or arithmetic of metrics, of the runs of a row, by seed.

    Args:
        root: The folder of the records.
        key: ``experiment/cell/method``, or several joined by `` + ``, whose numbers are added.
        metric: The metric or the arithmetic.
        at: The reading of the metrics that have two.

    Returns:
        A number per seed that all keys and metrics have; empty where there is no record.
    """
    parts = []
    for one in key.split(" + "):
        experiment, cell, method = one.split("/")
        folder = Path(root) / experiment
        if not (folder / "runs.parquet").is_file():
            return pd.Series(dtype=float)
        runs = record(folder).finished
        runs = runs[(runs["cell"] == cell) & (runs["method"] == method)]
        columns = {
            name: values(record(folder), name, runs, at).set_index("seed")["value"]
            for name in re.findall(_NAME, metric)
        }
        parts.append(pd.Series(pd.DataFrame(columns, dtype=float).eval(metric)))
    return pd.concat(parts, axis=1).dropna().sum(axis=1)


def completed(other: str, of: str) -> str:
    """Return the key that a shortened one means: ``fedavg`` beside ``needs/iid@half/fedsdg``.

    Args:
        other: A key, or its last parts.
        of: The key, or keys joined by " + ", that the first parts are taken from.
    """
    parts = [part for part in other.split("/") if part]
    keys = [key.split("/")[: 3 - len(parts)] + parts for key in of.split(" + ")]
    return " + ".join("/".join(key) for key in keys)


@dataclass(frozen=True, eq=False)
class Verdict:
    """A judged claim; the numbers are those of the comparison that decides, at 95 %."""

    claim: Claim
    word: str
    """One of ``WORDS``."""
    n: int = 0
    """The number of seeds."""
    mean: float = np.nan
    low: float = np.nan
    high: float = np.nan
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """Seed → number, at the selected round."""
    tests: pd.DataFrame = field(default_factory=pd.DataFrame)
    """A row per comparison and reading: ``of``, ``against``, ``at``, ``n``, ``mean``, the ends
    ``low``, ``high`` at 95 % and ``low_99``, ``high_99`` at 99 %; whether all readings of the
    comparison lie ``inside`` or ``outside`` of what is claimed; ``room`` to the nearest bound."""

    @property
    def number(self) -> str:
        """The mean with its 95 % interval: "+32.3 points [+31.1, +33.4]"; "–" without a record."""
        if not self.n:
            return "–"
        compared = bool(self.claim.minus) or len(self.claim.metrics) > 1
        of_metric = METRICS[self.claim.metrics[0]].unit
        of_number = "points" if compared and of_metric == "%" else of_metric
        unit = "times" if self.claim.over else of_number
        form = f"{'+' if compared else ''}z.{'1f' if unit in ('%', 'points') else '3g'}"
        mean, low, high = (signed(f"{x:{form}}") for x in (self.mean, self.low, self.high))
        ends = "" if np.isnan(self.low) else f" [{low}, {high}]"
        return f"{mean} {unit}".rstrip() + ends + " †" * (self.claim.origin == POST_HOC)


def judge(claim: Claim, root: str | Path = "results/reference") -> Verdict:
    """Judge a claim by ``RULE``.

    Args:
        claim: The claim.
        root: The folder of the records.

    Returns:
        The verdict: *open* without a record or a row; *no verdict* for claims looked for afterwards
        and for fewer than five seeds, unless the number is counted.
    """
    seeds = numbers(claim, root)
    if seeds.empty:
        return Verdict(claim, OPEN)
    tests = _tested(claim, seeds)
    if claim.origin == POST_HOC or (tests["n"].min() < LEAST_SEEDS and not claim.exact):
        word = "no verdict"
    elif tests["inside"].all():
        word = "supported"
    else:
        word = "refuted" if tests["outside"].any() else "undecided"
    decides = (tests["at"] == "selected") & (tests["outside"] | (word != "refuted"))
    shown = tests[decides].sort_values("room", kind="stable").iloc[0]
    mine = seeds[(seeds[_TEST] == shown[_TEST]).all(axis=1)]
    by_seed = dict(zip(mine["seed"], mine["value"], strict=True))
    n, mean, low, high = shown[["n", "mean", "low", "high"]]
    return Verdict(claim, word, n, mean, low, high, by_seed, tests)


def _tested(claim: Claim, seeds: pd.DataFrame) -> pd.DataFrame:
    """Return the intervals of all comparisons and readings, and on which side they lie."""
    low, high = claim.range
    wide = interval(seeds, _TEST, 0.99).rename(columns={"low": "low_99", "high": "high_99"})
    tests = interval(seeds, _TEST).merge(wide[[*_TEST, "low_99", "high_99"]], on=_TEST)
    inside = (tests["low_99"] >= low) & (tests["high_99"] <= high)
    outside = (tests["low_99"] > high) | (tests["high_99"] < low)
    if claim.exact:
        held = seeds["value"].between(low, high)
        inside[:] = held.groupby([seeds[key] for key in _TEST], sort=False).all().to_numpy()
        outside = ~inside
    rival = [tests[key] for key in _COMPARISON]
    return tests.assign(
        inside=inside.groupby(rival).transform("all"),
        outside=outside.groupby(rival).transform("all"),
        room=np.minimum(tests["mean"] - low, high - tests["mean"]),
    )


def undeclared(
    claims: Iterable[Claim], root: str | Path, repository: str | Path
) -> tuple[list[str], list[str]]:
    """Find claims that were not declared before their runs.

    Args:
        claims: The claims; those that were looked for afterwards are left out.
        root: The folder of the records, whose provenance.json names the commits of runs.
        repository: A checkout.

    Returns:
        A sentence for every claim and commit at which it was not declared; and the commits of
        which this cannot be told.
    """
    told = {
        (claim.id, commit): declared_before(claim, commit, repository)
        for claim in claims
        if claim.origin != POST_HOC
        for commit in _commits(claim, Path(root))
    }
    faults = [
        f"claim {name}: at {commit[:10]}, the commit of its runs, claims.yaml had another test or "
        f"none; run them again, or make its origin '{POST_HOC}'"
        for (name, commit), declared in told.items()
        if declared is False
    ]
    return faults, sorted({commit for (_, commit), declared in told.items() if declared is None})


def declared_before(claim: Claim, commit: str, repository: str | Path) -> bool | None:
    """Return whether a claim's test stood in claims.yaml at a commit.

    Its sentence may have been reworded. None: it cannot be told, since this clone lacks the commit,
    or claims.yaml had the first edition's form then.

    Args:
        claim: The claim as it is now.
        commit: The commit.
        repository: The folder of the clone.
    """
    then = _claims_at(commit, str(Path(repository).resolve()))
    if then is None or claim.id not in then:
        return None if then is None else False
    return replace(_claim(claim.id, then[claim.id]), claim=claim.claim) == claim


@cache
def _claims_at(commit: str, repository: str) -> dict[str, Any] | None:
    text = git("-C", repository, "show", f"{commit}:claims.yaml") or ""
    entries = read_yaml(text, f"claims.yaml of {commit}")
    listed = not isinstance(entries, dict) or "claims" in entries  # as in the first edition
    return None if listed else entries


def _commits(claim: Claim, root: Path) -> list[str]:
    """Return the commits at which the runs of a claim were made."""
    pairs = product(claim.of, ("", *claim.minus, *claim.over))
    keys = {key for of, other in pairs for key in completed(other, of).split(" + ")}
    commits = set()
    for experiment, cell, method in (key.split("/") for key in keys):
        file = root / experiment / "provenance.json"
        run = f"/{cell.split(':')[-1]}/{method}/seed~"
        made = read_json(file) if file.is_file() else []
        of_runs = (one for one in made if any(run in place for place in one["runs"]))
        commits |= {one.get("commit") or "unknown" for one in of_runs}
    return sorted(commits)
