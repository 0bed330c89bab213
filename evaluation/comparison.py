"""Ours beside theirs: every number of a published table that our runs have a counterpart for, and what sets
the two apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evaluation import mixture
from evaluation.frame import BASELINE, Result, budget_place, budget_text
from evaluation.palette import look, place
from evaluation.published import Published, load
from evaluation.published import names as published_tables
from evaluation.report import average
from evaluation.sheet import MISSING, Cell, Sheet, number
from evaluation.table_rows import LONGBENCH_COLUMNS, Row, basis, named, rows, set_name

PRESET = Path(__file__).resolve().parent.parent / "conf" / "protocol" / "paper.yaml"
FOLLOWED = "PyramidKV"  # the paper whose code the preset `paper` follows


class NoCounterpart(ValueError):
    """None of the runs answers for any of the published numbers."""


def comparison_sheet(
    name: str, published: Sequence[Published], results: Sequence[Result], mix: Collection[str] = ()
) -> Sheet:
    """One row a published number: theirs, ours, the difference, and whether our interval holds theirs.

    A published number has a counterpart if method, budget and task are the same; models are printed and may
    differ. Errors: NoCounterpart if there is none; ValueError for runs that must not be mixed."""
    notes = mixture.check(results, mix)
    table = rows(results, mix)
    printed = sorted(published, key=_place)
    pairs = [(row, found) for row in printed for found in _counterparts(row, table)]
    if not pairs:
        raise NoCounterpart(_nothing(name, published, results))
    head = [
        "model (theirs)",
        "method",
        "budget",
        "task",
        "theirs",
        "ours",
        "95 %\nfrom",
        "95 %\nto",
        "difference",
    ]
    head += ["theirs in\nour interval", "samples", "doubt"]
    doubts = list(dict.fromkeys(row.doubt for row, _ in pairs if row.doubt))
    return Sheet(
        name=f"against_{name}",
        title=f"{published[0].paper}, {published[0].table}: theirs and ours",
        head=head,
        rows=[_line(row, found, doubts) for row, found in pairs],
        notes=[
            *(f"doubt {number}: {doubt}" for number, doubt in enumerate(doubts, 1)),
            *_protocols(published, [row for row, _ in pairs], results),
            *_partial(pairs),
            *_missing(printed, {id(row) for row, _ in pairs}),
            *notes,
            *(f"ours: {note}" for note in basis(results)),
        ],
        labels=4,
        blocks=[(row.model, row.method, row.budget) for row, _ in pairs],
    )


def comparisons(results: Sequence[Result], mix: Collection[str] = ()) -> list[Sheet]:
    """The comparison with every published table in which a compressed run has a counterpart."""
    sheets = []
    for name in published_tables():
        try:
            sheet = comparison_sheet(name, load(name), results, mix)
        except NoCounterpart:
            continue
        if any(row[1].text != look(BASELINE).label for row in sheet.rows):
            sheets.append(sheet)
    return sheets


def _place(row: Published) -> tuple[Any, ...]:
    known = list(LONGBENCH_COLUMNS)
    task = known.index(row.task) if row.task in known else len(known)
    budget = None if row.method == "fullkv" else row.budget
    return (row.model, budget_place(budget), place(row.method), task, row.task)


def _counterparts(printed: Published, table: Sequence[Row]) -> list[Row]:
    """Our rows of the same method and budget that have the task; several if ours differ in a parameter."""
    budget = None if printed.method == "fullkv" else printed.budget
    found = [row for row in table if row.any.method == printed.method and row.budget == budget]
    return [row for row in found if printed.unit == "points" and _ours(printed.task, row) is not None]


def _ours(task: str, row: Row) -> tuple[float, tuple[float, float] | None, int, str] | None:
    """Our score in points, its interval, the samples behind it and what must stand beside it."""
    if task == "average":
        value, note = average(row, list(row.results))
        samples = sum(len(result.answered) for result in row.results.values())
        return None if value is None or row.any.family != "longbench" else (value, None, samples, note)
    for result in row.results.values():
        if set_name(result.task) == task and result.shown is not None and not result.lower_is_better:
            return result.shown, result.shown_interval, len(result.answered), ""
    return None


def _line(printed: Published, row: Row, doubts: Sequence[str]) -> list[Cell]:
    ours = _ours(printed.task, row)
    assert ours is not None
    value, interval, samples, note = ours
    inside = None if interval is None else interval[0] <= printed.value <= interval[1]
    return [
        Cell(printed.model),
        Cell(row.label),
        Cell(budget_text(row.budget)) if row.budget is not None else MISSING,
        Cell(printed.task),
        number(printed.value, ".2f"),
        Cell(f"{value:.2f}{' partial' if note else ''}", value),
        *([MISSING, MISSING] if interval is None else [number(end, ".2f") for end in interval]),
        number(value - printed.value, "+.2f"),
        MISSING if inside is None else Cell("yes" if inside else "no"),
        Cell(str(samples), samples),
        Cell(str(doubts.index(printed.doubt) + 1)) if printed.doubt else MISSING,
    ]


def _protocols(
    published: Sequence[Published], used: Sequence[Published], results: Sequence[Result]
) -> list[str]:
    """Under which rules theirs and ours came about, and where the two are known to differ."""
    theirs: dict[str, list[str]] = {}
    for row in used:
        labels = theirs.setdefault(row.protocol, [])
        if look(row.method).label not in labels:
            labels.append(look(row.method).label)
    notes = [f"their protocol ({', '.join(labels)}): {text}" for text, labels in theirs.items()]
    notes += [f"their source: {source}" for source in dict.fromkeys(row.source for row in used)]
    models = ", ".join(dict.fromkeys(str(result.run.spec.model.get("id")) for result in results))
    notes.append(f"their model and ours differ unless named alike: ours is {models}")
    if published[0].paper == FOLLOWED:
        for protocol in {str(r.run.spec.protocol): r.run.spec.protocol for r in results}.values():
            notes.append(_against_preset(protocol))
    return notes


def _against_preset(protocol: Mapping[str, Any]) -> str:
    """Where our protocol differs from the preset that follows the authors' code."""
    apart = [
        f"{name} {named(protocol[name])} (theirs {named(value)})"
        for name, value in _preset().items()
        if name != "name" and name in protocol and protocol[name] != value
    ]
    if not apart:
        return "our protocol is the preset `paper`, which follows the authors' public code"
    return (
        "our protocol differs from the preset `paper`, which follows the authors' public code: "
        f"{', '.join(apart)}"
    )


