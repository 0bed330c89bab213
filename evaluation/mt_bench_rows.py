"""MT-Bench as FastChat publishes it: questions, reference answers and the judge's prompts, each row checked before
anything is run on it.

`data` is a folder laid out as FastChat's `data/mt_bench`, a file of questions with the rest beside it, or None for what
`python -m scripts.fetch mt_bench` brought.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from evaluation import datasets

QUESTIONS, REFERENCES, PROMPTS = "question", "reference_answer/gpt-4", "judge_prompts"
TURNS = 2
NEED_REFERENCE = ("math", "reasoning", "coding")  # categories that are graded against a reference answer
OUTPUT_FORMAT = "[[rating]]"
# the fields that FastChat fills in, by turn; with a reference answer, also those of the second table
FIELDS = {1: ("question", "answer"), 2: ("question_1", "answer_1", "question_2", "answer_2")}
REFERENCE_FIELDS = {1: ("ref_answer_1",), 2: ("ref_answer_1", "ref_answer_2")}


@dataclass(frozen=True, kw_only=True)
class Question:
    """id: a number in the published file; a file of one's own may have texts."""

    id: int | str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Questions:
    """All questions in their published order. sha256: of their content, whatever file it came in."""

    questions: tuple[Question, ...]
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Template:
    """What a judge is told (`system`) and asked (`prompt`, with the names of `fields` in braces)."""

    name: str
    system: str
    prompt: str


@dataclass(frozen=True, kw_only=True)
class Grading:
    """What judging takes beside the answers. references: question id to one reference answer a turn. sha256: of all
    of it."""

    templates: Mapping[str, Template]
    references: Mapping[int | str, tuple[str, ...]]
    sha256: str


def template_name(category: str, turn: int) -> str:
    """The name of the prompt that FastChat grades a turn of this category with."""
    kind = "single-math-v1" if category in NEED_REFERENCE else "single-v1"
    return kind if turn == 1 else f"{kind}-multi-turn"


def fields(category: str, turn: int) -> tuple[str, ...]:
    """What that prompt leaves open."""
    return FIELDS[turn] + (REFERENCE_FIELDS[turn] if category in NEED_REFERENCE else ())


def read_questions(data: str | Path | None) -> Questions:
    """Errors: ValueError naming the places tried, or file, line and field of the first question that is not as
    published; two questions with one id are refused."""
    table = _find(QUESTIONS, data)
    return _questions(table, table.path.stat().st_mtime_ns)


def read_grading(data: str | Path | None) -> Grading:
    """Errors: ValueError as in `read_questions`, also for a prompt that FastChat's rules could not fill or read."""
    templates = _templates(_find(PROMPTS, data))
    references = _references(_find(REFERENCES, data))
    content = [
        [[each.name, each.system, each.prompt] for each in templates.values()],
        [[str(id), list(turns)] for id, turns in references.items()],
    ]
    return Grading(templates=templates, references=references, sha256=_digest(content))


def _find(name: str, data: str | Path | None) -> datasets.Table:
    source = datasets.SOURCES["mt_bench"]
    if data is None:
        return datasets.find_table(source, name)
    place = Path(data).expanduser()
    if name != QUESTIONS:
        place = place.parent if place.is_file() else place
    if name == PROMPTS and datasets.find_in(place, name) is None:
        above = datasets.find_in(place.parent, name)  # where FastChat keeps them
        if above is not None:
            return above
    return datasets.find_table(source, name, place)


@cache
def _questions(table: datasets.Table, _changed: int) -> Questions:
    found: dict[str, Question] = {}
    for line in table.lines():
        row = line.parse()
        question = Question(id=_id(row), category=row.text("category"), turns=_turns(row, row))
        if str(question.id) in found:
            raise row.wrong("question_id", f"is {question.id}, and so is an earlier line's; ids must differ")
        found[str(question.id)] = question
    if not found:
        raise ValueError(f"{table} has no questions")
    content = [[each.id, each.category, list(each.turns)] for each in found.values()]
    return Questions(questions=tuple(found.values()), sha256=_digest(content))


def _references(table: datasets.Table) -> dict[int | str, tuple[str, ...]]:
    found: dict[int | str, tuple[str, ...]] = {}
    for line in table.lines():
        row = line.parse()
        choices = row.value("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise row.wrong("choices", "is no list with an answer in it")
        if _id(row) in found:
            raise row.wrong("question_id", f"is {_id(row)}, and so is an earlier line's; ids must differ")
        found[_id(row)] = _turns(row, datasets.Row(where=f"{row.where}, choice 1", fields=choices[0]))
    return found


def _templates(table: datasets.Table) -> dict[str, Template]:
    rows = {row.text("name"): row for row in (line.parse() for line in table.lines())}
    found = {}
    for category, turn in [(category, turn) for category in ("writing", "math") for turn in FIELDS]:
        name = template_name(category, turn)
        if name not in rows:
            raise ValueError(f"{table} has no prompt {name!r}; take FastChat's judge_prompts.jsonl")
        row = rows[name]
        if row.text("output_format") != OUTPUT_FORMAT:
            raise row.wrong("output_format", f"is not {OUTPUT_FORMAT}")
        open_fields = {field for _, field, _, _ in Formatter().parse(row.text("prompt_template")) if field}
        if open_fields != set(fields(category, turn)):
            raise row.wrong("prompt_template", f"leaves open {', '.join(sorted(open_fields)) or 'nothing'}")
        found[name] = Template(
            name=name, system=row.text("system_prompt"), prompt=row.text("prompt_template")
        )
    return found


def _id(row: datasets.Row) -> int | str:
    value = row.value("question_id")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise row.wrong("question_id", "is neither a whole number nor a text")
    return value


def _turns(row: datasets.Row, holder: datasets.Row) -> tuple[str, ...]:
    turns = holder.texts("turns")
    if len(turns) != TURNS or not all(turn.strip() for turn in turns):
        raise row.wrong("turns", f"has not {TURNS} texts: every question has {TURNS} turns")
    return turns


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
