"""What a method is: an aggregation rule, terms of an objective, a personalisation, and a few words.

The rows stand one family a file beside this module; :mod:`fedsdg.methods.families` has them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Rule
from fedsdg.federation.data_sharing import DataSharing
from fedsdg.federation.personalisation import Personalisation, Shared
from fedsdg.federation.terms import Term
from fedsdg.methods.choice import require_declared
from fedsdg.parts import (
    Declared,
    is_part,
    parameters,
    plain,
    replaced,
)

if TYPE_CHECKING:
    from fedsdg.federation.stopping import Inexactness

#: Marks the fields that are words about a method and change no run.
_WORDS = {"words": True}


@dataclass(frozen=True)
class Method:
    """One row of the table. Its parameters are the fields of its parts, but those it fixes."""

    title: str = field(metadata=_WORDS)
    #: The mean of the updates, weighted by samples, unless a row names another rule.
    rule: Rule = field(default_factory=Mean)
    #: Terms beside the cross-entropy and those that the personalisation brings itself.
    objective: tuple[Term, ...] = ()
    personalisation: Personalisation = field(default_factory=Shared)
    #: When clients stop before their epochs are used up; None lets them use all.
    stopping: Inexactness | None = None
    #: Which data leave their clients.
    sharing: DataSharing = field(default_factory=DataSharing)
    #: The optimiser a method prescribes; None takes what the config says.
    optimiser: str | None = None
    #: Whether it forbids weight decay: optimisers that have some then run without.
    undecayed: bool = False
    #: Whether it treats the factors of adapters apart, so that it cannot train all parameters.
    needs_adapters: bool = False
    #: Whether the server's models, where it has several, start with heads of their own.
    heads_apart: bool = False
    #: Other keys of the config's ``training`` that a method prescribes; ``batch_size`` None is a
    #: client's whole shard.
    training: Mapping[str, Any] = field(default_factory=dict)
    #: Parameters of its parts that no config may set.
    fixed: tuple[str, ...] = ()
    #: What follows stands in docs/methods.md, in whose notation the formula is.
    formula: str = field(default="", metadata=_WORDS)
    source: str = field(default="", metadata=_WORDS)
    #: What one client sends and receives in a round: "0" or a multiple of the d communicated
    #: parameters, "≤ " before it where it depends on the data, " + …" after it for what is small.
    up: str = field(default="d", metadata=_WORDS)
    down: str = field(default="d", metadata=_WORDS)
    #: What one client computes in a round; "E epochs" are those of ``training.epochs``.
    client_cost: str = field(default="E epochs", metadata=_WORDS)
    #: How often the server reads the updates in a round: "2 passes".
    server_cost: str = field(default="", metadata=_WORDS)

    def __post_init__(self) -> None:
        """Refuse parts of the wrong kind, and fixed names that no part has."""
        self._require_parts()
        if lacking := set(self.fixed) - set(parameters(*self.parts)):
            raise ValueError(
                f"{self.title} fixes {', '.join(sorted(lacking))}, which none of its parts has; "
                "correct `fixed`"
            )

    def _require_parts(self) -> None:
        terms = [("a term of its objective", one, Term) for one in self.objective]
        for what, one, kind in (
            ("its rule", self.rule, Rule),
            *terms,
            ("its personalisation", self.personalisation, Personalisation),
            ("what it stops by", self.stopping, object),
            ("its data sharing", self.sharing, DataSharing),
        ):
            name = type(one).__name__
            if isinstance(one, type):
                raise ValueError(
                    f"{self.title}: {what} is the class {one.__name__}; write {one.__name__}(…)"
                )
            if not isinstance(one, kind):
                raise ValueError(
                    f"{self.title}: {what} is of type {name}, but must be of type {kind.__name__} "
                    f"({kind.__module__})"
                )
            if is_dataclass(one) and not is_part(one):
                raise ValueError(
                    f"{self.title}: {name} is a dataclass, whose fields no config could set; "
                    "declare it by @part of fedsdg.parts"
                )
        if type(self.rule).plan is Rule.plan:
            raise ValueError(f"{self.title}: its rule {type(self.rule).__name__} defines no `plan`")
        for one in (*self.slots, *self.terms):
            require_declared(one)

    @property
    def slots(self) -> tuple[Any, ...]:
        """All that the method is made of."""
        made_of = (self.rule, *self.objective, self.personalisation, self.stopping, self.sharing)
        return tuple(one for one in made_of if one is not None)

    @property
    def parts(self) -> tuple[Any, ...]:
        """What of it has parameters."""
        return tuple(one for one in self.slots if is_part(one))

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms of the objective beside the cross-entropy, in their order."""
        return (*self.personalisation.terms, *self.objective)

    @property
    def fixed_values(self) -> dict[str, Any]:
        """What no config may set, and what it is."""
        known = parameters(*self.parts)
        return {name: plain(known[name].default) for name in self.fixed}

    @property
    def parameters(self) -> dict[str, Declared]:
        """What a config may set, each with this row's value as its default."""
        known = parameters(*self.parts)
        return {name: one for name, one in known.items() if name not in self.fixed}

    def with_values(self, values: Mapping[str, Any]) -> Method:
        """The row with other values of its parameters; raises ``ValueError`` out of range."""
        changed = {
            name: replaced(getattr(self, name), values)
            for name in ("rule", "personalisation", "stopping", "sharing")
            if getattr(self, name) in self.parts
        }
        objective = tuple(replaced(term, values) for term in self.objective)
        return replace(self, objective=objective, **changed)
