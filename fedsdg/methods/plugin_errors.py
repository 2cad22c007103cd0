"""What is said of a plugin that cannot be imported: in one sentence, with the row it is about."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_FORMER_MODULES = (
    "fedsdg.composition",
    "fedsdg.conditions",
    "fedsdg.federation.environment",
    "fedsdg.federation.losses.",
    "fedsdg.federation.objectives",
    "fedsdg.federation.optimisers.",
    "fedsdg.federation.own_models",
    "fedsdg.federation.personalisation.",
    "fedsdg.local_parts",
    "fedsdg.methods.composition",
    "fedsdg.methods.conditions",
    "fedsdg.methods.local_parts",
    "fedsdg.methods.table",
)
"Beginnings of modules from which plugins of version 0.1 imported."
_FORMER_NAMES = ("AttackKind", "Key", "Part", "Parameter")
_NO_NAME = re.compile(r"cannot import name '(\w+)' from '(fedsdg[\w.]*)'")


def unusable(
    place: str, files: Sequence[Path], tables: Mapping[str, str], error: BaseException
) -> ValueError:
    """The sentence about the plugin at ``place``, which consists of ``files``.

    ``tables``: by the name of a table, what a row of it is called. Where the error comes from
    within a row, the row is named, elsewhere the line.
    """
    if former := _former(error):
        return ValueError(
            f"the plugin {place} is of the kind of version 0.1: it imports {former}; "
            "docs/plugins.md says how it becomes one of version 0.2"
        )
    found = _line(error, files)
    if found is None or isinstance(error, SyntaxError):  # Which says itself where it is.
        return ValueError(f"the plugin {place} cannot be imported: {said(error)}")
    file, line = found
    if row := _row(file, line, tables):
        return ValueError(f"the plugin {place}, {row}: {said(error)}")
    return ValueError(
        f"the plugin {place} cannot be imported: {said(error)} ({file.name}, line {line})"
    )


def said(error: BaseException) -> str:
    """Return an error in one line, without its type where the text is a sentence of its own."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | TypeError):
        return text
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}); raise a ValueError that says what is wrong"
    return f"{type(error).__name__}: {text}"


def _former(error: BaseException) -> str:
    """What of version 0.1 an import asked for; "" where it asked for anything else."""
    if not isinstance(error, ImportError):
        return ""
    if str(error.name).startswith(_FORMER_MODULES):
        return str(error.name)
    found = _NO_NAME.match(str(error))
    if found is None:
        return ""
    name, module = found.groups()
    if f"{module}.{name}" in _FORMER_MODULES:
        return f"{module}.{name}"
    return f"{name} from {module}" if name in _FORMER_NAMES else ""


def _line(error: BaseException, files: Sequence[Path]) -> tuple[Path, int] | None:
    """Which line of which file was executed, outside of functions, when it went wrong."""
    own = {file.resolve() for file in files}
    found, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "<module>" and Path(code.co_filename) in own:
            found = Path(code.co_filename), trace.tb_lineno
        trace = trace.tb_next
    return found


def _row(file: Path, line: int, tables: Mapping[str, str]) -> str:
    """The row that a line of a file belongs to, such as "method 'x'"; "" for any other line."""
    for node in ast.parse("".join(linecache.getlines(str(file)))).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if not (isinstance(target, ast.Name) and isinstance(value, ast.Dict)):
            continue
        for key, row in zip(value.keys, value.values, strict=True):
            within = row.lineno <= line <= (row.end_lineno or row.lineno)
            if target.id in tables and isinstance(key, ast.Constant) and within:
                return f"{tables[target.id]} {key.value!r}"
    return ""
