"""The figures of a paper, made from runs: scores against what is held, memory, time, and the shape over
layers.

Every figure is a function from results to a matplotlib Figure, and its bytes depend on the results alone.
What is plotted is what was measured, never a nominal budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from evaluation import efficiency_figures
from evaluation.drawing import (
    finish,
    label_axes,
    logarithmic,
    looks,
    looks_of_level,
    nested,
    panels_of,
    plain_ticks,
    style,
    write_title,
)
from evaluation.efficiency_points import FAMILY
from evaluation.frame import BASELINE, Result, budget_place, budget_text
from evaluation.palette import QUIET, look, place
from evaluation.report import average
from evaluation.summary import turns
from evaluation.table_rows import Row, column_name, family_title, rows, task_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEBI = 1024**2
_SCALES = {"tokens": (1, "tokens_after_prompt"), "bytes": (MEBI, "bytes_after_prompt")}


def figures(results: Sequence[Result]) -> dict[str, Figure]:
    """Name to figure, for one group of runs that may stand together."""
    if results[0].family == FAMILY:
        return efficiency_figures.figures(results)
    found = {
        "score_by_tokens": score_figure(results, "tokens"),
        "score_by_bytes": score_figure(results, "bytes"),
        "memory": memory_figure(results),
        "time": time_figure(results),
        "layers": layer_figure(results),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def score_figure(results: Sequence[Result], against: str) -> Figure | None:
    """Score with its interval against `tokens` or `bytes` held after the prompt: one panel a task, one line
    a method. Scores without a scale, of which the lower is the better, stand on a logarithmic axis.

    None if nothing but the full cache was run."""
    assert against in ("tokens", "bytes")
    tasks = task_order(results)
    shown = [result for result in results if result.answered and result.score is not None]
    if all(result.is_baseline for result in shown):
        return None
    averaged, falling = len(tasks) > 1, any(result.lower_is_better for result in shown)
    figure, panels = panels_of(len(tasks) + averaged, (3.4, 2.7))
    with style():
        for axes, task in zip(panels, tasks, strict=False):
            mine = [result for result in shown if result.task == task]
            _draw_points(axes, [_point(result, against) for result in mine], falling)
            name, metric = column_name(task), _metric(mine)
            axes.set_title(name if name == metric else f"{name} ({metric})")
        if averaged:
            _draw_points(panels[-1], _average_points(rows(shown), tasks, against), falling)
            panels[-1].set_title(_average_title(rows(shown), tasks))
        unit = "tokens per layer" if against == "tokens" else "MiB, all layers"
        score = f"{_metric(shown)} (lower is better)" if falling else "score (points)"
        label_axes(panels, f"held after the prompt ({unit})", score)
        finish(figure, f"{family_title(results)}: score against what is held", results, level=BASELINE)
    return figure


def memory_figure(results: Sequence[Result]) -> Figure | None:
    """Bytes held after the prompt against the prompt's length, and how they grow during the answer."""
    answered = [result for result in results if result.answered]
    if not answered:
        return None
    figure, (left, right) = panels_of(2, (4.6, 3.4))
    with style():
        _memory_panel(left, answered)
        left.set(
            xlabel="prompt (tokens)",
            ylabel="held after the prompt (MiB)",
            title="Memory; numbers are budgets",
        )
        left.set_ylim(bottom=0)
        for method, points in _lines(
            answered, lambda r: r.summary["held"]["tokens_after_prompt"], _grown
        ).items():
            _plot(right, method, points)
        right.set(
            xlabel="held after the prompt (tokens per layer)",
            ylabel="added (tokens per layer)",
            title="Tokens that the answer adds",
        )
        right.axhline(0, color=QUIET, linewidth=0.8)
        right.set_xscale("log", base=2)
        plain_ticks(right)
        finish(figure, f"{family_title(results)}: memory", results)
    return figure


