"""The published numbers: complete, re-adding to their averages, and refused when a file breaks the rules."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from evaluation.published import COLUMNS, FOLDER, LONGBENCH, NOT_THE_MEAN, Published, frame, load, names

ROWS = {
    "kvcache_factory_rerun": 55,
    "kvpress_ruler": 99,
    "pyramidinfer_ablation": 16,
    "pyramidinfer_efficiency": 47,
    "pyramidinfer_independent": 31,
    "pyramidkv_independent": 78,
    "pyramidkv_table1": 27 * 17,
    "pyramidkv_table1_earlier": 26,
    "pyramidkv_table2": 4 * 8,
    "pyramidkv_table4": 5 * 17,
    "pyramidkv_table5": 6 * 17,
    "pyramidkv_table6": 4 * 17,
    "pyramidkv_table7": 3 * 17,
    "pyramidkv_table8": 17 + 1,
    "pyramidkv_table9": 4,
    "pyramidkv_table10": 16 * 4,
    "pyramidkv_table11": 17 * 17,
    "pyramidkv_table12": 17 * 17,
    "pyramidkv_table13": 17 * 17,
    "pyramidkv_table14": 4 * 17,
    "pyramidkv_table15": 3 * (1 + 3 * 3),
    "pyramidkv_text": 7,
}
LLAMA_8B, LLAMA_70B, MISTRAL = "llama-3-8b-instruct", "llama-3-70b-instruct", "mistral-7b-instruct-v0.2"
METHODS = ("snapkv", "streamingllm", "h2o", "pyramidkv")
WRONG_AVERAGES = {
    *{("pyramidkv_table12", MISTRAL, method, budget) for method in METHODS for budget in (64, 96)},
    *{("pyramidkv_table1", MISTRAL, method, 64) for method in METHODS},
    ("pyramidkv_table1_earlier", MISTRAL, "fullkv", 1.0),
    ("pyramidkv_table7", "not stated", "minference", 1.0),
}
# typed by hand from the papers and repositories, not from the files
SPOT_CHECKS = [
    ("pyramidkv_table1", LLAMA_8B, "fullkv", 1.0, "narrativeqa", "points", 25.70),
    ("pyramidkv_table1", LLAMA_70B, "pyramidkv", 2048, "repobench-p", "points", 69.12),
    ("pyramidkv_table11", LLAMA_8B, "pyramidkv", 128, "trec", "points", 66.50),
    ("pyramidkv_table11", LLAMA_8B, "streamingllm", 2048, "samsum", "points", 31.75),
    ("pyramidkv_table12", MISTRAL, "h2o", 96, "passage_count", "points", 6.06),
    ("pyramidkv_table12", MISTRAL, "snapkv", 64, "average", "points", 30.72),
    ("pyramidkv_table13", LLAMA_70B, "pyramidkv", 96, "repobench-p", "points", 56.88),
    ("pyramidkv_table1_earlier", MISTRAL, "snapkv", 2048, "average", "points", 40.55),
    ("pyramidkv_table2", LLAMA_8B, "fullkv", 1.0, "kv_memory", "MB", 6848),
    ("pyramidkv_table4", LLAMA_8B, "pyramidkv(shape=geometric)", 64, "multifieldqa_en", "points", 29.4),
    ("pyramidkv_table5", LLAMA_8B, "pyramidkv(window=32)", 128, "average", "points", 36.25),
    ("pyramidkv_table6", LLAMA_8B, "pyramidkv(beta=14)", 128, "hotpotqa", "points", 40.50),
    ("pyramidkv_table7", "not stated", "minference", 1.0, "repobench-p", "points", 5.06),
    ("pyramidkv_table7", "not stated", "pyramidkv+minference", 128, "average", "points", 40.47),
    ("pyramidkv_table8", LLAMA_8B, "pyramidinfer", 64, "lcc", "points", 53.21),
    ("pyramidkv_table9", "not stated", "pyramidkv", None, "allocation_time(bound=smallest)", "seconds", 3e-7),
    ("pyramidkv_table10", LLAMA_8B, "snapkv", None, "latency(prompt=2048 new=512)", "seconds", 19.54),
    ("pyramidkv_table15", LLAMA_70B, "snapkv", 64, "needle", "points", 76.20),
    ("pyramidkv_text", "not stated", "pyramidkv", 2048, "attention_recall_gain", "percent", 0.36),
    ("pyramidkv_independent", LLAMA_8B, "snapkv", 128, "average", "points", 37.81),
    ("kvcache_factory_rerun", LLAMA_8B, "snapkv", 2048, "decode_throughput", "tokens/s", None),
    ("pyramidinfer_efficiency", "llama-2-13b", "pyramidinfer", None, "kv_memory", "percent", 45.4),
    ("pyramidinfer_efficiency", "llama-2-13b", "pyramidinfer+deepspeed", None, "throughput", "times", 3.2),
    ("pyramidinfer_ablation", "llama-2-13b", "pyramidinfer", None, "gsm8k", "points", 29.56),
    ("pyramidinfer_independent", LLAMA_8B, "pyramidinfer", 0.393, "average", "points", 35.62),
    ("kvpress_ruler", "qwen3-8b", "snapkv", 0.5, "ruler_4k", "points", 55.7),
    ("kvpress_ruler", "qwen3-8b", "knorm", 0.125, "ruler_4k", "points", 8.9),
]
GOOD = {
    "paper": "Some Paper",
    "table": "Table 3",
    "model": "some-model",
    "method": "snapkv",
    "budget": "64",
    "task": "trec",
    "value": "41.5",
    "unit": "points",
    "source": "arXiv 0000.00000, Table 3",
    "protocol": "not stated",
    "doubt": "",
}


def write(folder: Path, *changes: dict[str, str], name: str = "mine") -> None:
    """A table with one row per argument: the good row with some cells changed."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({**GOOD, **change} for change in changes)


