"""The conditions under which a method is tried: what a config may say of them. Never imports torch.

Each is optional, and one that is absent leaves no trace in the config of a run::

    conditions:
      attack: {type: sign-flip, share: 0.2, scale: 3}
      dropout: {probability: 0.1}
      label_noise: {low: 0.0, high: 0.4}
      label_conflict: {share: 0.5, classes: 4, per: client}
      compute: {fastest: 4, deadline: 60}
      quantisation: {share: 0.5, bits: 4}
      benchmark_images: 100
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any

from fedsdg.federation.conditions.compute import Compute
from fedsdg.federation.conditions.condition import attackers_in, clients_in
from fedsdg.federation.conditions.difference import Difference, FeatureShift, LabelConflict
from fedsdg.federation.conditions.dropout import Dropout
from fedsdg.federation.conditions.label_noise import LabelNoise
from fedsdg.federation.conditions.quantisation import Quantisation
from fedsdg.files import hint
from fedsdg.methods.declared import ChoiceRow
from fedsdg.methods.plugins import Plugin, build_attack, find_attack, offered_attacks
from fedsdg.parts import Range, checked, declared, is_part, make, mapping, part, plain


@part
class AttackShare:
    """Which attack, and how many clients attack; they are the same in every round."""

    type: str
    "which attack"
    share: Annotated[float, Range(0, 1)]
    "share of the clients, rounded to whole clients (halves up)"

    def count(self, num_clients: int) -> int:
        """Return how many of K clients attack, share * K with halves rounded up.

        Raises:
            ValueError: A share above 0 is nobody, or nobody is honest.
        """
        return attackers_in(self.share, num_clients)


@dataclass(frozen=True)
class AttackConfig(AttackShare):
    """An attack with its parameters, as a config gives them."""

    parameters: Mapping[str, Any]
    #: Where the attack is from; None for those of the table.
    plugin: Plugin | None = None

    @property
    def kind(self) -> ChoiceRow:
        """What is known of the attack."""
        return find_attack(self.type, self.plugin)

    @property
    def modules(self) -> tuple[str, ...]:
        """Where the attack is defined; the files of a plugin are its own."""
        return self.kind.modules if self.plugin is None else ()

    def build(self) -> Any:
        """Return the condition, `Attackers` of ``fedsdg.federation``; imports torch."""
        from fedsdg.federation.conditions.attack import Attackers

        return Attackers(build_attack(self.type, self.parameters, self.plugin), self.share)


@part
class Conditions:
    """What a run has to cope with; each is left out, or null, where there is none of it."""

    attack: AttackConfig | None = None
    """a share of the clients attacks; they are the same in every round, and those of a smaller
    share are among those of a larger one"""
    dropout: Dropout | None = None
    "clients leave before they send anything"
    label_noise: LabelNoise | None = None
    "wrong labels on clients' training and validation samples, never on tests"
    label_conflict: LabelConflict | None = None
    """a share of the clients name some of the classes otherwise, in all their labels: training,
    validation and test"""
    feature_shift: FeatureShift | None = None
    "a share of the clients see other images: inverted, turned, or with noise"
    compute: Compute | None = None
    "clients of different speed, on a simulated clock"
    quantisation: Quantisation | None = None
    """a share of the clients are weak: of each number of an update they send a few bits, rounded
    up or down by chance so that its expectation is right; the bytes of a run are those that are
    sent"""
    benchmark_images: Annotated[int | None, Range(1)] = None
    """so many samples are for a server that judges by data of its own (FOCUS): taken from the
    clients' training samples, or, with `partition.test: by-seed`, out of the global test set"""

    def __post_init__(self) -> None:
        if self.label_conflict is not None and self.feature_shift is not None:
            raise ValueError(
                "label_conflict and feature_shift each divide the clients into those that agree "
                "and those that differ; choose one of them, or make two scenarios of them"
            )
        weak = self.quantisation
        if weak is not None and weak.who == "slowest" and self.compute is None:
            raise ValueError(
                "quantisation.who is slowest, but without compute nobody is slower than others; "
                "add it, or write who: chance"
            )

    def __bool__(self) -> bool:
        """Whether there is any condition."""
        return self != Conditions()

    def to_dict(self) -> dict[str, Any]:
        """Plain types, without what is absent; ``parse_conditions`` reads it back.

        Of an attack that is from a plugin they say so, which no config does.
        """
        given = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        said = {
            name: _without_absent(value) if is_part(value) else value
            for name, value in given.items()
            if value is not None
        }
        if self.attack is not None:
            kept = {"type": self.attack.type, "share": self.attack.share}
            said["attack"] = kept | {k: plain(one) for k, one in self.attack.parameters.items()}
            if self.attack.plugin is not None:
                said["attack"]["plugin"] = self.attack.plugin.facts()
        return said

    def differences(self) -> dict[str, Difference]:
        """In what a share of the clients differ from the others, by key; at most one."""
        both = {"label_conflict": self.label_conflict, "feature_shift": self.feature_shift}
        return {name: one for name, one in both.items() if one is not None}

    def remarks(self, num_clients: int) -> list[str]:
        """What is allowed but may not be meant, or should be known: a sentence each."""
        found = []
        for name, one in self.differences().items():
            if not one.count(num_clients):
                found.append(
                    f"conditions.{name}.share is {one.share}, which is none of {num_clients} "
                    "clients: nobody differs"
                )
        if self.label_conflict is not None and not self.label_conflict.classes:
            found.append(
                "conditions.label_conflict.classes is 0: the groups are there, and nobody's labels "
                "change"
            )
        quantised = self.quantisation
        if quantised is not None and not clients_in(quantised.share, num_clients):
            found.append(
                f"conditions.quantisation.share is {quantised.share}, which is none of "
                f"{num_clients} clients: nobody is weak"
            )
        if self.label_conflict is not None and self.label_noise is not None:
            found.append(
                "conditions: the label conflict comes first, and label noise is drawn on top of it"
            )
        return found

    def require_possible(self, num_clients: int, clients_per_round: int) -> None:
        """Raise ``ValueError`` for what so many clients cannot do."""
        if self.attack is not None:
            self.attack.count(num_clients)
        for name, difference in self.differences().items():
            try:
                difference.count(num_clients)
            except ValueError as error:
                raise ValueError(f"conditions.{name}: {error}") from error
        arrivals = self.compute.arrivals if self.compute is not None else None
        if arrivals is not None and arrivals > clients_per_round:
            raise ValueError(
                f"conditions.compute.arrivals is {arrivals}, but a round has only "
                f"{clients_per_round} clients; lower it or raise federation.clients_per_round"
            )


