"""A table of texts and numbers, typeset for terminals, Markdown, CSV and LaTeX.

The first three show the same texts; CSV holds the numbers behind them, unrounded. What a table rests on
stands under it in every form but CSV, whose rows are for programs.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TextIO

UNCUT = 1000  # columns: a table wider than the terminal is wrapped by the terminal, and loses nothing
BEST, SECOND = "best", "second"
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "°": r"$^\circ$",
    "≥": r"$\geq$",
    "×": r"$\times$",
}


@dataclass(frozen=True)
class Cell:
    """text: as people read it. value: the number behind it, for CSV; None: the text itself. mark: best,
    second or none."""

    text: str
    value: float | int | None = None
    mark: str = ""


MISSING = Cell("-")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """name: the stem of its files. head: a line break parts a head in two. rows: their cells, the first
    `labels` of them texts. blocks: for each row, what it shares with its neighbours; a rule is drawn where
    that changes."""

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    labels: int = 1
    blocks: Sequence[object] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.head) for row in self.rows), "every row has a cell for every head"
        assert not self.blocks or len(self.blocks) == len(self.rows)

    def parted(self) -> Iterator[list[Sequence[Cell]]]:
        """The rows, block by block."""
        blocks = self.blocks or [None] * len(self.rows)
        for _, numbered in groupby(zip(blocks, self.rows, strict=True), key=lambda pair: pair[0]):
            yield [row for _, row in numbered]


def number(value: float | None, form: str, mark: str = "", suffix: str = "") -> Cell:
    """A number as a cell; a dash where there is none."""
    return MISSING if value is None else Cell(format(value, form) + suffix, value, mark)


def plain(value: float) -> str:
    """A positive number without a fixed scale, with the four digits that count: 12.35, 1235, 0.001235."""
    if not 1e-4 <= value < 1e6:
        return f"{value:.3e}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}"


def byte_text(value: float | None) -> str:
    """Bytes in the largest binary unit that leaves at least one of it."""
    if value is None:
        return "-"
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.{0 if value >= 100 or units[0] == 'B' else 1}f} {units[0]}"


def mark_best(column: Sequence[float | None], blocks: Sequence[object], digits: int = 2) -> list[str]:
    """The mark of each number: the highest and the second highest of its block, as far as the printed
    digits tell.

    None takes no part. Where all are equal nothing is marked, and the second highest only where a third is lower."""
    marks = [""] * len(column)
    for block in dict.fromkeys(blocks):
        places = [
            p
            for p, value in enumerate(column)
            if blocks[p] == block and value is not None and block is not None
        ]
        ranks = sorted(
            {round(value, digits) for p in places if (value := column[p]) is not None}, reverse=True
        )
        for place in places if len(ranks) > 1 else ():
            rank = ranks.index(round(column[place] or 0.0, digits))
            marks[place] = BEST if rank == 0 else SECOND if rank == 1 < len(ranks) - 1 else ""
    return marks


def markdown(sheet: Sheet) -> str:
    """As a section. Best is bold, second is underlined."""
    lines = [[name.replace("\n", " ") for name in sheet.head]]
    lines.append(["---"] * sheet.labels + ["---:"] * (len(sheet.head) - sheet.labels))
    lines += [[_markdown_cell(cell) for cell in row] for row in sheet.rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"* {note}" for note in sheet.notes)
    return "\n\n".join(part for part in (f"## {sheet.title}", table, notes) if part) + "\n"


def comma_separated(sheet: Sheet) -> str:
    """One line of heads, then one line a row; numbers have up to ten digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name.replace("\n", " ") for name in sheet.head])
    for row in sheet.rows:
        writer.writerow([_csv_cell(cell) for cell in row])
    return text.getvalue()


def latex(sheet: Sheet) -> str:
    """A table environment for the package booktabs. Best is bold, second is underlined."""
    width = len(sheet.head)
    wide = width > 9
    heads = [name.split("\n") for name in sheet.head]
    depth = max(map(len, heads))
    head = "\n".join(
        " & ".join(
            _latex_text(name[level - depth + len(name)]) if level >= depth - len(name) else ""
            for name in heads
        )
        + r" \\"
        for level in range(depth)
    )
    blocks = [
        "\n".join(" & ".join(map(_latex_cell, row)) + r" \\" for row in rows) for rows in sheet.parted()
    ]
    notes = "\n\n".join(_latex_text(note) for note in sheet.notes)
    return "\n".join(
        (
            r"% needs \usepackage{booktabs}"
            + (r"; wide: set it in a table* or on a landscape page" if wide else ""),
            r"\begin{table}",
            r"\centering",
            *((r"\scriptsize\setlength{\tabcolsep}{2.5pt}",) if wide else ()),
            rf"\caption{{{_latex_text(sheet.title)}}}",
            rf"\begin{{tabular}}{{{'l' * sheet.labels}{'r' * (width - sheet.labels)}}}",
            r"\toprule",
            head,
            r"\midrule",
            "\n\\midrule\n".join(blocks),
            r"\bottomrule",
            r"\end{tabular}",
            *(
                (r"\par\smallskip\begin{minipage}{\linewidth}\footnotesize", notes, r"\end{minipage}")
                if notes
                else ()
            ),
            r"\end{table}",
            "",
        )
    )


def print_sheet(sheet: Sheet, file: TextIO) -> None:
    """Print to `file`; bold and underlined on a terminal, plain elsewhere, and never cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file, markup=False, emoji=False, highlight=False)
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold"
    )
    for position, name in enumerate(sheet.head):
        justify = "left" if position < sheet.labels else "right"
        table.add_column(name, justify=justify, no_wrap=True, vertical="bottom")
    styles = {BEST: "bold", SECOND: "underline", "": ""}
    for rows in sheet.parted():
        for row in rows:
            table.add_row(*(Text(cell.text, style=styles[cell.mark]) for cell in row))
        table.add_section()
    console.print(sheet.title, style="bold", soft_wrap=True)
    Console(file=file, markup=False, emoji=False, highlight=False, width=UNCUT).print(table)
    for note in sheet.notes:
        console.print(f"* {note}", style="dim", soft_wrap=not console.is_terminal)
    console.print()


def write_sheet(sheet: Sheet, folder: Path) -> list[Path]:
    """Write the sheet into `folder` as .md, .csv and .tex, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for ending, typeset in (("md", markdown), ("csv", comma_separated), ("tex", latex)):
        files.append(folder / f"{sheet.name}.{ending}")
        files[-1].write_text(typeset(sheet), encoding="utf-8")
    return files


def _markdown_cell(cell: Cell) -> str:
    text = cell.text.replace("|", r"\|")
    return {BEST: f"**{text}**", SECOND: f"<u>{text}</u>", "": text}[cell.mark]


def _csv_cell(cell: Cell) -> str:
    if cell == MISSING:
        return ""
    return cell.text if cell.value is None else format(cell.value, ".10g")


def _latex_cell(cell: Cell) -> str:
    text = "--" if cell == MISSING else _latex_text(cell.text)
    return {BEST: rf"\textbf{{{text}}}", SECOND: rf"\underline{{{text}}}", "": text}[cell.mark]


def _latex_text(text: str) -> str:
    return re.sub("|".join(map(re.escape, LATEX_SPECIAL)), lambda found: LATEX_SPECIAL[found[0]], text)
