"""The bars of a sweep: what they count, and the time they say is left."""

from __future__ import annotations

import io

import pytest

from evaluation.progress import Bars


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _bars(clock: Clock) -> Bars:
    from rich.console import Console

    return Bars(Console(file=io.StringIO(), force_terminal=True, width=120), clock)


def _lines(bars: Bars) -> list[str]:
    """The visible rows, without the bars themselves."""
    return [
        " | ".join(part for part in (task.description, task.fields["count"], task.fields["left"]) if part)
        for task in bars.bars.tasks
        if task.visible
    ]


def test_a_sweep_counts_cells_and_samples_and_says_what_is_left(clock: Clock) -> None:
    """Two companies of 6 and 2 cells. After a third of the first, 2 of 8 cells' worth took 30 s: 90 s are left."""
    bars = _bars(clock)
    with bars.sweep([6, 2]):
        bars.company("needle", 6)
        assert _lines(bars) == ["sweep | 0 of 8 cells", "needle | loading"]
        bars.samples(12)
        clock.now = 30.0
        bars.advance(4)
        assert _lines(bars) == [
            "sweep | 0 of 8 cells | about 1:30 left",
            "needle | 4 of 12 samples, 6 cells together | about 1:00 left",
        ]
        clock.now = 90.0
        bars.advance(8)
        bars.company("gsm8k", 2)
        assert _lines(bars)[0] == "sweep | 6 of 8 cells | about 0:30 left"


def test_a_company_that_failed_is_over_as_well(clock: Clock) -> None:
    bars = _bars(clock)
    with bars.sweep([1, 0, 1]):
        bars.company("needle", 1)
        clock.now = 5.0
        bars.company("gsm8k", 1)
        assert _lines(bars) == ["sweep | 1 of 2 cells | about 0:05 left", "gsm8k | loading"]


def test_one_company_needs_no_bar_for_the_sweep(clock: Clock) -> None:
    bars = _bars(clock)
    with bars.sweep([1]):
        bars.company("needle", 1)
        bars.samples(2)
        clock.now = 3700.0
        bars.advance(1)
        assert _lines(bars) == ["needle | 1 of 2 samples | about 1:01:40 left"]
