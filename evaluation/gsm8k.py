"""GSM8K: problems of grade-school mathematics, solved in words after worked examples.

Prompts and readings of the answers are those of lm-evaluation-harness; docs/gsm8k.md says where ours go further.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from evaluation import datasets
from evaluation.gsm8k_scoring import NUMBER, OFF_FORMAT, READINGS, UNPARSED, score
from evaluation.prompts import Prompter
from evaluation.types import Sample
from pyramid.types import Answer

VERSION = 1  # raised whenever the same parameters give other samples or scores
EXEMPLARS = Path(__file__).with_name("gsm8k_exemplars.json")
SHOTS_SEED = 1234  # of the harness
ANNOTATION = re.compile(r"<<.*?>>")  # the calculator's notes in the published solutions


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a problem is put. prompt: around the question; shots: how many examples by default; stops: texts that begin
    what no longer belongs to the answer."""

    prompt: str
    shots: int
    stops: tuple[str, ...]

    def example(self, question: str, answer: str) -> str:
        return f"{self.prompt.format(question=question)} {answer}\n\n"


FORMS = {
    "cot": Form(prompt="Q: {question}\nA:", shots=8, stops=("Q:", "</s>", "<|im_end|>")),
    "train": Form(prompt="Question: {question}\nAnswer:", shots=5, stops=("Question:", "</s>", "<|im_end|>")),
}


@dataclass(frozen=True)
class Problem:
    """One row. answer: the published solution, which ends in `#### ` and the number."""

    question: str
    answer: str

    @property
    def gold(self) -> str:
        return self.answer.rsplit("####", 1)[-1].strip()

    @property
    def prose(self) -> str:
        """The solution as the chain-of-thought exemplars are written."""
        steps = ANNOTATION.sub("", self.answer.rsplit("####", 1)[0]).strip()
        return f"{steps}\nThe answer is {self.gold}."


