"""A table says the same in every form, escapes what a form reserves, and marks the best fairly."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.sheet import (
    BEST,
    MISSING,
    SECOND,
    Cell,
    Sheet,
    byte_text,
    comma_separated,
    latex,
    mark_best,
    markdown,
    number,
    print_sheet,
)

SHEET = Sheet(
    name="scores",
    title="A & B: 50 % of {all}",
    head=["method", "tokens\n/layer", "code_similarity"],
    rows=[
        [Cell("Full|KV"), MISSING, number(100 / 3, ".2f")],
        [Cell("Snap_KV"), Cell("64", 64), number(12.3456789012345, ".2f", BEST)],
    ],
    notes=["a note_with $pecial #signs ~ and ^"],
    blocks=["", "64"],
)


def test_every_form_has_every_text() -> None:
    terminal = io.StringIO()
    print_sheet(SHEET, terminal)
    for text in ("33.33", "12.35", "64"):
        assert text in markdown(SHEET) and text in latex(SHEET) and text in terminal.getvalue()


def test_csv_has_the_numbers_unrounded() -> None:
    rows = list(csv.reader(io.StringIO(comma_separated(SHEET))))
    assert rows == [
        ["method", "tokens /layer", "code_similarity"],
        ["Full|KV", "", "33.33333333"],
        ["Snap_KV", "64", "12.3456789"],
    ]


def test_markdown_rows_have_as_many_cells_as_heads() -> None:
    lines = [line for line in markdown(SHEET).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert "**12.35**" in markdown(SHEET)


def test_latex_leaves_no_reserved_character_bare() -> None:
    text = latex(SHEET)
    assert r"A \& B: 50 \% of \{all\}" in text and r"note\_with \$pecial \#signs" in text
    assert r"\textbf{12.35}" in text
    assert text.count(r"\midrule") == 2, "under the head, and between the blocks"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path: Path) -> None:
    wide = Sheet(
        name="wide",
        title="Wide",
        head=["a"] * 12,
        rows=[[Cell("1", 1)] * 12],
        notes=["7 × 3 ≥ 20°"],
        labels=2,
    )
    body = "\n".join(
        [
            r"\documentclass{article}\usepackage{booktabs}\begin{document}",
            latex(SHEET),
            latex(wide),
            r"\end{document}",
        ]
    )
    (tmp_path / "paper.tex").write_text(body, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=batchmode", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (tmp_path / "paper.log").read_text(errors="replace")[-1500:]


def test_the_best_is_best_of_its_block_only_and_ties_share_it() -> None:
    column = [99.0, 10.0, 30.0, 30.004, None, 5.0, 50.0, 50.0]
    blocks = [None, 64, 64, 64, 64, 64, 128, 128]
    assert mark_best(column, blocks) == ["", SECOND, BEST, BEST, "", "", "", ""]


@pytest.mark.parametrize("column", [[1.0, 2.0], [0.0, 20.0, 0.0], [2.0, 3.0, 2.004, 3.0]])
def test_what_nothing_is_below_is_no_second(column: list[float]) -> None:
    assert mark_best(column, [64] * len(column)) == [BEST if value == max(column) else "" for value in column]


@given(st.lists(st.floats(0, 100), min_size=2, max_size=8))
def test_nothing_printed_higher_than_the_best_goes_unmarked(column: list[float]) -> None:
    marks = mark_best(column, [64] * len(column))
    best = [round(value, 2) for value, mark in zip(column, marks, strict=True) if mark == BEST]
    printed = [round(value, 2) for value in column]
    assert set(best) == ({max(printed)} if len(set(printed)) > 1 else set())


@pytest.mark.parametrize(
    ("size", "text"), [(None, "-"), (1023, "1023 B"), (1024, "1.0 KiB"), (150 * 1024**2, "150 MiB")]
)
def test_bytes_are_written_in_binary_units(size: int | None, text: str) -> None:
    assert byte_text(size) == text
