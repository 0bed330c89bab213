"""The tables of a paper, made from runs: scores, differences from the full cache, costs, and grids over
prompts.

Scores stand in points from 0 to 100; perplexities, which have no such scale, as they are, and are compared by their
ratio. An average over LongBench is the plain mean of its 16 English sets'
scores, as the KV-compression papers print it, and says so where sets are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from statistics import fmean
from typing import Any

from evaluation import efficiency_points, efficiency_table, gsm8k_table, mixture, mt_bench_table
from evaluation.frame import Result
from evaluation.longbench_scoring import plain_average
from evaluation.longbench_table import SETS
from evaluation.sheet import BEST, MISSING, Cell, Sheet, byte_text, mark_best, number, plain
from evaluation.statistics import paired_difference
from evaluation.summary import turns
from evaluation.table_rows import (
    LABELS,
    LONGBENCH_COLUMNS,
    Row,
    baseline,
    basis,
    column_name,
    family_title,
    labelled,
    rows,
    set_name,
    task_order,
)

INDISTINCT = "°"
DIFFERENCE = (
    "difference: mean over the samples that both answered, in points, with its paired bootstrap interval"
)
LONGER = "longer by: tokens that an answer is longer than under the full cache, a mean with its interval"
TIMES = (
    "times: how many times the full cache's score, a geometric mean over the samples that both answered, with its "
    "paired bootstrap interval; below 1 is better"
)


def sheets(results: Sequence[Result], mix: Collection[str] = ()) -> list[Sheet]:
    """All tables of one group, those without rows left out. Errors: ValueError for runs that must not be
    mixed."""
    if results[0].family == efficiency_points.FAMILY:
        return efficiency_table.sheets(results, mix)
    found = [score_sheet(results, mix), difference_sheet(results, mix), cost_sheet(results, mix)]
    found = [*mt_bench_table.sheets(results, mix), *gsm8k_table.sheets(results, mix), *found]
    records = [record for result in results for record in result.run.records]
    if all(field in record["meta"] for record in records for field in _UNITS):
        found += [grid_sheet(results, field, mix) for field in _UNITS]
    return [sheet for sheet in found if sheet.rows]


def score_sheet(results: Sequence[Result], mix: Collection[str] = ()) -> Sheet:
    """One row a method and budget, one column a task, best and second of each budget marked."""
    notes = mixture.check(results, mix)
    table = rows(results, mix)
    tasks = task_order(results)
    blocks = _blocks(table)
    columns = [_score_column(table, task, blocks) for task in tasks]
    head = [*LABELS, "tokens\n/layer", "held\nbytes", *(_task_head(results, task) for task in tasks)]
    cells = [[*labelled(row), *_held(row)] for row in table]
    if len(tasks) > 1:
        lacking = sorted({note for row in table if (note := average(row, tasks)[1])})
        head.append("\n".join(["average", *(["partial"] if lacking else [])]))
        columns.append(_average_column(table, tasks, blocks, lacking))
        notes += [f"average: {note}" for note in lacking]
    return Sheet(
        name="scores",
        title=f"{family_title(results)}: scores",
        head=head,
        rows=[own + [column[place] for column in columns] for place, own in enumerate(cells)],
        notes=[*_score_notes(table, tasks), *notes, *basis(results)],
        labels=len(LABELS),
        blocks=[str(block) for block in blocks],
    )


def difference_sheet(results: Sequence[Result], mix: Collection[str] = ()) -> Sheet:
    """Every run against the full cache on the same samples: one row a method, budget and task."""
    notes = mixture.check(results, mix)
    falling = any(result.lower_is_better for result in results)
    head = [*LABELS, "task", "samples", "times" if falling else "difference", "95 %\nfrom", "95 %\nto"]
    head += ["better", "worse", "clear"]
    # a text that was scored and not written has no length to compare
    written = any(record["finish"] != "scored" for result in results for record in result.answered)
    head += ["answer\ntokens", "longer\nby", "longer\nfrom", "longer\nto"] if written else []
    cells = []
    for row in rows(results, mix):
        for task in task_order(row.results.values()):
            full = baseline(results, row.results[task])
            if full is not None and not row.results[task].is_baseline:
                cells.append([*labelled(row), Cell(task), *_difference(row.results[task], full)][: len(head)])
    return Sheet(
        name="differences",
        title=f"{family_title(results)}: differences from the full cache",
        head=head,
        rows=cells,
        notes=[
            TIMES if falling else DIFFERENCE,
            "better, worse: samples with a better and with a worse score than under the full cache",
            f"clear: the interval excludes {int(falling)}, and enough samples differ for chance to be an unlikely "
            "reason",
            *([LONGER] if written else []),
            *notes,
            *basis(results),
        ],
        labels=len(LABELS) + 1,
        blocks=[row[1].text for row in cells],
    )


def cost_sheet(results: Sequence[Result], mix: Collection[str] = ()) -> Sheet:
    """What was held and how long it took, one row a method, budget and task."""
    notes = mixture.check(results, mix)
    head = [*LABELS, "task", "prompt\ntokens", "tokens\n/layer", "tokens\nat end", "held\nbytes", "of full"]
    head += ["bytes\nat end", "compressed", "prefill\nwork", "prefill\ns/sample", "compression\ns/sample"]
    head += ["decode\nms/token", "decode\ntokens/s"]
    cells = [
        [*labelled(row), Cell(task), *_cost(row.results[task])]
        for row in rows(results, mix)
        for task in task_order(row.results.values())
    ]
    return Sheet(
        name="costs",
        title=f"{family_title(results)}: what was held and what it cost",
        head=head,
        rows=cells,
        notes=[
            "tokens per layer and key/value head; bytes over all layers, counted from the tensors; all "
            "are means over "
            "samples, after the prompt and at the end of the answer",
            "seconds are a sample's equal share of its batch, in company of the other methods: they show "
            "what a sweep "
            "costs and do not rank methods by speed",
            *notes,
            *basis(results),
        ],
        labels=len(LABELS) + 1,
        blocks=[row[1].text for row in cells],
    )


def grid_sheet(results: Sequence[Result], field: str, mix: Collection[str] = ()) -> Sheet:
    """Scores by a value that the samples carry, such as the `length` of the prompt or the `depth` of a
    needle."""
    notes = mixture.check(results, mix)
    table = rows(results, mix)
    blocks = _blocks(table)
    values = sorted({record["meta"][field] for result in results for record in result.run.records})
    columns = []
    for value in values:
        means = [_mean_where(row, field, value) for row in table]
        marks = mark_best(means, blocks)
        columns.append([number(mean, ".2f", mark) for mean, mark in zip(means, marks, strict=True)])
    return Sheet(
        name=f"by_{field}",
        title=f"{family_title(results)}: scores by {field}",
        head=[*LABELS, "tokens\n/layer", *(f"{value:,}" for value in values)],
        rows=[
            [*labelled(row), _held(row)[0], *(column[place] for column in columns)]
            for place, row in enumerate(table)
        ],
        notes=[f"columns: {field} ({_UNITS.get(field, 'as the task gives it')})", *notes, *basis(results)],
        labels=len(LABELS),
        blocks=[str(block) for block in blocks],
    )


_UNITS = {"length": "tokens of the whole prompt", "depth": "percent of the text before the needle"}


def _blocks(table: Sequence[Row]) -> list[object]:
    """Rows that compete: those with the same budget. The full cache competes with nobody."""
    return [None if row.budget is None else row.budget for row in table]


def _held(row: Row) -> list[Cell]:
    """Tokens a layer and bytes over all layers that were held after the prompt: means over samples, then
    tasks."""
    held = [result.summary["held"] for result in row.results.values() if result.answered]
    if not held:
        return [MISSING, MISSING]
    tokens = fmean(each["tokens_after_prompt"] for each in held)
    size = fmean(each["bytes_after_prompt"] for each in held)
    return [Cell(f"{tokens:.1f}", tokens), Cell(byte_text(size), size)]


def _shown(result: Result | None) -> float | None:
    return None if result is None else result.shown


def _falls(table: Sequence[Row], task: str) -> bool:
    """Whether the lower score is the better one."""
    return any(row.results[task].lower_is_better for row in table if task in row.results)


def _marks(shown: Sequence[float | None], blocks: Sequence[object], falling: bool) -> list[str]:
    """As far as the printed digits tell."""
    if not falling:
        return mark_best(shown, blocks)
    return mark_best([None if value is None else -float(plain(value)) for value in shown], blocks, digits=9)


def _score_cell(value: float | None, mark: str, suffix: str, falling: bool) -> Cell:
    if value is None or not falling:
        return number(value, ".2f", mark, suffix)
    return Cell(plain(value) + suffix, value, mark)


def _score_column(table: Sequence[Row], task: str, blocks: Sequence[object]) -> list[Cell]:
    shown, falling = [_shown(row.results.get(task)) for row in table], _falls(table, task)
    return [
        _score_cell(value, mark, INDISTINCT if _indistinct(table, row, task) else "", falling)
        for row, value, mark in zip(table, shown, _marks(shown, blocks, falling), strict=True)
    ]


def _average_column(
    table: Sequence[Row], tasks: Sequence[str], blocks: Sequence[object], lacking: Sequence[str]
) -> list[Cell]:
    """Marked only where it is over everything that belongs to it. What rows lack is said in the cell if they
    lack different things."""
    averages = [average(row, tasks) for row in table]
    complete = [value if not note else None for value, note in averages]
    marks = _marks(complete, blocks, any(_falls(table, task) for task in tasks))
    return [
        MISSING
        if value is None
        else Cell(f"{value:.2f}{f' {note}' if len(lacking) > 1 else ''}".strip(), value, mark)
        for (value, note), mark in zip(averages, marks, strict=True)
    ]


def average(row: Row, tasks: Sequence[str]) -> tuple[float | None, str]:
    """Mean of the task scores as they are shown, and what must stand beside it if something is missing or partial."""
    points = {task: value for task in tasks if (value := _shown(row.results.get(task))) is not None}
    if not points:
        return None, ""
    if row.any.family != "longbench":
        lacking = f"partial ({len(points)} of {len(tasks)})" if len(points) < len(tasks) else ""
        return fmean(points.values()), lacking
    scores = {set_name(task): value for task, value in points.items()}
    in_part = [name for name in scores if name in SETS and _lines(row, name) < SETS[name].rows]
    average = plain_average("english_16", list(LONGBENCH_COLUMNS), scores, in_part)
    return average.value, average.note


def _lines(row: Row, set_name: str) -> int:
    return len(row.results[f"longbench/{set_name}"].run.records)


def _indistinct(table: Sequence[Row], row: Row, task: str) -> bool:
    result = row.results.get(task)
    if result is None or result.is_baseline:
        return False
    full = baseline([found for each in table for found in each.results.values()], result)
    found = full and result.against(full)
    return found is not None and not found.distinguishable


def _difference(result: Result, full: Result) -> list[Cell]:
    found = result.against(full)
    if found is None:
        return [MISSING] * 11
    lengths = paired_difference(result.answer_lengths, full.answer_lengths)
    return [
        Cell(str(found.pairs), found.pairs),
        *(_difference_cell(value, result) for value in (found.difference, found.low, found.high)),
        Cell(str(found.gained), found.gained),
        Cell(str(found.lost), found.lost),
        Cell("yes" if found.distinguishable else "no"),
        number(result.summary["new_tokens"], ".1f"),
        *(number(value, "+.1f") for value in (lengths.difference, lengths.low, lengths.high)),
    ]


def _difference_cell(value: float, result: Result) -> Cell:
    if result.lower_is_better:
        return Cell(f"×{math.exp(value):.3f}", math.exp(value))
    return number(result.scale * value, "+.2f")


def _cost(result: Result) -> list[Cell]:
    summary = result.summary
    held, answered = summary["held"], len(result.answered)
    seconds = summary["seconds"]
    tokens = sum(turn["new_tokens"] for record in result.answered for turn in turns(record))
    decode = seconds.get("decode")
    share: Callable[[str], float | None] = lambda phase: (  # noqa: E731
        seconds[phase] / answered if phase in seconds and answered else None
    )
    return [
        number(summary["prompt_tokens"], ".0f"),
        number(held["tokens_after_prompt"], ".1f"),
        number(held["tokens_at_end"], ".1f"),
        _bytes(held["bytes_after_prompt"]),
        number(held["share_of_full_bytes"], ".1%"),
        _bytes(held["bytes_at_end"]),
        Cell(f"{summary['compressed']}/{answered}"),
        number(summary["prefill_work"], ".2f"),
        number(share("prefill"), ".3f"),
        number(share("compression"), ".3f"),
        number(1000 * decode / tokens if decode and tokens else None, ".1f"),
        number(tokens / decode if decode and tokens else None, ".1f"),
    ]


def _bytes(value: float | None) -> Cell:
    return MISSING if value is None else Cell(byte_text(value), value)


def _mean_where(row: Row, field: str, value: Any) -> float | None:
    scores = [
        result.scale * record["scores"][result.metric]
        for result in row.results.values()
        for record in result.answered
        if record["meta"][field] == value and result.metric in record["scores"]
    ]
    return fmean(scores) if scores else None


def _task_head(results: Sequence[Result], task: str) -> str:
    """The column's name, with the metric under it: the same set is scored by several metrics in print."""
    metrics = sorted({result.metric for result in results if result.task == task and result.metric})
    names = (set_name(column_name(task)), "/".join(metrics))
    return "\n".join(dict.fromkeys(names))


