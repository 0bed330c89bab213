"""MT-Bench as a task: 80 questions of two turns, the second asked on the cache that the first left behind.

What an answer is worth is for a judge to say, in a step of its own (`evaluation.judging`). Until then a sample's only
score is whether it was answered at all. docs/mt_bench.md says what is FastChat's and what is ours.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from evaluation import files
from evaluation.mt_bench_rows import Question, read_questions
from evaluation.prompts import Prompter
from evaluation.summary import turns
from evaluation.types import Sample
from pyramid.types import Answer

VERSION = 1  # raised whenever the same parameters give other samples or scores
ANSWERED = "answered"
BY_CATEGORY = "by_category"
# FastChat's temperatures; a category that is not among them has the last
TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "extraction": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "reasoning": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
}
OTHER_TEMPERATURE = 0.7


@dataclass(frozen=True, kw_only=True)
class MTBench:
    """The fields are those of conf/task/mt_bench.yaml.

    data: as in `evaluation.mt_bench_rows`; temperature: `by_category`, or one number for all, 0 for greedy.

    Errors: ValueError with the offending value and the mend."""

    metrics: ClassVar[tuple[str, ...]] = (ANSWERED,)
    lower_is_better: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[str] = "mt_bench"

    data: str | Path | None = None
    temperature: str | float = BY_CATEGORY
    max_new_tokens: int = 1024

    def __post_init__(self) -> None:
        number = isinstance(self.temperature, int | float) and not isinstance(self.temperature, bool)
        if self.temperature != BY_CATEGORY and not (number and 0 <= float(self.temperature) < 10):
            raise ValueError(
                f"{self.name}: temperature is {self.temperature!r}; take {BY_CATEGORY}, or a number from 0 on"
            )
        if type(self.max_new_tokens) is not int or self.max_new_tokens < 1:
            raise ValueError(
                f"{self.name}: max_new_tokens is {self.max_new_tokens!r}; give a number from 1 on"
            )

    def identity(self) -> dict[str, Any]:
        by_category = self.temperature == BY_CATEGORY
        return {
            "task": self.name,
            "version": VERSION,
            "data_sha256": read_questions(self.data).sha256,
            "temperature": BY_CATEGORY if by_category else float(self.temperature),
            "max_new_tokens": self.max_new_tokens,
        }

    def samples(self, prompter: Prompter) -> Sequence[Sample]:
        return tuple(self._sample(question) for question in read_questions(self.data).questions)

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        """1 if every turn has a text, else 0: nothing of what it is worth."""
        answers = (answer, *answer.follow_ups)
        assert len(answers) == 1 + len(sample.follow_ups), "every turn has an answer"
        return {ANSWERED: float(all(turn.text.strip() for turn in answers))}

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {ANSWERED: fmean(record["scores"][ANSWERED] for record in records)} if records else {}

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        """The answers in FastChat's format, in a file whose name FastChat takes for the model's."""
        target = folder / "model_answer" / f"{folder.name}.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        ordered = sorted(records, key=lambda record: _place(record["meta"]["question_id"]))
        now = time.time()
        lines = (files.json_line(fastchat_answer(record, folder.name, now)) for record in ordered)
        files.replace(target, "".join(lines))
        return [target]

    def _sample(self, question: Question) -> Sample:
        temperature = (
            TEMPERATURES.get(question.category, OTHER_TEMPERATURE)
            if self.temperature == BY_CATEGORY
            else float(self.temperature)
        )
        return Sample(
            id=str(question.id),
            context=question.turns[0],
            follow_ups=question.turns[1:],
            max_new_tokens=self.max_new_tokens,
            temperature=temperature,
            meta={
                "question_id": question.id,
                "category": question.category,
                "turns": list(question.turns),
                "temperature": temperature,
            },
        )


def answer_turns(record: Mapping[str, Any]) -> list[str]:
    """The answers of an answered sample, turn by turn, without blanks at their ends, as FastChat takes them."""
    return [turn["text"].strip() for turn in turns(record)]


def fastchat_answer(record: Mapping[str, Any], model: str, now: float) -> dict[str, Any]:
    """An answered sample as a line of FastChat's model_answer files."""
    digest = hashlib.sha256(f"{model} {record['id']}".encode()).hexdigest()
    return {
        "question_id": record["meta"]["question_id"],
        "answer_id": digest[:22],
        "model_id": model,
        "choices": [{"index": 0, "turns": answer_turns(record)}],
        "tstamp": now,
    }


def _place(question_id: int | str) -> tuple[bool, int | str]:
    """What to sort questions by: numbers, then texts."""
    return isinstance(question_id, str), question_id


TASK = MTBench
