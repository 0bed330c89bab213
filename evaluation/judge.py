"""What a judge is asked about an answer, and what is made of its reply: FastChat's grading of single answers.

A judgment without a rating is `unscored`, with its reason: it is counted, and never a number. Judgments are lines of
FastChat's own format with more fields, so that its tools read ours and this module reads theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from evaluation.mt_bench import answer_turns
from evaluation.mt_bench_rows import Grading, template_name

RATING, FALLBACK = re.compile(r"\[\[(\d+\.?\d*)\]\]"), re.compile(r"\[(\d+\.?\d*)\]")
LOWEST, HIGHEST = 1, 10
NO_RATING = -1  # FastChat's own mark of a judgment without one

# what became of a judgment: only what failed is asked for again
SCORED, UNPARSED, NOT_ASKED, FAILED = "scored", "unparsed", "not_asked", "failed"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One judgment to be made: of one turn of one sample.

    id: `81/2` is the second turn of sample 81. template: the name of the prompt. problem: why a judge is not asked at
    all; system and prompt are then empty."""

    id: str
    question_id: int | str
    category: str
    turn: int
    template: str
    system: str = ""
    prompt: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a judge said. cut: it was ended by the limit on its length. problem: why there is no reply. prompt_tokens,
    new_tokens: None where the judge does not tell."""

    text: str = ""
    cut: bool = False
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """A judgment as tables need it. score: from 1 to 10, or None. judge, model: who judged whom. category: empty in
    FastChat's files."""

    question_id: int | str
    turn: int
    model: str
    judge: str
    category: str = ""
    score: float | None = None
    reason: str = ""


def items(record: Mapping[str, Any], grading: Grading) -> list[Item]:
    """The judgments that an answered sample takes, turn by turn."""
    return [_item(record, turn, grading) for turn in range(1, 1 + len(record["meta"]["turns"]))]


def rating(reply: Reply) -> tuple[float | None, str]:
    """The score that a reply gives, and if there is none the reason.

    FastChat's pattern and its fallback; a number outside of the scale that the judge was given is no score."""
    match = RATING.search(reply.text) or FALLBACK.search(reply.text)
    if match:
        score = float(match[1])
        if LOWEST <= score <= HIGHEST:
            return score, ""
        return None, f"the rating {match[1]} is not from {LOWEST} to {HIGHEST}"
    if not reply.text.strip():
        return None, "the judge's reply is empty"
    if reply.cut:
        return (
            None,
            f"the judge's reply was cut after {reply.new_tokens or 'too many'} tokens, before a rating",
        )
    return None, "the judge's reply has no rating like [[5]]"


def line(item: Item, reply: Reply | None, *, model: str, judge: str, now: float) -> dict[str, Any]:
    """A judgment as it is stored. Args: reply: None if the judge was not asked."""
    outcome, score, reason = _verdict(item, reply)
    return {
        "id": item.id,
        "question_id": item.question_id,
        "model": model,
        "judge": [judge, item.template],
        "user_prompt": item.prompt,
        "judgment": reply.text if reply else "",
        "score": score,
        "turn": item.turn,
        "tstamp": now,
        "category": item.category,
        "outcome": outcome,
        "reason": reason,
        "prompt_tokens": reply.prompt_tokens if reply else None,
        "new_tokens": reply.new_tokens if reply else None,
    }


def read_judgments(lines: Iterable[Mapping[str, Any]]) -> list[Judgment]:
    """Judgments from lines of this harness or of FastChat. If a turn was judged again, the last line counts."""
    found = {}
    for each in lines:
        score = each["score"]
        judgment = Judgment(
            question_id=each["question_id"],
            turn=each["turn"],
            model=each["model"],
            judge=each["judge"][0],
            category=each.get("category", ""),
            score=None if score is None or score == NO_RATING else float(score),
            reason=each.get("reason", ""),
        )
        found[judgment.model, judgment.judge, judgment.question_id, judgment.turn] = judgment
    return list(found.values())


def mean(
    judgments: Iterable[Judgment], *, turn: int | None = None, category: str | None = None
) -> float | None:
    """The mean of the scores there are, of one turn or category or of all; None without any."""
    scores = [
        each.score
        for each in judgments
        if each.score is not None and turn in (None, each.turn) and category in (None, each.category)
    ]
    return fmean(scores) if scores else None


def by_question(judgments: Sequence[Judgment]) -> dict[str, float]:
    """Question to the mean of its scored turns, for what compares two runs question by question."""
    found: dict[str, list[float]] = {}
    for each in judgments:
        if each.score is not None:
            found.setdefault(str(each.question_id), []).append(each.score)
    return {question: fmean(scores) for question, scores in found.items()}


def _item(record: Mapping[str, Any], turn: int, grading: Grading) -> Item:
    meta = record["meta"]
    template = grading.templates[template_name(meta["category"], turn)]
    answers, references = answer_turns(record), grading.references.get(meta["question_id"], ())
    problem = ""
    if not answers[turn - 1]:
        problem = f"the answer to turn {turn} is empty"
    elif "{ref_answer_1}" in template.prompt and not references:
        problem = f"there is no reference answer to question {meta['question_id']}"
    values = {"question": meta["turns"][0], "answer": answers[0]}
    for number, texts in enumerate(zip(meta["turns"], answers, strict=True), 1):
        values[f"question_{number}"], values[f"answer_{number}"] = texts
    values |= {f"ref_answer_{number}": text for number, text in enumerate(references, 1)}
    return Item(
        id=f"{record['id']}/{turn}",
        question_id=meta["question_id"],
        category=meta["category"],
        turn=turn,
        template=template.name,
        system="" if problem else template.system,
        prompt="" if problem else template.prompt.format(**values),
        problem=problem,
    )


def _verdict(item: Item, reply: Reply | None) -> tuple[str, float | None, str]:
    """Outcome, score and reason."""
    if reply is None:
        return NOT_ASKED, None, item.problem
    if reply.problem:
        return FAILED, None, reply.problem
    score, reason = rating(reply)
    return UNPARSED if score is None else SCORED, score, reason
