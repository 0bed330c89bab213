"""What a person sees of a sweep while it runs: cells, samples and the time left, on a terminal's standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def shown() -> bool:
    """Whether anybody can see a bar: standard error is a terminal."""
    return sys.stderr.isatty()


class Progress:
    """Shows nothing. What computes tells it how far it is, whether somebody looks or not."""

    @contextmanager
    def sweep(self, cells: Sequence[int]) -> Iterator[None]:
        """Args: cells: how many each company has to compute."""
        yield

    def company(self, name: str, cells: int) -> None:
        """The next cells, which are computed together, begin."""

    def samples(self, total: int) -> None:
        """They have so many samples."""

    def advance(self, count: int) -> None:
        """So many more of them are answered."""


class Bars(Progress):
    """A bar for the samples of the cells in company, and where there are more companies one for all cells.

    The time left for a sweep takes every cell for as long as the cells so far; it is about right where tasks are alike.
    console: rich's, standard error by default; clock: seconds."""

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self.clock = clock
        self.cells, self.ahead, self.done = 0, 0, 0.0

    @contextmanager
    def sweep(self, cells: Sequence[int]) -> Iterator[None]:
        from rich import progress

        total, pending = sum(cells), [number for number in cells if number]
        self.done, self.cells, self.started = 0.0, 0, self.clock()
        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[count]}"),
            progress.TextColumn("{task.fields[left]}"),
        )
        with progress.Progress(*columns, console=self.console, transient=True) as self.bars:
            self.whole = self.bars.add_task("sweep", total=total, count="", left="", visible=len(pending) > 1)
            self.part = self.bars.add_task("", total=None, count="", left="")
            yield

    def company(self, name: str, cells: int) -> None:
        self._finish()
        self.cells = cells
        self.bars.update(self.part, description=name, total=None, completed=0, count="loading", left="")
        self._show()

    def samples(self, total: int) -> None:
        self.begun = self.clock()
        self.bars.update(self.part, total=total, completed=0)
        self.advance(0)

    def advance(self, count: int) -> None:
        self.bars.advance(self.part, count)
        part = self.bars.tasks[self.part]
        left = _left(self.clock() - self.begun, part.completed, part.total or 0)
        together = f", {self.cells} cells together" if self.cells > 1 else ""
        self.bars.update(
            self.part, count=f"{part.completed:.0f} of {part.total or 0:.0f} samples{together}", left=left
        )
        self._show()

    def _finish(self) -> None:
        """The company before this one is over, whether it succeeded or not."""
        self.done += self.cells
        self.cells = 0

    def _show(self) -> None:
        part, whole = self.bars.tasks[self.part], self.bars.tasks[self.whole]
        done = self.done + self.cells * (part.completed / part.total if part.total else 0)
        total = whole.total or 0
        left = _left(self.clock() - self.started, done, total)
        self.bars.update(self.whole, completed=done, count=f"{self.done:.0f} of {total:.0f} cells", left=left)


def _left(elapsed: float, done: float, total: float) -> str:
    """The time left, for a person; nothing before anything is done."""
    if not done:
        return ""
    seconds = round(elapsed / done * (total - done))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"about {hours}:{minutes:02}:{seconds:02} left" if hours else f"about {minutes}:{seconds:02} left"
