"""The notebooks run from top to bottom on stored results, keep no outputs, and hold no logic of their own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")
nbclient = pytest.importorskip("nbclient", reason="the notebooks extra is not installed")

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [file.stem for file in NOTEBOOKS]


def test_they_are_the_four() -> None:
    assert NAMES == ["01_needle", "02_longbench", "03_efficiency", "04_funnel"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=NAMES)
def test_outputs_are_stripped(file: Path) -> None:
    for cell in nbformat.read(file, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None


@pytest.mark.parametrize("file", NOTEBOOKS, ids=NAMES)
def test_there_is_no_logic_in_them(file: Path) -> None:
    for cell in nbformat.read(file, as_version=4).cells:
        if cell.cell_type == "code":
            tree = ast.parse(re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE))
            logic = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.While, ast.BinOp)
            assert not [node for node in ast.walk(tree) if isinstance(node, logic)]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=NAMES)
def test_they_run_and_show_pictures(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESULTS", str(ROOT / "tests" / "data" / "results"))
    monkeypatch.delenv("FUNNEL", raising=False)
    book = nbformat.read(file, as_version=4)
    folder = {"metadata": {"path": str(file.parent)}}
    nbclient.NotebookClient(book, timeout=400, kernel_name="python3", resources=folder).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type in ("stream", "error")]
    assert [output for output in outputs if "image/png" in output.data]
