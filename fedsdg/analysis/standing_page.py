"""The page of a comparison: where the newcomers stand, in one file that opens without a network."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from fedsdg.analysis.names import method_title
from fedsdg.analysis.plots import save_figure, write_figure
from fedsdg.analysis.plots.style import styled
from fedsdg.analysis.standing import Standing
from fedsdg.analysis.tables import save_table
from fedsdg.analysis.tables.layout import Block, Table
from fedsdg.analysis.tables.standing import places, standing_table
from fedsdg.files import atomic_path

PAGE = "index.html"
_STYLE = """
:root { color-scheme: light dark; --ink: #222; --back: #fff; --line: #ddd; --mark: #fff3e6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --back: #161616; --line: #3a3a3a; --mark: #3a2a18; }
  figure img { filter: invert(1) hue-rotate(180deg); }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 75rem; margin: 0 auto; padding: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
.wide { overflow-x: auto; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; }
tr.own { background: var(--mark); font-weight: 600; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; }
figcaption, .note { font-size: 13px; }
@media print { body { max-width: none; } }
"""


def write_page(folder: Path, standings: Sequence[Standing], pairing: str | None) -> Path:
    """Write ``index.html``, and beside it each table and figure in files of their own.

    Args:
        folder: The folder of the page.
        standings: One per newcomer, at least one; all have the summary folder of the first.
        pairing: A sentence that says how the runs are paired with the record; None where all were
            run here.

    Returns:
        The path of the page.
    """
    parts = [f"<p>{_text(pairing or 'All rows were run on this machine.')}</p>"]
    for standing in standings:
        title = method_title(standing.newcomer)
        table = standing_table(standing)
        stem = folder / f"standing-{standing.newcomer}"
        save_table(table, stem)
        with styled():
            from fedsdg.analysis.plots.standing import draw

            facts = {"figure": "standing", "newcomer": standing.newcomer, "caption": table.caption}
            save_figure(draw(standing), stem, facts, standing.summary.inputs)
        parts.append(f"<h2>{_text(title)}</h2>")
        parts += [f"<p><strong>{_text(place)}</strong></p>" for place in places(standing)]
        parts.append(_picture(stem.with_suffix(".svg"), f"{title} among the rows of the record"))
        parts.append(_table(table, title))
    curves = folder / "progress"
    write_figure(standings[0].summary.folder, "progress", curves)
    parts.append("<h2>On the way there</h2>")
    parts.append(_picture(curves.with_suffix(".svg"), "Accuracy by rounds, local steps and bytes"))
    parts.append(
        "<p class='note'>What was compared with what, by hashes: comparison.json. The runs, as "
        "tables: records/. The methods as they were run: methods.yaml and the files beside it.</p>"
    )
    page = folder / PAGE
    heading = ", ".join(method_title(one.newcomer) for one in standings)
    with atomic_path(page) as temporary:
        temporary.write_text(_whole(f"{heading} in {standings[0].summary.experiment}", parts))
    return page


def _whole(title: str, parts: Sequence[str]) -> str:
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{_text(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _table(table: Table, own: str) -> str:
    blocks = "".join(_block(block, own) for block in table.blocks)
    notes = "".join(f"<p class='note'>{_text(note)}</p>" for note in table.notes)
    return f"<p class='note'>{_text(table.caption)}.</p>{blocks}{notes}"


def _block(block: Block, own: str) -> str:
    heads = "".join(f"<th scope='col'>{_text(head)}</th>" for _, head in block.columns)
    rows = []
    for row in block.rows:
        mark = " class='own'" if any(cell.bold for cell in row) else ""
        cells = "".join(f"<td>{_text(cell.text)}</td>" for cell in row)
        rows.append(f"<tr{mark}>{cells}</tr>")
    return (
        f"<h3>{_text(block.title)}</h3><div class='wide'><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _picture(file: Path, what: str) -> str:
    """The drawing within the page, with an id of its own for every one that it defines."""
    drawn = file.read_text(encoding="utf-8")
    drawn = drawn[drawn.index("<svg") :]
    known = re.findall(r'id="([^"]+)"', drawn)
    for name in sorted(set(known), key=len, reverse=True):
        drawn = drawn.replace(f'id="{name}"', f'id="{file.stem}-{name}"')
        drawn = drawn.replace(f'"#{name}"', f'"#{file.stem}-{name}"')
        drawn = drawn.replace(f"url(#{name})", f"url(#{file.stem}-{name})")
    drawn = drawn.replace("<svg", f"<svg role='img' aria-label='{_text(what)}'", 1)
    return f"<figure class='wide'>{drawn}<figcaption>{_text(what)}</figcaption></figure>"


def _text(text: str) -> str:
    return html.escape(text)
