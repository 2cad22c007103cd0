"""A table: tidy numbers for programs, printed cells for people; CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedsdg.analysis.names import cell_title, is_oracle, method_order, method_title
from fedsdg.errors import hint
from fedsdg.files import markdown_escape, write_bytes

MISSING = "–"
#: Headings of the columns that name a line.
SETTING, METHOD = "Setting", "Method"
#: LaTeX's special characters; all others stand as they are, in UTF-8.
_LATEX = {ord(character): f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {ord("~"): r"\textasciitilde{}", ord("^"): r"\textasciicircum{}"}
_LATEX |= {ord("\\"): r"\textbackslash{}"}


@dataclass(frozen=True)
class Table:
    """A captioned table."""

    name: str
    caption: str
    """Plain sentences: what is shown, of how many seeds, what bold means."""
    numbers: pd.DataFrame
    """One row per number; the columns of its key stand first."""
    text: pd.DataFrame
    """Printed cells; the index has the label of each line's method. The best are ``**bold**``. A
    first column ``SETTING`` splits the table into blocks."""
    notes: tuple[str, ...] = ()

    def blocks(self) -> list[tuple[str, pd.DataFrame]]:
        """Return title and lines of every block, without the columns that are empty there."""
        if SETTING not in self.text:
            return [("", self.text)]
        groups = self.text.groupby(SETTING, sort=False)
        parts = {str(title): lines.drop(columns=SETTING) for title, lines in groups}
        return [(title, lines.loc[:, (lines != MISSING).any()]) for title, lines in parts.items()]

    def csv(self) -> str:
        """Return the numbers with six significant digits; rounding noise around 0 is 0."""
        decimals = self.numbers.select_dtypes("float")
        plain = self.numbers.assign(**decimals.mask(decimals.abs() < 1e-9, 0.0))
        return str(plain.to_csv(index=False, float_format="%.6g", lineterminator="\n"))

    def markdown(self) -> str:
        """Return caption, blocks and notes as GitHub shows them."""
        parts = [markdown_escape(self.caption)]
        for title, lines in self.blocks():
            parts += [f"**{markdown_escape(title)}**", _pipes(lines)]
        parts.append("\n".join(f"- {markdown_escape(note)}" for note in self.notes))
        return "\n\n".join(part for part in parts if part.strip("*")) + "\n"

    def rows(self, labels: Sequence[str]) -> str:
        """Return the lines of some methods as a Markdown table, in the order of the labels.

        Raises:
            ValueError: The table has no line of that label.
        """
        if unknown := sorted({*labels}.difference(self.text.index)):
            near = hint(unknown[0], sorted({*self.text.index}))
            raise ValueError(f"the table {self.name} has no line of {unknown[0]!r}{near}")
        return _pipes(self.text.loc[[*labels]])

    def latex(self) -> str:
        """Return a table (booktabs, UTF-8: for LuaLaTeX or XeLaTeX with unicode-math)."""
        text = self.text.map(_latex).rename(columns=_latex)
        return text.to_latex(
            index=False,
            caption=_latex(" ".join([self.caption, *self.notes])),
            label=f"tab:{self.name.replace('_', '-')}",
        )

    def texts(self, *, tex: bool = False) -> dict[str, str]:
        """Return suffix → text: "csv", "md", and "tex" if it is wanted."""
        return {"csv": self.csv(), "md": self.markdown()} | ({"tex": self.latex()} if tex else {})

    def write(self, folder: str | Path, *, tex: bool = True) -> list[Path]:
        """Write ``name.csv``, ``.md`` and ``.tex`` and return the files.

        Args:
            folder: Where they go.
            tex: Whether LaTeX is wanted.
        """
        files = []
        for suffix, text in self.texts(tex=tex).items():
            file = Path(folder) / f"{self.name}.{suffix}"
            write_bytes(file, text.encode())
            files.append(file)
        return files


def _pipes(lines: pd.DataFrame) -> str:
    cells = lines.map(_escaped).rename(columns=markdown_escape)
    return str(
        cells.to_markdown(
            index=False,
            disable_numparse=True,
            colalign=["left", *["right"] * (lines.shape[1] - 1)],
        )
    )


def _latex(cell: str) -> str:
    return _escaped(cell, lambda text: text.translate(_LATEX), r"\textbf{{{}}}")


def _escaped(
    cell: str, escape: Callable[[str], str] = markdown_escape, bold: str = "**{}**"
) -> str:
    """Return a printed cell in another language, bold where it is."""
    bare = cell.removeprefix("**").removesuffix("**")
    return escape(bare) if bare == cell else bold.format(escape(bare))


def line_title(label: str) -> str:
    """Return a method as tables print it; an oracle has the sign ‡."""
    return method_title(label) + " ‡" * is_oracle(label)


def arranged(
    numbers: pd.DataFrame,
    show: Callable[[Mapping[Hashable, Any]], str],
    *,
    setting: str = "cell",
    line: str = "method",
    heading: str = METHOD,
    best: Callable[[pd.DataFrame], pd.Series] | None = None,
    order: Callable[[str], Any] | None = method_order,
) -> pd.DataFrame:
    """Return printed cells: a block per setting, a line per method, a column per ``head``.

    Settings and columns keep the order in which they appear.

    Args:
        numbers: One row per cell: ``head``, ``setting``, ``line`` and what ``show`` reads.
        show: Prints a row.
        setting: The column whose values are the blocks; a single one gets no title.
        line: The column whose values are the lines; labels of methods are printed by title.
        heading: Heading of the lines.
        best: Marks the rows whose cell is bold.
        order: Sorting key of the lines; None: as they appear.
    """
    if numbers.empty:
        return pd.DataFrame({METHOD: ["no finished run has these numbers"]}, index=[""])
    text = pd.Series([show(row) for row in numbers.to_dict("records")], numbers.index)
    if best is not None:
        text = text.mask(best(numbers), "**" + text + "**")
    wide = numbers.assign(text=text).pivot(index=[setting, line], columns="head", values="text")
    settings = [*dict.fromkeys(numbers[setting])]
    lines = [*dict.fromkeys(zip(numbers[setting], numbers[line], strict=True))]
    lines.sort(key=lambda key: (settings.index(key[0]), order(key[1]) if order else 0))
    wide = wide.loc[lines, [*dict.fromkeys(numbers["head"])]].fillna(MISSING)
    blocks, names = (wide.index.get_level_values(level) for level in (0, 1))
    wide.insert(0, heading, [line_title(name) for name in names])
    if len(settings) > 1:
        titles = blocks.map(cell_title) if setting == "cell" else blocks
        wide.insert(0, SETTING, titles)
    return wide.set_axis(names, axis=0).rename_axis(columns=None)


def signed(text: str) -> str:
    """Return a number with a minus sign instead of a hyphen."""
    return text.replace("-", "−")


def decimal(value: float) -> str:
    """Return one decimal."""
    return signed(f"{value:z.1f}")


def amount(value: float) -> str:
    """Return three significant digits, thousands with commas."""
    return signed(f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:z.3g}")


def spread(row: Mapping[Hashable, Any], show: Callable[[float], str] = decimal) -> str:
    """Return "92.5 ± 0.7"; the mean alone where seeds are few or do not differ.

    Args:
        row: ``mean`` and ``low``, the lower end of its interval.
        show: How a number is printed.
    """
    half = row["mean"] - row["low"]
    return show(row["mean"]) + (f" ± {show(half)}" if half > 1e-9 else "")


def points(row: Mapping[Hashable, Any], sign: str = "+") -> str:
    """Return "+1.2 [−0.3, +2.7]"; "+1.2 (n = 3)" where there is no interval.

    Args:
        row: ``mean``, ``low``, ``high`` and ``n``, in points.
        sign: What stands before a positive number: "+" or "".
    """
    mean, low, high = (f"{row[name]:{sign}z.1f}" for name in ("mean", "low", "high"))
    return signed(
        f"{mean} (n = {row['n']:.0f})" if pd.isna(row["low"]) else f"{mean} [{low}, {high}]"
    )
