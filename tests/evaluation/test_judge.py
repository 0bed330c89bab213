"""What a judge is asked and what its reply is worth are FastChat's, on 480 judgments that GPT-4 really made."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest

from evaluation.judge import Judgment, Reply, by_question, items, line, mean, rating, read_judgments
from evaluation.mt_bench_rows import read_grading, read_questions
from tests.evaluation.made_mt_bench import grading, record

# shared/data/README.md: turn 1, turn 2, all turns
MEANS = {
    "vicuna-7b-v1.3": (6.73125, 5.475, 6.103125),
    "vicuna-7b-v1.3-greedy": (6.51875, 5.2375, 5.878125),
    "medusa-vicuna-7b-v1.3-1": (6.79375, 5.18125, 5.9875),
}


def rows(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


@pytest.fixture(scope="module")
def published(shared_data: Path) -> list[dict[str, Any]]:
    return list(rows(shared_data / "mt_bench/model_judgment/gpt-4_single_vicuna-medusa.jsonl.gz"))


class TestAggregation:
    def test_means_are_those_stated_for_the_published_judgments(
        self, published: list[dict[str, Any]]
    ) -> None:
        judgments = read_judgments(published)
        assert len(judgments) == 480
        for name, means in MEANS.items():
            own = [
                each
                for each in judgments
                if each.model == name or each.model.startswith(f"{name}-temperature")
            ]
            assert len(own) == 160
            assert (mean(own, turn=1), mean(own, turn=2), mean(own)) == pytest.approx(means, abs=1e-12)
            assert sum(by_question(own).values()) / 80 == pytest.approx(means[2], abs=1e-12)

    def test_means_by_category_and_turn_are_those_of_another_program(
        self, published: list[dict[str, Any]], shared_data: Path
    ) -> None:
        categories = {q.id: q.category for q in read_questions(shared_data / "mt_bench").questions}
        known = [each | {"category": categories[each["question_id"]]} for each in published]
        frame: Any = pandas.DataFrame(known).groupby(["model", "category", "turn"])["score"].mean()
        judgments = read_judgments(known)
        assert len(frame) == 3 * 8 * 2
        for (model, category, turn), score in frame.items():
            own = [each for each in judgments if each.model == model]
            assert mean(own, turn=turn, category=category) == pytest.approx(score, abs=1e-12)

    def test_what_has_no_score_is_in_no_mean(self) -> None:
        judgments = [
            Judgment(question_id=number, turn=1, model="m", judge="j", score=score)
            for number, score in enumerate([8.0, None, 4.0])
        ]
        assert mean(judgments) == 6 and mean(judgments, turn=2) is None and mean([]) is None
        assert by_question(judgments) == {"0": 8.0, "2": 4.0}

    def test_fastchats_mark_of_no_score_is_none_and_a_later_line_counts(self) -> None:
        lines = [
            {"question_id": 81, "turn": 1, "model": "m", "judge": ["gpt-4", "single-v1"], "score": score}
            for score in (3, 9, -1)
        ]
        (judgment,) = read_judgments(lines)
        assert judgment.score is None
        assert [each.score for each in read_judgments(lines[:2])] == [9.0]


class TestPrompts:
    def test_prompts_are_to_the_letter_those_that_gpt_4_was_asked_with(
        self, published: list[dict[str, Any]], shared_data: Path
    ) -> None:
        folder = shared_data / "mt_bench"
        questions = {each.id: each for each in read_questions(folder).questions}
        answers = list(rows(folder / "model_answer" / "medusa-vicuna-7b-v1.3-1.jsonl.gz"))
        rules, asked = read_grading(folder), {}
        for answer in answers:
            first, second = answer["choices"][0]["turns"]
            one = questions[answer["question_id"]]
            made = record(answer["question_id"], first, second, one.category)
            made["meta"]["turns"] = list(one.turns)
            for item in items(made, rules):
                asked[item.question_id, item.turn] = (item.prompt, item.template)
        theirs = {
            (each["question_id"], each["turn"]): (each["user_prompt"], each["judge"][1])
            for each in published
            if each["model"] == answers[0]["model_id"]
        }
        assert len(theirs) == 160 and asked == theirs

    def test_braces_in_an_answer_are_no_fields(self) -> None:
        first, second = items(record(81, "{question} {", "} {0}"), grading())
        assert first.prompt == "question=Ask 81? | answer={question} {"
        assert second.prompt.endswith("question_2=And 81? | answer_2=} {0}")
        assert (first.id, second.id, second.system) == ("81/1", "81/2", "Judge turn 2.")

    @pytest.mark.parametrize(
        ("texts", "problems"),
        [
            (("a", "b"), ["", ""]),
            (("", "b"), ["the answer to turn 1 is empty", ""]),
            (("a", " \n"), ["", "the answer to turn 2 is empty"]),
        ],
    )
    def test_an_empty_answer_is_not_asked_about(self, texts: tuple[str, str], problems: list[str]) -> None:
        assert [item.problem for item in items(record(81, *texts), grading())] == problems

    def test_a_missing_reference_concerns_graded_categories_alone(self) -> None:
        with_one = grading({101: ("two", "three")})
        assert items(record(101, "a", "b", "math"), with_one)[1].prompt.endswith(
            "ref_answer_1=two | ref_answer_2=three"
        )
        found = items(record(102, "a", "b", "coding"), with_one)
        assert {item.problem for item in found} == {"there is no reference answer to question 102"}
        assert {item.prompt for item in found} == {""}
        assert not any(item.problem for item in items(record(102, "a", "b", "stem"), with_one))


class TestRating:
    def test_scores_are_those_that_fastchat_read_from_the_same_replies(
        self, published: list[dict[str, Any]]
    ) -> None:
        for each in published:
            assert rating(Reply(text=each["judgment"])) == (each["score"], "")

    @pytest.mark.parametrize(
        ("text", "score"),
        [
            ("Rating: [[8]]", 8.0),
            ("[[8.5]]", 8.5),
            ("Rating: [8]", 8.0),
            ("Rating: [8.]", 8.0),
            ("[3] is cited, but: [[7]]", 7.0),
            ("[[2]] no, [[9]]", 2.0),
            ("[[1]]", 1.0),
            ("[[10]]", 10.0),
            ("[[10.0]]", 10.0),
            ("Die Antwort ist gut. Bewertung: [[6]]", 6.0),
            ("评分：[[5]]", 5.0),
        ],
    )
    def test_a_rating_is_the_first_in_two_brackets_else_in_one(self, text: str, score: float) -> None:
        assert rating(Reply(text=text)) == (score, "")

    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (Reply(text="[[15]]"), "the rating 15 is not from 1 to 10"),
            (Reply(text="[[0]]"), "the rating 0 is not from 1 to 10"),
            (Reply(text="[[0.5]]"), "the rating 0.5 is not from 1 to 10"),
            (Reply(text="Rating: 8/10"), "the judge's reply has no rating like [[5]]"),
            (Reply(text="[[N/A]]"), "the judge's reply has no rating like [[5]]"),
            (Reply(text="[[-3]]"), "the judge's reply has no rating like [[5]]"),
            (Reply(text="[[rating]]"), "the judge's reply has no rating like [[5]]"),
            (
                Reply(text="这个回答很好，八分。"),
                "the judge's reply has no rating like [[5]]",
            ),
            (Reply(text="评分：【【8】】"), "the judge's reply has no rating like [[5]]"),
            (Reply(text=""), "the judge's reply is empty"),
            (Reply(text=" \n"), "the judge's reply is empty"),
            (
                Reply(text="The answer", cut=True, new_tokens=9),
                "the judge's reply was cut after 9 tokens, before a rating",
            ),
        ],
    )
    def test_what_has_no_rating_has_a_reason(self, reply: Reply, reason: str) -> None:
        assert rating(reply) == (None, reason)

    def test_a_cut_reply_with_a_rating_is_scored(self) -> None:
        assert rating(Reply(text="[[4]] because", cut=True)) == (4.0, "")


class TestLines:
    def test_a_line_has_all_that_fastchats_has(self, published: list[dict[str, Any]]) -> None:
        item = items(record(81, "a", "b"), grading())[0]
        made = line(item, Reply(text="Good. [[9]]"), model="run", judge="gpt-4", now=1.5)
        theirs = published[0]
        assert theirs.keys() <= made.keys()
        for name, value in theirs.items():
            kind = (int, float) if name in ("score", "tstamp") else type(value)
            assert isinstance(made[name], kind), name
        assert (made["judge"], made["score"], made["outcome"]) == (["gpt-4", "single-v1"], 9.0, "scored")

    @pytest.mark.parametrize(
        ("reply", "outcome", "reason"),
        [
            (None, "not_asked", ""),
            (Reply(problem="the endpoint answered 429"), "failed", "the endpoint answered 429"),
            (Reply(text="Nice."), "unparsed", "the judge's reply has no rating like [[5]]"),
        ],
    )
    def test_a_line_without_a_score_is_read_so_by_pandas_too(
        self, reply: Reply | None, outcome: str, reason: str, tmp_path: Path
    ) -> None:
        """FastChat's own tool averages with pandas, for which null is no number."""
        item = items(record(81, "a", "b"), grading())[0]
        lines = [
            line(item, reply, model="run", judge="j", now=0.0),
            line(item, Reply(text="[[4]]"), model="run", judge="j", now=0.0),
        ]
        assert (lines[0]["score"], lines[0]["outcome"], lines[0]["reason"]) == (None, outcome, reason)
        file = tmp_path / "judgments.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in lines))
        frame: Any = pandas.read_json(file, lines=True)
        assert frame[frame["score"] != -1].groupby("model")["score"].mean().to_dict() == {"run": 4.0}
