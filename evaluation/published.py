"""Numbers that others published, typed and checked, so that a table can set ours beside theirs.

Each table is one CSV file under results/published, one number a row; the README there explains the columns.
A number without a source, with an unknown unit or printed twice is refused, and an average that its own
columns contradict has to say so: whoever compares against a wrong number should at least be told.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

FOLDER = Path(__file__).resolve().parent.parent / "results" / "published"
# in the order of the papers' tables
LONGBENCH = (
    "narrativeqa",
    "qasper",
    "multifieldqa_en",
    "hotpotqa",
    "2wikimqa",
    "musique",
    "gov_report",
    "qmsum",
    "multi_news",
    "trec",
    "triviaqa",
    "samsum",
    "passage_count",
    "passage_retrieval_en",
    "lcc",
    "repobench-p",
)
UNITS = (
    "points",
    "percent",
    "times",
    "perplexity",
    "sequences",
    "tokens/s",
    "ms/token",
    "seconds",
    "MB",
    "MiB",
    "GB",
    "GiB",
)
# how the doubt about a wrong average begins
NOT_THE_MEAN = "Not the mean of its columns"
# printed cells and averages have two decimals, and some averages were cut instead of rounded
ROUNDING = 0.015
NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]*(\([a-z_]+=[a-z0-9_=. ]+\))?")


@dataclass(frozen=True, kw_only=True)
class Published:
    """One printed number.

    method, task: as this harness names them; a variant adds what sets it apart: `pyramidkv(beta=18)`.
    budget: an int is tokens per layer, a float the share of tokens kept (1.0: full cache), None not stated.
    unit: one of `UNITS`; `points` and `percent` lie between 0 and 100.
    protocol: under which rules the number came about, as far as known.
    doubt: why not to rely on the number; empty if nothing speaks against it.
    """

    paper: str
    table: str
    model: str
    method: str
    budget: int | float | None
    task: str
    value: float
    unit: str
    source: str
    protocol: str
    doubt: str = ""


COLUMNS = tuple(field.name for field in fields(Published))


def names(folder: Path = FOLDER) -> tuple[str, ...]:
    """The tables that `load` knows, in alphabetical order."""
    return tuple(sorted(path.stem for path in folder.glob("*.csv")))


def load(name: str, folder: Path = FOLDER) -> list[Published]:
    """The numbers of one table, in the order of its file.

    Errors: ValueError if no table has that name, or if the file breaks one of the rules above."""
    known = names(folder)
    if name not in known:
        nearest = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.0))
        raise ValueError(f"there is no published table {name!r}; the nearest names are: {nearest or 'none'}.")
    path = folder / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(
                f"{path.name} has the columns {reader.fieldnames}; they must be {', '.join(COLUMNS)}."
            )
        rows = [_parsed(cells, f"{path.name}, line {reader.line_num}") for cells in reader]
    _refuse_repeats(rows, path.name)
    _check_averages(rows, path.name)
    return rows


def frame(rows: Sequence[Published]) -> pandas.DataFrame:
    """The rows as a data frame with the columns `COLUMNS`; `budget` keeps ints, floats and None apart."""
    import pandas

    table = pandas.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))
    table["budget"] = pandas.Series([row.budget for row in rows], dtype=object)
    return table


def _parsed(cells: Mapping[str, str | None], where: str) -> Published:
    """One row of the file as a checked value; `where` leads the message if it breaks a rule."""
    text = {column: cells[column] or "" for column in COLUMNS}
    if None in cells or None in cells.values():
        raise ValueError(
            f"{where}: there must be exactly {len(COLUMNS)} cells; quote the ones that hold a comma."
        )
    for column in COLUMNS:
        if not text[column] and column not in ("budget", "doubt"):
            raise ValueError(f"{where}: {column} is empty; write 'not stated' if it is not known.")
    for column in ("method", "task"):
        if not NAME.fullmatch(text[column]):
            raise ValueError(
                f"{where}: {column} {text[column]!r} must look like name or name(setting=value)."
            )
    doubt = text["doubt"]
    if doubt and not (doubt[0].isupper() and doubt.endswith(".")):
        raise ValueError(
            f"{where}: doubt {doubt!r} must be a sentence, with a capital letter and a full stop."
        )
    if text["method"] == "fullkv" and text["budget"] != "full":
        raise ValueError(
            f"{where}: fullkv keeps everything, so its budget {text['budget']!r} must be 'full'."
        )
    checked = {"budget": _budget(text["budget"], where), "value": _value(text["value"], text["unit"], where)}
    return Published(**{**text, **checked})


def _budget(text: str, where: str) -> int | float | None:
    if text in ("", "full"):
        return 1.0 if text else None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if re.fullmatch(r"0\.\d+", text) and float(text) > 0:
        return float(text)
    raise ValueError(
        f"{where}: budget {text!r} must be 'full', tokens (64), a share kept (0.25), or empty if not stated."
    )


def _value(text: str, unit: str, where: str) -> float:
    if unit not in UNITS:
        raise ValueError(f"{where}: unit {unit!r} is unknown; use one of {', '.join(UNITS)}.")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{where}: value {text!r} is not a number; leave out rows without one.") from None
    limit = 100.0 if unit in ("points", "percent") else math.inf
    if not (0.0 <= value <= limit and math.isfinite(value)):
        raise ValueError(f"{where}: value {text} {unit} must be finite and between 0 and {limit:g}.")
    return value


def _refuse_repeats(rows: Sequence[Published], file_name: str) -> None:
    seen = set()
    for row in rows:
        key = (row.paper, row.table, row.model, row.method, row.budget, row.task, row.unit)
        if key in seen:
            raise ValueError(
                f"{file_name} holds two numbers for {key}; keep one, or name what sets them apart."
            )
        seen.add(key)


def _check_averages(rows: Sequence[Published], file_name: str) -> None:
    """Where all 16 sets stand beside a printed average, they agree or the average's doubt says no."""
    groups: dict[tuple[object, ...], dict[str, Published]] = {}
    for row in rows:
        if row.unit == "points":
            key = (row.paper, row.table, row.model, row.method, row.budget)
            groups.setdefault(key, {})[row.task] = row
    for key, scores in groups.items():
        average = scores.get("average")
        if average is None or not scores.keys() >= set(LONGBENCH):
            continue
        mean = sum(scores[task].value for task in LONGBENCH) / len(LONGBENCH)
        agrees = abs(average.value - mean) <= ROUNDING
        if agrees == average.doubt.startswith(NOT_THE_MEAN):
            what = "is" if agrees else "is not"
            raise ValueError(
                f"{file_name}: the average {average.value} of {key} {what} the mean {mean:.3f} "
                f"of its columns, so its doubt must {'not ' if agrees else ''}begin with {NOT_THE_MEAN!r}."
            )
