"""Packed runs: what comes out is what went in, and the file is the same each time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evaluation.archive import folder_of, pack
from evaluation.results import load_runs

RUNS = Path(__file__).resolve().parents[1] / "data" / "results"


def _files(root: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in root.rglob("*")
        if file.is_file() and not file.name.startswith(".") and file.suffix not in (".png", ".pdf")
    }


def test_runs_come_back_as_they_went_in(tmp_path: Path) -> None:
    runs = load_runs(RUNS)[:3]
    pack(runs, tmp_path / "deep" / "runs.zip")
    folder = folder_of(tmp_path / "deep" / "runs.zip")
    again = load_runs(folder)
    assert [run.key for run in again] == [run.key for run in runs]
    for before, after in zip(runs, again, strict=True):
        assert _files(before.folder) == _files(after.folder) and after.records == before.records
    assert folder_of(tmp_path / "deep" / "runs.zip") == folder


def test_the_same_runs_give_the_same_file_wherever_they_lie(tmp_path: Path) -> None:
    runs = load_runs(RUNS)[:2]
    for run in runs:
        shutil.copytree(run.folder, tmp_path / "runs" / run.key)
        (tmp_path / "runs" / run.key / ".lock").touch()
        (tmp_path / "runs" / run.key / "heatmap.png").touch()
    pack(runs, tmp_path / "a.zip")
    pack(load_runs(tmp_path)[::-1], tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_what_cannot_be_packed_or_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished runs"):
        pack([], tmp_path / "a.zip")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ValueError, match="neither a folder with runs nor an archive"):
        folder_of(tmp_path / "text")
    assert folder_of(tmp_path) == tmp_path
