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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedsdg.data.client_shares import clients_in
from fedsdg.files import hint
from fedsdg.methods.composition import Key, Parameter, Part, checked, mapping, section, values

if TYPE_CHECKING:
    from fedsdg.methods.plugins import Plugin

# Beyond it float32 would overflow, and an attack is to be an attack and no infinity.
_LARGEST = 1e6


@dataclass(frozen=True)
class AttackKind:
    """One row of the table of attacks."""

    title: str
    part: Part
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    source: str = ""


def _attack(name: str, *keys: str) -> Part:
    return Part(f"fedsdg.federation.environment.attacks:{name}", {key: Key(key) for key in keys})


def _scale(default: float, meaning: str) -> Parameter:
    return Parameter(default, minimum=0, maximum=_LARGEST, meaning=meaning)


ATTACKS: Mapping[str, AttackKind] = {
    "gaussian": AttackKind(
        "Gaussian noise",
        _attack("Gaussian", "scale"),
        {"scale": _scale(1.0, "length of the noise, in median lengths of the honest updates")},
        "chapter on aggregation; Blanchard et al. 2017",
    ),
    "sign-flip": AttackKind(
        "Sign flip",
        _attack("SignFlip", "scale"),
        {"scale": _scale(1.0, "−scale · own update")},
        "Li et al. 2019 (RSA)",
    ),
    "scaling": AttackKind(
        "Scaling",
        _attack("Scaling", "scale"),
        {"scale": _scale(10.0, "scale · own update")},
        "Bagdasaryan et al. 2020",
    ),
    "alie": AttackKind(
        "ALIE",
        _attack("LittleIsEnough", "z"),
        {
            "z": Parameter(
                None,
                minimum=-_LARGEST,
                maximum=_LARGEST,
                optional=True,
                meaning="standard deviations; null: z_max of the cohort",
            )
        },
        "Baruch et al. 2019",
    ),
    "inner-product": AttackKind(
        "Inner product",
        _attack("InnerProduct", "epsilon"),
        {"epsilon": _scale(0.5, "−ε · mean of the honest updates")},
        "Xie et al. 2019",
    ),
    "replacement": AttackKind(
        "Model replacement",
        _attack("Replacement", "scale"),
        {"scale": _scale(1.0, "the weighted mean becomes −scale · mean of the honest")},
        "chapter on aggregation; Bagdasaryan et al. 2020",
    ),
    "replacement-blind": AttackKind(
        "Model replacement, blind",
        _attack("BlindReplacement", "scale"),
        {"scale": _scale(1.0, "wanted step: −scale · mean of the attackers' own updates")},
        "chapter on aggregation; Bagdasaryan et al. 2020",
    ),
    "corruption": AttackKind(
        "Corrupted transmission",
        _attack("Corruption", "entries", "damage", "scale"),
        {
            "entries": Parameter(
                0.01, minimum=0, maximum=1, meaning="share of the entries that are damaged"
            ),
            "damage": Parameter(
                "noise",
                choices=("noise", "bits"),
                meaning="noise of the parameters' size, or one flipped bit (may be NaN)",
            ),
            "scale": _scale(1.0, "size of the noise, in root mean squares of the parameters"),
        },
        "chapter on aggregation",
    ),
    "label-flip": AttackKind(
        "Label flip",
        _attack("LabelFlip", "to"),
        {
            "to": Parameter(
                "opposite", choices=("opposite", "next"), meaning="y → C − 1 − y, or y → y + 1"
            )
        },
        "Biggio et al. 2012; Tolpegin et al. 2020",
    ),
}


@dataclass(frozen=True)
class AttackConfig:
    """A share of the clients attacks; the same clients in every round."""

    type: str
    share: float
    parameters: Mapping[str, Any]
    #: Where the attack is from; None for those of the table.
    plugin: Plugin | None = None

    @property
    def kind(self) -> AttackKind:
        """Its row."""
        from fedsdg.methods.plugins import find_attack

        return find_attack(self.type, self.plugin)

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

    @property
    def parts(self) -> tuple[Part, ...]:
        """What this condition alone imports."""
        return (self.kind.part,)

    def build(self) -> Any:
        """The attack itself (``fedsdg.federation.environment.attacks``); imports torch."""
        return self.kind.part.build(self.parameters)


