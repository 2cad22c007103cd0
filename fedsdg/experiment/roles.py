"""The section ``roles`` of a config: who is who in what is written of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsdg.files import hint
from fedsdg.parts import make, mapping, part


@part
class RolesConfig:
    """Who is who in tables, figures and claims, by the labels of methods. Concerns no run."""

    subject: str = "fedsdg"
    """the method whose lead is examined: differences are the subject minus each other method, and
    figures show it foremost"""
    baselines: tuple[str, ...] = ("fedavg", "fedavg-uniform", "fedavg-sgd")
    "ahead of the baselines is who is ahead of each of them"
    ceiling: str | None = "centralised"
    """a line to measure by, such as what pooled data would give; it takes no part in a ranking.
    Null: none"""

    def __post_init__(self) -> None:
        if self.ceiling in (self.subject, *self.baselines):
            raise ValueError(
                f"{self.ceiling!r} cannot be the ceiling and something else; name another ceiling, "
                "or null for none"
            )


def parse_roles(value: Any, labels: Sequence[str]) -> RolesConfig:
    """Check the section ``roles``; what it names is among ``labels``, those of the methods.

    What it leaves out may be the default whether or not the experiment runs it.
    """
    if value is None:
        return RolesConfig()
    given = mapping(value, "roles")
    made = make(RolesConfig, given, "roles")
    for key in given:
        named = getattr(made, key)
        for label in named if isinstance(named, tuple) else (named,):
            if label is not None and label not in labels:
                raise ValueError(
                    f"roles.{key}: the config has no method {label!r}{hint(label, labels)}"
                )
    if "baselines" in given and made.subject in made.baselines:
        raise ValueError(f"roles.baselines names the subject, {made.subject!r}; leave it out")
    return made