@dataclass(frozen=True, kw_only=True)
class Problems:
    """All rows of a file. sha256: of their content, whatever file it came in."""

    rows: tuple[Problem, ...]
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Gsm8k:
    """The fields are those of conf/task/gsm8k.yaml.

    form: `cot`, the eight exemplars of Wei et al.; or `train`, rows of the training split, drawn for each problem.
    shots: examples before the problem; None takes the form's 8 or 5. More than 8 exemplars are preceded by training
        rows.
    data: a folder or file with the test split; None looks into the user's cache.
    train: the same for the training split, where it is needed; None looks where the test split lies.

    Errors: ValueError with the offending value and the mend.
    """

    name: ClassVar[str] = "gsm8k"
    metrics: ClassVar[tuple[str, ...]] = (*READINGS, UNPARSED, OFF_FORMAT)
    lower_is_better: ClassVar[tuple[str, ...]] = ()

    form: str = "cot"
    shots: int | None = None
    data: str | Path | None = None
    train: str | Path | None = None
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"gsm8k: form is {self.form!r}; take one of {', '.join(FORMS)}")
        if self.shots is not None and (type(self.shots) is not int or self.shots < 0):
            raise ValueError(f"gsm8k: shots is {self.shots!r}; give a number from 0 on, or null")
        if type(self.max_new_tokens) is not int or self.max_new_tokens < 1:
            raise ValueError(f"gsm8k: max_new_tokens is {self.max_new_tokens!r}; give a number from 1 on")

    def identity(self) -> dict[str, Any]:
        training = self._training
        return {
            "version": VERSION,
            "form": self.form,
            "shots": self._shots,
            "metric": self.metrics[0],
            "data_sha256": self._problems.sha256,
            "train_sha256": None if training is None else training.sha256,
            "max_new_tokens": self.max_new_tokens,
        }

    def samples(self, prompter: Prompter) -> Sequence[Sample]:
        draw = random.Random(SHOTS_SEED)
        return tuple(
            self._sample(number, problem, self._examples(draw))
            for number, problem in enumerate(self._problems.rows)
        )

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        return score(answer.text, sample.references[0], self.form)

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        if not records:
            return {}
        return {metric: fmean(record["scores"][metric] for record in records) for metric in self.metrics}

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        return []

    @property
    def _form(self) -> Form:
        return FORMS[self.form]

    @property
    def _shots(self) -> int:
        return self._form.shots if self.shots is None else self.shots

    @cached_property
    def _problems(self) -> Problems:
        return _read(datasets.find_table(datasets.SOURCES["gsm8k"], "test", self.data))

    @cached_property
    def _training(self) -> Problems | None:
        """The training split, if the shots need it. Errors: ValueError if it is not there, too short, or the test."""
        needed = self._shots if self.form == "train" else self._shots - len(exemplars())
        if needed <= 0:
            return None
        found = _read(_training_table(self.data, self.train))
        if found.sha256 == self._problems.sha256:
            raise ValueError("gsm8k: the training rows are those of the test; name others, suite.train=PATH")
        if len(found.rows) < needed:
            raise ValueError(
                f"gsm8k: shots={self._shots} needs {needed} training rows, and there are {len(found.rows)}"
            )
        return found

    def _examples(self, draw: random.Random) -> str:
        """The text before one problem. Drawn rows are those of the harness, which draws problem by problem."""
        training = self._training
        if self.form == "train":
            rows = draw.sample(training.rows, self._shots) if training else []
            return "".join(self._form.example(row.question, row.answer) for row in rows)
        fixed = exemplars()
        extra = training.rows[: self._shots - len(fixed)] if training else ()
        shown = [(row.question, row.prose) for row in extra] + list(fixed[: self._shots])
        return "".join(self._form.example(*each) for each in shown)

    def _sample(self, number: int, problem: Problem, examples: str) -> Sample:
        """Without examples there is nothing that could be read before the question."""
        question = self._form.prompt.format(question=problem.question)
        return Sample(
            id=str(number),
            context=examples or question,
            question=question if examples else "",
            references=(problem.gold,),
            max_new_tokens=self.max_new_tokens,
            stop_texts=self._form.stops,
            meta={"prompt": f"gsm8k/{self.form}, {self._shots} shots", "shots": self._shots},
        )


@cache
def exemplars() -> tuple[tuple[str, str], ...]:
    """The eight questions with their answers, in order."""
    rows = json.loads(EXEMPLARS.read_text(encoding="utf-8"))["exemplars"]
    return tuple((row["question"], row["answer"]) for row in rows)


def _training_table(data: str | Path | None, train: str | Path | None) -> datasets.Table:
    """Errors: ValueError naming the places tried and the setting."""
    place = train or data
    if train is None and data is not None and Path(data).expanduser().is_file():
        place = Path(data).expanduser().parent  # a file is one split alone
    try:
        return datasets.find_table(datasets.SOURCES["gsm8k"], "train", place)
    except ValueError as error:
        raise ValueError(f"{error}; or say where the training rows are: suite.train=PATH") from error


def _read(table: datasets.Table) -> Problems:
    return _read_once(table, table.path.stat().st_mtime_ns)


@cache
def _read_once(table: datasets.Table, _changed: int) -> Problems:
    rows = []
    for line in table.lines():
        row = line.parse()
        problem = Problem(row.text("question"), row.text("answer"))
        if "####" not in problem.answer or not NUMBER.fullmatch(problem.gold):
            raise row.wrong("answer", "does not end in '####' and a number")
        if not problem.question.strip():
            raise row.wrong("question", "is empty")
        rows.append(problem)
    if not rows:
        raise ValueError(f"{table} has no rows")
    digest = hashlib.sha256()
    for problem in rows:
        digest.update(json.dumps([problem.question, problem.answer]).encode() + b"\n")
    return Problems(rows=tuple(rows), sha256=digest.hexdigest())


TASK = Gsm8k
