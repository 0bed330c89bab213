"""Judgments are on the disk as soon as they are made, and whatever happens, only what is missing is asked for again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation import files, judging
from evaluation.judge import Reply, mean, read_judgments
from evaluation.judging import judge_of, judge_run, label, stored
from evaluation.results import Run, RunBusy
from tests.evaluation.made_mt_bench import ScriptedJudge, failed, grading, make, record

RULES = grading({3: ("one", "two")})
RECORDS = [
    record(1, "a", "b"),
    record(2, "c", ""),
    record(3, "e", "f", "math"),
    record(4, "g", "h", "math"),
    failed(5),
]
ASKED = ["1/1", "1/2", "2/1", "3/1", "3/2"]
BROKEN = Reply(problem="the endpoint answered 429 Too Many Requests")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make(tmp_path, RECORDS)


def lines(run: Run, judge: ScriptedJudge) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in stored(run)[label(judge, RULES)]}


def test_every_turn_of_every_answered_sample_has_a_line_and_a_reason_if_no_score(run: Run) -> None:
    judge = ScriptedJudge({"1/1": "[[9]]", "1/2": "Good.", "2/1": BROKEN})
    tally = judge_run(run, judge, RULES)
    found = lines(run, judge)
    assert judge.asked == ASKED
    assert {id: (each["score"], each["outcome"]) for id, each in found.items()} == {
        "1/1": (9.0, "scored"),
        "1/2": (None, "unparsed"),
        "2/1": (None, "failed"),
        "2/2": (None, "not_asked"),
        "3/1": (7.0, "scored"),
        "3/2": (7.0, "scored"),
        "4/1": (None, "not_asked"),
        "4/2": (None, "not_asked"),
    }
    assert all(bool(each["reason"]) == (each["score"] is None) for each in found.values())
    assert tally.outcomes == {"scored": 3, "unparsed": 1, "failed": 1, "not_asked": 3}
    assert (tally.prompt_tokens, tally.new_tokens, tally.untold, tally.kept) == (400, 40, 0, 0)
    assert tally.reasons["there is no reference answer to question 4"] == 2
    assert mean(read_judgments(found.values())) == pytest.approx((9 + 7 + 7) / 3)


def test_the_same_command_asks_for_what_failed_and_for_nothing_else(run: Run) -> None:
    judge_run(run, ScriptedJudge({"1/2": "Good.", "2/1": BROKEN}), RULES)
    again = ScriptedJudge()
    tally = judge_run(run, again, RULES)
    assert again.asked == ["2/1"] and tally.kept == 7
    assert (
        lines(run, again)["1/2"]["outcome"] == "unparsed"
    )  # a judge that was understood is not asked until it pleases
    third = ScriptedJudge()
    assert judge_run(run, third, RULES).kept == 8 and third.asked == []


@pytest.mark.parametrize("position", range(len(ASKED)))
def test_stopped_anywhere_it_ends_as_if_it_had_not_been(position: int, tmp_path: Path) -> None:
    def told(run: Run, judge: ScriptedJudge) -> dict[str, Any]:
        return {id: each | {"tstamp": 0} for id, each in lines(run, judge).items()}

    whole, stopped = make(tmp_path / "whole", RECORDS), make(tmp_path / "stopped", RECORDS)
    judge_run(whole, unbroken := ScriptedJudge(), RULES)
    with pytest.raises(KeyboardInterrupt):
        judge_run(stopped, ScriptedJudge({ASKED[position]: KeyboardInterrupt()}), RULES)
    judge_run(stopped, rest := ScriptedJudge(), RULES)
    assert rest.asked == ASKED[position:]
    assert told(stopped, rest) == told(whole, unbroken)


def test_a_line_that_a_dying_process_left_unfinished_is_judged_again(run: Run) -> None:
    judge_run(run, ScriptedJudge(), RULES)
    (file,) = (run.folder / "judgments").glob("*.jsonl")
    content = file.read_bytes()
    file.write_bytes(content[: content.rindex(b"\n", 0, -1) + 40])
    judge_run(run, again := ScriptedJudge(), RULES)
    assert len(again.asked) == 1 and len(lines(run, again)) == 8


def test_a_changed_answer_is_judged_anew_and_a_sample_that_was_answered_since_is_judged(
    tmp_path: Path,
) -> None:
    judge_run(make(tmp_path, RECORDS), ScriptedJudge(), RULES)
    changed = [record(1, "a", "another"), *RECORDS[1:4], record(5, "i", "j")]
    run = make(tmp_path, changed)
    judge_run(run, again := ScriptedJudge(), RULES)
    assert again.asked == ["1/2", "5/1", "5/2"] and len(lines(run, again)) == 10


def test_judgments_of_two_judges_and_under_two_rules_lie_side_by_side(run: Run) -> None:
    judge_run(run, one := ScriptedJudge({}, "one"), RULES)
    judge_run(run, other := ScriptedJudge({"1/1": "[[2]]"}, "other"), RULES)
    judge_run(run, one, replace(RULES, sha256="1" * 64))
    assert len(stored(run)) == 3 and len(one.asked) == 10 and len(other.asked) == 5
    assert (lines(run, one)["1/1"]["score"], lines(run, other)["1/1"]["score"]) == (7.0, 2.0)
    for name in stored(run):
        assert judge_of(run, name)["kind"] == "made"
        assert name.startswith(f"made-{judge_of(run, name)['model']}-")


def test_too_many_failures_one_after_another_stop_the_asking(tmp_path: Path) -> None:
    run = make(tmp_path, [record(number, "a", "b") for number in range(20)])
    broken = {f"{number}/{turn}": BROKEN for number in range(1, 20) for turn in (1, 2)}
    judge = ScriptedJudge(broken)
    tally = judge_run(run, judge, RULES)
    assert len(judge.asked) == 2 + judging.FAILURES_IN_A_ROW
    assert tally.stopped == (
        f"{judging.FAILURES_IN_A_ROW} judgments failed one after another, the last because {BROKEN.problem}"
    )
    judge_run(run, again := ScriptedJudge(), RULES)
    assert len(again.asked) == 38


def test_two_processes_do_not_judge_one_run_at_once(run: Run) -> None:
    judge = ScriptedJudge()
    judge_run(run, judge, RULES)
    lock = files.acquire(run.folder / "judgments" / f".{label(judge, RULES)}.lock", "")
    try:
        with pytest.raises(RunBusy, match="is being computed by process"):
            judge_run(run, judge, RULES)
        judge_run(run, ScriptedJudge({}, "another"), RULES)
    finally:
        files.release(lock)


def test_an_unreadable_line_is_named(run: Run) -> None:
    judge = ScriptedJudge()
    judge_run(run, judge, RULES)
    (file,) = (run.folder / "judgments").glob("*.jsonl")
    file.write_text("{\n" + file.read_text())
    with pytest.raises(ValueError, match=f"line 1 of {file} is no valid JSON"):
        judge_run(run, judge, RULES)


def test_what_a_judge_does_not_tell_of_its_tokens_is_counted(run: Run) -> None:
    tally = judge_run(run, ScriptedJudge({"1/1": Reply(text="[[5]]", prompt_tokens=3)}), RULES)
    assert (tally.untold, tally.prompt_tokens, tally.new_tokens) == (1, 403, 40)


def test_lines_are_on_the_disk_while_judging_goes_on(run: Run) -> None:
    seen: list[int] = []

    class Watching(ScriptedJudge):
        def replies(self, items: Any) -> Any:
            for pair in super().replies(items):
                (file,) = (run.folder / "judgments").glob("*.jsonl")
                seen.append(len(file.read_text().splitlines()))
                yield pair

    judge_run(run, Watching(), RULES)
    assert seen == [3, 4, 5, 6, 7]  # three were not asked about, and each of the others follows at once
    (file,) = (run.folder / "judgments").glob("*.jsonl")
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()][3:] == ASKED
