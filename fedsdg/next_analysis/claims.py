"""Claims: sentences with a test, declared in YAML before the runs and judged by one function.

    gates-follow-need:
      claim: Clients in conflict open their gates further than those that agree.
      origin: hypothesis             # or: specification 002, primary, post hoc
      metric: gate_b - gate_a        # a metric, or arithmetic of metrics of the same runs
      of: cross-needs/iid@half/fedsdg
      minus: fedavg                  # or over; what differs on the other side; a list: each of them
      holds: "> 0"                   # or "< x", "x..y", "x ± y"

Several keys under ``of`` mean that the claim must hold for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from fedsdg.next_analysis.metrics import METRICS, values
from fedsdg.next_analysis.records import Record
from fedsdg.next_analysis.statistics import LEAST_SEEDS, LEVEL, holm, interval, p_beyond

FIELDS = {"claim", "origin", "metric", "of", "minus", "over", "holds"}
SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_HOLDS = re.compile(
    r"(?P<sign>[<>])\s*(?P<x>\S+)|(?P<low>\S+)\s*\.\.\s*(?P<high>\S+)|(?P<mid>\S+)\s*±\s*(?P<by>\S+)"
)


@dataclass(frozen=True)
class Claim:
    """A sentence with its test; see the module."""

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
        """The range in which the number is claimed to lie."""
        found = _HOLDS.fullmatch(self.holds)
        if not found:
            raise ValueError(
                f"claim {self.id}: holds is {self.holds!r}; write '> x', 'x..y' or 'x ± y'"
            )
        part = found.groupdict()
        if part["sign"]:
            x = float(part["x"])
            return (x, np.inf) if part["sign"] == ">" else (-np.inf, x)
        if part["mid"]:
            return float(part["mid"]) - float(part["by"]), float(part["mid"]) + float(part["by"])
        return float(part["low"]), float(part["high"])

    @property
    def unit(self) -> str:
        """The unit of the number."""
        unit = METRICS[_NAME.findall(self.metric)[0]].unit
        return "times" if self.over else "points" if self.minus and unit == "%" else unit

    @property
    def exact(self) -> bool:
        """Whether the number is counted, so that one seed decides."""
        return all(METRICS[name].exact for name in _NAME.findall(self.metric))


def read_claims(file: str | Path) -> list[Claim]:
    """Read and check the claims of a YAML file."""
    claims = []
    for name, given in yaml.safe_load(Path(file).read_text()).items():
        if unknown := set(given) - FIELDS:
            raise ValueError(
                f"claim {name}: unknown field {sorted(unknown)}; it takes {sorted(FIELDS)}"
            )
        lists = {
            k: (v,) if isinstance(v, str) else tuple(v)
            for k, v in given.items()
            if k in ("of", "minus", "over")
        }
        claim = Claim(id=name, **{**given, **lists})
        if unknown := set(_NAME.findall(claim.metric)) - METRICS.keys():
            raise ValueError(f"claim {name}: there is no metric {sorted(unknown)}")
        claim.range
        claims.append(claim)
    return claims


@dataclass(frozen=True)
class Verdict:
    """A judged claim: mean, 95 % interval, two-sided p, and the word; see ``judge``."""

    claim: Claim
    word: str
    n: int = 0
    mean: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p: float = np.nan

    def __str__(self) -> str:
        """Return "+3.4 points [+2.7, +4.1] (supported, n = 10)"."""
        unit = {"%": " %", "": ""}.get(self.claim.unit, f" {self.claim.unit}")
        ends = (
            f" [{_plain(self.low, unit)}, {_plain(self.high, unit)}]"
            if self.low == self.low
            else ""
        )
        return f"{_plain(self.mean, unit)}{unit}{ends} ({self.word}, n = {self.n})"


def _plain(value: float, unit: str) -> str:
    sign = "+" if unit == " points" else ""
    text = f"{value:{sign}.1f}" if unit in (" points", " %") else f"{value:.3g}"
    return text.replace("-", "−")


@cache
def _record(folder: Path) -> Record:
    return Record(folder)


def sides(claim: Claim, root: Path) -> list[tuple[str, pd.Series, pd.Series | None]]:
    """Return (key, its numbers by seed, those of the other side) of every comparison of a claim."""
    found = []
    for key in claim.of:
        own = by_seed(root, key, claim.metric)
        others = [_completed(other, key) for other in (*claim.minus, *claim.over)]
        found += [(other, own, by_seed(root, other, claim.metric)) for other in others] or [
            (key, own, None)
        ]
    return found


def by_seed(root: Path, key: str, metric: str) -> pd.Series:
    """Return a metric, or arithmetic of metrics, of the runs of ``experiment/cell/method``, by seed."""
    experiment, cell, method = key.split("/")
    record = _record(root / experiment)
    runs = record.finished
    runs = runs[(runs["cell"] == cell) & (runs["method"] == method)]
    names = list(dict.fromkeys(_NAME.findall(metric)))
    columns = {name: values(record, name, runs).set_index("seed")["value"] for name in names}
    return pd.DataFrame(columns).eval(metric).dropna()


def _completed(other: str, key: str) -> str:
    """Return a key whose leading parts are those of another one: ``fedavg``, ``iid@none/fedsdg``."""
    parts = other.split("/")
    return "/".join([*key.split("/")[: 3 - len(parts)], *parts])


def judge(claim: Claim, root: str | Path = "results/reference") -> Verdict:
    """Judge a claim by the Student-t interval over seeds of its number, paired by seed.

    *Supported*: the whole 95 % interval lies in the claimed range; *refuted*: none of it does;
    *undecided*: neither. Of several comparisons all must hold (intersection-union test), so the one
    nearest to failing decides, and a refutation counts times their number. ``p`` is that of the
    two-sided t-test against the nearest bound.
    """
    try:
        compared = sides(claim, Path(root))
    except FileNotFoundError:
        return Verdict(claim, "open")
    (low, high), tests = claim.range, []
    for _, own, other in compared:
        numbers = own if other is None else (own - other if claim.minus else own / other).dropna()
        if len(numbers) == 0:
            return Verdict(claim, "open")
        n, mean, std = len(numbers), numbers.mean(), numbers.std(ddof=1)
        if claim.exact:
            inside = numbers.between(low, high).all()
            tests.append(
                (mean, n, numbers.min(), numbers.max(), *((0.0, 1.0) if inside else (1.0, 0.0)))
            )
            continue
        if n < LEAST_SEEDS:
            return Verdict(claim, f"{n} seeds, no verdict", n, mean)
        shown = interval(numbers.to_frame("value").assign(one=0), ["one"]).iloc[0]
        above = 0.0 if low == -np.inf else p_beyond(mean, std, n, low)
        below = 0.0 if high == np.inf else p_beyond(-mean, std, n, -high)
        under = 1.0 if low == -np.inf else p_beyond(-mean, std, n, -low)
        over = 1.0 if high == np.inf else p_beyond(mean, std, n, high)
        tests.append((mean, n, shown["low"], shown["high"], max(above, below), min(under, over)))
    mean, n, first, last, *_ = min(tests, key=lambda t: min(t[0] - low, high - t[0]))
    support = max(t[4] for t in tests)
    against = min(1.0, len(tests) * min(t[5] for t in tests))
    word = SUPPORTED if support < LEVEL / 2 else REFUTED if against < LEVEL / 2 else UNDECIDED
    if claim.origin == "post hoc":
        word = "no verdict"
    return Verdict(
        claim,
        word,
        min(t[1] for t in tests),
        mean,
        first,
        last,
        min(1.0, 2 * min(support, against)),
    )


def judge_all(claims: Iterable[Claim], root: str | Path = "results/reference") -> list[Verdict]:
    """Judge claims; p-values of the primary ones are adjusted for one another after Holm."""
    verdicts = [judge(claim, root) for claim in claims]
    primary = [i for i, v in enumerate(verdicts) if v.claim.origin == "primary" and v.p == v.p]
    for i, p in zip(primary, holm([verdicts[i].p for i in primary]), strict=True):
        word = verdicts[i].word if p < LEVEL else UNDECIDED
        verdicts[i] = Verdict(**{**vars(verdicts[i]), "word": word, "p": p})
    return verdicts


def page(verdicts: Sequence[Verdict]) -> str:
    """Return the claims as a Markdown table, by origin."""
    rows = [
        {
            "claim": f'<a id="{v.claim.id}"></a>`{v.claim.id}` {v.claim.claim}',
            "verdict": v.word,
            "number": str(v).partition(" (")[0] if v.n else "–",
            "holds": v.claim.holds,
            "n": v.n or "–",
            "p": f"{v.p:.2g}" if v.p == v.p else "–",
            "test": f"{v.claim.metric} of {', '.join(v.claim.of)}"
            + "".join(
                f" {word} {', '.join(k)}"
                for word, k in (("minus", v.claim.minus), ("over", v.claim.over))
                if k
            ),
        }
        for v in verdicts
    ]
    parts = [
        f"## {origin}\n\n{own.to_markdown(index=False)}\n"
        for origin, own in pd.DataFrame(rows).groupby([v.claim.origin for v in verdicts])
    ]
    return "# Claims and what the record says\n\n" + "\n".join(parts)


#: ``<!-- id verdict -->…<!-- / -->`` in a document; the verdict is what the prose presumes.
_SLOT = re.compile(r"<!-- (?P<id>[\w+.-]+) (?P<presumed>[\w ]+) -->.*?<!-- / -->", re.DOTALL)


def rendered(text: str, verdicts: Mapping[str, Verdict]) -> str:
    """Return a document with the numbers of the claims that it cites filled in."""

    def number(slot: re.Match[str]) -> str:
        verdict = verdicts[slot["id"]]
        if verdict.word != slot["presumed"]:
            raise ValueError(
                f"{slot['id']} is {verdict.word}, but the text presumes {slot['presumed']}"
            )
        shown = f"[{str(verdict).partition(' (')[0]}](docs/claims.md#{slot['id']})"
        return f"<!-- {slot['id']} {slot['presumed']} -->{shown}<!-- / -->"

    return _SLOT.sub(number, text)
