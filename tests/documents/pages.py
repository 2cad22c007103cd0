"""The code blocks of the README and of the pages of docs/, and what is to be done with each.

A comment right above a block says it, unseen by readers:

- nothing: the block is run (sh, python), or read and checked (yaml, json, toml);
- ``<!-- file: NAME -->``: it is written to this file, for blocks below;
- ``<!-- folder: PATH -->``: it is run there;
- ``<!-- not run: REASON -->``: it is not, for this reason;
- ``<!-- run by: tests/…/test_x.py -->``: by another test, which names the page. In the first lines
  of a page, ``<!-- blocks run by: … -->`` says so of all its blocks.

Blocks without a language are drawings and listings, and no code.

As a program, ``python -P pages.py PAGE…`` follows pages in the working directory with the package
that Python finds, those of which a test runs all blocks too. It prints where the package lies, and
each page and command before what they print. A page that cannot be followed ends no other: what
went wrong is printed after ``FAULT``, and the exit code is 1.
"""

from __future__ import annotations

import glob
import os
import re
import runpy
import shlex
import sys
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

import fedsdg
from fedsdg.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODE = ("sh", "python", "yaml", "json", "toml")

_BLOCK = re.compile(
    r"(?:^<!-- (?P<said>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_ALL = re.compile(r"^<!-- blocks (run by: \S+) -->$", re.MULTILINE)
_SAID = re.compile(r"(file|folder|not run|run by): (\S.*)")


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its text, and what is said of it."""

    page: str
    number: int
    language: str
    text: str
    kind: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.page}, block {self.number}"


def pages() -> list[str]:
    """The README and all pages of docs/, by their places in the checkout."""
    return ["README.md", *sorted(f.relative_to(ROOT).as_posix() for f in DOCS.rglob("*.md"))]


def blocks(page: str, text: str | None = None) -> list[Block]:
    """All blocks of code of a page, in its order.

    Raises ``ValueError`` for a comment that is none of the above.
    """
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    whole = _ALL.search(text)
    found = []
    for number, match in enumerate(_BLOCK.finditer(text), start=1):
        if not match["language"]:
            continue
        said = match["said"] or (whole[1] if whole else "")
        known = _SAID.fullmatch(said)
        if said and known is None:
            raise ValueError(f"{page}, block {number}: {said!r} says nothing that a test knows")
        kind, value = (known[1], known[2]) if known else ("", "")
        found.append(Block(page, number, match["language"], match["text"], kind, value))
    return found


def has_its_test(page: str) -> bool:
    """Return whether another test runs all blocks of a page."""
    return _ALL.search((ROOT / page).read_text(encoding="utf-8")) is not None


def small_config(name: str) -> str:
    """A config of the checkout in which everything is there and nothing takes long, as YAML."""
    raw = yaml.safe_load((ROOT / f"config/{name}.yaml").read_text(encoding="utf-8"))
    for backbone in raw["backbones"].values():
        backbone |= {"images": 400, "held_out": 100, "epochs": 1, "depth": 2, "batch_size": 128}
    raw["federation"]["rounds"] = 2
    raw |= {"tables": ["main"], "figures": ["partition"]}
    if name == "config":
        raw |= {"methods": ["fedavg", "fedsdg"], "seeds": [0]}
        raw["partition"]["min_samples"] = 5
    return yaml.safe_dump(raw)


def follow(block: Block, names: dict[str, Any], folder: Path) -> None:
    """Write or run a block in a folder that its page is followed in."""
    if block.kind == "file":
        Path(folder, block.value).write_text(block.text, encoding="utf-8")
    elif block.language in ("sh", "python"):
        os.chdir(folder / block.value if block.kind == "folder" else folder)
        run_shell(block.text) if block.language == "sh" else run_python(block, names)


def run_shell(text: str) -> None:
    """Follow the lines of a block: `fedsdg …` and `python FILE`, in this process; nothing else."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        variables = {}
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        if words:
            print(f"$ {line}")
            with mock.patch.dict(os.environ, variables):
                _follow(line, [place for word in words for place in _expanded(word)])


def _follow(line: str, words: list[str]) -> None:
    program, *arguments = words
    if program == "fedsdg":
        assert (status := main(arguments)) == 0, f"{line!r} ended with {status}"
    elif program == "python" and len(arguments) == 1:
        _run_alone(arguments[0])
    else:
        raise AssertionError(f"{line!r} is no command that is run here; say why with `not run`")


def _run_alone(script: str) -> None:
    """Run a script for which there is no package of ours."""
    with mock.patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.split(".")[0] == "fedsdg"]:
            del sys.modules[name]
        sys.modules["fedsdg"] = None  # type: ignore[assignment]
        runpy.run_path(script, run_name="__main__")


def _expanded(word: str) -> list[str]:
    return (sorted(glob.glob(word)) or [word]) if "*" in word else [word]


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run a block with the names that the blocks above it in the page have left."""
    exec(compile(textwrap.dedent(block.text), str(block), "exec"), names)


def follow_pages(named: list[str]) -> int:
    """Follow pages one after the other in the working directory; 1 where one has a fault."""
    place, faults = Path.cwd(), 0
    for page in named:
        print(f"PAGE {page}")
        shared: dict[str, Any] = {"__name__": page}
        left_out = ("not run",) if has_its_test(page) else ("not run", "run by")
        try:
            for block in blocks(page):
                if block.kind not in left_out:
                    follow(block, shared, place)
        except BaseException:
            faults = 1
            print("FAULT", traceback.format_exc())
    return faults


if __name__ == "__main__":
    # peft and timm import torchvision, which test environments may have for another torch.
    from fedsdg.models import declare_torchvision_operators

    declare_torchvision_operators()
    import peft  # noqa: F401
    import timm  # noqa: F401

    print(fedsdg.__file__)
    sys.exit(follow_pages(sys.argv[1:]))