@dataclass(frozen=True)
class DropoutConfig:
    """A client that takes part leaves in mid-round with this probability.

    ``lasting``: it never comes back; every client, drawn or not, then leaves with this probability
    in each round.
    """

    probability: float = checked(0.1, minimum=0, maximum=1)
    lasting: bool = checked(False, choices=(False, True))


@dataclass(frozen=True)
class LabelNoiseConfig:
    """Share of wrong labels: a rate for each client, uniform in [low, high]."""

    low: float = checked(0.0, minimum=0, maximum=1)
    high: float = checked(0.4, minimum=0, maximum=1)

    part: ClassVar = Part("fedsdg.data.label_noise:noisy_labels")

    @property
    def parts(self) -> tuple[Part, ...]:
        """What this condition alone imports."""
        return (self.part,)


@dataclass(frozen=True)
class DifferenceConfig:
    """A share of the clients differ from the others: each in its way, or in groups."""

    share: float = checked(0.5, minimum=0, maximum=1)
    per: str = checked("client", choices=("client", "group"))
    groups: int = checked(1, minimum=1, integer=True)

    def count(self, num_clients: int) -> int:
        """How many of the clients differ: share · K, halves rounded up."""
        return clients_in(self.share, num_clients)

    def require_possible(self, num_clients: int, where: str) -> None:
        """Raise ``ValueError`` where there are more groups than clients that differ."""
        count = self.count(num_clients)
        if count and self.groups > count:
            raise ValueError(
                f"{where}.groups is {self.groups}, but only {count} of {num_clients} clients "
                f"differ; lower it, or raise {where}.share"
            )


@dataclass(frozen=True)
class LabelConflictConfig(DifferenceConfig):
    """A share of the clients name ``classes`` of the labels otherwise, in a cycle.

    The cycle is each client's own (``per`` client), or that of its group. Training, validation and
    test labels follow it; the global test set keeps the common labels.
    """

    classes: int = checked(2, minimum=2, integer=True)

    part: ClassVar = Part("fedsdg.data.label_conflict:label_cycle")

    @property
    def parts(self) -> tuple[Part, ...]:
        """What this condition alone imports."""
        return (self.part,)

    def require_classes(self, num_classes: int, dataset: str) -> None:
        """Raise ``ValueError`` for a cycle over more labels than a data set has."""
        if self.classes > num_classes:
            raise ValueError(
                f"conditions.label_conflict.classes is {self.classes}, but {dataset} has only "
                f"{num_classes} classes; lower it"
            )


@dataclass(frozen=True)
class FeatureShiftConfig(DifferenceConfig):
    """A share of the clients see other images: inverted, turned, or with noise.

    The angle and the noise are each client's own (``per`` client), or those of its group; inverted
    images are the same to all. The global test set stays as it is.
    """

    kind: str = checked("invert", choices=("invert", "rotate", "noise"))

    part: ClassVar = Part("fedsdg.data.transforms:View")

    @property
    def parts(self) -> tuple[Part, ...]:
        """What this condition alone imports."""
        return (self.part,)


@dataclass(frozen=True)
class ComputeConfig:
    """Clients of different speed, on a simulated clock.

    ``slowest``, ``fastest``: local steps in a simulated second; a client's speed is drawn
    log-uniformly between them. ``local_seconds``: train so long, at most ``max_epochs`` epochs,
    instead of a fixed number of epochs. A round ends when all updates of its cohort are there, or
    earlier, after ``deadline`` seconds or with the ``arrivals``-th update. ``late``: an update that
    comes later joins the round in which it arrives, at most ``max_age`` rounds after it began
    (``compensate``), or is thrown away (``discard``).
    """

    slowest: float = checked(1.0, minimum=1e-6, maximum=_LARGEST)
    fastest: float = checked(4.0, minimum=1e-6, maximum=_LARGEST)
    local_seconds: float | None = checked(None, minimum=1e-6, maximum=1e9, optional=True)
    max_epochs: int = checked(10, minimum=1, integer=True)
    deadline: float | None = checked(None, minimum=1e-6, maximum=1e9, optional=True)
    arrivals: int | None = checked(None, minimum=1, integer=True, optional=True)
    late: str = checked("compensate", choices=("compensate", "discard"))
    max_age: int = checked(5, minimum=1, integer=True)

    #: The rule around the method's own, where late updates are compensated for.
    part: ClassVar = Part("fedsdg.aggregation.rules.compensated:Compensated")

    @property
    def compensates(self) -> bool:
        """Whether updates may be late and count less for it."""
        some_are_late = self.deadline is not None or self.arrivals is not None
        return some_are_late and self.late == "compensate"

    @property
    def parts(self) -> tuple[Part, ...]:
        """What this condition alone imports."""
        return (self.part,) if self.compensates else ()


