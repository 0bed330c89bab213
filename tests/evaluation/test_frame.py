"""What is shown comes from the predictions and the specifications, and every row says what it is."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from evaluation.frame import STALE, Result, results_of, run_frame, sample_frame, write_frames
from evaluation.results import load_runs
from tests.evaluation.made_runs import make


def test_scores_come_from_the_predictions_and_a_summary_that_disagrees_is_told(tmp_path: Path) -> None:
    result = make(tmp_path, "snapkv", 64, [0.0, 1.0])
    assert result.score == 0.5 and STALE not in result.summary["warnings"]
    summary = json.loads((result.run.folder / "summary.json").read_text())
    summary["scores"]["f1"] = 0.9
    (result.run.folder / "summary.json").write_text(json.dumps(summary))
    (again,) = results_of(load_runs(tmp_path))
    assert again.score == 0.5
    assert STALE in again.summary["warnings"]


def test_a_score_that_is_no_mean_over_samples_is_taken_from_the_summary(tmp_path: Path) -> None:
    result = make(tmp_path, "snapkv", 64, [0.0, 1.0])
    summary = json.loads((result.run.folder / "summary.json").read_text())
    summary["scores"]["f1"], summary["intervals"] = 0.75, {}
    (result.run.folder / "summary.json").write_text(json.dumps(summary))
    (again,) = results_of(load_runs(tmp_path))
    assert (again.score, again.interval) == (0.75, None)


def test_nothing_is_read_out_of_a_folders_name(tmp_path: Path) -> None:
    result = make(tmp_path, "snapkv", 64, [0.0, 1.0])
    before = run_frame([result])
    result.run.folder.rename(result.run.folder.with_name("longbench-trec-h2o-128-000000000000"))
    assert run_frame(results_of(load_runs(tmp_path))).equals(before)


def test_a_row_names_metric_prompt_template_and_protocol(tmp_path: Path) -> None:
    """D22: the same set is reported under several metrics and prompts elsewhere."""
    row = run_frame([make(tmp_path, "snapkv", 64, [0.0, 1.0])]).iloc[0]
    named = (row["metric"], row["prompt"], row["template"], row["protocol"])
    assert named == ("f1", "the prompt's name", "chat", "fair")


def test_a_row_has_its_number_of_samples_and_an_interval_that_is_always_the_same(tmp_path: Path) -> None:
    """D18: four samples say little, and the row shows how little."""
    result = make(tmp_path, "snapkv", 64, [0.0, 1.0, 1.0, 0.5])
    row = run_frame([result]).iloc[0]
    assert (row["n"], row["score"]) == (4, 0.625)
    assert row["low"] < 0.625 < row["high"]
    assert Result(result.run).interval == result.interval == (row["low"], row["high"])


def test_one_sample_has_no_interval(tmp_path: Path) -> None:
    assert make(tmp_path, "snapkv", 64, [1.0]).interval is None


def test_failed_samples_have_a_row_and_no_score(tmp_path: Path) -> None:
    result = make(tmp_path, "snapkv", 64, [1.0, None])
    frame = sample_frame([result])
    assert list(frame["error"].fillna("none")) == ["none", "out of memory"]
    assert len(frame["score"].dropna()) == 1 and result.score == 1.0
    assert list(frame["kept_tokens"].dropna()) == [64]


def test_frames_are_written_the_same_way_twice(tmp_path: Path) -> None:
    results = [make(tmp_path, "snapkv", 64, [1.0, None]), make(tmp_path, "fullkv", None, [1.0, 0.0])]
    first, second = write_frames(results, tmp_path / "a"), write_frames(results, tmp_path / "b")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    endings = {".csv", ".parquet"} if find_spec("pyarrow") else {".csv"}
    assert {file.suffix for file in first} == endings


def test_runs_come_by_task_then_method_then_budget(tmp_path: Path) -> None:
    for method, budget in (("snapkv", 128), ("snapkv", 64), ("fullkv", None), ("pyramidkv", 0.5)):
        make(tmp_path, method, budget, [1.0])
    results = results_of(load_runs(tmp_path))
    assert [result.label for result in results] == ["FullKV", "PyramidKV 50 %", "SnapKV 64", "SnapKV 128"]


@pytest.mark.parametrize("name", ["fullkv", "pyramidkv", "a_new_method"])
def test_a_method_always_looks_the_same(name: str) -> None:
    from evaluation.palette import look

    assert look(name) == look(name)
    assert look(name).colour.startswith("#") and look(name).marker


def test_no_two_methods_share_a_colour_or_a_marker() -> None:
    from evaluation.palette import METHODS, SPARE_COLOURS

    colours = [each.colour for each in METHODS.values()] + list(SPARE_COLOURS)
    assert len(set(colours)) == len(colours)
    assert len({each.marker for each in METHODS.values()}) == len(METHODS)
