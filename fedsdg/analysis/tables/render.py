"""A table as CSV, GitHub Markdown, LaTeX (booktabs, UTF-8), and as plain text for a terminal."""

from __future__ import annotations

import textwrap
from itertools import groupby

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.tables.layout import Block, Entry, Table
from fedsdg.files import markdown_escape

#: LaTeX's special characters; all others stand as they are, in UTF-8.
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


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
    lines = [r"% UTF-8, for LuaLaTeX or XeLaTeX; needs unicode-math, booktabs and graphicx"]
    for number, block in enumerate(table.blocks):
        lines += [r"\begin{table}[htbp]", r"  \centering"]
        title = latex_escape(block.title)
        if number == 0:
            caption = latex_escape(table.caption)
            lines += [
                rf"  \caption{{{caption}{f' {title}.' if title else ''}}}",
                rf"  \label{{tab:{table.name.replace('_', '-')}}}",
            ]
        else:
            lines.append(rf"  \caption{{{title}.}}")
        lines += _latex_block(block)
        if number == len(table.blocks) - 1 and table.notes:
            notes = " ".join(latex_escape(note) for note in table.notes)
            lines.append(rf"  \par\smallskip\parbox{{\linewidth}}{{\footnotesize {notes}}}")
        lines += [r"\end{table}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _latex_block(block: Block) -> list[str]:
    lines = [
        r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"  \begin{{tabular}}{{l{'r' * (len(block.columns) - 1)}}}",
        r"    \toprule",
    ]
    groups = [
        (group, len(list(members))) for group, members in groupby(c[0] for c in block.columns)
    ]
    if any(group for group, _ in groups):
        cells, rules, position = [], [], 1
        for group, span in groups:
            name = latex_escape(group)
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{name}}}" if group else " &" * (span - 1))
            if group:
                rules.append(rf"\cmidrule(lr){{{position}-{position + span - 1}}}")
            position += span
        lines += [f"    {' & '.join(cells)} \\\\", f"    {' '.join(rules)}"]
    lines += [
        f"    {' & '.join(latex_escape(heading) for _, heading in block.columns)} \\\\",
        r"    \midrule",
    ]
    for row in block.rows:
        line = " & ".join(_latex_entry(entry) for entry in row)
        # After a line's end a bracket would be an argument.
        lines.append(f"    {'{}' * line.startswith('[')}{line} \\\\")
    return [*lines, r"    \bottomrule", r"  \end{tabular}}"]


def _latex_entry(entry: Entry) -> str:
    text = latex_escape(entry.text)
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