@dataclass(frozen=True)
class QuantisationConfig:
    """A share of the clients are weak: of every number of an update they send ``bits`` bits.

    ``who``: drawn by ``chance``, or the ``slowest`` clients. Attackers are never weak.
    """

    share: float = checked(0.5, minimum=0, maximum=1)
    bits: int = checked(4, minimum=1, maximum=16, integer=True)
    who: str = checked("chance", choices=("chance", "slowest"))

    part: ClassVar = Part("fedsdg.federation.environment.quantisation:Quantisation")

    @property
    def parts(self) -> tuple[Part, ...]:
        """What this condition alone imports."""
        return (self.part,)

    def count(self, num_clients: int) -> int:
        """How many of the clients are weak: share · K, halves rounded up."""
        return clients_in(self.share, num_clients)


Difference = TypeVar("Difference", bound=DifferenceConfig)


@dataclass(frozen=True)
class Conditions:
    """What a run has to cope with; None for what it is spared."""

    attack: AttackConfig | None = None
    dropout: DropoutConfig | None = None
    label_noise: LabelNoiseConfig | None = None
    label_conflict: LabelConflictConfig | None = None
    feature_shift: FeatureShiftConfig | None = None
    compute: ComputeConfig | None = None
    quantisation: QuantisationConfig | None = None
    #: Samples that the server takes out of the global test set for a set of its own.
    benchmark_images: int | None = None

    def __bool__(self) -> bool:
        """Whether there is any condition."""
        return self != Conditions()

    def to_dict(self) -> dict[str, Any]:
        """Plain types, without what is absent; ``parse_conditions`` reads it back.

        Of an attack that is from a plugin they say so, which no config does.
        """
        plain: dict[str, Any] = {}
        for name in (
            "dropout",
            "label_noise",
            "label_conflict",
            "feature_shift",
            "compute",
            "quantisation",
        ):
            part = getattr(self, name)
            if part is not None:
                plain[name] = asdict(part)
        if self.attack is not None:
            kept = {"type": self.attack.type, "share": self.attack.share}
            plain["attack"] = {**kept, **self.attack.parameters}
            if self.attack.plugin is not None:
                plain["attack"]["plugin"] = self.attack.plugin.facts()
        if self.benchmark_images is not None:
            plain["benchmark_images"] = self.benchmark_images
        return plain

    @property
    def parts(self) -> tuple[Part, ...]:
        """What a run imports for its conditions alone, and what therefore belongs to its address.

        A condition that needs code of its own has a property ``parts``, and resolves them late.
        """
        given = (getattr(self, entry.name) for entry in fields(self))
        return tuple(part for one in given for part in getattr(one, "parts", ()))

    def differences(self) -> dict[str, DifferenceConfig]:
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
        quantised = self.quantisation
        if quantised is not None and not quantised.count(num_clients):
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
            difference.require_possible(num_clients, f"conditions.{name}")
        arrivals = self.compute.arrivals if self.compute is not None else None
        if arrivals is not None and arrivals > clients_per_round:
            raise ValueError(
                f"conditions.compute.arrivals is {arrivals}, but a round has only "
                f"{clients_per_round} clients; lower it or raise federation.clients_per_round"
            )


