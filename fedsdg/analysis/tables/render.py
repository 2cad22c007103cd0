"""A table as GitHub Markdown, LaTeX (booktabs, plain ASCII) and CSV."""

from __future__ import annotations

import re
from itertools import groupby

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.tables.layout import Block, Entry, Table
from fedsdg.files import markdown_escape

#: Characters of captions and cells that pdflatex does not take as they are.
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "‖": r"$\Vert$",
    "→": r"$\to$",
    "“": "``",
    "”": "''",
    "’": "'",
    "…": r"\ldots{}",
    "⌈": r"$\lceil$",
    "⌉": r"$\rceil$",
    "α": r"$\alpha$",
    "η": r"$\eta$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
    "θ": r"$\theta$",
    "₀": r"$_0$",
    "₁": r"$_1$",
    "₂": r"$_2$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_SUBSCRIPT = {letter: f"$\\eta_{letter}$" for letter in "gpm"}


def latex_escape(text: str) -> str:
    """Text for LaTeX in plain ASCII; a character without a spelling becomes a question mark.

    That can only happen in the text of an error, which should not cost the table it explains.
    """
    text = re.sub(r"\s*[\n\r]\s*", " ", text)
    text = re.sub(r"η_([gpm])", lambda match: f"\0{match[1]}", text)
    parts = []
    symbol = False
    for character in text:
        if symbol:
            parts.append(_SUBSCRIPT[character])
        elif character != "\0":
            spelling = _LATEX.get(character, character)
            parts.append(spelling if spelling.isascii() else "?")
        symbol = character == "\0"
    return "".join(parts)


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
    lines = [r"% needs \usepackage{booktabs} and \usepackage{graphicx}"]
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
