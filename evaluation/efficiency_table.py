"""The tables of the efficiency suite: speed, memory, what the engine costs beside transformers' own loop, and
the search for the largest batch.

Numbers are medians over the repeated calls, with their spread beside them; what was not measured is a dash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from evaluation import mixture
from evaluation.efficiency_points import Point, Spread, paired, peer, points_of
from evaluation.frame import BASELINE, Result, budget_text
from evaluation.palette import STOCK
from evaluation.sheet import MISSING, Cell, Sheet, byte_text, number, print_sheet
from evaluation.table_rows import basis, named

LABELS = ("prompt", "new", "batch", "method", "budget")
MILLI = 1000.0
EXHAUSTED = "memory exhausted"


def sheets(results: Sequence[Result], mix: Collection[str] = ()) -> list[Sheet]:
    """All tables of efficiency runs, those without rows left out. Errors: ValueError for runs that must not
    be mixed."""
    common = [*mixture.check(results, mix), *_machines(points_of(results)), *basis(results)]
    return [replace(sheet, notes=[*sheet.notes, *common]) for sheet in _sheets(results)]


def print_sheets(results: Sequence[Result], file: TextIO) -> None:
    """Print the tables, and once beneath them what they rest on."""
    for sheet in _sheets(results):
        print_sheet(sheet, file)
    for note in [*_machines(points_of(results)), *basis(results)]:
        print(note, file=file)


def _sheets(results: Sequence[Result]) -> list[Sheet]:
    points = points_of(results)
    found = [_speed(points), _memory(points), _overhead(points), _search(points)]
    return [sheet for sheet in found if sheet.rows]


def _speed(points: Sequence[Point]) -> Sheet:
    head = ["first\ntoken s", "prefill\ns", "compr.\ns", "step\nms", "spread", "floor\nms", "step\n/floor"]
    head += ["new\ntokens/s", "requests\n/s", "tokens/s\n× stock", "steps/s\n× FullKV"]
    return Sheet(
        name="speed",
        title="Efficiency: speed",
        head=[*LABELS, *head],
        rows=[[*_labelled(point), *_speed_cells(point, points)] for point in points],
        notes=[
            "seconds are those of the whole batch; a step gives every answer of it one more token",
            "first token: from the call until its logits are there; prefill: the same without compression",
            "spread: of the step, (most - least) / median over the repeated calls",
            "floor: what a step would take if it only read weights and cache once, at the measured speed of copying",
            "new tokens/s, requests/s: over the whole time, prompts included in the time and not in the tokens",
            "× stock, × FullKV: as often as transformers' own generate(), as FullKV through this engine, at the "
            "same place",
            *_failures(points),
        ],
        labels=len(LABELS),
        blocks=[point.place for point in points],
    )


def _speed_cells(point: Point, points: Sequence[Point]) -> list[Cell]:
    if point.error is not None:
        return [_outcome(point.error), *[MISSING] * 10]
    step, floor = point.step, point.expected("step_seconds")
    return [
        _seconds(point.first_token),
        _seconds(point.prefill),
        MISSING if point.stock else _seconds(point.compression),
        number(step and MILLI * step.median, ".2f"),
        number(step and step.relative, ".0%"),
        number(floor and MILLI * floor, ".2f"),
        number(step and floor and step.median / floor, ".2f"),
        number(point.tokens_per_second, ".1f"),
        number(point.requests_per_second, ".3f"),
        number(_times(point, peer(point, STOCK, points), lambda p: p.tokens_per_second), ".2f"),
        number(_times(point, peer(point, BASELINE, points), _steps_per_second), ".2f"),
    ]


def _memory(points: Sequence[Point]) -> Sheet:
    head = ["held after\nprompt", "held\nat end", "arithmetic", "of full,\nafter", "of full,\nat end"]
    head += ["of full,\nanswer", "allocated\nat end", "peak,\nprompt", "peak,\nanswer"]
    return Sheet(
        name="memory",
        title="Efficiency: memory",
        head=[*LABELS, *head],
        rows=[[*_labelled(point), *_memory_cells(point)] for point in points],
        notes=[
            "held: bytes of the cache's tensors for the whole batch; allocated: of the memory behind them, with its "
            "free room",
            "arithmetic: whether what is held is to the byte what shape, budget and lengths say",
            "of full: held against what FullKV holds of the same sequences, after the prompt, at the end, and on "
            "average over the answer's steps",
            "peak: the highest use above the weights while the prompt is read and while the answer is given",
        ],
        labels=len(LABELS),
        blocks=[point.place for point in points],
    )


def _memory_cells(point: Point) -> list[Cell]:
    if point.error is not None:
        return [_outcome(point.error), *[MISSING] * 8]
    after, end = point.bytes("bytes_after_prompt"), point.bytes("bytes_at_end")
    full = point.full_bytes
    assert after is not None and end is not None and full is not None
    return [
        _bytes(after),
        _bytes(end),
        _agrees(point, after, end),
        number(after / full[0], ".1%"),
        number(end / full[1], ".1%"),
        number((after + end) / sum(full), ".1%"),
        _bytes(point.bytes("allocated_at_end")),
        _bytes(point.peak("prompt")),
        _bytes(point.peak("answer")),
    ]


def _agrees(point: Point, after: int, end: int) -> Cell:
    """Of transformers' cache, which has no arithmetic of its own, FullKV's is asked for."""
    theory = point.measured.get("theory", {})
    pairs = [(theory.get("bytes_after_prompt"), after), (theory.get("bytes_at_end"), end)]
    known = [(paper, held) for paper, held in pairs if paper is not None]
    if not known or (point.stock and point.searched):
        return MISSING
    return Cell("exact" if all(paper == held for paper, held in known) else "differs")


def _overhead(points: Sequence[Point]) -> Sheet:
    """FullKV through the engine against transformers' own loop, round by round."""
    pairs = [(point, stock) for point in points if (stock := _turns_taken(point, points)) is not None]
    head = [
        "prefill",
        "least",
        "most",
        "step",
        "least",
        "most",
        "whole\ncall",
        "least",
        "most",
        "same\nanswers",
    ]
    measures: list[Callable[[Mapping[str, Any]], float]] = [
        lambda trial: trial["first_token"],
        lambda trial: trial["answer"],
        lambda trial: trial["first_token"] + trial["answer"],
    ]
    rows = []
    for point, stock in pairs:
        cells = [*_labelled(point)[:3]]
        for measure in measures:
            ratio = paired(point, stock, measure)
            assert ratio is not None
            cells += [number(value, ".3f") for value in (ratio.median, ratio.least, ratio.most)]
        rows.append([*cells, number(point.measured["agree"], ".0%")])
    return Sheet(
        name="engine_overhead",
        title="Efficiency: FullKV through the engine against transformers' generate()",
        head=[*LABELS[:3], *head],
        rows=rows,
        notes=[
            "the engine's seconds over those of transformers' own loop, which took turns in one process: median, "
            "least and most over the rounds; below 1 the engine is faster",
            "same answers: prompts to which both gave the same tokens",
        ],
        labels=3,
    )


