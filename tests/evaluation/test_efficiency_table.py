"""The efficiency suite's tables and figures, from runs with chosen numbers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from evaluation import efficiency_figures, figures, mixture, report, table
from evaluation.efficiency_points import Spread, paired, peer, points_of
from evaluation.efficiency_table import print_sheets, sheets
from evaluation.frame import Result
from evaluation.sheet import Sheet
from tests.evaluation import made_runs
from tests.evaluation.made_efficiency import ENTRY, make, point, trial

FULL = [trial(4.0, 8.0, peak=3 * 1024**2), trial(5.0, 9.0, peak=5 * 1024**2), trial(4.0, 7.0)]
STOCK = [trial(4.0, 10.0), trial(4.0, 9.0), trial(4.0, 8.0)]
FAST = [trial(4.5, 2.0, compression=0.5, peak=1024**2)] * 3


@pytest.fixture
def results(tmp_path: Path) -> list[Result]:
    """300 tokens, 201 new ones, batch 4 (F05's case): transformers, FullKV, SnapKV at 64."""
    return [
        make(tmp_path, "fullkv", None, [point(300, 4, 201, FULL, stock=STOCK)]),
        make(tmp_path, "snapkv", 64, [point(300, 4, 201, FAST, kept=64)]),
    ]


def column(sheet: Sheet, head: str) -> list[Any]:
    """The texts and numbers below a head."""
    place = [name.replace("\n", " ") for name in sheet.head].index(head)
    return [row[place].text if row[place].value is None else row[place].value for row in sheet.rows]


def drawn(line: Any) -> tuple[list[float], list[float]]:
    """Where a line's marks lie."""
    return list(line.get_xdata()), list(line.get_ydata())


def named(results: list[Result]) -> dict[str, Sheet]:
    return {sheet.name: sheet for sheet in sheets(results)}


def test_one_row_for_everybody_with_medians_and_rates_of_new_tokens(results: list[Result]) -> None:
    speed = named(results)["speed"]
    assert column(speed, "method") == ["transformers generate()", "FullKV", "SnapKV"]
    assert column(speed, "first token s") == [4.0, 4.0, 4.5]
    assert column(speed, "prefill s") == [4.0, 4.0, 4.0] and column(speed, "compr. s") == ["-", 0.0, 0.5]
    assert column(speed, "step ms") == [45.0, 40.0, 10.0], "200 steps for 201 tokens"
    assert column(speed, "spread")[:2] == pytest.approx([2 / 9, 2 / 8])
    assert column(speed, "step /floor") == ["-", pytest.approx(0.4), pytest.approx(0.1)]
    assert column(speed, "new tokens/s") == pytest.approx([4 * 201 / 13, 4 * 201 / 12, 4 * 201 / 6.5])
    assert column(speed, "requests /s") == pytest.approx([4 / 13, 4 / 12, 4 / 6.5])
    assert column(speed, "tokens/s × stock") == pytest.approx([1, 13 / 12, 2])
    assert column(speed, "steps/s × FullKV") == pytest.approx([40 / 45, 1, 4])


def test_memory_is_told_apart_and_against_the_same_sequences(results: list[Result]) -> None:
    """F02: bytes held and peaks in one row. F05: 264 of 500 entries at the end, not 64 of 300."""
    memory = named(results)["memory"]
    assert column(memory, "held after prompt") == [4 * 300 * ENTRY, 4 * 300 * ENTRY, 4 * 64 * ENTRY]
    assert column(memory, "of full, after")[2] == pytest.approx(64 / 300)
    assert column(memory, "of full, at end")[2] == pytest.approx(264 / 500)
    assert column(memory, "of full, answer")[2] == pytest.approx((64 + 264) / (300 + 500))
    assert column(memory, "arithmetic") == ["exact"] * 3
    assert column(memory, "peak, prompt") == ["-", "-", 1024**2], "a repetition without a peak leaves none"
    assert column(memory, "allocated at end")[2] == 4 * 264 * ENTRY + 64


def test_what_differs_from_the_arithmetic_is_said(tmp_path: Path) -> None:
    made = make(tmp_path, "snapkv", 64, [point(300, 4, 9, FAST, kept=64, expected=1)])
    assert column(named([made])["memory"], "arithmetic") == ["differs"]


def test_the_engines_overhead_is_paired_by_rounds(results: list[Result]) -> None:
    """F08: both took turns. Rounds: 8/10, 9/9, 7/8 for the answer; 12/14, 14/13, 11/12 for the call."""
    overhead = named(results)["engine_overhead"]
    (row,) = overhead.rows
    values = [cell.value for cell in row[3:]]
    assert values[:3] == pytest.approx([1.0, 1.0, 1.25])
    assert values[3:6] == pytest.approx([7 / 8, 8 / 10, 1.0])
    assert values[6:9] == pytest.approx([11 / 12, 12 / 14, 14 / 13])
    assert row[-1].text == "100%"
    full, stock = points_of(results)[1], points_of(results)[0]
    assert stock.stock and paired(full, stock, lambda t: t["answer"]) == Spread(7 / 8, 0.8, 1.0)
    assert paired(full, points_of(results)[2], lambda t: t["answer"]) is None, (
        "SnapKV took no turns with FullKV"
    )


def test_what_it_was_measured_on_stands_beneath(results: list[Result]) -> None:
    for sheet in sheets(results):
        text = " ".join(sheet.notes)
        assert "measured on CPU Made Up, 2 threads, torch 2; attention kernel sdpa, float32" in text
        assert (
            "peaks are resident set" in text
            and "load of the machine when each point began: 0.5 to 0.5" in text
        )


def test_memory_exhausted_is_a_row_and_other_failures_are_told(tmp_path: Path) -> None:
    places = [point(300, batch, 9, FULL) for batch in (1, 2)]
    failed = point(300, 4, 9, [], error="memory exhausted")
    broken = point(300, 8, 9, [], error="RuntimeError: no such kernel")
    speed = named([make(tmp_path, "fullkv", None, [*places, failed, broken])])["speed"]
    assert column(speed, "first token s") == [4.0, 4.0, "memory exhausted", "failed"]
    assert any(note == "failed: FullKV  at 300+9x8: RuntimeError: no such kernel" for note in speed.notes)


def test_the_search_has_a_table_of_its_own(tmp_path: Path) -> None:
    tries = [(1, True), (2, True), (4, True), (8, False), (6, False), (5, True)]
    found = make(tmp_path, "snapkv", 64, [point(300, "largest", 11, FAST, rows=5, kept=64, search=tries)])
    none = make(
        tmp_path,
        "h2o",
        64,
        [point(300, "largest", 11, [], error="memory exhausted", search=[(1, False)])],
    )
    largest = named([found, none])["largest_batch"]
    assert column(largest, "method") == ["SnapKV", "H2O"]
    assert column(largest, "largest batch") == [5, "-"] and column(largest, "memory exhausted at") == [6, 1]
    assert column(largest, "ms/token")[0] == pytest.approx(1000 * 6.5 / 55)
    assert [row[2].text for row in named([none])["speed"].rows] == ["0 (largest)"]
    assert "5 (largest)" in [row[2].text for row in named([found])["speed"].rows]


def test_machines_are_never_compared(tmp_path: Path, results: list[Result]) -> None:
    """The same runs, FullKV on another device: SnapKV has no FullKV to stand beside."""
    full, snapkv = results
    for record in full.run.records:
        record["measured"]["machine"] = record["measured"]["machine"] | {"device": "another"}
    speed = named([full, snapkv])["speed"]
    assert column(speed, "steps/s × FullKV")[2] == "-" and column(speed, "tokens/s × stock")[2] == "-"
    assert peer(points_of([snapkv])[0], "fullkv", points_of([full])) is None
    assert sum("measured on" in note for note in speed.notes) == 2


def test_reports_and_commands_show_these_tables_instead_of_scores(results: list[Result]) -> None:
    assert [sheet.name for sheet in report.sheets(results)] == ["speed", "memory", "engine_overhead"]
    out = io.StringIO()
    table.print_table([result.run for result in results], out)
    text = out.getvalue()
    assert "Efficiency: speed" in text and "95 % interval" not in text
    assert text.count("measured on CPU Made Up") == 1, "once beneath all of them"
    alone = io.StringIO()
    print_sheets(results, alone)
    assert alone.getvalue() in text


def test_runs_that_differ_in_more_than_the_method_are_not_mixed(tmp_path: Path) -> None:
    one = make(tmp_path, "fullkv", None, [point(300, 1, 9, FULL)])
    other = make(tmp_path, "fullkv", None, [point(300, 1, 9, FULL)], seed=1)
    assert len(mixture.split([one, other])) == 2
    with pytest.raises(ValueError, match="belong in different tables"):
        sheets([one, other])


def test_figures_are_drawn_where_there_is_something_to_compare(tmp_path: Path, results: list[Result]) -> None:
    assert figures.figures(results) == {}
    grid = [point(length, batch, 9, FULL) for length in (100, 200) for batch in (1, 2, 4)]
    small = [point(length, batch, 9, FAST, kept=64) for length in (100, 200) for batch in (1, 2, 4)]
    made = [make(tmp_path / "g", "fullkv", None, grid), make(tmp_path / "g", "snapkv", 64, small)]
    found = figures.figures(made)
    assert list(found) == ["memory_by_length", "tokens_by_batch"]
    held, _ = found["memory_by_length"].axes
    lines = [drawn(line) for line in held.lines]
    assert lines[0] == ([100, 200], [100 * ENTRY / 1024**2, 200 * ENTRY / 1024**2]), "FullKV, one sequence"
    assert lines[1] == ([100, 200], [64 * ENTRY / 1024**2] * 2)
    first, second = found["tokens_by_batch"].axes
    assert drawn(first.lines[0])[1] == pytest.approx([9 * rows / 12 for rows in (1, 2, 4)])
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("100 + 9 tokens", "200 + 9 tokens")


def test_quality_is_joined_with_measured_bytes_by_what_was_run(tmp_path: Path) -> None:
    """The run of another window, or of another model, is not the same method; the longest prompt gives the bytes."""
    places = [point(100, 2, 9, FAST, kept=64), point(200, 2, 9, FAST, kept=80)]
    speed = make(tmp_path, "snapkv", 64, places, parameters={"window": 8})
    full = make(tmp_path, "fullkv", None, [point(200, 2, 9, FULL, stock=STOCK)])
    same = made_runs.make(tmp_path, "snapkv", 64, [0.5, 0.7], parameters={"window": 8})
    made_runs.make(tmp_path, "snapkv", 64, [0.1], parameters={"window": 32})
    made_runs.make(tmp_path, "snapkv", 64, [0.1], parameters={"window": 8}, model={"id": "org/other"})
    everything = [speed, full, same, *[made_runs.make(tmp_path, "fullkv", None, [0.9, 0.9])]]
    pairs = efficiency_figures.joined_runs(everything)
    assert [(quality.method, quality.score, point.length) for quality, point in pairs] == [
        ("fullkv", pytest.approx(0.9), 200),
        ("snapkv", pytest.approx(0.6), 200),
    ]
    figure = efficiency_figures.quality_figure(everything)
    assert figure is not None
    (axes,) = figure.axes
    assert [drawn(line)[0][0] for line in axes.lines] == pytest.approx(
        [200 * ENTRY / 1024**2, 80 * ENTRY / 1024**2]
    )
    assert efficiency_figures.quality_figure([same]) is None
