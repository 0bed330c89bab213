"""The tables at the end of a command, and the line of JSON that programs read.

Runs stand in one table only if they share everything but method and budget. Scores, differences from FullKV
and costs are three narrow tables rather than one wide one, so that no number is cut on a terminal of 80
columns; what the numbers rest on is printed beneath them.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from evaluation.efficiency_points import FAMILY
from evaluation.efficiency_table import print_sheets
from evaluation.frame import BASELINE, Result
from evaluation.results import Run
from evaluation.sheet import UNCUT, byte_text, plain
from evaluation.statistics import paired_difference, paired_ratio
from evaluation.table_rows import named


@dataclass(frozen=True)
class _Sheet:
    """One table of texts; a line break in a head parts it in two lines."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def print_table(runs: Sequence[Run], file: TextIO) -> None:
    """Print the runs' tables to `file`: with colour and wrapped text on a terminal, plain elsewhere."""
    console = Console(file=file, markup=False, emoji=False, highlight=False)
    tables = Console(file=file, markup=False, emoji=False, highlight=False, width=UNCUT)
    for group in _groups(runs):
        console.print(_title(group), style="bold", soft_wrap=True)
        if group[0].spec.task["name"] == FAMILY:
            print_sheets([Result(run) for run in group], file)
        else:
            for sheet in _sheets(group):
                tables.print(_rich(sheet), "")
            for note in _notes(group):
                console.print(note, style="dim", soft_wrap=not console.is_terminal)
        for warning in _warnings(group):
            console.print(f"warning: {warning}", style="yellow", soft_wrap=not console.is_terminal)
        for run in group:
            console.print(f"{_label(run)}: {run.folder}", soft_wrap=True)
        console.print()
    for missing in _missing(runs):
        console.print(f"warning: {missing}", style="yellow", soft_wrap=not console.is_terminal)


def json_line(runs: Sequence[Run]) -> str:
    """One JSON object without line breaks: the run itself, or `cells` with the keys of those that `failed`.

    A run's `held_tokens` is per layer and key/value head and, like `held_bytes`, counted after the prompt."""
    cells = [_outcome(run) for run in runs]
    if len(cells) == 1:
        return json.dumps(cells[0], allow_nan=False)
    failed = [run.key for run in runs if not run.complete]
    return json.dumps({"cells": cells, "failed": failed}, allow_nan=False)


