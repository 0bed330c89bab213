"""The figures of the efficiency suite: memory against length, speed against batch, and scores against the bytes
that were measured.

As everywhere, what is plotted is what was measured, and a figure's bytes depend on the results alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from evaluation.drawing import finish_with, label_axes, logarithmic, looks, panels_of, plain_ticks, style
from evaluation.efficiency_points import FAMILY, Point, points_of
from evaluation.frame import Result, budget_place, budget_text
from evaluation.palette import place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEBI = 1024**2


def figures(results: Sequence[Result]) -> dict[str, Figure]:
    """Name to figure, for one group of efficiency runs; what needs two lengths or batches only where they are."""
    points = [point for point in points_of(results) if point.error is None]
    found = {
        "memory_by_length": length_figure(points),
        "tokens_by_batch": batch_figure(points),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def length_figure(points: Sequence[Point]) -> Figure | None:
    """Bytes that one sequence holds after its prompt, and the peak of its batch, against the prompt's length.

    None if there is one length only."""
    if len({point.length for point in points}) < 2:
        return None
    smallest = min((point.batch for point in points if not point.searched), default=0)
    shown = [point for point in points if point.batch == smallest and not point.searched]
    figure, (left, right) = panels_of(2, (4.6, 3.4))
    with style():
        _draw(left, shown, lambda p: p.length, lambda p: _mebibytes(p.bytes("bytes_after_prompt")))
        _draw(right, shown, lambda p: p.length, lambda p: _mebibytes(p.peak("prompt")))
        left.set(title="held after the prompt", ylabel="MiB")
        right.set(title="peak above the weights, while reading")
        label_axes([left, right], f"prompt (tokens), batch of {smallest}", "")
        for axes in (left, right):
            axes.set_ylim(bottom=0)
        _finish(figure, "Memory against the prompt's length", shown)
    return figure


def batch_figure(points: Sequence[Point]) -> Figure | None:
    """New tokens a second against the batch: one panel a prompt and answer length, searched batches included.

    None if there is one batch only."""
    sizes = sorted({(point.length, point.new) for point in points})
    by_size = {size: [p for p in points if (p.length, p.new) == size] for size in sizes}
    panels_for = {size: shown for size, shown in by_size.items() if len({p.batch for p in shown}) > 1}
    if not panels_for:
        return None
    figure, panels = panels_of(len(panels_for), (3.6, 3.0))
    with style():
        for axes, ((length, new), shown) in zip(panels, panels_for.items(), strict=True):
            _draw(axes, shown, lambda p: p.batch, lambda p: p.tokens_per_second)
            axes.set_title(f"{length} + {new} tokens")
            axes.set_xscale("log", base=2)
            axes.set_ylim(bottom=0)
            plain_ticks(axes)
        label_axes(panels, "batch (prompts)", "new tokens a second")
        _finish(figure, "Throughput against the batch", [p for shown in panels_for.values() for p in shown])
    return figure


def quality_figure(results: Sequence[Result]) -> Figure | None:
    """Scores of other tasks against the bytes that the efficiency runs measured of the same model, method and budget:
    one panel a task. None if no two runs are of the same kind.

    Bytes are those of one sequence at the longest measured prompt, so that all tasks have one axis."""
    joined = joined_runs(results)
    tasks = sorted({quality.task for quality, _ in joined})
    if not tasks:
        return None
    figure, panels = panels_of(len(tasks), (3.6, 3.0))
    with style():
        for axes, task in zip(panels, tasks, strict=True):
            mine = [pair for pair in joined if pair[0].task == task]
            for method, pairs in groupby(mine, key=lambda pair: pair[0].method):
                line = sorted(
                    (_sequence_bytes(point) / MEBI, quality.score or 0.0) for quality, point in pairs
                )
                axes.plot([x for x, _ in line], [y for _, y in line], **looks(method))
            axes.set_title(f"{task} ({mine[0][0].metric})".replace("_", " "))
            axes.set_xscale("log", base=2)
            plain_ticks(axes)
            if mine[0][0].lower_is_better:
                logarithmic(axes)
        length = max(point.length for _, point in joined)
        label_axes(panels, f"held after {length} tokens (MiB)", "score")
        _finish(figure, "Quality against measured bytes", [point for _, point in joined])
    return figure


def joined_runs(results: Sequence[Result]) -> list[tuple[Result, Point]]:
    """Each run of another task with the efficiency point of the same model, method and budget at the longest prompt,
    in the order of methods and budgets."""
    points: dict[str, Point] = {}
    for point in points_of([result for result in results if result.family == FAMILY]):
        if point.error is None and not point.stock:
            longest = points.get(_kind(point.result))
            if longest is None or point.length > longest.length:
                points[_kind(point.result)] = point
    pairs = [
        (result, points[_kind(result)])
        for result in results
        if result.family != FAMILY and result.score is not None and _kind(result) in points
    ]
    length = max((point.length for _, point in pairs), default=0)
    alike = [pair for pair in pairs if pair[1].length == length]
    return sorted(alike, key=lambda pair: (pair[0].task, place(pair[0].method), budget_place(pair[0].budget)))


def _kind(result: Result) -> str:
    """What a quality run and an efficiency run have in common."""
    spec = result.run.spec
    return json.dumps(
        [spec.model, spec.method, spec.budget, spec.protocol.get("cache_heads")], sort_keys=True
    )


def _sequence_bytes(point: Point) -> float:
    size = point.bytes("bytes_after_prompt")
    assert size is not None
    return size / point.batch


def _draw(
    axes: Axes,
    points: Sequence[Point],
    x: Callable[[Point], float],
    y: Callable[[Point], float | None],
) -> None:
    """One line a method and budget, its budget at its end."""

    def line_of(point: Point) -> tuple[Any, ...]:
        return place(point.method), budget_place(point.budget)

    for _, line in groupby(sorted(points, key=lambda p: (line_of(p), x(p), p.searched)), key=line_of):
        drawn = [point for point in line if y(point) is not None]
        if not drawn:
            continue
        places, heights = [x(point) for point in drawn], [y(point) or 0.0 for point in drawn]
        axes.plot(places, heights, **looks(drawn[0].method))
        end = (places[-1], heights[-1])
        text = budget_text(drawn[0].budget)
        axes.annotate(text, end, (6, 0), textcoords="offset points", verticalalignment="center", fontsize=8)


def _mebibytes(size: int | None) -> float | None:
    return None if size is None else size / MEBI


def _finish(figure: Figure, title: str, points: Sequence[Point]) -> None:
    finish_with(figure, title, sorted({point.method for point in points}, key=place))
