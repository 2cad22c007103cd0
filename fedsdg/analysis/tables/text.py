"""A table as plain text, for a terminal."""

from __future__ import annotations

import textwrap

from fedsdg.analysis.tables.layout import Block, Table


def to_text(table: Table, width: int = 100) -> str:
    """Blocks in aligned columns, a star before bold rows; the notes below, wrapped to ``width``."""
    parts = [_block(block) for block in table.blocks]
    parts += [textwrap.fill(note, width) for note in table.notes]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    lines = [["", *(head for _, head in block.columns)]]
    lines += [
        ["*" if any(cell.bold for cell in row) else "", *(cell.text for cell in row)]
        for row in block.rows
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = [
        "  ".join(cell.ljust(wide) for cell, wide in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([block.title, *shown])
