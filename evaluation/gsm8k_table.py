"""GSM8K's tables: the three readings of the same answers side by side, and how answers change against the full cache.

An answer that is right for one reading and wrong for another tells of its form; an answer that grows longer or is cut
at the limit tells of a model that has lost the thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from evaluation import mixture
from evaluation.frame import Result
from evaluation.gsm8k_scoring import OFF_FORMAT, READINGS, UNPARSED
from evaluation.sheet import MISSING, Cell, Sheet, mark_best, number
from evaluation.statistics import paired_difference
from evaluation.table_rows import LABELS, Row, baseline, basis, family_title, labelled, rows

FAMILY = "gsm8k"


def sheets(results: Sequence[Result], mix: Collection[str] = ()) -> list[Sheet]:
    """The tables of a group of GSM8K runs; of other runs, none. Errors: ValueError for runs that must not be mixed."""
    if any(result.family != FAMILY for result in results):
        return []
    notes = [*mixture.check(results, mix), *basis(results)]
    table = rows(results, mix)
    return [_readings_sheet(table, notes), _flips_sheet(table, notes)]


def _readings_sheet(table: Sequence[Row], notes: Sequence[str]) -> Sheet:
    """Each reading's share of right answers with its interval, and how many answers lack the form or a number."""
    blocks: list[object] = [row.budget for row in table]
    columns = []
    for reading in READINGS:
        points = [_points(row.any, reading) for row in table]
        columns.append([number(p, ".2f", m) for p, m in zip(points, mark_best(points, blocks), strict=True)])
    head = [name for reading in READINGS for name in (reading, "95 %\nfrom", "95 %\nto")]
    return Sheet(
        name="readings",
        title=f"{family_title([row.any for row in table])}: three readings of the same answers",
        head=[*LABELS, "tokens\n/layer", *head, "off\nformat", "unparsed"],
        rows=[
            [
                *labelled(row),
                number(row.any.summary["held"]["tokens_after_prompt"], ".1f"),
                *(
                    cell
                    for reading, column in zip(READINGS, columns, strict=True)
                    for cell in (column[place], *_interval(row.any, reading))
                ),
                *(number(_points(row.any, metric), ".2f") for metric in (OFF_FORMAT, UNPARSED)),
            ]
            for place, row in enumerate(table)
        ],
        notes=[
            "flexible: the last number of the answer; strict: the number in the sentence or behind the sign that the "
            "examples end with; both as lm-evaluation-harness reads them; lenient: the marked number, or the last one, "
            "compared as a number",
            "off format: percent of answers without what strict looks for; unparsed: without any number",
            "bold: best of its budget, underlined: second",
            *notes,
        ],
        labels=len(LABELS),
        blocks=[str(block) for block in blocks],
    )


def _flips_sheet(table: Sequence[Row], notes: Sequence[str]) -> Sheet:
    """For each reading how many answers became right and wrong, and what became of their length."""
    head = [f"{reading}\n{what}" for reading in READINGS for what in ("gained", "lost")]
    results = [row.any for row in table]
    return Sheet(
        name="flips",
        title=f"{family_title(results)}: answers that changed against the full cache",
        head=[*LABELS, *head, "answer\ntokens", "longer\nby", "95 %\nfrom", "95 %\nto", "cut at the\nlimit"],
        rows=[
            [
                *labelled(row),
                *_flips(row.any, baseline(results, row.any)),
                number(row.any.summary["new_tokens"], ".1f"),
                *_longer(row.any, baseline(results, row.any)),
                Cell(str(cut := sum(each["finish"] == "length" for each in row.any.answered)), cut),
            ]
            for row in table
        ],
        notes=[
            "gained, lost: problems that are right where the full cache's answer is wrong, and the reverse",
            "longer by: tokens that an answer is longer than under the full cache, a mean with its paired bootstrap "
            "interval; cut at the limit: answers that were not finished",
            *notes,
        ],
        labels=len(LABELS),
        blocks=[str(row.budget) for row in table],
    )


def _points(result: Result, metric: str) -> float | None:
    score = result.summary["scores"].get(metric)
    return None if score is None else 100 * score


def _interval(result: Result, metric: str) -> list[Cell]:
    found = result.summary["intervals"].get(metric) if len(result.answered) > 1 else None
    return [MISSING, MISSING] if found is None else [number(100 * end, ".2f") for end in found]


def _flips(result: Result, full: Result | None) -> list[Cell]:
    cells = []
    for reading in READINGS:
        ours = result.run.scores(reading)
        theirs: Mapping[str, float] = {} if full is None or result.is_baseline else full.run.scores(reading)
        if ours.keys() & theirs.keys():
            found = paired_difference(ours, theirs, resamples=1)
            cells += [Cell(str(found.gained), found.gained), Cell(str(found.lost), found.lost)]
        else:
            cells += [MISSING, MISSING]
    return cells


def _longer(result: Result, full: Result | None) -> list[Cell]:
    if full is None or result.is_baseline or not result.answer_lengths.keys() & full.answer_lengths.keys():
        return [MISSING] * 3
    found = paired_difference(result.answer_lengths, full.answer_lengths)
    return [number(value, "+.1f") for value in (found.difference, found.low, found.high)]
