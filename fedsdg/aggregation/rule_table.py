"""The aggregation rules by name, with the parameters that a row of a config may set."""

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np

from fedsdg.aggregation.arguments import shown
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum, MultiKrum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean
from fedsdg.aggregation.types import Rule
from fedsdg.files import hint


class Row(NamedTuple):
    """A rule, the fields that a row may set, and those that the name fixes or defaults."""

    rule: Callable[..., Rule]
    free: tuple[str, ...] = ()
    preset: Mapping[str, Any] = MappingProxyType({})
    inner: "Row | None" = None
    """Of the rule in its field `inner`; a row may set what is free in either."""

    @property
    def settable(self) -> tuple[str, ...]:
        """All that a row may set."""
        return (*self.free, *(self.inner.settable if self.inner else ()))

    def make(self, arguments: Mapping[str, Any]) -> Rule:
        """The rule with these settable arguments."""
        own = {name: value for name, value in arguments.items() if name in self.free}
        if self.inner:
            others = {name: value for name, value in arguments.items() if name not in self.free}
            own["inner"] = self.inner.make(others)
        return self.rule(**{**self.preset, **own})

    def field(self, key: str) -> Field[Any]:
        """Of a settable argument."""
        if self.inner and key not in self.free:
            return self.inner.field(key)
        return next(f for f in fields(self.rule) if f.name == key)  # type: ignore[arg-type]


_BY_SAMPLES = Row(Mean, ("weights",), {"weights": "samples"})
_UNIFORM = Row(Mean, ("weights",), {"weights": "uniform"})
_FEDSDG = Row(
    Alignment,
    ("epsilon", "reference", "transform", "temperature", "max_weight", "smoothing", "scope"),
)

RULES: Mapping[str, Row] = MappingProxyType(
    {
        "fedsdg": _FEDSDG,
        "fedavg": _BY_SAMPLES,
        "fedavg-uniform": Row(Mean, preset={"weights": "uniform"}),
        "fedavg-sgd": _UNIFORM,
        "fine-tune": _BY_SAMPLES,
        "fedprox": _BY_SAMPLES,
        "scaffold": Row(Scaffold, ("server_rate",)),
        "krum": Row(Krum, ("f",)),
        "multikrum": Row(MultiKrum, ("f", "m")),
        "geometric-median": Row(GeometricMedian, ("tolerance",), {"tolerance": 1e-6}),
        "coordinate-median": Row(CoordinateMedian),
        "trimmed-mean": Row(TrimmedMean, ("f",)),
        "cgsv": Row(Cgsv, ("gamma0", "floor", "step_scale")),
        "fedsgd": _BY_SAMPLES,
        "fedprox-inexact": _BY_SAMPLES,
        "fedcurv": Row(FedCurv, ("weights",)),
        "fedrep": _BY_SAMPLES,
        "ditto": _BY_SAMPLES,
        "interpolate": _BY_SAMPLES,
        "fedper": _BY_SAMPLES,
        "fedsdg+head": _FEDSDG,
        "ffa-lora": _UNIFORM,
        "fedsa-lora": _UNIFORM,
        "rolora": _UNIFORM,
        "apfl": _UNIFORM,
        "feddpa": _UNIFORM,
        "fedsdg-official": _UNIFORM,
        "fedsdg-official-aligned": Row(
            Alignment, ("temperature",), {"reference": "leave_one_out", "transform": "softmax"}
        ),
        "screened": Row(Screened, ("strikes", "threshold"), inner=_UNIFORM),
        "fedsdg+screened": Row(Screened, ("strikes", "threshold"), inner=_FEDSDG),
        "fedsdg+geometric-median": Row(GeometricMedian, ("tolerance",), {"tolerance": 1e-6}),
        "fedsdg+multikrum": Row(MultiKrum, ("f", "m")),
        "data-sharing": _BY_SAMPLES,
        "centralised": Row(Mean, preset={"weights": "samples"}),
        "local-only": Row(NoAggregation),
    }
)

ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "focus": "reads losses that clients and server measure",
        **dict.fromkeys(
            ("cgsv-xu", "clustered", "semi-global", "pens"), "serves clients with several models"
        ),
    }
)
"""Names of methods whose rules need more than one model and its updates."""


def make_rule(rule: Any) -> Rule:
    """The rule for a name, for a row such as {"type": "krum", "f": 2}, or the rule object given.

    A row may hold "name", its label in tables, which is ignored. Raises ValueError, with the
    closest match, for an unknown name or parameter, and for values out of range.

    >>> make_rule("fedavg-uniform")
    Mean(weights='uniform')
    >>> make_rule({"type": "krum", "f": 2})
    Krum(f=2)
    >>> make_rule("multikrun")
    Traceback (most recent call last):
    ...
    ValueError: there is no rule 'multikrun'; did you mean 'multikrum'?
    """
    if isinstance(rule, str):
        return make_rule({"type": rule})
    if isinstance(rule, Mapping):
        return _from_row(rule)
    if isinstance(rule, type):
        raise ValueError(f"rule is the class {rule.__name__}; give an instance, {rule.__name__}()")
    if not isinstance(rule, Rule):
        raise ValueError(
            f"rule is a {type(rule).__name__}; give a name ({', '.join(RULES)}), a row such as "
            f"{{'type': 'krum', 'f': 2}}, or a rule object"
        )
    return rule


def _from_row(given: Mapping[Any, Any]) -> Rule:
    name = given.get("type")
    if not isinstance(name, str):
        raise ValueError(f"rule has the type {shown(name)}; name one of {', '.join(RULES)}")
    if name in ELSEWHERE:
        raise ValueError(f"rule {name!r} {ELSEWHERE[name]}; `fedsdg run` has it")
    if name not in RULES:
        raise ValueError(f"there is no rule {shown(name)}{hint(name, RULES)}")
    row, arguments = RULES[name], {}
    for key, value in given.items():
        if key in ("type", "name"):
            continue
        if key not in row.settable:
            raise ValueError(
                f"rule {name!r} has no parameter {shown(key)}{hint(key, row.settable)}"
            )
        where = f"parameter {key!r} of rule {name!r}"
        arguments[key] = _typed(value, row.field(key), where)
    return row.make(arguments)


def _typed(value: Any, field: Field[Any], where: str) -> Any:
    """The value in the type of the field; its range is the rule's own business."""
    default = field.default
    if value is None and default is None:
        return None
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ValueError(f"{where} is {shown(value)}, but must be a text such as {default!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{where} is {shown(value)}, but must be a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{where} is beyond the largest float") from error
    if not isinstance(default, int) and int not in get_args(field.type):
        return number
    if not number.is_integer():
        raise ValueError(f"{where} is {shown(value)}, but must be a whole number")
    return int(number)
