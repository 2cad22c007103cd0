"""YAML as people mean it: what YAML 1.1 would change in silence is refused, with its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

#: Besides YAML's own errors: dates and numbers that do not exist, no UTF-8, and deep nesting.
_NO_YAML = (yaml.YAMLError, ValueError, RecursionError)

#: YAML 1.1 reads 1:30 as 90 (base 60) and 010 as 8 (base 8).
_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-5]?[0-9])+(\.[0-9_]*)?)")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses repeated keys and numbers of another base."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            line = key.start_mark.line + 1
            if (key.tag, key.value) in lines:
                raise ValueError(
                    f"the key {key.value!r} stands in line {lines[key.tag, key.value]} and again "
                    f"in line {line}; keep one of them"
                )
            lines[key.tag, key.value] = line
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.style is None and node.tag in _NUMBERS and _OTHER_BASE.fullmatch(node.value):
            raise ValueError(
                f"line {node.start_mark.line + 1}: YAML reads {node.value} as a number of another "
                f"base; write the number itself, or the text '{node.value}'"
            )
        return node


def parse_yaml(text: str) -> Any:
    """Return what a text of YAML holds.

    Raises:
        ValueError: on one line, what is wrong and where. Keys that stand twice in a mapping and
            numbers of base 60 or 8 are errors, too.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except _NO_YAML as error:
        raise ValueError(" ".join(str(error).split())) from error


def read_yaml(file: Path) -> Any:
    """Return what a file holds, as `parse_yaml` does.

    Raises:
        ValueError: names the file besides.
    """
    try:
        return parse_yaml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid YAML: {error}") from error
