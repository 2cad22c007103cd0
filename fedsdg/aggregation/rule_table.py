"""The aggregation rules by the names of methods, with what a row of a config may set of them."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

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


@cache
def rules() -> Mapping[str, Named]:
    """The rules of all methods whose rule a caller can serve, by the method's name.

    The rows are the methods', which stand above aggregation; they are imported when a name is asked
    for, and a rule object needs none of them.
    """
    return MappingProxyType(
        {
            name: Named(method.rule, _fixed(method))
            for name, method in _methods().items()
            if not _needs_more(method.rule)
        }
    )


@cache
def elsewhere() -> Mapping[str, str]:
    """Names of methods whose rules need more than one model and its updates, and what they need."""
    found = {name: _needs_more(method.rule) for name, method in _methods().items()}
    return MappingProxyType({name: why for name, why in found.items() if why})


def _methods() -> Mapping[str, Any]:
    from fedsdg.methods.families import METHODS

    return METHODS


def _fixed(method: Any) -> tuple[str, ...]:
    return tuple(name for name in parameters(method.rule) if name in method.fixed)


def _needs_more(rule: Rule) -> str:
    if any(ask.kind == "losses" for ask in rule.probes):
        return "reads losses that clients and server measure"
    return "serves clients with several models" if rule.models(2) > 1 else ""


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
            f"rule is a {type(rule).__name__}; give a name ({', '.join(rules())}), a row such as "
            f"{{'type': 'krum', 'f': 2}}, or a rule object"
        )
    return rule


def _from_row(given: Mapping[Any, Any]) -> Rule:
    name = given.get("type")
    if not isinstance(name, str):
        raise ValueError(f"rule has the type {shown(name)}; name one of {', '.join(rules())}")
    if name in elsewhere():
        raise ValueError(f"rule {name!r} {elsewhere()[name]}; `fedsdg run` has it")
    if name not in rules():
        raise ValueError(f"there is no rule {shown(name)}{hint(name, rules())}")
    named, where = rules()[name], f"rule {name}"
    values = {key: value for key, value in given.items() if key not in ("type", "name")}
    values = checked(values, named.settable, where)
    try:
        return replaced(named.rule, values)
    except ValueError as error:  # Of parameters that do not go together.
        raise ValueError(f"{where}: {error}") from error
