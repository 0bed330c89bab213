"""MT-Bench's tables show what the judges gave, who they were, and what is missing; and what was held in each turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluation.frame import results_of
from evaluation.judge import Reply
from evaluation.judging import judge_run, label
from evaluation.page import page
from evaluation.report import sheets
from evaluation.results import Run, load_runs
from evaluation.sheet import Sheet
from evaluation.table_rows import groups
from tests.evaluation.made_mt_bench import ScriptedJudge, failed, grading, make, record

RULES = grading({3: ("one", "two")})


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Three methods on three questions; under SnapKV one answer is empty and one sample failed."""
    full = [record(1, "a", "b"), record(2, "c", "d"), record(3, "e", "f", "math")]
    cut = [record(1, "A", "B", kept=8), record(2, "C", "", kept=8), failed(3)]
    third = [record(1, "x", "y", kept=8), record(2, "z", "w", kept=8), record(3, "u", "v", "math", kept=8)]
    return [make(tmp_path, full), make(tmp_path, cut, "snapkv", 8), make(tmp_path, third, "h2o", 8)]


def tables(root: Path) -> dict[str, Sheet]:
    return {sheet.name: sheet for sheet in sheets(results_of(load_runs(root)))}


def lines(sheet: Sheet) -> list[dict[str, str]]:
    heads = []
    for head in (head.replace("\n", " ") for head in sheet.head):
        heads.append(head + "'" * heads.count(head))
    return [dict(zip(heads, (cell.text for cell in row), strict=True)) for row in sheet.rows]


def test_before_anybody_judged_the_tables_say_so_and_how(runs: list[Run], tmp_path: Path) -> None:
    found = tables(tmp_path)
    assert list(found)[:3] == ["judged", "judged_by_category", "turns"]
    judged = lines(found["judged"])
    assert {(each["judge"], each["both"], each["scored"]) for each in judged} == {
        ("not judged yet", "-", "0")
    }
    assert [each["missing"] for each in judged] == ["6", "6", "6"]
    assert any(
        "not judged yet: python -m scripts.judge judge=local" in note for note in found["judged"].notes
    )


def test_means_counts_and_differences_are_those_of_the_judgments(runs: list[Run], tmp_path: Path) -> None:
    """Worked out by hand: FullKV 8 4 | 6 6 | 2 4, SnapKV 5 none | 3 (empty) | (failed), H2O 7 throughout."""
    script = {"1/1": "[[8]]", "1/2": "[[4]]", "2/1": "[[6]]", "2/2": "[[6]]", "3/1": "[[2]]", "3/2": "[[4]]"}
    judge_run(runs[0], judge := ScriptedJudge(script), RULES)
    judge_run(runs[1], ScriptedJudge({"1/1": "[[5]]", "1/2": "Fine.", "2/1": "[[3]]"}), RULES)
    judge_run(runs[2], ScriptedJudge(), RULES)
    found = tables(tmp_path)
    full, snapkv, h2o = lines(found["judged"])
    assert full["judge"] == snapkv["judge"] == label(judge, RULES)
    assert (full["method"], full["budget"], snapkv["method"], snapkv["budget"]) == (
        "FullKV",
        "-",
        "SnapKV",
        "8",
    )
    assert (full["turn 1"], full["turn 2"], full["both"]) == ("5.33", "4.67", "5.00")
    assert (snapkv["turn 1"], snapkv["turn 2"], snapkv["both"]) == ("4.00", "-", "4.00")
    assert (h2o["both"], h2o["95 % from"], h2o["95 % to"]) == ("7.00", "7.00", "7.00")
    counts = [[each[name] for name in ("scored", "unscored", "missing")] for each in (full, snapkv, h2o)]
    assert counts == [["6", "0", "0"], ["2", "2", "2"], ["6", "0", "0"]]
    # question by question: full 6, 6, 3; SnapKV 5, 3; H2O 7, 7, 7
    assert (full["minus FullKV"], snapkv["minus FullKV"], h2o["minus FullKV"]) == ("-", "-2.00", "+2.00")
    notes = found["judged"].notes
    assert any(
        note.startswith(f"unscored by {label(judge, RULES)}, 1 times: the judge's reply has no rating")
        for note in notes
    )
    assert any("1 times: the answer to turn 2 is empty" in note for note in notes)
    assert any(f"judge {label(judge, RULES)}: kind made, model scripted" in note for note in notes)


