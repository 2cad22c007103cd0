"""Clients that attack: how many of them, and which attack with which parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from fedsdg.files import hint
from fedsdg.files.columns import Column
from fedsdg.methods.declared import ChoiceRow
from fedsdg.methods.plugins import Plugin, build_attack, find_attack, offered_attacks
from fedsdg.parts import Range, checked, declared, make, mapping, part


@part
class Attackers:
    """A share of the clients attacks; the same clients in every round."""

    type: str
    "which attack"
    share: Annotated[float, Range(0, 1)]
    "share of the clients, rounded to whole clients (halves up)"

    columns: ClassVar = (
        Column("rounds", "attackers", "int32", "attackers among the updates that arrived"),
        Column(
            "rounds",
            "honest_distance",
            "float64",
            "L2 distance from the server's step to the mean of the honest updates",
        ),
        Column("clients", "attacker", "bool", "whether it attacks"),
    )

    def count(self, num_clients: int) -> int:
        """How many of the clients attack: share · K, halves rounded up.

        Raises ``ValueError`` where a share above 0 is nobody, or where nobody would be left.
        """
        attackers = math.floor(self.share * num_clients + 0.5)
        if self.share > 0 and not attackers:
            raise ValueError(
                f"conditions.attack.share is {self.share}, which is none of {num_clients} clients; "
                f"use at least {1 / num_clients:.3g}, or 0 for no attack"
            )
        if attackers >= num_clients:
            raise ValueError(
                f"conditions.attack.share is {self.share}, which is all of {num_clients} clients; "
                "lower it, since honest clients alone are evaluated"
            )
        return attackers


@dataclass(frozen=True)
class AttackConfig(Attackers):
    """Who attacks, and the parameters of the attack."""

    parameters: Mapping[str, Any]
    #: Where the attack is from; None for those of the table.
    plugin: Plugin | None = None

    @property
    def kind(self) -> ChoiceRow:
        """What is known of the attack."""
        return find_attack(self.type, self.plugin)

    @property
    def modules(self) -> tuple[str, ...]:
        """What this condition alone imports; the files of a plugin are its own."""
        return self.kind.modules if self.plugin is None else ()

    def build(self) -> Any:
        """The attack itself (``fedsdg.federation.environment.attacks``); imports torch."""
        return build_attack(self.type, self.parameters, self.plugin)


def parse_attackers(value: Any, where: str, plugins: Sequence[Plugin]) -> AttackConfig:
    """Who attacks; the other keys are those of the attack itself."""
    given = dict(mapping(value, where))
    own = {key: given.pop(key) for key in declared(Attackers) if key in given}
    asked = make(Attackers, own, where)
    attacks = offered_attacks(plugins)
    if asked.type not in attacks:
        raise ValueError(f"{where}: unknown attack {asked.type!r}{hint(asked.type, attacks)}")
    found = AttackConfig(asked.type, asked.share, {}, attacks[asked.type])
    known = found.kind.parameters
    parameters = {key: parameter.default for key, parameter in known.items()}
    return replace(found, parameters=parameters | checked(given, known, where))
