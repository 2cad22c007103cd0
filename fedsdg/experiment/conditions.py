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

from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

from fedsdg.experiment.attackers import AttackConfig, parse_attackers
from fedsdg.federation.client_shares import clients_in
from fedsdg.files.columns import Column
from fedsdg.methods.plugins import Plugin
from fedsdg.parts import Absent, Range, declared, is_part, make, mapping, part, plain

#: The rule around the method's own, where late updates are compensated for.
_COMPENSATED = "fedsdg.aggregation.rules.compensated"

# Beyond it float32 would overflow, and an attack is to be an attack and no infinity.
_LARGEST = 1e6


@part
class DropoutConfig:
    """Clients leave before they send anything."""

    probability: Annotated[float, Range(0, 1)] = 0.1
    "of leaving in mid-round, for each client of a cohort"
    lasting: bool = False
    "for good; every client, drawn or not, then leaves with this probability in each round"

    #: What it adds to the records, here as in the other conditions.
    columns: ClassVar = (Column("rounds", "dropped", "int32", "clients that left in mid-round"),)


@part
class LabelNoiseConfig:
    """Wrong labels: a rate for each client, drawn uniformly."""

    low: Annotated[float, Range(0, 1)] = 0.0
    "least share of wrong labels of a client"
    high: Annotated[float, Range(0, 1)] = 0.4
    "greatest share of wrong labels of a client"

    #: What this condition alone imports.
    modules: ClassVar = ("fedsdg.experiment.label_noise",)
    columns: ClassVar = (
        Column("clients", "noise_rate", "float64", "share of its labels that are wrong"),
    )

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(
                f"low = {self.low} is above high = {self.high}; exchange them, or set low"
            )


@part
class DifferenceConfig:
    """A share of the clients differ from the others."""

    share: Annotated[float, Range(0, 1)] = 0.5
    """share of the clients that differ, rounded to whole clients (halves up); those of a smaller
    share are among those of a larger one, and 0, which is nobody, is allowed as a control"""
    per: Literal["client", "group"] = "client"
    "each differs in its own way (`client`), or in the way of its `group`"
    groups: Annotated[int, Range(1)] = 1
    "how many groups there are, as equal in size as can be"

    columns: ClassVar[tuple[Column, ...]] = (
        Column("clients", "conflicts", "bool", "whether it differs from the others"),
        Column("clients", "group", "int32", "who differ in the same way; −1: who do not differ"),
    )

    def __post_init__(self) -> None:
        if self.per == "client" and self.groups != 1:
            raise ValueError(
                f"groups is {self.groups}, but per: client makes every client a group of its own; "
                "write per: group, or remove groups"
            )

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


