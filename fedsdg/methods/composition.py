"""What a method is made of: parts named by reference, and the parameters that a config may set.

Parts are resolved only when a run is built, so that reading the table of methods, checking a
config or printing help never imports torch. Sections of a config are frozen dataclasses whose
fields are made by :func:`checked`: closed keys, and errors that name the remedy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from fedsdg.files import hint

T = TypeVar("T")


@dataclass(frozen=True)
class Parameter:
    """A key that a config may set for a method: its default, its kind and its range.

    ``quiet``: left out of a run's config at its default, so that runs from before the parameter
    came keep their hash and their records. ``several``: a list of such values, checked one by one,
    becomes a tuple; with ``span`` it may also be a mapping ``{low, high}`` of two of them.
    """

    default: Any
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    integer: bool = False
    optional: bool = False
    meaning: str = ""
    quiet: bool = False
    several: bool = False
    span: bool = False

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` in its proper type, or raise ``ValueError`` saying what it should be."""
        if value is None and self.optional:
            return None
        if self.several:
            one = replace(self, several=False, optional=False)
            if self.span and isinstance(value, Mapping) and set(value) == {"low", "high"}:
                low, high = (one.check(value[end], f"{where}.{end}") for end in ("low", "high"))
                if low > high:
                    raise ValueError(f"{where}: low = {low} is above high = {high}; exchange them")
                return {"low": low, "high": high}
            if not isinstance(value, list | tuple) or not value:
                span = ", or a mapping of low and high" if self.span else ""
                raise ValueError(f"{where} is {value!r}, but must be a list of numbers{span}")
            return tuple(one.check(entry, f"{where}[{k}]") for k, entry in enumerate(value))
        if self.choices:
            if value not in self.choices:
                allowed = ", ".join(map(str, self.choices))
                raise ValueError(f"{where} is {value!r}, but must be one of {allowed}")
            return value
        if isinstance(value, str):
            raise ValueError(
                f"{where} is the text {value!r}, but must be a number "
                "(YAML reads 1e-4 as text: write 0.0001 or 1.0e-4)"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where} is {value!r}, but must be a number")
        finite = abs(value) <= sys.float_info.max
        if self.integer and finite and value != int(value):
            raise ValueError(f"{where} is {value}, but must be a whole number")
        if self.minimum is not None and not value >= self.minimum:
            raise ValueError(f"{where} is {value}, but must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"{where} is {value}, but must be at most {self.maximum}")
        if not finite:
            raise ValueError(f"{where} is {value}, but must be a finite number")
        return int(value) if self.integer else float(value)


@dataclass(frozen=True)
class Key:
    """Stands in a part's arguments for the value of the method's parameter ``name``."""

    name: str


@dataclass(frozen=True)
class Part:
    """A callable, and the arguments that a method calls it with.

    ``reference`` is "module:name", imported only when it is wanted. A plugin, which is imported in
    any case, may give the callable itself. ``brings``: the names of the terms that a
    personalisation adds to the objective, for whoever lists them without importing it.
    """

    reference: str | Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    brings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The callable's own name, without an import."""
        if isinstance(self.reference, str):
            return self.reference.rpartition(":")[2]
        return getattr(self.reference, "__name__", repr(self.reference))

    def resolve(self) -> Callable[..., Any]:
        """The callable; a ``ValueError`` says what of the reference cannot be found."""
        if not isinstance(self.reference, str):
            return self.reference
        module, _, name = self.reference.partition(":")
        if not (module and name):
            raise ValueError(f"{self.reference!r} names no part; write 'module:name'")
        try:
            place = importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"{self.reference!r} cannot be imported: {error}") from error
        if not hasattr(place, name):
            raise ValueError(f"{self.reference!r} cannot be imported: {module} has no {name!r}")
        return getattr(place, name)

    def build(self, parameters: Mapping[str, Any]) -> Any:
        """Call the callable, with every ``Key`` replaced by its value and every ``Part`` built."""

        def real(value: Any) -> Any:
            if isinstance(value, Key):
                return parameters[value.name]
            return value.build(parameters) if isinstance(value, Part) else value

        return self.resolve()(**{name: real(value) for name, value in self.arguments.items()})


@dataclass(frozen=True)
class Choice:
    """One row of a table of parts that a config chooses from, such as an optimiser."""

    title: str
    part: Part
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    source: str = ""


#: Marks the fields of a method that are words about it and change no run.
_WORDS = {"words": True}

#: Every client uses the global model.
SHARED = Part("fedsdg.federation.personalisation.shared:Shared")


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    title: str = field(metadata=_WORDS)
    rule: Part
    #: Terms beside the cross-entropy and those that the personalisation brings itself.
    objective: tuple[Part, ...] = ()
    personalisation: Part = SHARED
    #: The optimiser a method prescribes; None takes what the config says.
    optimiser: str | None = None
    #: Whether it forbids weight decay: optimisers that have some then run without.
    undecayed: bool = False
    #: Whether it treats the factors of adapters apart, so that it cannot train all parameters.
    needs_adapters: bool = False
    #: Other keys of the config's ``training`` that a method prescribes; ``batch_size`` None is a
    #: client's whole shard.
    training: Mapping[str, Any] = field(default_factory=dict)
    #: When clients stop before their epochs are used up; None lets them use all.
    stopping: Part | None = None
    #: Whether all clients take part in every round.
    everybody: bool = False
    #: Where the rule withstands f attackers, it needs 2f and so many clients per round.
    beyond_attackers: int = 3
    #: What the server is told of its clients before the first round; None: nothing.
    knowledge: Part | None = None
    #: Whether the server's models, where it has several, start with heads of their own.
    heads_apart: bool = False
    #: Which data leave their clients; None: none do.
    pooling: Part | None = None
    #: What clients measure for the rule to decide by.
    probes: tuple[Part, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
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

    @property
    def parts(self) -> tuple[Part, ...]:
        """All that the method is made of."""
        optional = (self.stopping, self.knowledge, self.pooling)
        some = [part for part in optional if part is not None]
        return (self.rule, *self.objective, self.personalisation, *some, *self.probes)

    @property
    def term_names(self) -> tuple[str, ...]:
        """The names of all terms of the objective in their order, without an import."""
        return (*self.personalisation.brings, *(part.name for part in self.objective))

    def complete(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """A run's parameters, with the quiet ones that its config leaves out."""
        return {**{key: one.default for key, one in self.parameters.items()}, **parameters}


# --- Sections of a config: closed keys, checked values --------------------------------------------


def checked(default: Any, **bounds: Any) -> Any:
    """A dataclass field whose value is validated by a ``Parameter``."""
    return field(default=default, metadata={"parameter": Parameter(default, **bounds)})


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """``value`` if it is a mapping, else ``ValueError``."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {value!r}, but must be a mapping of keys to values")
    return value


def values(given: Mapping[str, Any], known: Mapping[str, Parameter], where: str) -> dict[str, Any]:
    """The checked values of ``given``, or ``ValueError`` for an unknown key or a bad value."""
    for key in given:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{hint(key, known)}")
    return {key: known[key].check(value, f"{where}.{key}") for key, value in given.items()}


def section(cls: type[T], value: Any, where: str) -> T:
    """The dataclass ``cls`` with what a mapping says of its fields, defaults for the others."""
    known = {entry.name: entry.metadata["parameter"] for entry in fields(cls)}  # type: ignore[arg-type]
    return cls(**values(mapping(value, where), known, where))
