"""Printed names and order of methods, skews, metrics and rounds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsdg.files.declarations import titles
from fedsdg.files.places import split_setting

#: Status of a run of the grid that nobody has started; the others are "ok" and "failed".
NOT_RUN = "not run"

#: Rival "the better of fedavg and fedavg-uniform" of records from before; no longer compared with.
BETTER_BASELINE = "better-fedavg"

DATASETS = {
    "digits": "Digits",
    "mnist": "MNIST",
    "usps": "USPS",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet_32": "Tiny ImageNet (32 px)",
    "digits_domains": "Digits, four domains",
    "mnist_usps": "MNIST and USPS",
}


@dataclass(frozen=True)
class Metric:
    """A metric of the tables: its name in the records and in print; all are shares of 1.

    ``definition`` stands in the captions of the tables of one metric.
    """

    key: str
    title: str
    short: str
    definition: str = ""


#: On the whole global test set as each client sees it: its labels, its view, its class shares.
EXPECTED = Metric(
    "expected_accuracy",
    "personal accuracy",
    "personal",
    "Personal accuracy (%): every client with its own model on the whole global test set as the "
    "client sees it (its labels, its view of the images, weighted by its class shares), mean over "
    "clients",
)
AGREEING = Metric("expected_accuracy_a", "accuracy of clients that agree (A)", "A")
DIFFERING = Metric("expected_accuracy_b", "accuracy of clients that differ (B)", "B")
NEW = Metric("expected_accuracy_new", "accuracy of clients that never trained", "new clients")
EXPECTED_WORST = Metric(
    "expected_worst_decile",
    "worst-decile accuracy",
    "worst decile",
    "Worst-decile accuracy (%): mean personal accuracy of the tenth of the clients that were ever "
    "drawn it is lowest for",
)
#: On each client's own test shard; the only personal accuracy of records from before.
PERSONAL = Metric(
    "personal_accuracy",
    "personal accuracy",
    "personal",
    "Personal accuracy (%): every client on its own test data with its own model, mean over "
    "clients",
)
WORST = Metric(
    "personal_worst_decile",
    "worst-decile accuracy",
    "worst decile",
    "Worst-decile accuracy (%): mean personal accuracy of the ⌈K/10⌉ clients it is lowest for",
)
#: The same two beside the expected accuracy.
OWN = Metric(
    PERSONAL.key,
    "personal accuracy (own shard)",
    "own shard",
    "On the own shard: every client on its own test data with its own model",
)
OWN_WORST = Metric(
    WORST.key,
    "worst-decile accuracy (own shard)",
    "worst decile, own shard",
    "On the own shard: of the accuracy on each client's own test data",
)
GLOBAL = Metric(
    "global_accuracy",
    "global accuracy",
    "global",
    "Global accuracy (%): the shared parameters alone on the global test set",
)

_METRICS = (EXPECTED, AGREEING, DIFFERING, NEW, EXPECTED_WORST, OWN, OWN_WORST, GLOBAL)
_FORMER_METRICS = (PERSONAL, WORST, GLOBAL)
#: The keys of all metrics that tables may show.
METRIC_KEYS = tuple(metric.key for metric in _METRICS)

#: The reported rounds: the one selected on validation data, and beside it the mean of the
#: evaluations in the last quarter of the rounds; in records without that mean, the last round.
ROUNDS = {
    "selected": "round selected on validation data",
    "quarter": "mean of the last quarter of the rounds",
}
FORMER_ROUNDS = {"selected": ROUNDS["selected"], "last": "last round"}
#: Short names of what stands beside the selected round.
BESIDE = {"quarter": "last quarter", "last": "last round"}


def reported_rounds(runs: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """``ROUNDS``, or ``FORMER_ROUNDS`` where no run (rows of runs.parquet) has a last quarter."""
    columns = [f"quarter_{key}" for key in METRIC_KEYS]
    has = any(run.get(column) is not None for run in runs for column in columns)
    return ROUNDS if has else FORMER_ROUNDS


def reported_metrics(runs: Sequence[Mapping[str, Any]]) -> tuple[Metric, ...]:
    """The metrics that rows of runs.parquet have, the headline first.

    With an expected accuracy all the metrics of which some run has a value; the global accuracy,
    whose absence is explained, always. Without one the three metrics of records from before.
    """
    at = next(iter(reported_rounds(runs)))
    there = {k for k in METRIC_KEYS if any(run.get(f"{at}_{k}") is not None for run in runs)}
    if EXPECTED.key not in there:
        return _FORMER_METRICS
    return tuple(metric for metric in _METRICS if metric.key in there or metric == GLOBAL)


def metric_named(key: str, shown: Sequence[Metric] = ()) -> Metric:
    """The metric with this key, by its title among those ``shown``; others by their own name.

    Args:
        key: The metric's name in the records.
        shown: Metrics whose titles replace the usual ones, as ``reported_metrics`` returns them.

    Returns:
        The metric; for an unknown key one whose titles are the key with spaces for underscores.
    """
    known = {metric.key: metric for metric in (*_METRICS, *shown)}
    plain = key.replace("_", " ")
    return known.get(key, Metric(key, plain, plain))


#: Titles of methods and attacks of plugins, as the runs of opened summaries state them.
_LEARNED: dict[str, dict[str, str]] = {"method": {}, "attack": {}}


def learn_titles(runs: Iterable[Mapping[str, Any]]) -> None:
    """Take the titles of methods and attacks from rows of runs.parquet.

    Titles from other rows are kept: several records may be open at once. A method of the table
    keeps its title. A title is one line, however a plugin writes it.
    """
    for run in runs:
        result = run.get("result") or ""
        facts = json.loads(result) if "title" in result else {}
        if "title" in facts and "method" in facts:
            _LEARNED["method"][facts["method"]] = " ".join(facts["title"].split())
        if "attack_title" in facts:
            attack = json.loads(run["config"])["conditions"]["attack"]
            _LEARNED["attack"][attack["type"]] = " ".join(facts["attack_title"].split())


def base_method(label: str) -> str | None:
    """The known method a label is a variant of: ``fedsdg-softmax`` → ``fedsdg``; None if none."""
    return next(iter(_bases(label, titles("methods"))), None)


def _bases(label: str, methods: Iterable[str]) -> list[str]:
    """The methods that a label may be a variant of, the longest name first."""
    known = [name for name in methods if label == name or label.startswith(name + "-")]
    return sorted(known, key=len, reverse=True)


def method_title(label: str) -> str:
    """A label in print: ``krum`` → Krum, ``fedsdg-softmax`` → FedSDG (softmax)."""
    if label == BETTER_BASELINE:
        return "FedAvg, the better"
    known = {**_LEARNED["method"], **titles("methods")}
    base = base_method(label) or next(iter(_bases(label, _LEARNED["method"])), None)
    if base is None:
        return label
    title, variant = known[base], label[len(base) + 1 :]
    if not variant:
        return title
    return f"{title[:-1]}, {variant})" if title.endswith(")") else f"{title} ({variant})"


def method_order(label: str) -> tuple[int, bool, str]:
    """Sorting key: the better baseline, the known methods in their order, variants after each."""
    if label == BETTER_BASELINE:
        return (-1, False, label)
    base = base_method(label)
    known = list(titles("methods"))
    position = len(known) if base is None else known.index(base)
    return (position, label != base, label)


def attack_title(attack: str) -> str:
    """An attack in print; an unknown one by its name."""
    return titles("attacks").get(attack) or _LEARNED["attack"].get(attack, attack)


def dirichlet_alpha(skew: str) -> float | None:
    """α of ``dirichlet~α``, None for any other skew and for one under a scenario."""
    kind, _, value = skew.partition("~")
    return float(value) if kind == "dirichlet" and "@" not in value else None


def skew_title(skew: str, short: bool = False) -> str:
    """A skew in print: ``dirichlet~0.1`` → "Dirichlet α = 0.1", or "α = 0.1" when short.

    Its scenario follows: ``iid@late`` → "IID, late".

    Args:
        skew: A skew as the records name it, with or without a scenario.
        short: Whether the short form is wanted.

    Returns:
        The title; a skew of an unknown kind keeps its name.
    """
    plain, scenario = split_setting(skew)
    kind, _, value = plain.partition("~")
    part, _, rest = value.partition("~")
    printed = {
        "dirichlet": (f"Dirichlet α = {value}", f"α = {value}"),
        "mixed": (f"{part} IID, others Dirichlet α = {rest}", f"{part} IID, α = {rest}"),
        "classes": (f"{value} classes per client", f"{value} classes"),
        "quantity": (f"Quantity β = {value}", f"β = {value}"),
        "domains": ("One domain per client", "domains"),
        "column": (f"Clients by {value}", value),
        "iid": ("IID", "IID"),
    }
    text = printed.get(kind, (plain, plain))[short]
    return f"{text}, {scenario}" if scenario else text


def skew_order(skew: str) -> tuple[int, float, str, tuple[str | float, ...]]:
    """Sorting key: Dirichlet by α, mixed by α, classes by number, quantity by β, domains, IID.

    The others come last.

    Scenarios of one skew stand together, numbers in their names by value.
    """
    plain, scenario = split_setting(skew)
    kind, _, value = plain.partition("~")
    kinds = ("dirichlet", "mixed", "classes", "quantity", "domains", "iid")
    if kind not in kinds:
        return (len(kinds), 0.0, plain, natural_order(scenario))
    return (kinds.index(kind), float(value.rpartition("~")[2] or 0), plain, natural_order(scenario))


def natural_order(name: str) -> tuple[str | float, ...]:
    """Sorting key that reads the numbers in a name: late-2 stands before late-10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return tuple(float(part) if i % 2 else part for i, part in enumerate(parts))


def dataset_title(dataset: str) -> str:
    """A data set in print; an unknown one keeps its name."""
    return DATASETS.get(dataset, dataset)
