"""A method: an aggregation rule, terms of the objective, a personalisation, and a few words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pydantic.fields import FieldInfo

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Rule
from fedsdg.federation.data_sharing import DataSharing
from fedsdg.federation.personalisation import Alternating, FrozenA, Personalisation, Shared
from fedsdg.federation.stopping import Inexactness
from fedsdg.federation.terms import PrivatePenalty, Term
from fedsdg.parts import Part, parameters, with_parameters


@dataclass(frozen=True)
class Method:
    """A row of the table; its parameters are the fields of its parts, except those it fixes.

    Raises:
        ValueError: A part is of the wrong kind, two own one parameter, or a fixed name is unknown.

    Example:
        >>> Method("FedAvg", rule=Mean()).parameters["weights"].default
        'samples'
    """

    title: str
    "its name in tables and figures"
    rule: Rule = field(default_factory=Mean)
    "how the server aggregates"
    objective: tuple[Term, ...] = ()
    "terms beside the cross-entropy and those of the personalisation"
    personalisation: Personalisation = field(default_factory=Shared)
    "parameters that stay with their client"
    stopping: Inexactness | None = None
    "when clients stop before their epochs are used up; None: never"
    sharing: DataSharing = field(default_factory=DataSharing)
    "which data leave their clients"
    optimiser: str | None = None
    "the optimiser that it prescribes; None: that of the config"
    heads_apart: bool = False
    "whether the server's models, if there are several, start with different heads"
    training: Mapping[str, Any] = field(default_factory=dict)
    "other keys of ``training`` that it prescribes"
    fixed: tuple[str, ...] = ()
    "parameters of its parts that no config may set"
    formula: str = ""
    "in the notation of docs/methods.md"
    source: str = ""
    "the paper"
    numerics: int = 0
    "raise it when only this method's numbers change; it is part of the address of its runs"

    def __post_init__(self) -> None:
        """Refuse parts of the wrong kind, and fixed names that no part has."""
        kinds = [("rule", self.rule, Rule), ("personalisation", self.personalisation, Part)]
        kinds += [("term", term, Term) for term in self.objective]
        for what, part, kind in kinds:
            fault = f"a {type(part).__name__}, but must be a {kind.__name__}"
            if isinstance(part, type):
                fault = f"the class {part.__name__}; write {part.__name__}()"
            if not isinstance(part, kind):
                raise ValueError(f"{self.title}: its {what} is {fault}")
        if type(self.rule).plan is Rule.plan:
            raise ValueError(f"{self.title}: its rule {type(self.rule).__name__} defines no `plan`")
        if self.optimiser != "sgd" and any(term.plain for term in self.terms):
            raise ValueError(f'{self.title}: one of its terms needs SGD; add optimiser="sgd"')
        if lacking := set(self.fixed) - set(parameters(*self.parts)):
            raise ValueError(
                f"{self.title} fixes {', '.join(sorted(lacking))}, which none of its parts has; "
                "correct `fixed`"
            )

    @property
    def parts(self) -> tuple[Part, ...]:
        """All that it is made of."""
        parts = (self.rule, *self.objective, self.personalisation, self.stopping, self.sharing)
        return tuple(part for part in parts if part is not None)

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms of the objective beside the cross-entropy, in their order."""
        return (*self.personalisation.terms, *self.objective)

    @property
    def undecayed(self) -> bool:
        """Whether it forbids weight decay, since a term of its own takes the place."""
        return any(isinstance(term, PrivatePenalty) for term in self.terms)

    @property
    def needs_adapters(self) -> bool:
        """Whether it treats parts of adapters apart, so that it cannot train all parameters."""
        given = self.personalisation.adapters
        second_head = given.get("head") in ("gated", "residual")
        return second_head or not given.keys() <= {"head", "local", "own"}

    @property
    def personal(self) -> bool:
        """Whether clients end with different models."""
        one_model = type(self.personalisation) in (Shared, FrozenA, Alternating)
        return not one_model or self.rule.models(2) > 1

    @cached_property
    def parameters(self) -> dict[str, FieldInfo]:
        """The fields that a config may set, each with this row's value as its default."""
        known = parameters(*self.parts)
        return {name: info for name, info in known.items() if name not in self.fixed}

    def with_values(self, values: Mapping[str, Any]) -> Method:
        """Return the row with other values of its parameters.

        Raises:
            ValueError: A value is out of range, or values do not go together.
        """
        return replace(
            self,
            rule=with_parameters(self.rule, values),
            objective=tuple(with_parameters(term, values) for term in self.objective),
            personalisation=with_parameters(self.personalisation, values),
            stopping=self.stopping and with_parameters(self.stopping, values),
            sharing=with_parameters(self.sharing, values),
        )
