"""A row of what a config chooses by a name beside its methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsdg.parts import Declared, is_part, parameters


def require_declared(one: Any) -> None:
    """Raise ``ValueError`` for a field of a class without ``@part``, which no config could set.

    Args:
        one: A part, or an object in place of one. Class variables, private names and bare
            annotations of attributes are no fields.
    """
    for cls in type(one).__mro__:
        annotations = {} if "__declaring__" in vars(cls) else vars(cls).get("__annotations__", {})
        for name, kind in annotations.items():
            text = kind if isinstance(kind, str) else repr(kind)
            constant = name.startswith("_") or "ClassVar" in text or "Final" in text
            if not constant and (name in vars(cls) or "Annotated" in text):
                raise ValueError(
                    f"{cls.__name__} has the field {name!r}, but lacks @part, so that no config "
                    f"can set it; write @part of fedsdg.parts above class {cls.__name__}"
                )


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
        """Refuse a class in place of a part, and what is no part."""
        name = type(self.part).__name__
        if isinstance(self.part, type):
            name = self.part.__name__
            raise ValueError(f"{self.title}: its part is the class {name}; write {name}(…)")
        if not is_part(self.part):
            raise ValueError(
                f"{self.title}: {name} declares no parameters; declare it by @part of fedsdg.parts"
            )
        require_declared(self.part)

    @property
    def parameters(self) -> dict[str, Declared]:
        """What a config may set."""
        return parameters(self.part)
