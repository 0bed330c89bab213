"""Scores of which the lower is the better one are marked, compared, ranked, drawn and printed as such everywhere."""

from __future__ import annotations

import io
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

from evaluation import drawing, figures
from evaluation.comparison import NoCounterpart, comparison_sheet
from evaluation.frame import STALE, Result, results_of, run_frame
from evaluation.page import page
from evaluation.published import load
from evaluation.report import difference_sheet, score_sheet, sheets
from evaluation.results import RunSpec, load_runs
from evaluation.sheet import BEST, SECOND, Sheet, markdown, plain
from evaluation.statistics import paired_difference, paired_ratio
from evaluation.summary import summarize
from evaluation.table import json_line, print_table
from evaluation.table_rows import groups
from tests.evaluation.made_runs import record

CHUNKS = [20.0, 30.0, 45.0, 12.0, 25.0, 60.0, 18.0, 33.0]  # perplexities under the full cache


class Perplexities:
    """As the perplexity suite's task summarizes."""

    name = "perplexity"
    metrics = ("perplexity", "nll")
    lower_is_better = metrics

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        loss = math.fsum(record["scores"]["nll"] for record in records) / len(records)
        return {"perplexity": math.exp(loss), "nll": loss}


def make(root: Path, method: str, budget: int | None, perplexities: Sequence[float]) -> Result:
    """A finished run, written and read back."""
    spec = RunSpec(
        model={"id": "org/tiny"},
        method={"name": method, "version": 1},
        budget=budget,
        protocol={"name": "fair", "question": "in_prompt"},
        task={"name": "perplexity", "version": 1},
        subset={"limit": None, "ids": None},
        seed=0,
        engine="1",
    )
    records = []
    for number, value in enumerate(perplexities):
        line = record(number, 0.0, budget or 1000)
        records.append(line | {"scores": {"perplexity": value, "nll": math.log(value)}, "finish": "scored"})
    task: Any = Perplexities()
    folder = root / "runs" / spec.key
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(json.loads(spec.canonical())))
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    summary = summarize(records, spec=spec, task=task, environments=[])
    (folder / "summary.json").write_text(json.dumps(summary))
    return next(result for result in results_of(load_runs(root)) if result.run.key == spec.key)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """SnapKV a tenth worse than the full cache at 64 tokens and equal at 128; H2O twice and 1.5 times as high."""
    root, noise = tmp_path_factory.mktemp("runs"), random.Random(1)
    worse = [value * 1.1 * noise.uniform(0.98, 1.02) for value in CHUNKS]
    make(root, "fullkv", None, CHUNKS)
    make(root, "snapkv", 64, worse)
    make(root, "snapkv", 128, CHUNKS)
    make(root, "h2o", 64, [2 * value for value in CHUNKS])
    make(root, "streamingllm", 64, [1.5 * value for value in CHUNKS])
    return results_of(load_runs(root))


def of(results: Sequence[Result], method: str, budget: int | None) -> Result:
    return next(result for result in results if (result.method, result.budget) == (method, budget))


def row(sheet: Sheet, method: str, budget: str) -> dict[str, Any]:
    names = [name.replace("\n", " ") for name in sheet.head]
    found = next(row for row in sheet.rows if row[0].text == method and row[1].text == budget)
    return dict(zip(names, found, strict=True))


class TestStatistics:
    def test_a_ratio_is_that_of_geometric_means_and_less_is_gained(self) -> None:
        first = {"a": 2.0, "b": 8.0, "c": 3.0}
        second = {"a": 1.0, "b": 16.0, "c": 3.0, "d": 5.0}
        found = paired_ratio(first, second)
        assert math.exp(found.difference) == pytest.approx(
            geometric_mean(first.values()) / geometric_mean([1.0, 16.0, 3.0])
        )
        assert (found.gained, found.lost, found.pairs, found.left_out) == (1, 1, 3, 1)

    def test_it_is_the_difference_of_logarithms(self) -> None:
        first, second = {"a": 2.0, "b": 7.0}, {"a": 3.0, "b": 5.0}
        logs = [{id: math.log(value) for id, value in scores.items()} for scores in (first, second)]
        plain_one, ratio = paired_difference(*logs), paired_ratio(first, second)
        assert (ratio.difference, ratio.low, ratio.high) == (
            plain_one.difference,
            plain_one.low,
            plain_one.high,
        )

    def test_a_score_that_has_no_ratio_is_refused(self) -> None:
        with pytest.raises(ValueError, match="0.0 is not above 0"):
            paired_ratio({"a": 0.0}, {"a": 1.0})


class TestResults:
    def test_the_score_is_the_geometric_mean_and_has_its_interval(self, results: list[Result]) -> None:
        full = of(results, "fullkv", None)
        assert full.score == pytest.approx(geometric_mean(CHUNKS)) and full.shown == full.score
        assert full.run.summary is not None
        assert full.run.summary["means"] == {"perplexity": "geometric", "nll": "arithmetic"}
        assert full.shown_interval is not None and full.score is not None
        low, high = full.shown_interval
        assert min(CHUNKS) < low < full.score < high < max(CHUNKS)
        losses = full.run.summary["intervals"]["nll"]
        assert (low, high) == pytest.approx([math.exp(end) for end in losses])
        assert STALE not in full.summary["warnings"]

    def test_a_summary_that_disagrees_with_its_predictions_is_told(self, tmp_path: Path) -> None:
        result = make(tmp_path, "snapkv", 64, CHUNKS)
        summary = json.loads((result.run.folder / "summary.json").read_text())
        summary["scores"]["perplexity"] = 1.5
        (result.run.folder / "summary.json").write_text(json.dumps(summary))
        (again,) = results_of(load_runs(tmp_path))
        assert again.score == pytest.approx(geometric_mean(CHUNKS)) and STALE in again.summary["warnings"]

    def test_frames_say_which_scores_they_are(self, results: list[Result]) -> None:
        frame = run_frame(results)
        assert set(frame["lower_is_better"]) == {True} and min(frame["score"]) > 1


