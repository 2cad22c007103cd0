"""What clients train with: the tables of optimisers and of losses. Never imports torch.

A config names a row, ``optimiser: adam``, or says more of it: ``optimiser: {type: sgd, momentum:
0.9}``. A plugin may bring further rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fedsdg.files import hint
from fedsdg.methods.composition import Choice, Key, Parameter, Part, mapping, values

#: The parameter of an optimiser that a method may forbid.
WEIGHT_DECAY = "weight_decay"


def _part(place: str, *keys: str) -> Part:
    return Part(f"fedsdg.federation.{place}", MappingProxyType({key: Key(key) for key in keys}))


_DECAY = "λ, by which parameters shrink in a step"
_BETAS = {
    "beta1": Parameter(0.9, minimum=0, maximum=0.999999, meaning="β₁, share of the past in m"),
    "beta2": Parameter(0.999, minimum=0, maximum=0.999999, meaning="β₂, share of the past in v"),
    "epsilon": Parameter(1e-8, minimum=1e-12, maximum=1, meaning="ε beside √v̂"),
}

OPTIMISERS: Mapping[str, Choice] = MappingProxyType(
    {
        "adam": Choice(
            "Adam",
            _part("optimisers.adam:Adam", *_BETAS),
            _BETAS,
            "Kingma & Ba 2015",
        ),
        "adamw": Choice(
            "AdamW",
            _part("optimisers.adamw:AdamW", *_BETAS, WEIGHT_DECAY),
            {**_BETAS, WEIGHT_DECAY: Parameter(0.01, minimum=0, maximum=1e3, meaning=_DECAY)},
            "Loshchilov & Hutter 2019",
        ),
        "sgd": Choice(
            "SGD",
            _part("optimisers.sgd:Sgd", "momentum", "nesterov", WEIGHT_DECAY),
            {
                "momentum": Parameter(0.0, minimum=0, maximum=0.999999, meaning="μ of v ← μ v + g"),
                "nesterov": Parameter(
                    False, choices=(False, True), meaning="a step along g + μ v in place of v"
                ),
                WEIGHT_DECAY: Parameter(0.0, minimum=0, maximum=1e3, meaning=_DECAY),
            },
            "Sutskever et al. 2013",
        ),
        "adagrad": Choice(
            "Adagrad",
            _part("optimisers.adagrad:Adagrad", "epsilon"),
            {"epsilon": Parameter(1e-10, minimum=1e-12, maximum=1, meaning="ε beside √Σ g²")},
            "Duchi et al. 2011",
        ),
    }
)

LOSSES: Mapping[str, Choice] = MappingProxyType(
    {
        "cross-entropy": Choice(
            "Cross-entropy",
            _part("losses.cross_entropy:CrossEntropy", "label_smoothing", "class_weights"),
            {
                "label_smoothing": Parameter(
                    0.0, minimum=0, maximum=1, meaning="ε, share of all classes in every label"
                ),
                "class_weights": Parameter(
                    None,
                    minimum=1e-6,
                    maximum=1e6,
                    optional=True,
                    several=True,
                    meaning="a weight for each class",
                ),
            },
        ),
        "focal": Choice(
            "Focal loss",
            _part("losses.focal:Focal", "gamma"),
            {"gamma": Parameter(2.0, minimum=0, maximum=100, meaning="γ of (1 − p)^γ")},
            "Lin et al. 2017",
        ),
    }
)


@dataclass(frozen=True)
class Chosen(Parameter):
    """A key whose value is a row of a table: its name, or its name and its parameters.

    The checked value is the name alone where all parameters have their defaults, else a mapping
    of ``type`` and those that do not.
    """

    table: Mapping[str, Choice] = field(default_factory=dict, compare=False)

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` in its shortest form, or raise ``ValueError``."""
        given = {"type": value} if isinstance(value, str) else dict(mapping(value, where))
        name = given.pop("type", None)
        if not isinstance(name, str) or name not in self.table:
            if name is None:
                raise ValueError(f"{where} is {value!r}, but must name a 'type'")
            raise ValueError(f"{where}: there is no {name!r}{hint(str(name), self.table)}")
        known = self.table[name].parameters
        checked = {
            # 1 is true as well, but would be another run.
            key: bool(one) if known[key].choices == (False, True) else one
            for key, one in values(given, known, where).items()
        }
        others = {key: one for key, one in sorted(checked.items()) if one != known[key].default}
        return {"type": name, **others} if others else name


def name_of(value: str | Mapping[str, Any]) -> str:
    """The row that a checked value names."""
    return value if isinstance(value, str) else str(value["type"])


def parameters_of(value: str | Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    """All parameters of the row ``choice`` that a checked value names."""
    given = {} if isinstance(value, str) else {k: v for k, v in value.items() if k != "type"}
    return {**{key: one.default for key, one in choice.parameters.items()}, **given}


def undecayed(value: str | Mapping[str, Any], choice: Choice) -> Any:
    """A checked optimiser without weight decay, in its shortest form."""
    if WEIGHT_DECAY not in choice.parameters:
        return value
    given = {**({"type": value} if isinstance(value, str) else value), WEIGHT_DECAY: 0.0}
    return Chosen(None, table={name_of(value): choice}).check(given, "training.optimiser")