def _turns_taken(point: Point, points: Sequence[Point]) -> Point | None:
    """The point of transformers' generate() that took turns with this one."""
    twins = (other for other in points if other.stock and other.record is point.record)
    other = next(twins, None) if point.method == BASELINE and not point.stock else None
    together = other is not None and paired(point, other, lambda trial: trial["answer"]) is not None
    return other if together else None


def _search(points: Sequence[Point]) -> Sheet:
    """The largest batch of everybody for whom it was searched."""
    searched = [point for point in points if point.searched]
    return Sheet(
        name="largest_batch",
        title="Efficiency: the largest batch before memory is exhausted",
        head=[
            "prompt",
            "new",
            "method",
            "budget",
            "largest\nbatch",
            "memory\nexhausted at",
            "ms/token",
            "tokens/s",
        ],
        rows=[
            [
                Cell(f"{point.length}", point.length),
                Cell(f"{point.new}", point.new),
                *_named(point),
                number(None if point.error else point.batch, "d"),
                number(_first_failure(point), "d"),
                number(point.total and MILLI * point.total.median / (point.batch * point.new), ".3f"),
                number(point.tokens_per_second, ".1f"),
            ]
            for point in searched
        ],
        notes=["ms/token: of the whole call, by new tokens of all answers"],
        labels=4,
    )


def _first_failure(point: Point) -> int | None:
    tries = point.found.get("search") or point.measured.get("search") or []
    return min((each["batch"] for each in tries if not each["fits"]), default=None)


def _labelled(point: Point) -> list[Cell]:
    batch = f"{point.batch} (largest)" if point.searched else f"{point.batch}"
    place = [Cell(f"{point.length}", point.length), Cell(f"{point.new}", point.new), Cell(batch, point.batch)]
    return [*place, *_named(point)]


def _named(point: Point) -> list[Cell]:
    budget = budget_text(point.budget)
    apart = named({k: v for k, v in point.result.run.spec.method.items() if k == "preset" and v})
    return [Cell(f"{point.label} {apart}".removesuffix(" nothing")), Cell(budget) if budget else MISSING]


def _times(point: Point, other: Point | None, rate: Callable[[Point], float | None]) -> float | None:
    mine, theirs = rate(point), other and rate(other)
    return mine / theirs if mine and theirs else None


def _steps_per_second(point: Point) -> float | None:
    return None if point.step is None else 1 / point.step.median


def _seconds(spread: Spread | None) -> Cell:
    return number(spread and spread.median, ".3f")


def _bytes(value: int | None) -> Cell:
    return MISSING if value is None else Cell(byte_text(value), value)


def _outcome(error: str) -> Cell:
    return Cell(error if error == EXHAUSTED else "failed")


def _failures(points: Sequence[Point]) -> list[str]:
    """Why points have no numbers, where memory was not the reason."""
    return [
        f"failed: {point.label} {budget_text(point.budget)} at {point.record['id']}: {point.error}"
        for point in points
        if point.error not in (None, EXHAUSTED)
    ]


def _machines(points: Sequence[Point]) -> list[str]:
    """What was measured on, each machine once."""
    found: dict[str, None] = {}
    for point in points:
        if not (machine := point.machine):
            continue
        versions = named({name: value for name, value in machine["versions"].items() if value is not None})
        gpu = machine["gpu"] or {}
        state = {name: gpu[name] for name in ("driver", "power_limit_watts") if gpu.get(name) is not None}
        parts = [
            machine["device"],
            f"{machine['threads']} threads",
            versions,
            *([named(state)] if state else []),
        ]
        kinds = f"attention kernel {point.measured['kernel']}, {point.measured['dtype']}"
        found[f"measured on {', '.join(parts)}; {kinds}; peaks are {machine['peaks_are']}"] = None
    loads = [point.machine["load_before"] for point in points if point.machine]
    busy = f"load of the machine when each point began: {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    return [*found, *([busy] if busy else [])]
