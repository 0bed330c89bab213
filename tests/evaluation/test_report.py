"""The tables of a paper: averages that say what they lack, differences that say how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from evaluation.frame import Result, results_of
from evaluation.longbench_table import SETS
from evaluation.report import cost_sheet, difference_sheet, grid_sheet, score_sheet, sheets
from evaluation.results import load_runs
from evaluation.sheet import Sheet, comma_separated, latex, markdown
from evaluation.table_rows import LONGBENCH_COLUMNS, group_name, groups
from tests.evaluation.made_runs import make

COMMITTED = Path(__file__).resolve().parent.parent / "data" / "results"
GOLDEN = Path(__file__).resolve().parent.parent / "data" / "needle_scores.md"


@pytest.fixture(scope="module")
def committed() -> list[Result]:
    """Real runs of a small model, kept for tests."""
    return results_of(load_runs(COMMITTED))


def column(sheet: Sheet, head: str) -> list[str]:
    place = [name.replace("\n", " ") for name in sheet.head].index(head)
    return [row[place].text for row in sheet.rows]


def values(sheet: Sheet, head: str) -> list[float | None]:
    place = [name.replace("\n", " ") for name in sheet.head].index(head)
    return [row[place].value for row in sheet.rows]


def all_sets(root: Path, method: str, budget: int | None, score_of: Sequence[float]) -> list[Result]:
    """A run of every English set of LongBench, with all of its samples."""
    return [
        make(root, method, budget, [score] * SETS[name].rows, task=f"longbench/{name}")
        for name, score in zip(LONGBENCH_COLUMNS, score_of, strict=True)
    ]


def test_an_average_over_sets_is_of_the_set_scores_and_says_what_it_lacks(tmp_path: Path) -> None:
    """D08: one sample here and nine there count as two sets, and three of 16 sets are no LongBench average."""
    make(tmp_path, "snapkv", 64, [1.0], task="longbench/qasper")
    make(tmp_path, "snapkv", 64, [0.0] * 9, task="longbench/trec")
    make(tmp_path, "snapkv", 64, [0.5], task="longbench/lcc")
    sheet = score_sheet(results_of(load_runs(tmp_path)))
    assert column(sheet, "average partial") == ["50.00"]
    assert any("average: partial (3 of 16, 3 on a part of their rows)" in note for note in sheet.notes)


def test_an_average_over_all_sets_in_full_is_their_plain_mean_in_points(tmp_path: Path) -> None:
    """D08: macro over data sets, 0 to 100, and no remark when nothing is missing."""
    scores = [round(0.02 * place + 0.1, 2) for place in range(16)]
    sheet = score_sheet(all_sets(tmp_path, "snapkv", 64, scores))
    assert values(sheet, "average") == [pytest.approx(100 * fmean(scores))]
    assert not any("partial" in note for note in sheet.notes)
    assert [name.split("\n")[0] for name in sheet.head[4:-1]] == list(LONGBENCH_COLUMNS.values())


def test_rows_that_lack_different_sets_say_so_each(tmp_path: Path) -> None:
    make(tmp_path, "snapkv", 64, [1.0], task="longbench/qasper")
    make(tmp_path, "snapkv", 64, [0.0], task="longbench/trec")
    make(tmp_path, "h2o", 64, [1.0], task="longbench/qasper")
    averages = column(score_sheet(results_of(load_runs(tmp_path))), "average partial")
    assert len(set(averages)) == 2 and all("of 16" in text for text in averages)


def test_every_column_names_its_metric(committed: list[Result]) -> None:
    """D22."""
    sheet = score_sheet([result for result in committed if result.family == "longbench"])
    assert "Lcc\ncode_similarity_difflib" in sheet.head and "Qasper\nf1" in sheet.head


def test_scores_that_chance_may_explain_are_marked(tmp_path: Path) -> None:
    """D18: noise is not read as a result."""
    full = [1.0] * 20
    make(tmp_path, "fullkv", None, full)
    make(tmp_path, "snapkv", 64, [*full[:19], 0.0])
    make(tmp_path, "h2o", 64, [0.0] * 20)
    sheet = score_sheet(results_of(load_runs(tmp_path)))
    assert dict(zip(column(sheet, "method"), column(sheet, "Qasper f1"), strict=True)) == {
        "FullKV": "100.00",
        "SnapKV": "95.00°",
        "H2O": "0.00",
    }


def test_differences_count_flips_and_how_much_longer_answers_are(tmp_path: Path) -> None:
    make(tmp_path, "fullkv", None, [1.0, 0.5, 0.0, 1.0])
    make(tmp_path, "snapkv", 64, [1.0, 1.0, 0.0, None])
    sheet = difference_sheet(results_of(load_runs(tmp_path)))
    assert (column(sheet, "samples"), column(sheet, "better"), column(sheet, "worse")) == (
        ["3"],
        ["1"],
        ["0"],
    )
    assert values(sheet, "difference") == [pytest.approx(100 / 6)]
    assert column(sheet, "clear") == ["no"] and column(sheet, "longer by") == ["+0.0"]


def test_a_failed_sample_is_told_under_the_table(tmp_path: Path) -> None:
    sheet = score_sheet([make(tmp_path, "snapkv", 64, [1.0, None])])
    assert any("1 of 2 samples failed" in note for note in sheet.notes)


def test_costs_are_those_of_the_records(tmp_path: Path) -> None:
    sheet = cost_sheet([make(tmp_path, "snapkv", 64, [1.0, 0.0])])
    assert values(sheet, "held bytes") == [64 * 3 * 1024]
    assert column(sheet, "of full") == ["6.4%"] and column(sheet, "compressed") == ["2/2"]
    assert column(sheet, "decode ms/token") == ["12.5"] and column(sheet, "decode tokens/s") == ["80.0"]


def test_rows_of_one_method_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    make(tmp_path, "pyramidkv", 64, [1.0], parameters={"beta": 20, "window": 8})
    make(tmp_path, "pyramidkv", 64, [0.0], parameters={"beta": 10, "window": 8})
    sheet = score_sheet(results_of(load_runs(tmp_path)))
    assert sorted(column(sheet, "method")) == ["PyramidKV (beta=10)", "PyramidKV (beta=20)"]


def test_a_table_of_mixed_runs_is_refused_or_says_what_is_mixed(tmp_path: Path) -> None:
    make(tmp_path, "snapkv", 64, [1.0])
    make(tmp_path, "snapkv", 64, [0.0], protocol={"name": "paper", "template": "none"})
    results = results_of(load_runs(tmp_path))
    with pytest.raises(ValueError, match="mix protocols"):
        score_sheet(results)
    sheet = score_sheet(results, ["protocol"])
    assert any(note.startswith("mixed protocols: name is") for note in sheet.notes)
    assert sorted(column(sheet, "method")) == ["SnapKV (protocol fair)", "SnapKV (protocol paper)"]
    assert len([note for note in sheet.notes if note.startswith("protocol: ")]) == 2


def test_a_table_with_two_sample_sets_shows_both_rows(tmp_path: Path) -> None:
    make(tmp_path, "snapkv", 64, [1.0])
    make(tmp_path, "snapkv", 64, [0.0, 0.0], subset={"limit": 2, "ids": None})
    sheet = score_sheet(results_of(load_runs(tmp_path)), ["samples"])
    assert sorted(column(sheet, "Qasper f1")) == ["0.00", "100.00"]


def test_groups_keep_apart_what_must_not_be_mixed_and_their_names_do_not_collide(tmp_path: Path) -> None:
    make(tmp_path, "snapkv", 64, [1.0])
    make(tmp_path, "snapkv", 64, [1.0], engine="2")
    make(tmp_path, "snapkv", 64, [1.0], task="needle")
    found = groups(results_of(load_runs(tmp_path)))
    assert [len(group) for group in found.values()] == [1, 1, 1]
    assert all(group_name(group) == name for name, group in found.items())


def test_grids_show_each_length(committed: list[Result]) -> None:
    needle = [result for result in committed if result.family == "needle"]
    sheet = grid_sheet(needle, "length")
    assert list(sheet.head[3:]) == ["256", "384", "512"]
    by_length = [fmean(row[place].value or 0.0 for place in (3, 4, 5)) for row in sheet.rows]
    whole = values(score_sheet(needle), "needle word_recall")
    assert by_length == [pytest.approx(value) for value in whole]


def test_the_same_runs_give_the_same_bytes(committed: list[Result]) -> None:
    again = results_of(list(reversed(load_runs(COMMITTED))))
    for name, group in groups(committed).items():
        for first, second in zip(sheets(group), sheets(groups(again)[name]), strict=True):
            for form in (markdown, comma_separated, latex):
                assert form(first) == form(second)


def test_the_committed_runs_still_give_the_committed_table(committed: list[Result]) -> None:
    needle = [result for result in committed if result.family == "needle"]
    assert markdown(score_sheet(needle)) == GOLDEN.read_text(encoding="utf-8")