def _without_absent(condition: Any) -> dict[str, Any]:
    """The fields of a condition, without those at the value that runs had before the field."""
    known = declared(condition).items()
    absent = {name: one.absent.value for name, one in known if one.absent is not None}
    given = asdict(condition).items()
    return {name: value for name, value in given if name not in absent or value != absent[name]}


def parse_conditions(
    given: Any, where: str = "conditions", plugins: Sequence[Plugin] = ()
) -> Conditions:
    """Check ``conditions`` as a config gives them; null stands for what is absent.

    ``plugins``: where further attacks are from.

    Raises ``ValueError`` that names the place and the remedy.
    """
    found = dict(mapping({} if given is None else given, where))
    for key, entry in declared(Conditions).items():
        if entry.holds_part and found.get(key) is not None:
            place = f"{where}.{key}"
            if entry.kind is AttackConfig:
                found[key] = parse_attackers(found[key], place, plugins)
            else:
                found[key] = make(entry.kind, found[key], place)
    return make(Conditions, found, where)


def parse_attackers(value: Any, where: str, plugins: Sequence[Plugin]) -> AttackConfig:
    """Who attacks; the other keys are those of the attack itself."""
    given = dict(mapping(value, where))
    own = {key: given.pop(key) for key in declared(AttackShare) if key in given}
    asked = make(AttackShare, own, where)
    attacks = offered_attacks(plugins)
    if asked.type not in attacks:
        raise ValueError(f"{where}: unknown attack {asked.type!r}{hint(asked.type, attacks)}")
    found = AttackConfig(asked.type, asked.share, {}, attacks[asked.type])
    known = found.kind.parameters
    parameters = {key: parameter.default for key, parameter in known.items()}
    return replace(found, parameters=parameters | checked(given, known, where))