class TestTables:
    def test_the_lowest_is_best_and_stands_as_it_is(self, results: list[Result]) -> None:
        sheet = score_sheet(results)
        column = "perplexity"
        assert row(sheet, "SnapKV", "64")[column].mark == BEST
        assert (
            row(sheet, "StreamingLLM", "64")[column].mark == SECOND
            and not row(sheet, "H2O", "64")[column].mark
        )
        cell = row(sheet, "H2O", "64")[column]
        assert (cell.text, cell.value) == (
            f"{2 * geometric_mean(CHUNKS):.2f}",
            pytest.approx(2 * geometric_mean(CHUNKS)),
        )
        assert row(sheet, "SnapKV", "128")[column].text.endswith("°"), "equal to the full cache"
        notes = " ".join(sheet.notes)
        assert "lower is better" in notes and "points from 0 to 100" not in notes
        assert "ahead of the second by more than chance explains in 1 of 1 cases" in notes

    def test_differences_are_ratios_and_lower_is_better(self, results: list[Result]) -> None:
        sheet = difference_sheet(results)
        assert "times" in sheet.head and "difference" not in sheet.head
        h2o, snap = row(sheet, "H2O", "64"), row(sheet, "SnapKV", "64")
        assert (h2o["times"].text, h2o["95 % from"].text, h2o["better"].text, h2o["worse"].text) == (
            "×2.000",
            "×2.000",
            "0",
            "8",
        )
        assert 1.08 < snap["times"].value < 1.12 and snap["clear"].text == "yes"
        assert row(sheet, "SnapKV", "128")["times"].text == "×1.000"
        assert any("clear: the interval excludes 1" in note for note in sheet.notes)

    def test_scored_texts_have_no_length_to_compare(self, results: list[Result]) -> None:
        assert not [head for head in difference_sheet(results).head if "longer" in head or "answer" in head]

    def test_every_sheet_can_be_typeset(self, results: list[Result]) -> None:
        assert all(markdown(sheet) for sheet in sheets(results))

    def test_the_terminals_table_says_the_same(self, results: list[Result]) -> None:
        file = io.StringIO()
        print_table([result.run for result in results], file)
        lines = [line.split() for line in file.getvalue().splitlines()]
        (scored, compared, _) = [line for line in lines if line[:2] == ["h2o", "64"]]
        assert scored[2] == plain(2 * geometric_mean(CHUNKS))
        assert compared[2:] == ["×2.000", "×2.000", "to", "×2.000", "0", "8", "yes"]
        assert "perplexity and nll: lower is better" in file.getvalue()
        assert json.loads(json_line([results[0].run]))["scores"]["perplexity"] > 1

    def test_a_published_number_in_points_has_no_counterpart_here(self, results: list[Result]) -> None:
        with pytest.raises(NoCounterpart):
            comparison_sheet("pyramidinfer_ablation", load("pyramidinfer_ablation"), results)


class TestFiguresAndPage:
    @pytest.mark.parametrize("against", ["tokens", "bytes"])
    def test_figures_show_perplexities_on_a_logarithmic_axis(
        self, results: list[Result], against: str, tmp_path: Path
    ) -> None:
        figure = figures.score_figure(results, against)
        assert figure is not None
        (axes,) = figure.axes
        assert axes.get_yscale() == "log" and axes.get_ylabel() == "perplexity (lower is better)"
        (line,) = [line for line in axes.lines if line.get_marker() == "D"]
        assert [float(y) for y in line.get_ydata()] == pytest.approx([2 * geometric_mean(CHUNKS)])  # pyright: ignore
        low, high = axes.get_ylim()
        assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) >= 2
        assert "%" not in "".join(text.get_text() for text in axes.texts)
        assert all(file.read_bytes() for file in drawing.save(figure, tmp_path / "perplexity"))

    def test_a_wide_range_has_ticks_too(self, tmp_path: Path) -> None:
        make(tmp_path, "fullkv", None, [10.0, 12.0])
        make(tmp_path, "snapkv", 64, [5000.0, 4000.0])
        figure = figures.score_figure(results_of(load_runs(tmp_path)), "tokens")
        assert figure is not None
        (axes,) = figure.axes
        low, high = axes.get_ylim()
        assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) >= 4

    def test_all_figures_are_drawn(self, results: list[Result]) -> None:
        assert set(figures.figures(results)) == {
            "score_by_tokens",
            "score_by_bytes",
            "memory",
            "time",
            "layers",
        }

    def test_the_page_holds_scores_as_they_are_and_which_way_is_up(self, results: list[Result]) -> None:
        text = page(groups(results), {})
        (block,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
        (sample, *_) = json.loads(block)["perplexity"]
        scores = {answer["label"]: answer["score"] for answer in sample["answers"]}
        assert scores["FullKV"] == CHUNKS[0] and scores["H2O 64"] == 2 * CHUNKS[0]
        assert all(answer["falling"] for answer in sample["answers"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.3456, "12.35"),
        (1.0, "1.000"),
        (123.456, "123.5"),
        (1234.5, "1234"),
        (123456.0, "123456"),
        (12345678.0, "1.235e+07"),
        (0.0012345, "0.001234"),
        (0.0, "0.000e+00"),
    ],
)
def test_numbers_without_a_scale_have_the_digits_that_count(value: float, text: str) -> None:
    assert plain(value) == text
