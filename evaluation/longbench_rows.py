"""The published rows of a LongBench set, each checked before anything is run on it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from evaluation import datasets
from evaluation.longbench_scoring import SCORERS
from evaluation.longbench_table import SETS, LongBenchSet
from evaluation.metrics import ScorerError


@dataclass(frozen=True, kw_only=True)
class Item:
    """One published row. length: words, or characters for Chinese. classes: empty but for classification."""

    id: str
    context: str
    input: str
    answers: tuple[str, ...]
    length: int
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Items:
    """All rows of a set, in their published order. sha256: of their content, whatever file it came in."""

    items: tuple[Item, ...]
    sha256: str


def read_items(row: LongBenchSet, data: str | Path | None) -> Items:
    """The rows of a set, read once for the process. A repeated `_id` gets a number, so that ids are unique.

    Errors: ValueError naming the places tried, or file, line and field of the first row that is not as
    published."""
    table = datasets.find_table(datasets.SOURCES["longbench"], row.name, data)
    return _read(row.name, table, table.path.stat().st_mtime_ns)


@cache
def _read(name: str, table: datasets.Table, _changed: int) -> Items:
    items, seen = [], Counter[str]()
    digest = hashlib.sha256()
    for line in table.lines():
        item = _item(SETS[name], line.parse())
        seen[item.id] += 1
        items.append(item if seen[item.id] == 1 else replace(item, id=f"{item.id}#{seen[item.id]}"))
        digest.update(json.dumps(asdict(item)).encode() + b"\n")
    if not items:
        raise ValueError(f"{table} has no rows")
    return Items(items=tuple(items), sha256=digest.hexdigest())


def read_answers(row: LongBenchSet, line: datasets.Row, field: str = "answers") -> tuple[str, ...]:
    """The reference answers of a published row or of a prediction.

    Errors: ValueError naming file, line and field, also if the set's scorer has no use for an answer."""
    answers = line.texts(field)
    if row.metric.startswith("retrieval"):
        for answer in answers:
            try:
                SCORERS[row.metric]("", answer)
            except ScorerError as error:
                raise line.wrong(field, f"cannot be scored: {error}") from error
    return answers


def read_classes(row: LongBenchSet, line: datasets.Row) -> tuple[str, ...]:
    """All class names where the metric needs them. Errors: ValueError naming file, line and field."""
    return line.texts("all_classes") if row.metric == "classification" else ()


def _item(row: LongBenchSet, line: datasets.Row) -> Item:
    if line.text("dataset") not in (row.name, row.dataset):
        raise line.wrong("dataset", f"is {line.text('dataset')!r}, and these are to be rows of {row.name}")
    language = line.text("language")
    if (language if language in ("en", "zh") else "code") != row.language:
        raise line.wrong("language", f"is {language!r}, and the rows of {row.name} are in {row.language!r}")
    return Item(
        id=line.text("_id"),
        context=line.text("context"),
        input=line.text("input"),
        answers=read_answers(row, line),
        length=line.number("length"),
        classes=read_classes(row, line),
    )
