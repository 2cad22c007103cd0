"""A table as CSV, GitHub Markdown, LaTeX (booktabs, UTF-8), and as plain text for a terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pandas as pd

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.tables.layout import Block, Entry, Table
from fedsdg.files import markdown_escape

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

#: LaTeX's special characters; all others stand as they are, in UTF-8.
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)

#: Around a table, which shrinks to the width of the text if it is wider.
_NO_WIDER = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" + "\n"


def latex_escape(text: str) -> str:
    """One line of text for LaTeX."""
    return " ".join(filter(None, text.splitlines())).translate(_LATEX)


def to_csv(table: Table) -> str:
    """The raw numbers to six significant digits, whole ones in full."""
    raw = table.raw.map(lambda value: printed(value) if isinstance(value, float) else value)
    return str(raw.to_csv(index=False, lineterminator="\n"))


def to_markdown(table: Table) -> str:
    """Caption, blocks as pipe tables (group and heading share a cell), notes as a list."""
    lines = [markdown_escape(table.caption), ""]
    for block in table.blocks:
        if block.title:
            lines += [f"**{markdown_escape(block.title)}**", ""]
        lines += [*_markdown_block(block), ""]
    lines += [f"- {markdown_escape(note)}" for note in table.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown_block(block: Block) -> list[str]:
    heads = [
        "<br>".join(markdown_escape(part) for part in column if part) for column in block.columns
    ]
    rows = [[_markdown_entry(entry) for entry in row] for row in block.rows]
    widths = [
        max(3, len(head), *(len(row[i]) for row in rows)) if rows else max(3, len(head))
        for i, head in enumerate(heads)
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for cells in (heads, rule, *rows):
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(padded)} |")
    return lines


def _markdown_entry(entry: Entry) -> str:
    text = markdown_escape(entry.text)
    return f"**{text}**" if entry.bold else text


def to_latex(table: Table) -> str:
    """One ``table`` environment per block: caption and label on the first, notes on the last."""
    parts = [r"% UTF-8, for LuaLaTeX or XeLaTeX; needs unicode-math, booktabs and graphicx"]
    for number, block in enumerate(table.blocks):
        caption = latex_escape(block.title)
        label = f"tab:{table.name.replace('_', '-')}" if number == 0 else None
        if number == 0:
            caption = f"{latex_escape(table.caption)} {caption}".strip()
        text = _latex_block(block).to_latex(
            column_format="l" + "r" * (len(block.columns) - 1),
            position="htbp",
            position_float="centering",
            hrules=True,
            caption=caption if caption.endswith(".") else f"{caption}.",
            label=label,
            multicol_align="c",
        )
        text = text.replace(r"\begin{tabular}", rf"{_NO_WIDER}\begin{{tabular}}")
        parts.append(text.replace(r"\end{tabular}", r"\end{tabular}}"))
    if table.notes and table.blocks:
        notes = latex_escape(" ".join(table.notes))
        below = rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {notes}}}"
        parts[-1] = parts[-1].replace(r"\end{table}", f"{below}\n\\end{{table}}")
    return "\n".join(parts)


def _latex_block(block: Block) -> Styler:
    heads = [tuple(map(latex_escape, column)) for column in block.columns]
    grouped = any(group for group, _ in heads)
    columns = pd.MultiIndex.from_tuples(heads) if grouped else [heading for _, heading in heads]
    rows = [[_latex_entry(entry) for entry in row] for row in block.rows]
    return pd.DataFrame(rows, columns=columns).style.hide(axis="index")


def _latex_entry(entry: Entry) -> str:
    text = latex_escape(entry.text)
    # After the end of a line a bracket would be an argument.
    text = f"{{}}{text}" if text.startswith("[") else text
    return rf"\textbf{{{text}}}" if entry.bold else text


def to_text(table: Table, width: int = 100) -> str:
    """Blocks in aligned columns, a star before bold rows; the notes below.

    Args:
        table: A table without groups of columns.
        width: Where notes are wrapped, in characters.
    """
    parts = [_text_block(block) for block in table.blocks]
    parts += [textwrap.fill(note, width) for note in table.notes]
    return "\n\n".join(parts) + "\n"


def _text_block(block: Block) -> str:
    lines = [["", *(head for _, head in block.columns)]]
    lines += [
        ["*" if any(cell.bold for cell in row) else "", *(cell.text for cell in row)]
        for row in block.rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(cell.ljust(wide) for cell, wide in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([block.title, *shown])
