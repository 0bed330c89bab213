"""What all figures share: their style, their panels, their legends, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.frame import Result
from evaluation.palette import GRID, INK, QUIET, look, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS_ACROSS = 4
DASHED = (0, (4, 1.5))
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """Within it, figures look the same whatever the user's own settings are."""
    import matplotlib
    import matplotlib.style

    with matplotlib.style.context("default"), matplotlib.rc_context(STYLE):
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write `path` as .png and as .pdf, free of dates and versions, and return the files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(".png"), path.with_suffix(".pdf")]
    with style():
        figure.savefig(files[0], dpi=160, metadata={"Software": None})
        figure.savefig(files[1], metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return files


def panels_of(
    count: int, size: tuple[float, float], *, sharey: bool = False, across: int = PANELS_ACROSS
) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels of this size in inches, and room for a legend."""
    from matplotlib.figure import Figure

    across = min(count, across)
    down = math.ceil(count / across)
    with style():
        width = max(size[0] * across, 4.6)
        figure = Figure(figsize=(width, size[1] * down + 0.9), layout="constrained", facecolor="white")
        grid = figure.subplots(down, across, squeeze=False, sharey=sharey)
    panels = list(grid.flat)
    for axes in panels[count:]:
        axes.remove()
    return figure, panels[:count]


def finish(figure: Figure, title: str, results: Sequence[Result], level: str | None = None) -> None:
    """Title above, one legend of the results' methods below.

    level: the method that is drawn as a level line, by `looks_of_level`."""
    finish_with(figure, title, sorted({result.method for result in results}, key=place), level)


def write_title(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")


def finish_with(figure: Figure, title: str, methods: Sequence[str], level: str | None = None) -> None:
    """Title above, one legend of these methods below; `level` as for `finish`."""
    from matplotlib.lines import Line2D

    write_title(figure, title)
    drawn = {name: looks_of_level(name) if name == level else looks(name) for name in methods}
    handles = [Line2D([], [], label=look(name).label, **how) for name, how in drawn.items()]
    columns = max(1, min(len(methods), int(figure.get_figwidth() / 1.35)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8.5)


def looks(method: str) -> dict[str, Any]:
    return {"color": look(method).colour, "marker": look(method).marker, "markersize": 4, "linewidth": 1.6}


def looks_of_level(method: str) -> dict[str, Any]:
    return {"color": look(method).colour, "linestyle": DASHED, "linewidth": 1.2}


def label_axes(panels: Sequence[Axes], x: str, y: str) -> None:
    """What the axes show, below the lowest panel of each column and left of the first of each row."""
    for number, axes in enumerate(panels):
        if number + PANELS_ACROSS >= len(panels):
            axes.set_xlabel(x)
        if number % PANELS_ACROSS == 0:
            axes.set_ylabel(y)


def nested(lines: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """How to draw each method's line such that all can be seen, those too which lie on top of one another.

    lines: method to its values; lines that differ by less than a twentieth get different widths and places of
    their marks."""
    found = {}
    for method, values in lines.items():
        twins = [name for name, others in lines.items() if _alike(values, others)]
        number = twins.index(method)
        extra = {"linewidth": 1.6 + 1.5 * (len(twins) - 1 - number), "markersize": 5}
        found[method] = looks(method) | extra | {"markevery": (number % len(values), max(2, len(twins)))}
    return found


def _alike(first: Sequence[float], second: Sequence[float]) -> bool:
    return len(first) == len(second) and all(map(partial(math.isclose, rel_tol=0.05), first, second))


def logarithmic(axes: Axes) -> None:
    """A logarithmic vertical axis with numbers as people write them, however little of a decade it spans."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    wide = high > 8 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def plain_ticks(axes: Axes) -> None:
    """Numbers as people write them on an axis of powers of two."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
