"""What is committed under results/ comes out of the committed runs again."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import report

RESULTS = Path(__file__).resolve().parents[1] / "results"
ARCHIVES = sorted((RESULTS / "archive").glob("*.zip"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_committed_tables_are_what_their_runs_give(archive: Path, tmp_path: Path) -> None:
    """To the byte, and no file more or less."""
    assert report.main(["tables", f"runs={archive}", f"out={tmp_path}"]) == 0
    made, committed = _files(tmp_path), _files(RESULTS / "tables" / archive.stem)
    assert made.keys() == committed.keys() and made
    for name, content in made.items():
        assert content == committed[name], (
            f"results/tables/{archive.stem}/{name} is not what `make committed` gives"
        )


def test_every_committed_table_and_figure_has_its_runs() -> None:
    names = {archive.stem for archive in ARCHIVES}
    assert {folder.name for folder in (RESULTS / "tables").iterdir()} <= names
    assert {folder.name for folder in (RESULTS / "figures").iterdir()} <= names | {"funnel"}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