@cache
def _preset() -> Mapping[str, Any]:
    import yaml

    return yaml.safe_load(PRESET.read_text(encoding="utf-8"))


def _partial(pairs: Sequence[tuple[Published, Row]]) -> list[str]:
    notes = [found[3] for printed, row in pairs if (found := _ours(printed.task, row)) and found[3]]
    return [f"our average is {note}" for note in dict.fromkeys(notes)]


def _missing(printed: Sequence[Published], used: Collection[int]) -> list[str]:
    lacking: dict[str, int] = {}
    for row in printed:
        if id(row) not in used:
            budget = "" if row.method == "fullkv" else budget_text(row.budget)
            name = f"{look(row.method).label} {budget}".strip()
            lacking[name] = lacking.get(name, 0) + 1
    if not lacking:
        return []
    listed = ", ".join(f"{name} ({count})" for name, count in lacking.items())
    return [f"published numbers without a run of ours: {listed}"]


def _nothing(name: str, published: Sequence[Published], results: Sequence[Result]) -> str:
    budgets = sorted({row.budget for row in published if row.method != "fullkv"}, key=budget_place)
    theirs = ", ".join(budget_text(budget) or "not stated" for budget in budgets)
    tasks = ", ".join(sorted({result.task for result in results})) or "none"
    return (
        f"none of the runs has a counterpart in {name}, whose budgets are {theirs} and whose scores are in "
        f"points; the runs' tasks are {tasks}"
    )
