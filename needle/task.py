"""Needle in a haystack: a sentence hidden at some depth of a long text, asked for at its end.

The grid is lengths x depths. Source of the protocol: the PyramidKV paper, arXiv 2406.02069, and its code.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from evaluation.prompts import Prompter
from evaluation.types import Sample
from needle import haystack
from needle.layout import LAYOUTS, Cell
from needle.needles import METRICS, NEEDLES
from pyramid.types import Answer

VERSION = 1  # raised whenever the same parameters give other prompts or scores


@dataclass(frozen=True, kw_only=True)
class NeedleTask:
    """The fields are those of conf/task/needle.yaml.

    lengths: tokens of the whole rendered prompt; with layout `paper`, the published test's nominal lengths.
    depths: where the needle lies, percent of the haystack before it.
    needle: `san_francisco`, `number_7`, `number_64` or `several`.
    haystack: `paul_graham`, `python_reference` or a folder of .txt files.
    layout: `fair`, or `paper`, whose prompts are the published ones.
    seed: draws the numbers to be hidden; each cell has its own.
    max_new_tokens: None takes what the kind of needle needs, which is the paper's 30 for its own.

    Errors: ValueError with the offending value and the mend.
    """

    lengths: Sequence[int]
    depths: Sequence[float]
    needle: str = "san_francisco"
    haystack: str = haystack.PAUL_GRAHAM
    layout: str = "fair"
    seed: int = 0
    max_new_tokens: int | None = None
    name: str = "needle"

    metrics: ClassVar[tuple[str, ...]] = METRICS
    lower_is_better: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _distinct("lengths", self.lengths))
        object.__setattr__(self, "depths", _distinct("depths", self.depths))
        for length in self.lengths:
            if not isinstance(length, int) or length < 1:
                raise ValueError(f"needle length {length!r} is no number of tokens; give 1 or more")
        for depth in self.depths:
            if not isinstance(depth, int | float) or not 0 <= depth <= 100:
                raise ValueError(f"needle depth {depth!r} is no percentage; give a number from 0 to 100")
        _known("needle", self.needle, NEEDLES)
        _known("needle layout", self.layout, LAYOUTS)
        haystack.check(self.haystack)
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"needle max_new_tokens {self.max_new_tokens} leaves no answer; give 1 or more")

    def identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "lengths": list(self.lengths),
            "depths": list(self.depths),
            "needle": self.needle,
            "haystack": self._haystack.name,
            "haystack_sha256": self._haystack.sha256,
            "layout": self.layout,
            "seed": self.seed,
            "max_new_tokens": self._answer_tokens,
        }

    def samples(self, prompter: Prompter) -> Sequence[Sample]:
        self._check_room(prompter)
        blank = Sample(
            id="",
            context="",
            max_new_tokens=self._answer_tokens,
            meta={"needle": self.needle, "layout": self.layout},
        )
        cells = [Cell(length, depth) for length in self.lengths for depth in self.depths]
        planted = [(cell, NEEDLES[self.needle].plant(self._draw(cell))) for cell in cells]
        return tuple(LAYOUTS[self.layout](self._haystack.text, prompter).samples(planted, blank))

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        return NEEDLES[self.needle].score(sample.references, answer.text)

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        if not records:
            return {}
        return {metric: fmean(record["scores"][metric] for record in records) for metric in self.metrics}

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        from needle import heatmap

        return heatmap.draw(records, folder)

    @cached_property
    def _haystack(self) -> haystack.Haystack:
        return haystack.load(self.haystack)

    @property
    def _answer_tokens(self) -> int:
        return self.max_new_tokens or NEEDLES[self.needle].answer_tokens

    def _draw(self, cell: Cell) -> random.Random:
        return random.Random(f"{self.seed}/{cell.length}/{cell.depth:g}")

    def _check_room(self, prompter: Prompter) -> None:
        limit = prompter.model_max_length - self._answer_tokens
        if prompter.protocol.max_prompt_tokens is not None:
            limit = min(limit, prompter.protocol.max_prompt_tokens)
        longest = max(self.lengths)
        if longest > limit:
            raise ValueError(
                f"needle length {longest} does not fit: with {self._answer_tokens} new tokens this model and "
                f"protocol take prompts of up to {limit} tokens"
            )


def _distinct(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"needle {name} is {values!r}, which is no list; write {name}=[{values}]")
    values = tuple(values)
    if not values:
        raise ValueError(f"needle {name} is empty; give at least one")
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"needle {name} holds {value!r} more than once; give each value once")
    return values


def _known(what: str, value: str, names: Iterable[str]) -> None:
    names = tuple(names)
    if value not in names:
        near = difflib.get_close_matches(value, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"take one of {', '.join(names)}."
        raise ValueError(f"{what} {value!r} is unknown; {hint}")


TASK = NeedleTask
