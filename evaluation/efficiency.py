"""The efficiency suite: how fast a method is, and how much memory it takes, at chosen points.

A sample is a point, so many prompts of one length read in one batch and answered with so many tokens, and
what answers it is a measurement in a process of its own. docs/efficiency.md says what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from evaluation.prompts import Prompter
from evaluation.types import Prompt, Sample
from pyramid.types import Answer

VERSION = 1  # raised whenever the same parameters measure something else
LARGEST = "largest"
DECODINGS = ("plain", "graph")


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The fields are those of conf/task/efficiency.yaml.

    lengths, batches, new_tokens: the points are all their combinations; a batch may be `largest`, which is
        searched.
    repeats, warmups: measured and unmeasured calls at each point.
    decode: `plain`, or `graph` for steps of fixed shapes, on CUDA as a captured graph.
    stock: whether transformers' own generate() is measured beside FullKV.
    memory_gib: as if the device had so much memory; None is all of it.

    Errors: ValueError with the offending value and the mend.
    """

    lengths: Sequence[int]
    batches: Sequence[int | str]
    new_tokens: Sequence[int]
    repeats: int = 3
    warmups: int = 1
    decode: str = "plain"
    stock: bool = True
    memory_gib: float | None = None
    name: str = "efficiency"

    metrics: ClassVar[tuple[str, ...]] = ("seconds_per_token", "seconds_to_first_token", "seconds_per_step")
    lower_is_better: ClassVar[tuple[str, ...]] = metrics

    def __post_init__(self) -> None:
        for name in ("lengths", "batches", "new_tokens"):
            object.__setattr__(self, name, _distinct(name, getattr(self, name)))
        for name, least in (("repeats", 1), ("warmups", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"efficiency {name} is {value!r}; give a whole number from {least} on")
        if self.decode not in DECODINGS:
            raise ValueError(f"efficiency decode is {self.decode!r}, none of {', '.join(DECODINGS)}")
        if self.memory_gib is not None and not self.memory_gib > 0:
            raise ValueError(f"efficiency memory_gib is {self.memory_gib!r}; give gibibytes, or null for all")

    def identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "lengths": list(self.lengths),
            "batches": list(self.batches),
            "new_tokens": list(self.new_tokens),
            "repeats": self.repeats,
            "warmups": self.warmups,
            "decode": self.decode,
            "stock": self.stock,
            "memory_gib": self.memory_gib,
        }

    def samples(self, prompter: Prompter | Points) -> Sequence[Sample]:
        """The points, shortest prompt first. Errors: ValueError for one that the model has no positions for."""
        for length, new in product(self.lengths, self.new_tokens):
            if length + new > prompter.model_max_length:
                raise ValueError(
                    f"a prompt of {length} tokens and {new} new ones do not fit: the model was made for "
                    f"{prompter.model_max_length}; take smaller suite.lengths or suite.new_tokens"
                )
        points = product(sorted(self.lengths), self.batches, sorted(self.new_tokens))
        return tuple(_point(length, batch, new) for length, batch, new in points)

    @property
    def batch_of(self) -> dict[str, int | None]:
        """Sample id to the prompts in its batch; None where the largest is searched."""
        points = product(self.lengths, self.batches, self.new_tokens)
        samples = [_point(length, batch, new) for length, batch, new in points]
        return {each.id: None if each.meta["batch"] == LARGEST else each.meta["batch"] for each in samples}

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        """Seconds for each new token of all answers, until the first token, and for each decoding step."""
        seconds, new = answer.seconds, sample.max_new_tokens
        scores = {
            "seconds_per_token": sum(seconds.values()) / (answer.measured["batch"] * new),
            "seconds_to_first_token": seconds["prefill"] + seconds["compression"],
        }
        return scores | ({"seconds_per_step": seconds["decode"] / (new - 1)} if new > 1 else {})

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The scores of a single point; of several, each under its own name, for they have no common mean."""
        if len(records) == 1:
            return dict(records[0]["scores"])
        return {
            f"{metric} {record['id']}": score
            for record in records
            for metric, score in record["scores"].items()
        }

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        return []


@dataclass(frozen=True, kw_only=True)
class Points:
    """Stands for a `Prompter` where nothing is loaded: a point's prompts are drawn by the process that measures it,
    and all that is known of them here is their length."""

    model_max_length: int

    def render(self, sample: Sample) -> Prompt:
        return Prompt(segments=((0,) * sample.meta["length"],), stop_ids=())


def _point(length: int, batch: int | str, new: int) -> Sample:
    return Sample(
        id=f"{length}+{new}x{batch}",
        context="",
        max_new_tokens=new,
        min_new_tokens=new,
        meta={"length": length, "batch": batch, "new_tokens": new},
    )


def _distinct(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"efficiency {name} is {values!r}, which is no list; write suite.{name}=[{values}]")
    values = tuple(values)
    if not values:
        raise ValueError(f"efficiency {name} is empty; give at least one")
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"efficiency {name} holds {value!r} more than once; give each value once")
        if not (type(value) is int and value >= 1) and not (name == "batches" and value == LARGEST):
            more = f", or {LARGEST}" if name == "batches" else ""
            raise ValueError(f"efficiency {name} holds {value!r}; give whole numbers from 1 on{more}")
    return values


TASK = Efficiency