def parse_conditions(
    given: Any, where: str = "conditions", plugins: Sequence[Plugin] = ()
) -> Conditions:
    """Check ``conditions`` as a config gives them; null stands for what is absent.

    ``plugins``: where further attacks are from.

    Raises ``ValueError`` that names the place and the remedy.
    """
    readers: Mapping[str, Callable[[Any, str], Any]] = {
        "attack": lambda value, place: _attack_section(value, place, plugins),
        "dropout": _dropout,
        "label_noise": _label_noise,
        "label_conflict": lambda *given: _difference(LabelConflictConfig, *given),
        "feature_shift": lambda *given: _difference(FeatureShiftConfig, *given),
        "compute": _compute,
        "quantisation": lambda *given: section(QuantisationConfig, *given),
        "benchmark_images": Parameter(None, minimum=1, integer=True).check,
    }
    found = {}
    for key, value in mapping({} if given is None else given, where).items():
        if key not in readers:
            raise ValueError(f"{where}: unknown key {key!r}{hint(key, readers)}")
        if value is not None:
            found[key] = readers[key](value, f"{where}.{key}")
    if {"label_conflict", "feature_shift"} <= set(found):
        raise ValueError(
            f"{where}: label_conflict and feature_shift each divide the clients into those that "
            "agree and those that differ; choose one of them, or make two scenarios of them"
        )
    quantised, compute = found.get("quantisation"), found.get("compute")
    if quantised is not None and quantised.who == "slowest" and compute is None:
        raise ValueError(
            f"{where}.quantisation.who is slowest, but without {where}.compute nobody is slower "
            "than others; add it, or write who: chance"
        )
    return Conditions(**found)


def _attack_section(value: Any, where: str, plugins: Sequence[Plugin]) -> AttackConfig:
    given = dict(mapping(value, where))
    for key in ("type", "share"):
        if key not in given:
            raise ValueError(f"{where} lacks the key {key!r}")
    kind = str(given.pop("type"))
    attacks: Mapping[str, Plugin | None] = dict.fromkeys(ATTACKS)
    if plugins:
        from fedsdg.methods.plugins import offered_attacks

        attacks = offered_attacks(plugins)
    if kind not in attacks:
        raise ValueError(f"{where}: unknown attack {kind!r}{hint(kind, attacks)}")
    share = Parameter(0.0, minimum=0, maximum=1).check(given.pop("share"), f"{where}.share")
    found = AttackConfig(kind, share, {}, attacks[kind])
    known = found.kind.parameters
    parameters = {key: parameter.default for key, parameter in known.items()}
    return replace(found, parameters=parameters | values(given, known, where))


def _dropout(value: Any, where: str) -> DropoutConfig:
    dropout = section(DropoutConfig, value, where)
    if not isinstance(dropout.lasting, bool):  # 1 == True, but would have another hash
        raise ValueError(f"{where}.lasting is {dropout.lasting!r}, but must be true or false")
    return dropout


def _label_noise(value: Any, where: str) -> LabelNoiseConfig:
    noise = section(LabelNoiseConfig, value, where)
    if noise.low > noise.high:
        raise ValueError(
            f"{where}: low = {noise.low} is above high = {noise.high}; exchange them, or set low"
        )
    return noise


def _difference(kind: type[Difference], value: Any, where: str) -> Difference:
    difference = section(kind, value, where)
    if difference.per == "client" and difference.groups != 1:
        raise ValueError(
            f"{where}: groups is {difference.groups}, but per: client makes every client a group "
            "of its own; write per: group, or remove groups"
        )
    return difference


def _compute(value: Any, where: str) -> ComputeConfig:
    compute = section(ComputeConfig, value, where)
    if compute.slowest > compute.fastest:
        raise ValueError(
            f"{where}: slowest = {compute.slowest} is above fastest = {compute.fastest} steps in a "
            "second; exchange them"
        )
    late = (compute.local_seconds, compute.deadline)
    if late[0] is not None and late[1] is not None and late[0] > late[1]:
        raise ValueError(
            f"{where}: clients train for local_seconds = {late[0]}, after the deadline = {late[1]} "
            "of the round; no update could ever be in time"
        )
    return compute
