"""MT-Bench's tables: what each judge gave by turn and by category, and what the cache held turn by turn.

Judged scores are from 1 to 10, as the judge gives them. Means are FastChat's: over all judgments with a rating.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from evaluation import judging, mixture
from evaluation.frame import Result, budget_text
from evaluation.judge import Judgment, by_question, mean, read_judgments
from evaluation.mt_bench_rows import TURNS
from evaluation.sheet import MISSING, Cell, Sheet, byte_text, mark_best, number
from evaluation.statistics import bootstrap_interval, paired_difference
from evaluation.summary import turns
from evaluation.table_rows import Row, baseline, basis, family_title, named, rows

FAMILY = "mt_bench"
NOT_JUDGED = "not judged yet"
HOW = "python -m scripts.judge judge=local, or judge=openai, grades the answers; docs/mt_bench.md"
REASONS = 5  # shown under a table
LABELS = ("judge", "method", "budget")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A row of a table as one judge sees it.

    judge: a label of `evaluation.judging`, empty if nobody judged any row. identity: what made its judgments, empty if
    it has none of this row."""

    row: Row
    judge: str
    judgments: Sequence[Judgment]
    identity: Mapping[str, Any]

    @property
    def result(self) -> Result:
        return self.row.any

    @property
    def block(self) -> tuple[str, int | float | None] | None:
        """Rows that compete: those of one judge with the same budget. The full cache competes with nobody."""
        return None if self.row.budget is None else (self.judge, self.row.budget)

    @property
    def labels(self) -> list[Cell]:
        return [Cell(self.judge or NOT_JUDGED), *_labelled(self.row)]

    @property
    def unscored(self) -> int:
        return sum(judgment.score is None for judgment in self.judgments)

    @property
    def missing(self) -> int:
        """Turns that the judge was not asked about: of samples that failed, or not yet."""
        return TURNS * len(self.result.run.records) - len(self.judgments)


def sheets(results: Sequence[Result], mix: Collection[str] = ()) -> list[Sheet]:
    """The tables of a group of MT-Bench runs; of other runs, none. Errors: ValueError for runs that must not be
    mixed."""
    if any(result.family != FAMILY for result in results):
        return []
    notes = mixture.check(results, mix)
    table = rows(results, mix)
    judged = _judged(table)
    notes += basis(results)
    said = [*_judge_notes(judged), *notes]
    return [_turn_sheet(judged, said), _category_sheet(judged, said), _held_sheet(table, notes)]


def _judged(table: Sequence[Row]) -> list[Judged]:
    """Every row under every judge that judged one of them, judge by judge."""
    stored = {row.any.run.key: judging.stored(row.any.run) for row in table}
    judges = sorted({judge for found in stored.values() for judge in found}) or [""]
    judged = []
    for judge, row in product(judges, table):
        run = row.any.run
        lines = stored[run.key].get(judge)
        identity = {} if lines is None else judging.judge_of(run, judge)
        judged.append(Judged(row=row, judge=judge, judgments=read_judgments(lines or ()), identity=identity))
    return judged


def _turn_sheet(judged: Sequence[Judged], notes: Sequence[str]) -> Sheet:
    """One row a judge, method and budget: means by turn, and the difference from the full cache."""
    columns = [[mean(each.judgments, turn=turn) for each in judged] for turn in (1, 2, None)]
    blocks = [each.block for each in judged]
    marks = [mark_best(column, blocks) for column in columns]
    cells = [
        [number(column[place], ".2f", mark[place]) for column, mark in zip(columns, marks, strict=True)]
        for place in range(len(judged))
    ]
    head = ["turn 1", "turn 2", "both", "95 %\nfrom", "95 %\nto", "minus\nFullKV", "95 %\nfrom", "95 %\nto"]
    return Sheet(
        name="judged",
        title=f"{_title(judged)}: what the judges gave",
        head=[*LABELS, *head, "scored", "unscored", "missing"],
        rows=[
            [*each.labels, *own, *_interval(each), *_difference(each, judged), *_counts(each)]
            for each, own in zip(judged, cells, strict=True)
        ],
        notes=[
            "means of ratings from 1 to 10 over the judgments that have one; bold: best of its budget, "
            "underlined: second",
            "intervals and differences: over questions, each the mean of its scored turns, paired with "
            "the full cache's",
            "unscored: judgments without a rating, which are in no mean; missing: not asked for yet, or no answer",
            *notes,
        ],
        labels=len(LABELS),
        blocks=[str((each.judge, each.row.budget)) for each in judged],
    )


def _category_sheet(judged: Sequence[Judged], notes: Sequence[str]) -> Sheet:
    """One row a judge, method, budget and turn, one column a category."""
    records = [record for each in judged for record in each.result.run.records]
    categories = list(
        dict.fromkeys(meta["category"] for meta in sorted((r["meta"] for r in records), key=_place))
    )
    named_turns: dict[str, int | None] = {"1": 1, "2": 2, "both": None}
    return Sheet(
        name="judged_by_category",
        title=f"{_title(judged)}: what the judges gave, by category and turn",
        head=[*LABELS, "turn", *categories],
        rows=[
            [*each.labels, Cell(name), *(_mean_cell(each, turn, category) for category in categories)]
            for each in judged
            for name, turn in named_turns.items()
        ],
        notes=["means of ratings from 1 to 10 over the judgments that have one", *notes],
        labels=len(LABELS) + 1,
        blocks=[str((each.judge, each.row.budget)) for each in judged for _ in named_turns],
    )


