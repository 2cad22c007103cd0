"""A drawing of the layers of the package on the page of the architecture."""

from __future__ import annotations

import ast
import html
import tomllib
from typing import Any

from fedsdg.files.places import root

PAGE = "maintainers/architecture.md"
WIDTH, HEIGHT, GAP = 700, 46, 14


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the drawing below the first heading of the page."""
    if page.file.src_uri != PAGE:
        return markdown
    head, _, rest = markdown.partition("\n")
    said = (
        "A layer imports only layers below it, and packages of one layer not each other. "
        "Drawn from the contracts in `pyproject.toml`."
    )
    return f"{head}\n\n{drawing()}\n\n{said}\n{rest}"


def layers() -> list[list[str]]:
    """The rooms of the package from the top down, those of one layer together."""
    tools = tomllib.loads((root() / "pyproject.toml").read_text("utf-8"))["tool"]
    contracts = tools["importlinter"]["contracts"]
    (whole,) = (one for one in contracts if one["type"] == "layers" and "containers" not in one)
    return [layer.split(" | ") for layer in whole["layers"] if layer != "fedsdg.__main__"]


def drawing() -> str:
    """An SVG: a row for each layer, a box for each room with what it says of itself."""
    boxes = []
    for row, rooms in enumerate(found := layers()):
        width = (WIDTH - GAP * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            x, y = place * (width + GAP) + 1, row * (HEIGHT + GAP) + 1
            name = html.escape(room.removeprefix("fedsdg."))
            boxes.append(
                f"<g><title>{html.escape(sentence(room))}</title>"
                f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{HEIGHT}" rx="6"/>'
                f'<text x="{x + width / 2:g}" y="{y + 29}" class="room">{name}</text></g>'
            )
    height = len(found) * (HEIGHT + GAP)
    label = "; ".join(", ".join(room.removeprefix("fedsdg.") for room in one) for one in found)
    return (
        f'<div><svg class="exchange" role="img" viewBox="0 0 {WIDTH + 2} {height}" '
        f'aria-label="Layers from the top: {html.escape(label)}">{"".join(boxes)}</svg></div>'
    )


def sentence(room: str) -> str:
    """The first sentence of a module or package."""
    place = root() / room.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    said = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return said.partition("\n\n")[0].replace("\n", " ")
