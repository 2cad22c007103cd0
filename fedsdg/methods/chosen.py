"""What a config says of an optimiser or a loss: ``adam``, or ``{type: sgd, momentum: 0.9}``.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsdg.files import hint
from fedsdg.methods.declared import ChoiceRow
from fedsdg.parts import Declared, checked, mapping, plain, shown

#: The parameter of an optimiser that a method may forbid.
WEIGHT_DECAY = "weight_decay"


@dataclass(frozen=True)
class Chosen(Declared):
    """A key whose value is a row of a table: its name, or its name and its parameters.

    The checked value is the name alone where all parameters have their defaults, else a mapping
    of ``type`` and those that do not. Without a table any value passes: whoever reads a config
    knows which plugins bring further rows, and checks by a table with them.
    """

    table: Mapping[str, ChoiceRow] | None = field(default=None, compare=False)

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` in its shortest form, or raise ``ValueError``."""
        if self.table is None:
            return value
        given = {"type": value} if isinstance(value, str) else dict(mapping(value, where))
        name = given.pop("type", None)
        if not isinstance(name, str) or name not in self.table:
            if name is None:
                raise ValueError(f"{where} is {shown(value)}, but must name a 'type'")
            raise ValueError(f"{where}: there is no {name!r}{hint(str(name), self.table)}")
        known = self.table[name].parameters
        values = sorted(checked(given, known, where).items())
        others = {key: plain(one) for key, one in values if one != known[key].default}
        return {"type": name, **others} if others else name


def name_of(value: str | Mapping[str, Any]) -> str:
    """The row that a checked value names."""
    return value if isinstance(value, str) else str(value["type"])


def parameters_of(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a checked value gives; the others have their defaults."""
    return {} if isinstance(value, str) else {k: v for k, v in value.items() if k != "type"}


def undecayed(value: str | Mapping[str, Any], row: ChoiceRow) -> Any:
    """A checked optimiser without weight decay, in its shortest form."""
    if WEIGHT_DECAY not in row.parameters:
        return value
    given = {**({"type": value} if isinstance(value, str) else value), WEIGHT_DECAY: 0.0}
    return Chosen("", str, table={name_of(value): row}).check(given, "training.optimiser")
