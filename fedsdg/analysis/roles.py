"""Who is who among the methods of an experiment: its subject, its baselines, its ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedsdg.files.declarations import declarations

#: Whoever is personal is compared with them too: what a client has without its federation, and
#: what it makes of the federation's model by itself.
REFERENCES = ("fine-tune", "local-only")


@dataclass(frozen=True)
class Roles:
    """What some methods are in tables, figures and claims.

    ``subject``: the method whose lead over the others is examined. ``baselines``: "ahead of them"
    means ahead of each. ``ceiling``: a line to measure by that takes no part in a ranking, or None.
    """

    subject: str
    baselines: tuple[str, ...]
    ceiling: str | None

    @property
    def described(self) -> tuple[str, ...]:
        """With whom the subject is compared in sentences; the table of differences has all."""
        others = (*self.baselines, *REFERENCES)
        return tuple(dict.fromkeys(one for one in others if one != self.subject))

    def is_ceiling(self, label: str) -> bool:
        """Whether a label stands for the ceiling or a variant of it."""
        if self.ceiling is None:
            return False
        return label == self.ceiling or label.startswith(f"{self.ceiling}-")


def roles_of(said: Mapping[str, Any]) -> Roles:
    """The roles as a summary keeps them."""
    return Roles(said["subject"], tuple(said["baselines"]), said["ceiling"])


@cache
def usual_roles() -> Roles:
    """Those of a config, and of a record, that says nothing of them."""
    return roles_of(declarations()["usual_roles"])
