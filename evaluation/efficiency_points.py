"""The measurements of efficiency runs as values: one `Point` for whoever answered a batch, a method through our
engine or transformers' own generate().

Rates count new tokens only. A batch that found no room is a point with an error and without numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from evaluation.efficiency import LARGEST
from evaluation.frame import BASELINE, Result, budget_place
from evaluation.palette import STOCK, look, place

FAMILY = "efficiency"


@dataclass(frozen=True)
class Spread:
    """The median of repeated measurements, and the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None

    @property
    def relative(self) -> float:
        return (self.most - self.least) / self.median


@dataclass(frozen=True)
class Point:
    """Who answered what, how fast, and in how much memory. Seconds and bytes are those of the whole batch.

    found: the measurement's own values; empty if there is none. stock: transformers' own generate()."""

    result: Result
    record: Mapping[str, Any]
    stock: bool = False

    @property
    def measured(self) -> Mapping[str, Any]:
        return self.record.get("measured", {})

    @property
    def found(self) -> Mapping[str, Any]:
        return self.measured["stock"] if self.stock else self.measured

    @property
    def error(self) -> str | None:
        return self.found["error"] if self.stock else self.record["error"]

    @property
    def method(self) -> str:
        return STOCK if self.stock else self.result.method

    @property
    def label(self) -> str:
        return look(self.method).label

    @property
    def budget(self) -> int | float | None:
        return None if self.stock else self.result.budget

    @property
    def length(self) -> int:
        return self.record["meta"]["length"]

    @property
    def new(self) -> int:
        return self.record["meta"]["new_tokens"]

    @property
    def searched(self) -> bool:
        """Whether its batch is the largest that fits."""
        return self.record["meta"]["batch"] == LARGEST

    @property
    def batch(self) -> int:
        """Prompts in the batch; 0 if not even one found room."""
        if not self.searched:
            return self.record["meta"]["batch"]
        return self.found.get("batch", self.measured.get("batch", 0))

    @property
    def place(self) -> tuple[int, int, int]:
        """What points have in common that may be compared: length, new tokens, and the batch asked for."""
        return self.length, self.new, 0 if self.searched else self.batch

    @property
    def machine(self) -> Mapping[str, Any]:
        return self.measured.get("machine", {})

    @cached_property
    def trials(self) -> Sequence[Mapping[str, Any]]:
        return () if self.error is not None else self.found["trials"]

    def spread(self, seconds: Callable[[Mapping[str, Any]], float]) -> Spread | None:
        return Spread.of([seconds(trial) for trial in self.trials])

    @property
    def first_token(self) -> Spread | None:
        return self.spread(lambda trial: trial["first_token"])

    @property
    def prefill(self) -> Spread | None:
        return self.spread(lambda trial: trial["first_token"] - trial["compression"])

    @property
    def compression(self) -> Spread | None:
        return self.spread(lambda trial: trial["compression"])

    @property
    def step(self) -> Spread | None:
        """Seconds of one decoding step, which gives every answer of the batch one more token."""
        return self.spread(lambda trial: trial["answer"] / (self.new - 1)) if self.new > 1 else None

    @property
    def total(self) -> Spread | None:
        return self.spread(lambda trial: trial["first_token"] + trial["answer"])

    @property
    def tokens_per_second(self) -> float | None:
        """New tokens, over the whole time from the prompt on."""
        return None if self.total is None else self.batch * self.new / self.total.median

    @property
    def requests_per_second(self) -> float | None:
        return None if self.total is None else self.batch / self.total.median

    def bytes(self, name: str) -> int | None:
        """`bytes` or `allocated`, `after_prompt` or `at_end`, as `bytes_at_end`."""
        return None if self.error is not None else self.found[name]

    def peak(self, when: str) -> int | None:
        """The highest of all repetitions while the `prompt` was read or the `answer` given; None: not measured."""
        peaks = [trial[f"peak_{when}"] for trial in self.trials]
        return max(peaks) if peaks and None not in peaks else None

    def expected(self, name: str) -> float | None:
        """What theory says, for a method through the engine: `bytes_after_prompt`, `step_seconds`, ..."""
        return None if self.stock else self.measured.get("theory", {}).get(name)

    @property
    def full_bytes(self) -> tuple[int, int] | None:
        """What the same batch would hold without compression, after its prompt and at the end."""
        entries = self.record["full_bytes_after_prompt"]
        if self.error is not None or entries is None:
            return None
        return entries, entries * (self.length + self.new - 1) // self.length


def points_of(results: Sequence[Result]) -> list[Point]:
    """All points of efficiency runs, by place, then transformers' generate(), FullKV, and the methods by budget."""
    points = []
    for result in results:
        for record in result.run.records:
            points.append(Point(result, record))
            if record.get("measured", {}).get("stock") is not None:
                points.append(Point(result, record, stock=True))
    return sorted(points, key=lambda p: (*_order(p), place(p.method), p.result.run.key))


def _order(point: Point) -> tuple[Any, ...]:
    length, new, batch = point.place
    baseline = 0 if point.stock else 1 if point.method == BASELINE else 2
    return length, new, batch == 0, batch, baseline, budget_place(point.budget)


def peer(point: Point, method: str, points: Sequence[Point]) -> Point | None:
    """The point of `method` at the same place and on the same device; None if it has no numbers."""
    for other in points:
        same = other.place == point.place and other.machine.get("device") == point.machine.get("device")
        if same and other.method == method and other.error is None:
            return other
    return None


def paired(point: Point, other: Point, seconds: Callable[[Mapping[str, Any]], float]) -> Spread | None:
    """Ratios of the two in each round in which both took turns; None if they did not."""
    together = point.record is other.record and point.measured.get("agree") is not None
    if not together or len(point.trials) != len(other.trials):
        return None
    rounds = zip(point.trials, other.trials, strict=True)
    return Spread.of([seconds(mine) / seconds(theirs) for mine, theirs in rounds])
