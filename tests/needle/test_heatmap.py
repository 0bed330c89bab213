"""The figure and its numbers say the same, and are the same bytes every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from needle.heatmap import draw

ROOT = Path(__file__).resolve().parents[2]


def _record(depth: float, length: int, **scores: float) -> dict[str, Any]:
    return {"meta": {"depth": depth, "length": length}, "scores": scores}


def _grid(columns: int, rows: int) -> list[dict[str, Any]]:
    cells = [(row, column) for column in range(columns) for row in range(rows)]
    return [_record(10 * row, 100 * column, word_recall=(row + column) % 12 / 11) for row, column in cells]


def test_csv_holds_every_cell_in_order(tmp_path: Path) -> None:
    """Depth by length; a cell without a record stays empty."""
    records = [
        _record(50, 200, word_recall=0.25),
        _record(0, 100, word_recall=1.0),
        _record(33.3, 200, word_recall=0.5),
        _record(0, 200, word_recall=0.0),
    ]
    table, picture = draw(records, tmp_path)
    assert table.read_text() == (
        "depth,length,word_recall\n0,100,1.0\n0,200,0.0\n33.3,100,\n33.3,200,0.5\n50,100,\n50,200,0.25\n"
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bytes_depend_on_the_records_alone(tmp_path: Path) -> None:
    """Drawn in another order, in another process with another hash seed, the files are the same."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    script = (
        "import sys; from pathlib import Path; from needle.heatmap import draw\n"
        "from tests.needle.test_heatmap import _grid; draw(_grid(20, 4)[::-1], Path(sys.argv[1]))"
    )
    one = draw(_grid(20, 4), tmp_path / "one")
    command = [sys.executable, "-c", script, str(tmp_path / "other")]
    subprocess.run(command, cwd=ROOT, check=True, env={"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)})
    for file in one:
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()


def test_other_scores_give_another_figure(tmp_path: Path) -> None:
    """The colour scale is fixed: a grid of nothing and a grid of everything do not look alike."""
    pictures = []
    for score in (0.0, 1.0):
        folder = tmp_path / str(score)
        folder.mkdir()
        pictures.append(draw([_record(0, 100, word_recall=score)], folder, title="same")[1].read_bytes())
    assert pictures[0] != pictures[1]


def test_any_metric_and_any_size(tmp_path: Path) -> None:
    for columns, rows in ((1, 1), (5, 5), (71, 10), (200, 40)):
        assert len(draw(_grid(columns, rows), tmp_path)) == 2
    draw([_record(0, 100, word_recall=0.0, strict_hit=1.0)], tmp_path, metric="strict_hit")
    assert (tmp_path / "heatmap.csv").read_text() == "depth,length,strict_hit\n0,100,1.0\n"


def test_user_settings_of_matplotlib_do_not_leak_in(tmp_path: Path) -> None:
    import matplotlib

    before = draw(_grid(3, 3), tmp_path)[1].read_bytes()
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red"}):
        assert draw(_grid(3, 3), tmp_path)[1].read_bytes() == before
        assert matplotlib.rcParams["font.size"] == 20


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert draw([], tmp_path) == []
    assert draw([_record(0, 100)], tmp_path) == []
    assert list(tmp_path.iterdir()) == []