def averages(name: str) -> list[tuple[Published, float]]:
    """Each printed average that stands beside all its columns, with the mean of those columns."""
    columns: dict[tuple[object, ...], dict[str, Published]] = {}
    for row in load(name):
        columns.setdefault((row.table, row.model, row.method, row.budget), {})[row.task] = row
    return [
        (tasks["average"], sum(tasks[task].value for task in LONGBENCH) / 16)
        for tasks in columns.values()
        if {"average", *LONGBENCH} <= tasks.keys()
    ]


def test_every_table_is_there_with_all_its_rows():
    """A row lost or added by hand shows up here."""
    assert {name: len(load(name)) for name in names()} == ROWS


def test_printed_averages_are_the_mean_of_their_columns_except_the_doubtful():
    """Exactly the known wrong averages fail to re-add, and exactly those say so."""
    wrong, marked, checked = set(), set(), 0
    for name in names():
        for average, mean in averages(name):
            cell = (name, average.model, average.method, average.budget)
            checked += 1
            if abs(average.value - mean) > 0.015:
                wrong.add(cell)
            if average.doubt.startswith(NOT_THE_MEAN):
                marked.add(cell)
                assert f"{mean:.2f}" in average.doubt
    assert wrong == marked == WRONG_AVERAGES
    assert checked == 3 * 17 + 27 + 5 + 6 + 4 + 3 + 1 + 4 + 1 + 3


@pytest.mark.parametrize(("name", "model", "method", "budget", "task", "unit", "value"), SPOT_CHECKS)
def test_values_typed_by_hand_agree(name, model, method, budget, task, unit, value):
    """Cells from all corners of the sources, so that a shifted column or row is seen."""
    found = [
        row.value
        for row in load(name)
        if (row.model, row.method, row.budget, row.task, row.unit) == (model, method, budget, task, unit)
    ]
    assert found == ([25.4, 25.6] if value is None else [value])


def test_table_1_repeats_the_full_64_and_2048_rows_of_tables_11_to_13():
    """The main text's table is a part of the appendix's, numbers, protocols and doubts alike."""
    appendix = [row for number in (11, 12, 13) for row in load(f"pyramidkv_table{number}")]
    part = [row for row in appendix if row.budget in (1.0, 64, 2048)]
    told = [
        (r.model, r.method, r.budget, r.task, r.value, r.protocol, r.doubt) for r in load("pyramidkv_table1")
    ]
    assert told == [(r.model, r.method, r.budget, r.task, r.value, r.protocol, r.doubt) for r in part]


def test_rows_known_to_be_unreliable_carry_a_doubt():
    """Beside averages: Table 2's Full row, the foreign Mistral baseline, mixed protocols, 70B efficiency."""
    table2 = [row for row in load("pyramidkv_table2") if row.method == "fullkv" and row.unit == "points"]
    mistral = [row for row in load("pyramidkv_table12") if row.method == "fullkv"]
    mixed = [
        row for row in load("pyramidkv_table13") if row.task == "repobench-p" and row.budget in (1.0, 2048)
    ]
    large = [row for row in load("pyramidinfer_efficiency") if row.model == "llama-2-70b"]
    assert [len(table2), len(mistral), len(mixed), len(large)] == [6, 17, 5, 2]
    assert all(row.doubt for row in (*table2, *mistral, *mixed, *large))


def test_sources_are_public_and_longbench_sets_have_their_own_names():
    """A source is a paper or a repository; a LongBench table holds the 16 sets and their average, no more."""
    for name in names():
        for row in load(name):
            assert row.source.startswith("arXiv ") or "/" in row.source.split(",")[0], row.source
    assert {row.task for row in load("pyramidkv_table11")} == {*LONGBENCH, "average"}


