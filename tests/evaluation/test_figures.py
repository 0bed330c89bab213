"""Figures draw without a warning, from what was measured, and are the same every time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation import drawing, figures
from evaluation.frame import Result, results_of
from evaluation.funnel import Funnel
from evaluation.funnel import figures as funnel_figures
from evaluation.palette import look
from evaluation.results import load_runs
from tests.evaluation.made_runs import make

ROOT = Path(__file__).resolve().parent.parent.parent
MEASURED = ROOT / "results" / "figures" / "funnel" / "funnel.json"


@pytest.fixture(scope="module")
def needle() -> list[Result]:
    return [r for r in results_of(load_runs(ROOT / "tests" / "data" / "results")) if r.family == "needle"]


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_every_figure_is_drawn_and_written(needle: list[Result], tmp_path: Path) -> None:
    drawn = figures.figures(needle)
    assert set(drawn) == {"score_by_tokens", "score_by_bytes", "memory", "time", "layers"}
    for name in drawn:
        files = drawing.save(drawn[name], tmp_path / name)
        assert [file.suffix for file in files] == [".png", ".pdf"] and all(f.read_bytes() for f in files)


def test_points_lie_at_what_was_held_and_scored(needle: list[Result]) -> None:
    figure = figures.score_figure(needle, "bytes")
    assert figure is not None
    (axes,) = figure.axes
    mine = [result for result in needle if result.method == "pyramidkv"]
    (line,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert line.get_color() == look("pyramidkv").colour
    held = [result.summary["held"]["bytes_after_prompt"] / 1024**2 for result in mine]
    assert [float(x) for x in line.get_xdata()] == pytest.approx(held)  # pyright: ignore
    assert [float(y) for y in line.get_ydata()] == pytest.approx([100 * (r.score or 0) for r in mine])  # pyright: ignore


def test_the_layers_figure_shows_the_pyramid(needle: list[Result]) -> None:
    figure = figures.layer_figure(needle)
    assert figure is not None
    for axes, budget in zip(figure.axes, (64, 128), strict=True):
        kept = {line.get_marker(): [float(y) for y in line.get_ydata()] for line in axes.lines}  # pyright: ignore
        assert sum(kept["^"]) / len(kept["^"]) == pytest.approx(budget)
        assert kept["^"] == sorted(kept["^"], reverse=True) and kept["^"][0] > kept["^"][-1]
        assert set(kept["o"]) == {float(budget)}


def test_axes_have_names_with_units(needle: list[Result]) -> None:
    for name, figure in figures.figures(needle).items():
        texts = [axes.get_xlabel() + axes.get_title(loc="left") for axes in figure.axes]
        assert all(texts), name
        units = ("tokens", "MiB", "layer", "(s a sample)", "(ms a token)")
        assert all(any(unit in text for unit in units) for text in texts), (name, texts)


def test_nothing_but_the_full_cache_gives_no_curves(tmp_path: Path) -> None:
    alone = [make(tmp_path, "fullkv", None, [1.0, 0.0])]
    assert set(figures.figures(alone)) == {"memory", "time"}


def test_a_run_that_answered_nothing_is_in_no_figure(tmp_path: Path) -> None:
    failed = [make(tmp_path, "snapkv", 64, [None])]
    assert figures.figures(failed) == {}


def test_a_page_of_many_tasks_has_a_panel_for_each_and_one_for_their_average(tmp_path: Path) -> None:
    for task in ("qasper", "trec", "lcc", "musique", "samsum"):
        make(tmp_path, "fullkv", None, [1.0, 0.5], task=f"longbench/{task}")
        make(tmp_path, "snapkv", 64, [1.0, 0.0], task=f"longbench/{task}")
    figure = figures.score_figure(results_of(load_runs(tmp_path)), "tokens")
    assert figure is not None
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[0] == "Qasper (f1)" and titles[-1] == "average, partial" and len(titles) == 6
    drawing.save(figure, tmp_path / "many")


def test_the_funnel_is_drawn_from_its_file(tmp_path: Path) -> None:
    measured = Funnel.load(MEASURED)
    copy = measured.save(tmp_path / "funnel.json")
    assert copy.read_bytes() == MEASURED.read_bytes()
    for name, figure in funnel_figures(measured).items():
        for file in drawing.save(figure, tmp_path / name):
            assert file.read_bytes()


def test_without_the_funnels_file_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"python -m scripts\.funnel"):
        Funnel.load(tmp_path / "funnel.json")
