"""Links of the pages to files outside docs/ become links to pages and files of the site.

The pages are read in a checkout as well, where `../config/needs.yaml` is a file. On the site
it is a page of its own below repository/, made from the file: Markdown as it is, texts as code,
folders as lists; pictures are copied. So no link leads out of the site, and strict mode checks them
all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

from fedsdg.files.places import root

ROOT = root()
#: The home of the site.
HOME = "README.md"
#: Where files from outside docs/ lie on the site.
BELOW = PurePosixPath("repository")
#: Shown as code, at most so many bytes of them; what is larger or something else is copied.
TEXTS = {"": "text", ".cff": "yaml", ".json": "json", ".py": "python", ".toml": "toml"}
TEXTS |= {".yaml": "yaml", ".csv": "text"}
LONGEST = 200_000

#: What is code, and what a link leads to, without its anchor.
_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]+`|(?<=\]\()(?P<target>[^)\s#]+)(?=(?:#[^)\s]*)?\))",
    re.DOTALL | re.MULTILINE,
)


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside docs/ that a page links to, and what these link to in turn."""
    home = File.generated(config, "index.md", content=Path(ROOT, HOME).read_text("utf-8"))
    files.append(home)
    waiting = [(Path(HOME), home.content_string)]
    waiting += [
        (Path("docs", file.src_uri), file.content_string)
        for file in files.documentation_pages()
        if file is not home
    ]
    found: dict[str, File] = {}
    while waiting:
        place, text = waiting.pop()
        for link in _LINK.finditer(text):
            there = resolved(link["target"], place)
            if (
                there is None
                or there == Path(HOME)
                or there.parts[:1] == ("docs",)
                or str(there) in found
            ):
                continue
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
    if str(here) == "index.md":
        place = Path(HOME)

    def turned(link: re.Match[str]) -> str:
        there = resolved(link["target"], place)
        return link[0] if there is None else os.path.relpath(site_place(there), here.parent)

    return _LINK.sub(turned, markdown)


def resolved(target: str | None, place: Path) -> Path | None:
    """The file that a link in a file of the checkout means, both relative to the checkout.

    None where there is none; such a link is left as it is, so that strict mode names it.
    """
    if target is None or re.match(r"[a-z]+:|/", target):
        return None
    there = os.path.normpath(place.parent / target)
    return None if there.startswith("..") or not (ROOT / there).exists() else Path(there)


def site_place(there: Path) -> PurePosixPath:
    """Where a file or folder of the checkout lies on the site, as the source of a page."""
    if there == Path(HOME):
        return PurePosixPath("index.md")
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
