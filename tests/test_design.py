"""Imports go one way, as docs/design.md draws it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = [
    {"pyramid.types", "pyramid.budget", "pyramid.selection"},
    {"pyramid.scoring"},
    {"pyramid.store"},
    {"pyramid.cache"},
    {"pyramid.rotary", "pyramid.method"},
    {"pyramid.engine"},
    {"pyramid.generation"},
]


def imported(file: Path) -> set[str]:
    """Modules of ours that a file imports when it is run, not only for types."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_the_library_knows_nothing_of_the_harness() -> None:
    for file in files("pyramid"):
        assert not {
            name
            for name in imported(file)
            if name.split(".")[0] in {"evaluation", "needle", "scripts", "hydra"}
        }, file


def test_each_layer_of_the_library_imports_only_lower_ones() -> None:
    for height, layer in enumerate(LAYERS):
        above = set().union(*LAYERS[height:]) | {"pyramid.methods"}
        for module in layer:
            file = ROOT / f"{module.replace('.', '/')}.py"
            assert not imported(file) & (above - {module}), module
    for file in files("pyramid/methods"):
        assert not imported(file) & {"pyramid.engine", "pyramid.generation", "pyramid.models"}, file


def test_the_harness_touches_no_tensors_and_the_library_only_at_one_place() -> None:
    for file in files("evaluation"):
        names = imported(file)
        assert "torch" not in names, file
        assert not {name for name in names if name.split(".")[0] == "needle"}, file
        ours = {
            name
            for name in names
            if name.startswith("pyramid.") and not name.startswith(("pyramid.types", "pyramid.download"))
        }
        assert not ours or file.name == "bench.py", (file, ours)


def test_hydra_is_known_to_run_and_the_launchers_only() -> None:
    for package in ("evaluation", "needle", "scripts"):
        for file in files(package):
            if "hydra" in {name.split(".")[0] for name in imported(file)}:
                assert "launcher" in file.name or package == "scripts", file


@pytest.mark.parametrize(
    "module", ["evaluation.command_line", "evaluation.runner", "evaluation.table", "needle.task"]
)
def test_dear_libraries_are_imported_late(module: str) -> None:
    dear = ("torch", "transformers", "pandas", "matplotlib", "wandb")
    code = f"import sys, {module}; print([name for name in {dear} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