def _held_sheet(table: Sequence[Row], notes: Sequence[str]) -> Sheet:
    """One row a method, budget and turn: what was read, what was held, how long the answer is."""
    found = [(row, turn, _turn_records(row.any, turn)) for row in table for turn in range(1, 1 + TURNS)]
    head = [
        "read\ntokens",
        "tokens/layer\nafter it",
        "bytes\nafter it",
        "answer\ntokens",
        "tokens/layer\nat end",
    ]
    return Sheet(
        name="turns",
        title=f"{family_title([row.any for row in table])}: what the cache held, turn by turn",
        head=["method", "budget", "turn", *head, "bytes\nat end", "cut at the\nlimit", "empty"],
        rows=[[*_labelled(row), Cell(str(turn)), *_held(records)] for row, turn, records in found],
        notes=[
            "means over samples; read: the prompt, then the second question with what the template puts around it",
            "cut at the limit: answers that were not finished; empty: answers without a text, about which no judge "
            "is asked",
            *notes,
        ],
        labels=3,
        blocks=[str(row.budget) for row, _, _ in found],
    )


def _title(judged: Sequence[Judged]) -> str:
    return family_title([each.result for each in judged])


def _labelled(row: Row) -> list[Cell]:
    return [Cell(row.label), Cell(budget_text(row.budget)) if row.budget is not None else MISSING]


def _mean_cell(each: Judged, turn: int | None, category: str) -> Cell:
    return number(mean(each.judgments, turn=turn, category=category), ".2f")


def _interval(each: Judged) -> list[Cell]:
    values = list(by_question(each.judgments).values())
    low, high = bootstrap_interval(values) if len(values) > 1 else (None, None)
    return [number(low, ".2f"), number(high, ".2f")]


def _difference(each: Judged, judged: Sequence[Judged]) -> list[Cell]:
    full = baseline([other.result for other in judged], each.result)
    theirs = next((o for o in judged if full is o.result and o.judge == each.judge), None)
    if theirs is None or each.result.is_baseline:
        return [MISSING] * 3
    ours, others = by_question(each.judgments), by_question(theirs.judgments)
    if not ours.keys() & others.keys():
        return [MISSING] * 3
    found = paired_difference(ours, others)
    return [number(value, "+.2f") for value in (found.difference, found.low, found.high)]


def _counts(each: Judged) -> list[Cell]:
    counts = (len(each.judgments) - each.unscored, each.unscored, each.missing)
    return [Cell(str(count), count) for count in counts]


def _judge_notes(judged: Sequence[Judged]) -> list[str]:
    """Who the judges are, and why judgments have no score, most frequent reason first."""
    notes = []
    for judge in dict.fromkeys(each.judge for each in judged):
        own = [each for each in judged if each.judge == judge]
        if not judge:
            notes.append(f"{NOT_JUDGED}: {HOW}")
            continue
        identity = next((each.identity for each in own if each.identity), {})
        notes.append(f"judge {judge}: {named(identity)}")
        unscored = (judgment.reason for each in own for judgment in each.judgments if judgment.score is None)
        reasons = Counter(unscored).most_common()
        notes += [f"unscored by {judge}, {count} times: {reason}" for reason, count in reasons[:REASONS]]
        if len(reasons) > REASONS:
            notes.append(
                f"unscored by {judge} for {len(reasons) - REASONS} other reasons: judgments/{judge}.jsonl"
            )
    return notes


def _turn_records(result: Result, turn: int) -> list[Mapping[str, Any]]:
    return [turns(record)[turn - 1] for record in result.answered]


def _held(records: Sequence[Mapping[str, Any]]) -> list[Cell]:
    if not records:
        return [MISSING] * 8
    tokens = [fmean(record["prompt_tokens"] for record in records)]
    tokens.append(fmean(fmean(record["kept_tokens"]) for record in records))
    after, end = (
        fmean(record[name] for record in records) for name in ("bytes_after_prompt", "bytes_at_end")
    )
    cut = sum(record["finish"] == "length" for record in records)
    empty = sum(not record["text"].strip() for record in records)
    return [
        *(number(value, ".1f") for value in tokens),
        Cell(byte_text(after), after),
        number(fmean(record["new_tokens"] for record in records), ".1f"),
        number(fmean(fmean(record["kept_tokens_at_end"]) for record in records), ".1f"),
        Cell(byte_text(end), end),
        Cell(str(cut), cut),
        Cell(str(empty), empty),
    ]


def _place(meta: dict[str, Any]) -> tuple[bool, Any]:
    return isinstance(meta["question_id"], str), meta["question_id"]
