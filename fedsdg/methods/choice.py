"""A row of what a config chooses by a name beside its methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsdg.parts import Declared, parameters


@dataclass(frozen=True)
class Choice:
    """An optimiser, a loss or an attack.

    ``title``: what it is called in print; ``part``: itself, with its defaults; ``source``: the
    paper.
    """

    title: str
    part: Any
    source: str = ""

    @property
    def parameters(self) -> dict[str, Declared]:
        """What a config may set."""
        return parameters(self.part)
