"""A row of what a config chooses by a name beside its methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsdg.parts import Declared, is_part, parameters


@dataclass(frozen=True)
class Choice:
    """An optimiser, a loss or an attack.

    ``title``: what it is called in print; ``part``: itself, with its defaults; ``source``: the
    paper.
    """

    title: str
    part: Any
    source: str = ""

    def __post_init__(self) -> None:
        name = type(self.part).__name__
        if isinstance(self.part, type):
            name = self.part.__name__
            raise ValueError(f"{self.title}: its part is the class {name}; write {name}(…)")
        if not is_part(self.part):
            raise ValueError(
                f"{self.title}: {name} declares no parameters; declare it by @part of fedsdg.parts"
            )

    @property
    def parameters(self) -> dict[str, Declared]:
        """What a config may set."""
        return parameters(self.part)