def test_each_category_and_turn_has_its_mean(runs: list[Run], tmp_path: Path) -> None:
    script = {"1/1": "[[8]]", "2/1": "[[6]]", "3/1": "[[2]]", "3/2": "[[4]]"}
    judge_run(runs[0], ScriptedJudge(script), RULES)
    first, second, both, *others = lines(tables(tmp_path)["judged_by_category"])
    assert (first["turn"], first["writing"], first["math"]) == ("1", "7.00", "2.00")
    assert (second["turn"], second["writing"], second["math"]) == ("2", "7.00", "4.00")
    assert (both["turn"], both["writing"], both["math"]) == ("both", "7.00", "3.00")
    assert len(others) == 6 and {each["math"] for each in others} == {"-"}


def test_two_judges_stand_one_under_the_other(runs: list[Run], tmp_path: Path) -> None:
    judge_run(runs[0], one := ScriptedJudge({}, "one"), RULES)
    judge_run(runs[1], other := ScriptedJudge({}, "other"), RULES)
    found = {(each["judge"], each["method"]): each for each in lines(tables(tmp_path)["judged"])}
    assert len(found) == 6
    assert (
        found[label(one, RULES), "FullKV"]["both"] == found[label(other, RULES), "SnapKV"]["both"] == "7.00"
    )
    assert (
        found[label(one, RULES), "SnapKV"]["missing"]
        == found[label(other, RULES), "FullKV"]["missing"]
        == "6"
    )


def test_a_judge_that_failed_throughout_has_counts_and_no_numbers(runs: list[Run], tmp_path: Path) -> None:
    broken = Reply(problem="the endpoint answered 429 Too Many Requests: quota")
    script = {f"{number}/{turn}": broken for number in (1, 2, 3) for turn in (1, 2)}
    for run in runs:
        judge_run(run, ScriptedJudge(script), RULES)
    found = tables(tmp_path)
    assert {(each["both"], each["scored"], each["unscored"]) for each in lines(found["judged"])} == {
        ("-", "0", "6"),
        ("-", "0", "4"),
    }
    assert any("15 times: the endpoint answered 429" in note for note in found["judged"].notes)


def test_the_turns_sheet_has_what_was_held_in_each(runs: list[Run], tmp_path: Path) -> None:
    found = lines(tables(tmp_path)["turns"])
    kept = {(each["method"], each["turn"]): each["tokens/layer after it"] for each in found}
    assert kept == {
        ("FullKV", "1"): "40.0",
        ("FullKV", "2"): "40.0",
        ("SnapKV", "1"): "8.0",
        ("SnapKV", "2"): "8.0",
        ("H2O", "1"): "8.0",
        ("H2O", "2"): "8.0",
    }
    empty: Any = {(each["method"], each["turn"]): each["empty"] for each in found}
    assert empty.pop(("SnapKV", "2")) == "1" and set(empty.values()) == {"0"}
    assert [each["read tokens"] for each in found][1] == "7.0"


def test_the_time_of_a_token_counts_the_tokens_of_all_turns(runs: list[Run], tmp_path: Path) -> None:
    """0.125 s a sample for 10 tokens in each of two turns."""
    costs = {each["method"]: each for each in lines(tables(tmp_path)["costs"])}
    assert costs["FullKV"]["decode ms/token"] == "6.2"  # 6.25, rounded to even


def test_the_page_shows_the_answers_of_all_turns(runs: list[Run], tmp_path: Path) -> None:
    judge_run(runs[0], ScriptedJudge(), RULES)
    found = page(groups(results_of(load_runs(tmp_path))), {})
    assert '"text":"[turn 1] e\\n\\n[turn 2] f"' in found
    assert found.index("what the judges gave") < found.index("differences from the full cache")


def test_runs_of_other_tasks_have_none_of_these(tmp_path: Path) -> None:
    from tests.evaluation.made_runs import make as make_other

    found = sheets([make_other(tmp_path, "fullkv", None, [0.5, 0.25])])
    assert not {"judged", "judged_by_category", "turns"} & {sheet.name for sheet in found}
