"""Links of the pages to files outside docs/ become links to pages and files of the site.

The pages are read in a checkout as well, where `../config/needs.yaml` is a file. On the site it is
a page of its own below repository/, made from the file: Markdown as it is, texts as code, folders
as lists; pictures are copied. So no link leads out of the site, and strict mode checks them all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
#: Where files from outside docs/ lie on the site.
BELOW = PurePosixPath("repository")
#: Shown as code, at most so many bytes of them; what is larger or something else is copied.
TEXTS = {"": "text", ".cff": "yaml", ".json": "json", ".py": "python", ".toml": "toml"}
TEXTS |= {".yaml": "yaml", ".smk": "python", ".csv": "text"}
LONGEST = 200_000

_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside docs/ that a page links to, and what these link to in turn."""
    waiting = [
        (Path("docs", file.src_uri), file.content_string) for file in files.documentation_pages()
    ]
    found: dict[str, File] = {}
    while waiting:
        place, text = waiting.pop()
        for _, target, _, _ in links(text):
            there = resolved(target, place)
            if there is None or there.parts[:1] == ("docs",) or str(there) in found:
                continue
            if not (ROOT / there).exists():
                continue  # Left as it is, so that strict mode names it.
            found[str(there)] = added = file_of(there, config)
            if there.suffix == ".md":
                waiting.append((there, added.content_string))
    for file in found.values():
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text with its links to files of the checkout turned to their places on the site."""
    here = PurePosixPath(page.file.src_uri)
    place = Path(*here.parts[1:]) if here.parts[0] == str(BELOW) else Path("docs", here)
    if here.parts[0] == str(BELOW) and here.name == "index.md":
        place = place.parent / "index.md"

    def turned(match: re.Match[str]) -> str:
        there = resolved(match[2], place)
        if there is None or not (ROOT / there).exists():
            return match[0]
        to = os.path.relpath(site_place(there), here.parent)
        return f"{match[1]}{PurePosixPath(to)}{match[3] or ''}{match[4]}"

    return outside_code(markdown, lambda text: _LINK.sub(turned, text))


def links(text: str) -> Iterator[tuple[str, ...]]:
    """Every link of a text that stands in no code: its four groups."""
    for match in _LINK.finditer(_CODE.sub("", text)):
        yield match.groups()


def outside_code(text: str, change: Any) -> str:
    """The text with what is no code changed."""
    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [change(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, change(text[end:])])


def resolved(target: str, place: Path) -> Path | None:
    """The file that a link in a file of the checkout means, both relative to the checkout."""
    if re.match(r"[a-z]+:|/", target):
        return None
    there = os.path.normpath(place.parent / target)
    return None if there.startswith("..") else Path(there)


def site_place(there: Path) -> PurePosixPath:
    """Where a file or folder of the checkout lies on the site, as the source of a page."""
    if there.parts[:1] == ("docs",):
        return PurePosixPath(*there.parts[1:])
    if (ROOT / there).is_dir():
        return BELOW / there / "index.md"
    if there.suffix in TEXTS and (ROOT / there).stat().st_size <= LONGEST:
        return BELOW / f"{there}.md"
    return BELOW / there


def file_of(there: Path, config: Any) -> File:
    """The file of the site for a file or folder of the checkout."""
    source, place = ROOT / there, str(site_place(there))
    if source.is_dir():
        names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in source.iterdir())
        text = f"# {there}/\n\n" + "".join(f"- `{name}`\n" for name in names)
    elif there.suffix == ".md":
        text = source.read_text("utf-8")
    elif place.endswith(".md"):
        text = f"# {there}\n\n````{TEXTS[there.suffix]}\n{source.read_text('utf-8')}\n````\n"
    else:
        return File.generated(config, place, abs_src_path=str(source))
    return File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