def test_the_readme_names_every_table():
    """Someone who looks for a table finds it without opening the files."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in names() if f"`{name}`" not in text] == []


def test_an_unknown_name_is_answered_with_the_nearest_ones():
    """A slip of the fingers costs one look, not a search."""
    with pytest.raises(ValueError, match=r"'pyramidkv_tabel11'; the nearest names are: pyramidkv_table11, "):
        load("pyramidkv_tabel11")


def test_an_empty_folder_has_no_names(tmp_path):
    """No table at all is an error of its own, not a crash."""
    assert names(tmp_path) == ()
    with pytest.raises(ValueError, match="the nearest names are: none"):
        load("anything", tmp_path)


def test_budgets_are_tokens_shares_the_full_cache_or_not_stated(tmp_path):
    """The four ways to print a budget stay apart, in a row and in a data frame."""
    write(tmp_path, *({"budget": budget} for budget in ("64", "0.25", "full", "")))
    rows = load("mine", tmp_path)
    assert [(row.budget, type(row.budget)) for row in rows] == [
        (64, int),
        (0.25, float),
        (1.0, float),
        (None, type(None)),
    ]
    table = frame(rows)
    assert table["budget"].tolist() == [64, 0.25, 1.0, None]
    assert list(table.columns) == list(COLUMNS)
    assert table["value"].tolist() == [41.5] * 4


def test_an_empty_selection_still_makes_a_frame_with_all_columns():
    """Nothing selected is a table without rows, not an error."""
    assert list(frame([]).columns) == list(COLUMNS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "furlongs"}, "line 2: unit 'furlongs' is unknown; use one of points, percent"),
        ({"value": "forty"}, "value 'forty' is not a number"),
        ({"value": "nan"}, "must be finite and between 0 and 100"),
        ({"value": "100.1"}, "must be finite and between 0 and 100"),
        ({"value": "-1", "unit": "seconds"}, "must be finite and between 0 and inf"),
        ({"value": "inf", "unit": "seconds"}, "must be finite and between 0 and inf"),
        ({"budget": "64 tokens"}, "budget '64 tokens' must be 'full'"),
        ({"budget": "0"}, "budget '0' must be 'full'"),
        ({"budget": "1.5"}, "budget '1.5' must be 'full'"),
        ({"method": "fullkv"}, "its budget '64' must be 'full'"),
        ({"method": "SnapKV"}, "method 'SnapKV' must look like name"),
        ({"task": "trec(5-shot)"}, "must look like name"),
        ({"source": ""}, "source is empty; write 'not stated'"),
        ({"doubt": "looks odd"}, "doubt 'looks odd' must be a sentence"),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused(tmp_path, change, message):
    """The message names the line, the offending cell and the mend."""
    write(tmp_path, change)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        load("mine", tmp_path)


def test_a_number_printed_twice_is_refused(tmp_path):
    """Two values for one cell would be averaged or picked by chance further on."""
    write(tmp_path, {}, {"value": "42.0"})
    with pytest.raises(ValueError, match="holds two numbers for"):
        load("mine", tmp_path)


def test_missing_columns_and_extra_cells_are_refused(tmp_path):
    """An unquoted comma or a forgotten column shifts every cell behind it."""
    (tmp_path / "short.csv").write_text("paper,value\nSome Paper,1\n")
    with pytest.raises(ValueError, match="they must be paper, table, model"):
        load("short", tmp_path)
    (tmp_path / "long.csv").write_text(",".join(COLUMNS) + "\n" + ",".join(GOOD.values()) + ",more\n")
    with pytest.raises(ValueError, match="exactly 11 cells"):
        load("long", tmp_path)


@pytest.mark.parametrize(
    ("average", "doubt", "message"),
    [
        ("40.0", "", "is not the mean 41.500 of its columns"),
        ("40.0", "Looks odd.", "is not the mean 41.500 of its columns"),
        ("41.5", f"{NOT_THE_MEAN}, which is 40.0.", "must not begin with"),
    ],
)
def test_an_average_and_its_doubt_must_agree(tmp_path, average, doubt, message):
    """A wrong average is refused unless its doubt says so, and a right one must not be called wrong."""
    columns = [{"task": task} for task in LONGBENCH]
    write(tmp_path, *columns, {"task": "average", "value": average, "doubt": doubt})
    with pytest.raises(ValueError, match=message):
        load("mine", tmp_path)


def test_pandas_is_loaded_only_for_a_frame():
    """Reading the numbers stays quick for commands that need no frame."""
    code = "import sys, evaluation.published as p; p.load('pyramidkv_table1'); print('pandas' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER.parent.parent, capture_output=True, text=True
    )
    assert run.stdout.strip() == "False", run.stderr