def _score_notes(table: Sequence[Row], tasks: Sequence[str]) -> list[str]:
    falling = any(_falls(table, task) for task in tasks)
    scale = "lower is better" if falling else "scores in points from 0 to 100"
    notes = [f"{scale}; bold: best of its budget, underlined: second"]
    leads, clear = _leads(table, tasks)
    if leads:
        notes.append(
            f"the best is ahead of the second by more than chance explains in {clear} of {leads} cases"
        )
    if any(_indistinct(table, row, task) for row in table for task in row.results):
        notes.append(f"{INDISTINCT} not distinguishable from the full cache on these samples (paired, 95 %)")
    answered: dict[str, list[str]] = {}
    for task in tasks:
        counts = sorted({len(row.results[task].answered) for row in table if task in row.results})
        answered.setdefault(" or ".join(map(str, counts)), []).append(task)
    notes += [f"{counts} samples answered: {', '.join(names)}" for counts, names in answered.items()]
    others = {task: prompt for task in tasks if (prompt := _prompt(table, task)) != task}
    notes += [f"prompt of {task}: {prompt}" for task, prompt in others.items()]
    return notes


def _prompt(table: Sequence[Row], task: str) -> str:
    return next(row.results[task].prompt for row in table if task in row.results)


def _leads(table: Sequence[Row], tasks: Sequence[str]) -> tuple[int, int]:
    """Blocks' columns with a best row and a lesser one, and in how many of them the lead is beyond chance."""
    leads = clear = 0
    blocks = _blocks(table)
    for task in tasks:
        points, falling = [_shown(row.results.get(task)) for row in table], _falls(table, task)
        marks = _marks(points, blocks, falling)
        for block in dict.fromkeys(block for block in blocks if block is not None):
            places = [p for p in range(len(table)) if blocks[p] == block and points[p] is not None]
            ranked = sorted(places, key=lambda p: points[p] or 0.0, reverse=not falling)
            if len(ranked) < 2 or marks[ranked[0]] != BEST:
                continue
            leads += 1
            found = table[ranked[0]].results[task].against(table[ranked[1]].results[task])
            clear += found is not None and found.distinguishable
    return leads, clear