def time_figure(results: Sequence[Result]) -> Figure | None:
    """Seconds a sample for prefill and compression, milliseconds a token for decoding: one bar a method and
    budget."""
    table = [row for row in rows(results) if all(result.answered for result in row.results.values())]
    if not table:
        return None
    figure, panels = panels_of(3, (3.3, 0.9 + 0.26 * len(table)), sharey=True)
    titles = ("prefill (s a sample)", "compression (s a sample)", "decoding (ms a token)")
    with style():
        for axes, title, phase in zip(panels, titles, ("prefill", "compression", "decode"), strict=True):
            colours = [look(row.any.method).colour for row in table]
            axes.barh(range(len(table)), [_time(row, phase) for row in table], color=colours, height=0.72)
            axes.set_title(title)
            axes.grid(visible=False, axis="y")
            axes.spines["left"].set_visible(False)
            axes.tick_params(axis="y", length=0)
        panels[0].set_yticks(
            range(len(table)), [f"{row.label} {budget_text(row.budget)}".strip() for row in table]
        )
        panels[0].invert_yaxis()
        note = "each sample's equal share of its batch, in company: no ranking of methods by speed"
        figure.supxlabel(note, fontsize=8, color=QUIET)
        write_title(figure, f"{family_title(results)}: time")
    return figure


def layer_figure(results: Sequence[Result]) -> Figure | None:
    """Tokens kept in each layer after the prompt, one panel a budget: the pyramid itself."""
    from matplotlib.ticker import MaxNLocator

    shown = [result for result in results if result.answered and not result.is_baseline]
    budgets = sorted({result.budget for result in shown}, key=budget_place)
    if not budgets:
        return None
    figure, panels = panels_of(len(budgets), (3.3, 2.7))
    with style():
        for axes, budget in zip(panels, budgets, strict=True):
            kept = _kept_by_layer([result for result in shown if result.budget == budget])
            for method, drawn in nested(kept).items():
                axes.plot(range(1, len(kept[method]) + 1), kept[method], drawstyle="steps-mid", **drawn)
            axes.set_title(f"budget {budget_text(budget) or 'none'}")
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        label_axes(panels, "layer, from the input up", "tokens kept per kv head")
        finish(figure, f"{family_title(results)}: tokens kept in each layer", shown)
    return figure


@dataclass(frozen=True, kw_only=True)
class _Point:
    """One mark: tokens or MiB held, score and interval as they are shown; a line joins those of one method."""

    method: str
    budget: int | float | None
    at: float
    score: float
    interval: tuple[float, float] | None = None


def _point(result: Result, against: str) -> _Point:
    scale, field = _SCALES[against]
    return _Point(
        method=result.method,
        budget=result.budget,
        at=result.summary["held"][field] / scale,
        score=result.shown or 0.0,
        interval=result.shown_interval,
    )


def _average_points(table: Sequence[Row], tasks: Sequence[str], against: str) -> list[_Point]:
    scale, field = _SCALES[against]
    points = []
    for row in table:
        score, _ = average(row, tasks)
        at = fmean(result.summary["held"][field] for result in row.results.values()) / scale
        if score is not None:
            points.append(_Point(method=row.any.method, budget=row.budget, at=at, score=score))
    return points


def _average_title(table: Sequence[Row], tasks: Sequence[str]) -> str:
    """Says so if the average lacks anything in any row."""
    return "average, partial" if any(average(row, tasks)[1] for row in table) else "average"


def _draw_points(axes: Axes, points: Sequence[_Point], falling: bool) -> None:
    for point in points:
        if point.method == BASELINE:
            axes.axhline(point.score, **looks_of_level(BASELINE))
            if point.interval is not None:
                axes.axhspan(*point.interval, color=look(BASELINE).colour, alpha=0.07, linewidth=0)
    others = sorted((p for p in points if p.method != BASELINE), key=lambda p: (place(p.method), p.at))
    for method, line in groupby(others, key=lambda point: point.method):
        mine = list(line)
        axes.plot([p.at for p in mine], [p.score for p in mine], **looks(method))
        for point in mine:
            if point.interval is not None:
                axes.plot([point.at] * 2, point.interval, color=look(method).colour, linewidth=1, alpha=0.55)
    low, high = axes.get_ylim()
    if falling:
        logarithmic(axes)
    elif high - low < 1:
        axes.set_ylim(low - 1, high + 1)
    axes.set_xscale("log", base=2)
    _ticks_at(axes, others)


