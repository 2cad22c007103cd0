"""The aggregation rules by name, with the parameters that a row of a config may set."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
from fedsdg.parts import Declared, checked, parameters, replaced, shown


class Named(NamedTuple):
    """What a name stands for: a rule, and the parameters that it fixes."""

    rule: Rule
    fixed: tuple[str, ...] = ()

    @property
    def settable(self) -> dict[str, Declared]:
        """All that a row may set, with the rule's own values as defaults."""
        known = parameters(self.rule)
        return {name: one for name, one in known.items() if name not in self.fixed}


_BY_SAMPLES = Named(Mean())
_UNIFORM = Named(Mean("uniform"))
_FEDSDG = Named(Alignment())
_MEDIAN = Named(GeometricMedian())

RULES: Mapping[str, Named] = MappingProxyType(
    {
        "fedsdg": _FEDSDG,
        "fedavg": _BY_SAMPLES,
        "fedavg-uniform": Named(Mean("uniform"), fixed=("weights",)),
        "fedavg-sgd": _UNIFORM,
        "fine-tune": _BY_SAMPLES,
        "fedprox": _BY_SAMPLES,
        "scaffold": Named(Scaffold()),
        "krum": Named(Krum()),
        "multikrum": Named(MultiKrum()),
        "geometric-median": _MEDIAN,
        "coordinate-median": Named(CoordinateMedian()),
        "trimmed-mean": Named(TrimmedMean()),
        "cgsv": Named(Cgsv()),
        "fedsgd": _BY_SAMPLES,
        "fedprox-inexact": _BY_SAMPLES,
        "fedcurv": Named(FedCurv()),
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
        "fedsdg-official-aligned": Named(
            Alignment(reference="leave_one_out", transform="softmax"),
            fixed=("epsilon", "reference", "transform", "max_weight", "smoothing", "scope"),
        ),
        "screened": Named(Screened(Mean("uniform"))),
        "fedsdg+screened": Named(Screened(Alignment())),
        "fedsdg+geometric-median": _MEDIAN,
        "fedsdg+multikrum": Named(MultiKrum()),
        "data-sharing": _BY_SAMPLES,
        "centralised": Named(Mean(), fixed=("weights",)),
        "local-only": Named(NoAggregation()),
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
    named, where = RULES[name], f"rule {name}"
    values = {key: value for key, value in given.items() if key not in ("type", "name")}
    values = checked(values, named.settable, where)
    try:
        return replaced(named.rule, values)
    except ValueError as error:  # Of parameters that do not go together.
        raise ValueError(f"{where}: {error}") from error