def write_table(runs: Sequence[Run], path: Path) -> None:
    """Write the runs to `path`: `.md` for readers, as printed; `.csv` for programs, one run a row, unrounded.

    Runs are named by their keys; folders of this machine are left out. Errors: ValueError for any other
    ending."""
    if path.suffix not in (".md", ".csv"):
        raise ValueError(f"tables are written as .md or .csv, and {str(path)!r} ends in neither")
    text = _markdown(runs) if path.suffix == ".md" else _csv(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _groups(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs by setting, each once, FullKV first; runs that have no numbers yet are left out."""
    groups: dict[str, dict[str, Run]] = {}
    for run in runs:
        if run.summary is not None:
            groups.setdefault(run.spec.setting, {})[run.key] = run
    return [sorted(group.values(), key=lambda run: not _is_baseline(run)) for group in groups.values()]


def _missing(runs: Iterable[Run]) -> list[str]:
    return [
        f"{run.key} is {run.status} and in no table; the same command goes on with it"
        for run in runs
        if run.summary is None
    ]


def _is_baseline(run: Run) -> bool:
    return run.spec.method["name"] == BASELINE


def _summary(run: Run) -> Mapping[str, Any]:
    assert run.summary is not None
    return run.summary


def _label(run: Run) -> str:
    return " ".join(_names(run)).removesuffix(" -")


def _names(run: Run) -> list[str]:
    return [run.spec.method["name"], "-" if run.spec.budget is None else str(run.spec.budget)]


def _metrics(group: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(metric for run in group for metric in _summary(run)["scores"]))


def _title(group: Sequence[Run]) -> str:
    return f"{group[0].spec.task['name']}, {_summary(group[0])['n']} samples"


def _sheets(group: Sequence[Run]) -> list[_Sheet]:
    return [
        sheet for sheet in (_score_sheet(group), _difference_sheet(group), _cost_sheet(group)) if sheet.rows
    ]


def _score_sheet(group: Sequence[Run]) -> _Sheet:
    headline, *others = _metrics(group) or ["score"]
    rows = []
    for run in group:
        summary = _summary(run)
        low_high = summary["intervals"].get(headline)
        rows.append(
            [
                *_names(run),
                _score(summary, headline),
                "-" if low_high is None else " to ".join(_scored(summary, headline, end) for end in low_high),
                *(_score(summary, metric) for metric in others),
                _short(summary["new_tokens"]),
                str(summary["failed"]),
            ]
        )
    return _Sheet(["method", "budget", headline, "95 % interval", *others, "answer\ntokens", "failed"], rows)


def _difference_sheet(group: Sequence[Run]) -> _Sheet:
    """Every run against the first FullKV, on the samples that both answered."""
    head = [
        "method",
        "budget",
        f"against\n{BASELINE}",
        "95 % interval",
        "better\nsamples",
        "worse\nsamples",
        "clear",
    ]
    baseline, metrics = group[0], _metrics(group)
    rows = []
    for run in group[1:] if _is_baseline(baseline) and metrics else []:
        scores, full = run.scores(metrics[0]), baseline.scores(metrics[0])
        if scores.keys() & full.keys():
            rows.append([*_names(run), *_compared(scores, full, _falls(run, metrics[0]))])
    return _Sheet(head, rows)


def _compared(scores: Mapping[str, float], full: Mapping[str, float], falling: bool) -> list[str]:
    """The difference with its interval, or how many times as high scores are of which the lower is the better."""
    found = (paired_ratio if falling else paired_difference)(scores, full)
    values = (found.difference, found.low, found.high)
    difference, low, high = (f"×{math.exp(value):.3f}" if falling else f"{value:+.3f}" for value in values)
    flips = [str(found.gained), str(found.lost)]
    return [difference, f"{low} to {high}", *flips, "yes" if found.distinguishable else "no"]


def _falls(run: Run, metric: str) -> bool:
    """Whether the lower score is the better one."""
    return metric in _summary(run).get("lower_is_better", ())


def _score(summary: Mapping[str, Any], metric: str) -> str:
    value = summary["scores"].get(metric)
    return "-" if value is None else _scored(summary, metric, value)


def _scored(summary: Mapping[str, Any], metric: str, value: float) -> str:
    """In [0, 1] with three decimals; scores without a scale with the digits that count."""
    return plain(value) if metric in summary.get("lower_is_better", ()) else f"{value:.3f}"


def _cost_sheet(group: Sequence[Run]) -> _Sheet:
    head = [
        "method",
        "budget",
        "tokens\n/layer",
        "tokens\nat end",
        "held\nbytes",
        "of full",
        "compressed",
        "seconds",
    ]
    rows = []
    for run in group:
        summary = _summary(run)
        held, answered = summary["held"], summary["n"] - summary["failed"]
        rows.append(
            [
                *_names(run),
                _short(held["tokens_after_prompt"]),
                _short(held["tokens_at_end"]),
                byte_text(held["bytes_after_prompt"]),
                _number(held["share_of_full_bytes"], ".1%"),
                f"{summary['compressed']}/{answered}",
                _short(sum(summary["seconds"].values())),
            ]
        )
    return _Sheet(head, rows)


def _notes(group: Sequence[Run]) -> list[str]:
    """What the numbers rest on."""
    spec = group[0].spec
    notes = [
        f"protocol: {named(spec.protocol)}",
        f"model: {named(spec.model)}",
        f"task: {named(spec.task)}; subset: {named(spec.subset)}; seed {spec.seed}; engine {spec.engine}",
    ]
    methods = {json.dumps(run.spec.method): run.spec.method for run in group}
    notes += [f"{method['name']}: {named(method, skip='name')}" for method in methods.values()]
    notes.append(
        "tokens per layer and key/value head, mean over samples, after the prompt and at the end of the "
        "answer; bytes after the prompt; seconds are sums over samples, each its share of a batch"
    )
    falling = [metric for metric in _metrics(group) if _falls(group[0], metric)]
    if falling:
        notes.append(
            f"{' and '.join(falling)}: lower is better; × says how many times the baseline's score, sample by sample, "
            "as a geometric mean"
        )
    if _difference_sheet(group).rows:
        nothing = int(_falls(group[0], _metrics(group)[0]))
        notes.append(
            f"clear: the interval excludes {nothing}, and enough samples differ for chance to be unlikely"
        )
    return notes


def _warnings(group: Sequence[Run]) -> list[str]:
    """Each warning once, with the runs that it concerns unless it concerns all."""
    runs_of: dict[str, list[str]] = {}
    for run in group:
        for warning in _summary(run)["warnings"]:
            runs_of.setdefault(warning, []).append(_label(run))
    return [
        warning if len(runs) == len(group) > 1 else f"{', '.join(runs)}: {warning}"
        for warning, runs in runs_of.items()
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _short(value: float | None) -> str:
    return _number(value, ".1f" if value is None or value < 1000 else ".0f")


def _rich(sheet: _Sheet) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold"
    )
    for position, name in enumerate(sheet.head):
        table.add_column(name, justify="left" if position == 0 else "right", no_wrap=True, vertical="bottom")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def _outcome(run: Run) -> dict[str, Any]:
    summary = run.summary or {}
    held = summary.get("held", {})
    return {
        "key": run.key,
        "method": run.spec.method["name"],
        "budget": run.spec.budget,
        "task": run.spec.task["name"],
        "status": "done" if run.complete else "failed",
        "n": summary.get("n"),
        "failed": summary.get("failed"),
        "scores": summary.get("scores", {}),
        "held_tokens": held.get("tokens_after_prompt"),
        "held_bytes": held.get("bytes_after_prompt"),
        "full_bytes": held.get("full_bytes_after_prompt"),
        "seconds": summary.get("seconds", {}),
        "folder": str(run.folder),
    }


def _markdown(runs: Sequence[Run]) -> str:
    parts = []
    for group in _groups(runs):
        parts.append(f"## {_title(group)}")
        for sheet in _sheets(group):
            rule = ["---", *["---:"] * (len(sheet.head) - 1)]
            lines = [" | ".join(row).replace("\n", " ") for row in (sheet.head, rule, *sheet.rows)]
            parts.append("\n".join(f"| {line} |" for line in lines))
        notes = [*_notes(group), *(f"warning: {warning}" for warning in _warnings(group))]
        notes += [f"{_label(run)}: run `{run.key}`" for run in group]
        parts.append("\n".join(f"* {note}" for note in notes))
    missing = [f"warning: {sentence}" for sentence in _missing(runs)]
    return "\n\n".join([*parts, *missing]) + "\n"


def _csv(runs: Sequence[Run]) -> str:
    rows = [_csv_row(run) for group in _groups(runs) for run in group]
    names = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(run: Run) -> dict[str, Any]:
    summary = _summary(run)
    names = ("key", "task", "method", "budget", "status", "n", "failed")
    row = {name: _outcome(run)[name] for name in names} | {"protocol": run.spec.protocol.get("name")}
    for metric, score in summary["scores"].items():
        low, high = summary["intervals"].get(metric, (None, None))
        row |= {metric: score, f"{metric}_low": low, f"{metric}_high": high}
    held = {f"held_{name}": value for name, value in summary["held"].items() if not isinstance(value, list)}
    seconds = {f"{phase}_seconds": value for phase, value in summary["seconds"].items()}
    counts = {name: summary[name] for name in ("compressed", "truncated", "new_tokens", "prefill_work")}
    return row | held | counts | seconds
