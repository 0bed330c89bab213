"""The figure of the needle test: depth by length, one colour a cell, and the numbers behind it."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from needle.needles import HEADLINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cells = Mapping[tuple[float, int], float | None]  # (depth, length) to score, None where it is not known

COLOURS = "viridis"  # reads with every kind of colour vision, and in grey
INK, QUIET, UNKNOWN = "#22252b", "#6b7078", "#e4e4e4"
ANNOTATED = 12  # a grid with more rows or columns than this shows colours only
TICKS = 15  # most labels along an axis


def draw(
    records: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    metric: str = HEADLINE,
    title: str = "Needle in a haystack",
) -> list[Path]:
    """Write heatmap.png and heatmap.csv into `folder` and return both; nothing if no record has a score.

    The figure's bytes depend on the records alone. The csv has one row a cell: depth, length, `metric`, the
    last left empty in cells without a record."""
    cells = _cells(records, metric)
    if not any(score is not None for score in cells.values()):
        return []
    table, picture = folder / "heatmap.csv", folder / "heatmap.png"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["depth", "length", metric])
        writer.writerows([f"{depth:g}", length, score] for (depth, length), score in cells.items())
    import matplotlib.style

    with matplotlib.style.context("default"):
        figure = _figure(cells, metric.replace("_", " "), title)
        figure.savefig(picture, dpi=150, metadata={"Software": None})
    return [table, picture]


def _cells(records: Sequence[Mapping[str, Any]], metric: str) -> Cells:
    """Mean score of every cell, ordered by depth, then length."""
    found: dict[tuple[float, int], list[float]] = defaultdict(list)
    for record in records:
        scores = found[record["meta"]["depth"], record["meta"]["length"]]
        if metric in record["scores"]:
            scores.append(record["scores"][metric])
    depths = sorted({depth for depth, _ in found})
    lengths = sorted({length for _, length in found})
    return {
        (depth, length): fmean(found[depth, length]) if found[depth, length] else None
        for depth in depths
        for length in lengths
    }


def _figure(cells: Cells, metric: str, title: str) -> Figure:
    from matplotlib.figure import Figure

    depths = sorted({depth for depth, _ in cells})
    lengths = sorted({length for _, length in cells})
    grid = [[math.nan if (score := cells[d, n]) is None else score for n in lengths] for d in depths]
    annotated = max(len(depths), len(lengths)) <= ANNOTATED
    width, height = _size(len(lengths), len(depths), annotated)
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.set_facecolor(UNKNOWN)
    image = axes.pcolormesh(
        grid, cmap=COLOURS, vmin=0, vmax=1, edgecolors="white", linewidth=1.5 if annotated else 0.25
    )
    if annotated:
        _write_scores(axes, grid)
    _label_axes(axes, depths, lengths)
    _write_title(axes, cells, metric, title)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=22, ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(length=0, labelsize=9, labelcolor=INK)
    bar.set_label(metric, color=INK, fontsize=10)
    return figure


def _size(columns: int, rows: int, annotated: bool) -> tuple[float, float]:
    """Inches, such that a small grid has room for its numbers and a large one fits a page's width."""
    cell = (0.85, 0.55) if annotated else (0.16, 0.3)
    return 2.4 + min(max(columns * cell[0], 3.2), 16), 1.6 + min(max(rows * cell[1], 1.4), 9)


def _write_scores(axes: Axes, grid: Sequence[Sequence[float]]) -> None:
    for row, scores in enumerate(grid):
        for column, score in enumerate(scores):
            text = "–" if math.isnan(score) else f"{score:.2f}"
            colour = QUIET if math.isnan(score) else "white" if score < 0.55 else INK
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9, color=colour)


def _label_axes(axes: Axes, depths: Sequence[float], lengths: Sequence[int]) -> None:
    columns, rows = _shown(len(lengths)), _shown(len(depths))
    axes.set_xticks([column + 0.5 for column in columns], [f"{lengths[column]:,}" for column in columns])
    axes.set_yticks([row + 0.5 for row in rows], [f"{depths[row]:g} %" for row in rows])
    axes.invert_yaxis()
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.set_xlabel("prompt length (tokens)", color=INK, fontsize=10)
    axes.set_ylabel("depth of the needle", color=INK, fontsize=10)
    axes.spines[:].set_visible(False)


def _shown(count: int) -> range:
    """Which rows or columns get a label: all, or every second, fifth, tenth and so on."""
    for step in (1, 2, 5, 10, 20, 50, 100):
        if count / step <= TICKS:
            return range(0, count, step)
    return range(0, count, math.ceil(count / TICKS))


def _write_title(axes: Axes, cells: Cells, metric: str, title: str) -> None:
    known = [score for score in cells.values() if score is not None]
    count = f"{len(known)} of {len(cells)}" if len(known) < len(cells) else len(known)
    mean = f"mean {metric} {fmean(known):.3f} over {count} cell{'s' * (len(cells) > 1)}"
    axes.set_title(f"{title}\n", loc="left", color=INK, fontsize=12, fontweight="bold")
    axes.text(0, 1.02, mean, transform=axes.transAxes, ha="left", va="bottom", color=QUIET, fontsize=10)
