"""All parts of a plugin or of a row of the package, each examined as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedsdg.experiment.examining.attacks import ATTACK
from fedsdg.experiment.examining.choices import LOSS, OPTIMISER
from fedsdg.experiment.examining.federations import trial_of
from fedsdg.experiment.examining.findings import (
    FAILED,
    NOT,
    RAISED,
    Finding,
    Inapplicable,
    Property,
    examine,
    raised,
)
from fedsdg.experiment.examining.rounds import METHOD, TRAINS
from fedsdg.experiment.examining.rules import RULE
from fedsdg.experiment.examining.stopping import STOPPING
from fedsdg.experiment.examining.terms import TERM, Placed
from fedsdg.methods.plugins import Plugin, contents, described, find_method

#: By the table of a plugin: how a row is called, and what holds for it.
CHOICES: tuple[tuple[str, str, tuple[Property, ...]], ...] = (
    ("OPTIMISERS", "optimiser", OPTIMISER),
    ("LOSSES", "loss", LOSS),
    ("ATTACKS", "attack", ATTACK),
)


def require_sound(plugin: Plugin) -> None:
    """``ValueError`` where the plugin cannot be imported or a row of it is incomplete."""
    described(plugin)


def examine_plugin(plugin: Plugin) -> Iterator[Finding]:
    """A finding for each property of each part, one after another; ``require_sound`` goes first."""
    require_sound(plugin)
    tables = contents(plugin)
    for name in tables["METHODS"]:
        yield from examine_method(name, plugin)
    for table, kind, properties in CHOICES:
        for name, choice in tables[table].items():
            yield from examine(f"{kind} {name}", choice.part, properties)
    for name in tables["DATASETS"]:
        yield Finding(f"data set {name}", "its images", NOT, "data sets are checked when loaded")


def examine_method(name: str, plugin: Plugin | None) -> Iterator[Finding]:
    """The rule, the terms, what clients stop by, and then rounds of all of it together."""
    method, label, broken = find_method(name, plugin), f"method {name}", dict[str, str]()
    terms: list[Placed] = []
    impossible: Finding | None = None
    try:
        trial = trial_of(name, plugin)
        setup = trial.make()
        sent = tuple(setup.rule.broadcast(setup.state))
        of_phases = [term for phase in setup.phases for term in phase.terms or ()]
        terms = [Placed(term, setup.layout, sent) for term in (*setup.work.terms, *of_phases)]
    except Inapplicable as why:
        impossible = Finding(label, TRAINS, NOT, str(why))
    except RAISED as error:
        sentence = f"no small federation can be made of it: {raised(error)}"
        impossible = Finding(label, TRAINS, FAILED, sentence)
    yield from examine(f"{label}, rule {_type(method.rule)}", method.rule, RULE, broken)
    if impossible is not None:
        yield impossible
        return
    for placed in terms:
        of_term: dict[str, str] = {}  # Another term of the same method is examined all the same.
        yield from examine(f"{label}, term {_type(placed.term)}", placed, TERM, of_term)
        broken |= of_term
    if method.stopping is not None:
        part = f"{label}, stopping {_type(method.stopping)}"
        yield from examine(part, method.stopping, STOPPING)
    whole = f"{label}, personalisation {_type(method.personalisation)}"
    yield from examine(whole, trial, METHOD, broken)


def _type(part: Any) -> str:
    return type(part).__name__
