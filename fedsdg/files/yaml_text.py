"""YAML as people mean it.

1e-4 is a number. What YAML 1.1 would change in silence is refused, with its line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from fedsdg.errors import ConfigError

_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""YAML 1.1 reads 1:30 as 90 (base 60) and 010 as 8 (base 8)."""
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_SafeLoader):
    """A safe loader that refuses repeated keys and numbers of another base."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            line = key.start_mark.line + 1
            known = lines.get((key.tag, key.value))
            if known is not None:
                raise ValueError(
                    f"the key {key.value!r} stands in line {known} and again in line {line}; keep "
                    "one of them"
                )
            lines[key.tag, key.value] = line
        return dict(super().construct_mapping(node, deep))

    def number(self, node: yaml.ScalarNode) -> float:
        """Return a number, which must be written in base 10."""
        if _OTHER_BASE.fullmatch(node.value):
            raise ValueError(
                f"line {node.start_mark.line + 1}: YAML reads {node.value} as a number of another "
                f"base; write the number itself, or the text '{node.value}'"
            )
        whole = node.tag.endswith("int")
        made = self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)
        return made  # type: ignore[no-any-return]


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.number)
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _StrictLoader.number)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that the loader would read as numbers."""


# A number in YAML 1.2, a text in YAML 1.1. Without a sign in its exponent it stays a text: 12e5678
# may be a hash.
_WITHOUT_A_POINT = re.compile(r"[-+]?[0-9]+[eE][-+][0-9]+")
for _side in (_StrictLoader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _WITHOUT_A_POINT, [*"-+0123456789"])


def yaml_bytes(value: Any, **layout: Any) -> bytes:
    """Return YAML that ``read_yaml`` reads as it was.

    Args:
        value: What it holds.
        layout: Options of ``yaml.dump``.
    """
    return bytes(yaml.dump(value, Dumper=_Dumper, encoding="utf-8", **layout))


def read_yaml(text: str | bytes, place: str) -> Any:
    """Return what a text of YAML holds.

    Args:
        text: The text.
        place: Where it stands, for the error.

    Raises:
        ConfigError: In one line, what is wrong and where; keys that stand twice in a mapping, and
            numbers of base 60 or 8, are errors too.
    """
    try:
        return yaml.load(text, _StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"is not valid YAML: {' '.join(str(error).split())}", place) from error


def read_yaml_file(file: Path) -> Any:
    """Return what a file of YAML holds; raises ConfigError with its name."""
    return read_yaml(file.read_bytes(), str(file))
