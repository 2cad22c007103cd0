"""The aggregation rules by the names of methods, with what a row of a config may set of them."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from fedsdg.aggregation.types import Rule
from fedsdg.errors import hint, shortened
from fedsdg.parts import model_of, parameters, with_parameters


class Named(NamedTuple):
    """What a name stands for: a rule, and the parameters that the name fixes."""

    rule: Rule
    fixed: tuple[str, ...] = ()

    @property
    def settable(self) -> dict[str, FieldInfo]:
        """All that a row may set, with the rule's own values as defaults."""
        return {n: field for n, field in parameters(self.rule).items() if n not in self.fixed}


@cache
def rules() -> Mapping[str, Named]:
    """Return the rules of all methods that serve one model from uploads alone, by method.

    The table of methods is above aggregation; it is imported when a name is asked for, and a rule
    object needs none of it.
    """
    named = {
        name: Named(method.rule, method.fixed)
        for name, method in _methods().items()
        if not _needs_more(method.rule)
    }
    return MappingProxyType(named)


def make_rule(rule: Any) -> Rule:
    """Return a rule.

    Args:
        rule: A name, a row such as {"type": "krum", "f": 2}, whose "name" (a label in tables) is
            ignored, or a rule.

    Raises:
        ValueError: An unknown name or parameter, with the closest match, or a value out of range.

    Example:
        >>> make_rule({"type": "krum", "f": 2})
        Krum(f=2)
        >>> make_rule("multikrun")
        Traceback (most recent call last):
        ...
        ValueError: the package has no rule 'multikrun'; did you mean 'multikrum'?
    """
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str):
        return _named(rule).rule
    if isinstance(rule, type):
        raise ValueError(f"rule is the class {rule.__name__}; give an instance, {rule.__name__}()")
    if not isinstance(rule, Mapping):
        raise ValueError(
            f"rule is a {type(rule).__name__}; give a name ({', '.join(rules())}), a row such as "
            "{'type': 'krum', 'f': 2}, or a rule object"
        )
    named, where = _named(rule.get("type")), f"rule {rule.get('type')}"
    given = {key: value for key, value in rule.items() if key not in ("type", "name")}
    values = dict(model_of(named.settable).read(given, where))
    try:
        return with_parameters(named.rule, values)
    except ValueError as error:  # Of parameters that do not go together.
        raise ValueError(f"{where}: {error}") from error


def _named(name: Any) -> Named:
    if not isinstance(name, str):
        raise ValueError(f"rule has the type {shortened(name)}; name one of {', '.join(rules())}")
    if name in rules():
        return rules()[name]
    if name in _methods():
        why = _needs_more(_methods()[name].rule)
        raise ValueError(f"rule {name!r} {why}; `fedsdg run` has it")
    raise ValueError(f"the package has no rule {shortened(name)}{hint(name, rules())}")


def _methods() -> Mapping[str, Any]:
    from fedsdg.methods.families import METHODS

    return METHODS


def _needs_more(rule: Rule) -> str:
    """Return why a caller with one model cannot serve a rule, or nothing."""
    if any(request.kind == "losses" for request in rule.probes):
        return "reads losses that clients and server measure"
    return "serves clients with several models" if rule.models(2) > 1 else ""
