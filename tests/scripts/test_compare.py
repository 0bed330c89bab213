"""Ours beside theirs: the right cells, the doubts, and what sets the two protocols apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation import published
from evaluation.comparison import NoCounterpart, comparison_sheet
from evaluation.frame import Result, results_of
from evaluation.results import load_runs
from scripts import compare
from tests.evaluation.made_runs import make

RUNS = Path(__file__).resolve().parent.parent / "data" / "results"
TABLE = published.load("pyramidkv_table1")
CELL = ("llama-3-8b-instruct", "qasper")


@pytest.fixture(scope="module")
def longbench() -> list[Result]:
    return [result for result in results_of(load_runs(RUNS)) if result.family == "longbench"]


def test_each_cell_is_theirs_ours_and_the_difference(longbench: list[Result]) -> None:
    sheet = comparison_sheet("pyramidkv_table1", TABLE, longbench)
    model, method, budget, task, theirs, ours, _, _, difference, *_ = range(len(sheet.head))
    (row,) = [
        row
        for row in sheet.rows
        if [row[place].text for place in (model, method, budget, task)]
        == ["llama-3-8b-instruct", "SnapKV", "64", "multifieldqa_en"]
    ]
    (printed,) = [
        each.value
        for each in TABLE
        if (each.model, each.method, each.budget, each.task)
        == ("llama-3-8b-instruct", "snapkv", 64, "multifieldqa_en")
    ]
    (run,) = [r for r in longbench if (r.method, r.task) == ("snapkv", "longbench/multifieldqa_en")]
    assert row[theirs].value == printed and row[ours].value == pytest.approx(100 * (run.score or 0))
    assert row[difference].value == pytest.approx(100 * (run.score or 0) - printed)


def test_full_cache_rows_meet_full_cache_runs(longbench: list[Result]) -> None:
    sheet = comparison_sheet("pyramidkv_table1", TABLE, longbench)
    assert {row[2].text for row in sheet.rows if row[1].text == "FullKV"} == {"-"}
    assert {row[1].text for row in sheet.rows} == {"FullKV", "PyramidKV", "SnapKV"}


def test_an_average_over_few_sets_is_called_partial(longbench: list[Result]) -> None:
    sheet = comparison_sheet("pyramidkv_table1", TABLE, longbench)
    averages = [row[5].text for row in sheet.rows if row[3].text == "average"]
    assert averages and all(text.endswith(" partial") for text in averages)
    assert any("our average is partial (3 of 16" in note for note in sheet.notes)


def test_doubts_and_protocols_are_spelled_out(longbench: list[Result]) -> None:
    sheet = comparison_sheet("pyramidkv_table1", TABLE, longbench)
    notes = "\n".join(sheet.notes)
    assert "Not the mean of its columns" in notes
    assert "their protocol (SnapKV): " in notes and "window 32" in notes
    assert "template chat (theirs none)" in notes and "cache_heads kv (theirs query)" in notes
    assert "PyramidKV 2048" in notes, "published rows without a run are counted"


def test_a_run_under_the_preset_that_follows_them_says_so(tmp_path: Path) -> None:
    import yaml

    from evaluation.comparison import PRESET

    preset = yaml.safe_load(PRESET.read_text(encoding="utf-8"))
    sheet = comparison_sheet(
        "pyramidkv_table1", TABLE, [make(tmp_path, "snapkv", 64, [0.1, 0.2], protocol=preset)]
    )
    assert any(note.startswith("our protocol is the preset `paper`") for note in sheet.notes)


def test_whether_our_interval_holds_their_number_is_told(tmp_path: Path) -> None:
    """llama-3-8b-instruct, SnapKV, 64, qasper is printed as 9.09."""
    verdicts = []
    for name, scores in (("near", [0.0, 0.3]), ("far", [0.9, 0.8])):
        sheet = comparison_sheet("t", TABLE, [make(tmp_path / name, "snapkv", 64, scores)])
        place = sheet.head.index("theirs in\nour interval")
        verdicts += [row[place].text for row in sheet.rows if (row[0].text, row[3].text) == CELL]
    assert verdicts == ["yes", "no"]


def test_without_a_counterpart_it_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(NoCounterpart, match="budgets are 64, 2048"):
        comparison_sheet("pyramidkv_table1", TABLE, [make(tmp_path, "snapkv", 100, [0.5])])


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["published=pyramidkv_table15", f"runs={RUNS}", f"out={tmp_path}"]
    assert compare.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "PyramidKV, Table 15: theirs and ours" in printed and "mistral-7b-instruct-v0.2" in printed
    assert {file.suffix for file in tmp_path.rglob("against_*")} == {".md", ".csv", ".tex"}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("published=pyramidkv_table01", "pyramidkv_table1"),
        ("published=kvpress_ruler", "none of the runs has a counterpart in kvpress_ruler"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    setting: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([setting, f"runs={RUNS}"]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