@part
class LabelConflictConfig(DifferenceConfig):
    """A share of the clients name some of the classes otherwise, in a cycle.

    Training, validation and test labels follow it; the global test set keeps the common labels.
    """

    classes: Annotated[int, Range(0)] = 2
    """over so many labels, drawn at random, goes a cycle in random order, in which each becomes the
    next; 0, as a control: both groups are there, and all labels stay as they are"""

    #: What this condition alone imports.
    modules: ClassVar = ("fedsdg.experiment.label_conflict",)
    columns: ClassVar = (
        *DifferenceConfig.columns,
        Column("clients", "relabelled", "float64", "share of its samples that it names otherwise"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes == 1:
            raise ValueError(
                "classes is 1, but a cycle needs 2 labels or more; write 0 for none, or at least 2"
            )

    def require_classes(self, num_classes: int, dataset: str) -> None:
        """Raise ``ValueError`` for a cycle over more labels than a data set has."""
        if self.classes > num_classes:
            raise ValueError(
                f"conditions.label_conflict.classes is {self.classes}, but {dataset} has only "
                f"{num_classes} classes; lower it"
            )


@part
class FeatureShiftConfig(DifferenceConfig):
    """A share of the clients see other images; the global test set stays as it is."""

    kind: Literal["invert", "rotate", "noise"] = "invert"
    """`invert` (255 − x, the same for everybody), `rotate` (by `angle`, or else by one between 15°
    and 60° either way; bilinear), or `noise` (of standard deviation 0.25 of full ink, drawn once
    for an image and whoever sees it)"""
    angle: Annotated[float | None, Range(-180, 180), Absent(None)] = None
    """with `kind: rotate`: degrees, counter-clockwise, by which all who differ see images turned;
    null: drawn for each client, or for each group"""

    #: What this condition alone imports.
    modules: ClassVar = ("fedsdg.next_federation.transforms",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.angle is not None and self.kind != "rotate":
            raise ValueError(
                f"angle is {self.angle:g}, but kind is {self.kind}; write kind: rotate, or remove "
                "angle"
            )


@part
class ComputeConfig:
    """Clients of different speed, on a simulated clock.

    A round ends when all updates of its cohort are there, or earlier, after so many seconds or with
    so many updates.
    """

    slowest: Annotated[float, Range(1e-6, _LARGEST)] = 1.0
    """local steps in a simulated second of the slowest; a client's speed is drawn log-uniformly
    between this and the fastest"""
    fastest: Annotated[float, Range(1e-6, _LARGEST)] = 4.0
    "local steps in a simulated second of the fastest"
    local_seconds: Annotated[float | None, Range(1e-6, 1e9)] = None
    """clients train for so many seconds in a round; null: for `training.epochs`. A client takes
    ⌊`local_seconds` · speed⌋ steps of one gradient each. Phases, models of its own and passes that
    measure gradients share them in proportion to their usual lengths, at least one step each. A
    client with fewer steps than that trains only what it keeps private, and sends nothing"""
    max_epochs: Annotated[int, Range(1)] = 10
    """with `local_seconds`: takes the place of `training.epochs`, and all steps of a client in a
    round are at most those of so many epochs"""
    deadline: Annotated[float | None, Range(1e-6, 1e9)] = None
    "a round ends after so many seconds; null: when all updates are there"
    arrivals: Annotated[int | None, Range(1)] = None
    "a round ends with so many updates; null: with all of them"
    late: Literal["compensate", "discard"] = "compensate"
    """an update that comes later: `compensate` lets it join the round in which it arrives,
    `discard` throws it away"""
    max_age: Annotated[int, Range(1)] = 5
    "rounds after which a late update is thrown away all the same"

    columns: ClassVar = (
        Column("rounds", "simulated_seconds", "float64", "simulated time at the round's end"),
        Column("rounds", "idle_seconds", "float64", "seconds for which those in time waited"),
        Column("rounds", "arrived", "int32", "updates that the round took in"),
        Column("rounds", "late", "int32", "updates that came after the round's end"),
        Column("rounds", "discarded", "int32", "updates that were thrown away"),
        Column("rounds", "passed_over", "int32", "clients that were drawn while still busy"),
        Column("rounds", "out_of_time", "int32", "clients with too little time for an update"),
        Column("clients", "speed", "float64", "local steps in a simulated second"),
        Column("clients", "age", "int32", "by how many rounds its update was late"),
        Column("clients", "out_of_time", "bool", "trained in private only, and sent nothing"),
    )

    def __post_init__(self) -> None:
        if self.slowest > self.fastest:
            raise ValueError(
                f"slowest = {self.slowest} is above fastest = {self.fastest} steps in a second; "
                "exchange them"
            )
        seconds, deadline = self.local_seconds, self.deadline
        if seconds is not None and deadline is not None and seconds > deadline:
            raise ValueError(
                f"clients train for local_seconds = {seconds}, after the deadline = {deadline} of "
                "the round; no update could ever be in time"
            )

    @property
    def compensates(self) -> bool:
        """Whether updates may be late and count less for it."""
        some_are_late = self.deadline is not None or self.arrivals is not None
        return some_are_late and self.late == "compensate"

    @property
    def modules(self) -> tuple[str, ...]:
        """What this condition alone imports."""
        return (_COMPENSATED,) if self.compensates else ()


@part
class QuantisationConfig:
    """A share of the clients are weak: of each number of an update they send a few bits."""

    share: Annotated[float, Range(0, 1)] = 0.5
    """share of the clients, rounded to whole clients (halves up); those of a smaller share are
    among those of a larger one, and attackers are never among them"""
    bits: Annotated[int, Range(1, 16)] = 4
    """bits for each number: 2^bits levels, equally far apart between the least and the greatest
    number of the update"""
    who: Literal["chance", "slowest"] = "chance"
    "drawn by `chance`, or the `slowest` clients (needs `compute`)"

    #: What this condition alone imports.
    modules: ClassVar = ("fedsdg.federation.environment.quantisation",)
    columns: ClassVar = (Column("clients", "weak", "bool", "whether it sends a few bits"),)

    def count(self, num_clients: int) -> int:
        """How many of the clients are weak: share · K, halves rounded up."""
        return clients_in(self.share, num_clients)


@part
class Conditions:
    """What a run has to cope with; each is left out, or null, where there is none of it."""

    attack: AttackConfig | None = None
    """a share of the clients attacks; they are the same in every round, and those of a smaller
    share are among those of a larger one"""
    dropout: DropoutConfig | None = None
    "clients leave before they send anything"
    label_noise: LabelNoiseConfig | None = None
    "wrong labels on clients' training and validation samples, never on tests"
    label_conflict: LabelConflictConfig | None = None
    """a share of the clients name some of the classes otherwise, in all their labels: training,
    validation and test"""
    feature_shift: FeatureShiftConfig | None = None
    "a share of the clients see other images: inverted, turned, or with noise"
    compute: ComputeConfig | None = None
    "clients of different speed, on a simulated clock"
    quantisation: QuantisationConfig | None = None
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

    @property
    def modules(self) -> tuple[str, ...]:
        """What a run imports for its conditions alone, and what therefore belongs to its address.

        A condition that needs code of its own names it in ``modules``; see ``own_code``.
        """
        given = (getattr(self, entry.name) for entry in fields(self))
        return tuple(one for value in given for one in getattr(value, "modules", ()))

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
        if self.label_conflict is not None and not self.label_conflict.classes:
            found.append(
                "conditions.label_conflict.classes is 0: the groups are there, and nobody's labels "
                "change"
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


def _without_absent(condition: Any) -> dict[str, Any]:
    """The fields of a condition, without those at the value that runs had before the field."""
    known = declared(condition).items()
    absent = {name: one.absent.value for name, one in known if one.absent is not None}
    given = asdict(condition).items()
    return {name: value for name, value in given if name not in absent or value != absent[name]}


def own_code(condition: Any, name: str) -> Any:
    """What the module of a condition calls ``name``: imported by the runs that meet it alone."""
    return getattr(import_module(condition.modules[0]), name)


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