def _ticks_at(axes: Axes, points: Sequence[_Point]) -> None:
    """One tick a budget, at the mean of what the methods hold, some a little more, some less."""
    from matplotlib.ticker import NullLocator

    held: dict[int | float | None, list[float]] = {}
    for point in points:
        held.setdefault(point.budget, []).append(point.at)
    ticks = sorted(fmean(values) for values in held.values())
    axes.set_xticks(ticks, [f"{tick:.3g}" if tick < 100 else f"{tick:.0f}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _memory_panel(axes: Axes, results: Sequence[Result]) -> None:
    """One line a method and budget; the budgets are written beside them."""
    cells = _by_cell(results)
    for budget in sorted({budget for _, budget in cells}, key=budget_place):
        points = {
            method: _means(group, "prompt_tokens", "bytes_after_prompt")
            for (method, its_budget), group in cells.items()
            if its_budget == budget
        }
        sizes = {method: [size / MEBI for size in line.values()] for method, line in points.items()}
        for method, drawn in nested(sizes).items():
            axes.plot(list(points[method]), sizes[method], **drawn)
        method = list(points)[-1]
        end = (max(points[method]), sizes[method][-1])
        axes.annotate(
            budget_text(budget),
            end,
            (8, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=8,
        )


def _kept_by_layer(results: Sequence[Result]) -> dict[str, list[float]]:
    """Method to the tokens kept in each layer, as a mean over tasks."""
    found = {}
    for method in sorted({result.method for result in results}, key=place):
        held = [r.summary["held"]["tokens_after_prompt_per_layer"] for r in results if r.method == method]
        found[method] = [fmean(layer) for layer in zip(*held, strict=True)]
    return found


def _plot(axes: Axes, method: str, points: Sequence[tuple[float, float]]) -> None:
    axes.plot([x for x, _ in points], [y for _, y in points], **looks(method))


def _lines(
    results: Sequence[Result], x: Callable[[Result], float], y: Callable[[Result], float]
) -> dict[str, list[tuple[float, float]]]:
    """Method to points, each the mean over the tasks of one budget."""
    found: dict[str, list[tuple[float, float]]] = {}
    for (method, _), group in _by_cell(results).items():
        found.setdefault(method, []).append((fmean(map(x, group)), fmean(map(y, group))))
    return {method: sorted(points) for method, points in found.items()}


def _grown(result: Result) -> float:
    held = result.summary["held"]
    return held["tokens_at_end"] - held["tokens_after_prompt"]


def _by_cell(results: Sequence[Result]) -> dict[tuple[str, int | float | None], list[Result]]:
    found: dict[tuple[str, int | float | None], list[Result]] = {}
    for result in sorted(results, key=lambda r: (place(r.method), budget_place(r.budget))):
        found.setdefault((result.method, result.budget), []).append(result)
    return found


def _means(results: Sequence[Result], x: str, y: str) -> dict[float, float]:
    """The mean of one field of the records for every value of another, in ascending order."""
    found: dict[float, list[float]] = {}
    for result in results:
        for record in result.answered:
            found.setdefault(record[x], []).append(record[y])
    return {value: fmean(found[value]) for value in sorted(found)}


def _metric(results: Sequence[Result]) -> str:
    return " / ".join(sorted({result.metric for result in results if result.metric})).replace("_", " ")


def _time(row: Row, phase: str) -> float:
    """Seconds a sample, or for `decode` milliseconds a new token."""
    records = [record for result in row.results.values() for record in result.answered]
    seconds = math.fsum(record["seconds"].get(phase, 0.0) for record in records)
    if phase == "decode":
        return (
            1000 * seconds / max(1, sum(turn["new_tokens"] for record in records for turn in turns(record)))
        )
    return seconds / len(records)
