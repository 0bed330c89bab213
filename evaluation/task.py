"""What a task is.

A task family is one file: it reads data, builds samples, scores texts and draws its own figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from evaluation.prompts import Prompter
from evaluation.types import Sample
from pyramid.types import Answer


class Task(Protocol):
    """A set of samples and the way to score an answer to one of them.

    The class of `conf/task/<file>.yaml` is the one that `TASK` names in the module that the yaml's `kind`
    names.
    """

    name: str
    metrics: tuple[str, ...]  # the first is the headline; every score lies in [0, 1], but for those below
    lower_is_better: tuple[str, ...]  # metrics of these names are at least 0, without an upper bound

    def identity(self) -> dict[str, Any]:
        """All that changes samples or scores, as JSON values: version, parameters, hash of the data."""
        ...

    def samples(self, prompter: Prompter) -> Sequence[Sample]:
        """The task's samples, in a fixed order, with unique ids.

        Errors: ValueError with one sentence if the data or the parameters cannot give them."""
        ...

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        """Each metric's value for one answer."""
        ...

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The task's score per metric over the records of answered samples."""
        ...

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        """Write the task's own figures and the data behind them; return the files. Nothing to draw: empty."""
        ...
