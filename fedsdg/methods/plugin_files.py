"""A plugin's file and the modules beside it that it imports: found by reading, hashed, executed.

A sibling is a file ``name.py`` in the plugin's folder that the plugin, or another sibling, imports
as ``name``. It belongs to this plugin alone: it enters no search path, plugins in other folders may
have one of the same name, and it never stands in for a module of Python or of a package installed.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class PluginFiles:
    """What is executed is what was read, and so what was hashed."""

    file: Path
    source: bytes
    #: By the name that they are imported by.
    siblings: Mapping[str, bytes]

    @property
    def sha256(self) -> str:
        """Of the file; with siblings, of all their hashes."""
        own = hashlib.sha256(self.source).hexdigest()
        if not self.siblings:
            return own
        lines = [own, *(f"{n} {hashlib.sha256(s).hexdigest()}" for n, s in self.siblings.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def paths(self) -> list[Path]:
        """The plugin's file first."""
        return [self.file, *(self.file.with_name(f"{name}.py") for name in self.siblings)]

    def execute(self) -> ModuleType:
        """The plugin as a module; siblings run when they are first imported, whenever that is."""
        # Under names of its own: a plugin called random.py must not stand in for the library's.
        package = f"fedsdg_plugins.{self.sha256[:16]}"
        return _Imports(self, package).module(self.file.stem, self.source)


class _Imports:
    """How the modules of one plugin import: siblings by themselves, all else as usual."""

    def __init__(self, files: PluginFiles, package: str) -> None:
        self.files, self.package = files, package
        self.found: dict[str, ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self.__call__}

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level == 0 and name in self.files.siblings:
            return self.found.get(name) or self.module(name, self.files.siblings[name])
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    def module(self, name: str, source: bytes) -> ModuleType:
        path = self.files.file.with_name(f"{name}.py").resolve()
        module = ModuleType(f"{self.package}.{name}")
        module.__dict__.update(__file__=str(path), __builtins__=self.builtins)
        # Before it runs: dataclasses look their module up, and siblings may import each other.
        sys.modules[module.__name__] = self.found[name] = module
        try:
            # What parts mean is read from what is executed, even where the file is edited since.
            text = util.decode_source(source)
            linecache.cache[str(path)] = (len(source), None, text.splitlines(True), str(path))
            exec(compile(source, str(path), "exec"), module.__dict__)
        except BaseException:
            del sys.modules[module.__name__], self.found[name]
            raise
        return module


def read_plugin(file: Path) -> PluginFiles:
    """Read a plugin and its siblings; ``FileNotFoundError`` where there is no such file."""
    source = file.read_bytes()
    siblings: dict[str, bytes] = {}
    left = [source]
    while left:
        for name in sorted(_imported(left.pop())):
            path = file.with_name(f"{name}.py")
            if name not in siblings and path != file and path.is_file() and _is_free(name, path):
                siblings[name] = path.read_bytes()
                left.append(siblings[name])
    return PluginFiles(file, source, {name: siblings[name] for name in sorted(siblings)})


def _imported(source: bytes) -> Iterator[str]:
    """The modules that a source imports by one plain name; none where it cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # Said where the plugin is executed.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if "." not in alias.name)
        elif (
            isinstance(node, ast.ImportFrom) and not node.level and "." not in (node.module or ".")
        ):
            yield str(node.module)


def _is_free(name: str, path: Path) -> bool:
    """Whether no module of Python or of an installed package has this name."""
    if name in sys.stdlib_module_names:
        return False
    try:
        spec = util.find_spec(name)
    except (ImportError, ValueError):
        return True
    # In the working directory, which may be on the search path, the file itself is found.
    return spec is None or spec.origin is None or Path(spec.origin).resolve() == path.resolve()
