"""Scores of LongBench predictions that already exist: published folders of `SET.jsonl`, or this harness's own
runs.

A bad row costs that row, a bad file that set; both are said with file, line and reason, and nothing else is
held up.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from evaluation import files
from evaluation.datasets import ENDINGS, Line, Row, Table
from evaluation.longbench_rows import Item, read_answers, read_classes, read_items
from evaluation.longbench_scoring import check_scorer, metric_name, score_answer
from evaluation.longbench_table import BUCKETS, SETS, LongBenchSet, bucket, find_set


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One answer to be scored. id: empty in published files. length: as published, None where the file has
    none."""

    id: str
    text: str
    answers: tuple[str, ...]
    classes: tuple[str, ...]
    length: int | None


@dataclass(frozen=True, kw_only=True)
class PredictionFile:
    """A file of predictions for `set`, called `label` in what is printed.

    group: predictions of one model under one setting, whose scores may be averaged.
    read: turns a row into a prediction, or raises ValueError.
    code_similarity: what the predictions' own run used."""

    group: str
    set: str
    label: str
    table: Table
    read: Callable[[LongBenchSet, Row], Prediction]
    code_similarity: str = "difflib"


@dataclass(frozen=True, kw_only=True)
class SetScore:
    """What one file came to. Scores are 0 to 100, unrounded.

    score: mean over the rows that could be scored; None if none could. buckets: likewise by length,
        LongBench-E only.
    rows: how many were scored; scorer_errors: how many of these are zeros out of an exception in the official
        scorer.
    problems: why rows, or the file, were not scored. remarks: what else is odd.
    """

    group: str
    label: str
    row: LongBenchSet | None
    metric: str = ""
    score: float | None = None
    buckets: Mapping[str, float | None] | None = None
    rows: int = 0
    scorer_errors: int = 0
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def in_part(self) -> bool:
        """Whether the score is not one over exactly the published rows."""
        return bool(self.problems) or self.row is None or self.rows != self.row.rows

    @property
    def official(self) -> float | dict[str, float | None] | None:
        """As the official script writes it, rounded; None if a row could not be scored."""
        if self.score is None or self.problems:
            return None
        if self.buckets is None:
            return round(self.score, 2)
        return {name: value if value is None else round(value, 2) for name, value in self.buckets.items()}


def rescore(
    path: Path, *, code_similarity: str | None = None, data: Path | None = None, extended: bool = False
) -> dict[str, list[SetScore]]:
    """By group, a score for each file of predictions under `path`: a file, a folder, or a folder of such
    folders.

    code_similarity: None takes what the predictions' own run used, else difflib.
    data: published rows that the predictions must belong to. extended: plain file names mean LongBench-E.
    Errors: ValueError if there are no predictions."""
    found = find_predictions(path, extended=extended)
    if not found:
        raise ValueError(
            f"{path} holds no LongBench predictions; give a file or a folder of files such as qasper.jsonl "
            "or qasper.jsonl.gz, or a folder of this harness's runs"
        )
    groups: dict[str, dict[str, SetScore]] = defaultdict(dict)
    for file in found:
        scores = groups[file.group]
        first = scores.get(file.set)
        if first is None:
            scores[file.set] = _score_file(file, code_similarity or file.code_similarity, data)
        else:
            problem = (
                f"{file.table}: other predictions for {file.set} were found before, only they are scored"
            )
            scores[file.set] = replace(first, problems=(*first.problems, problem))
    return {group: sorted(scores.values(), key=_place) for group, scores in groups.items()}


def _place(score: SetScore) -> int:
    return list(SETS).index(score.row.name) if score.row else len(SETS)


def find_predictions(path: Path, *, extended: bool = False) -> list[PredictionFile]:
    """The files of predictions under `path`. Errors: ValueError if it or a run's spec cannot be read."""
    if not path.exists():
        raise ValueError(f"{path} does not exist; give a file or folder of predictions")
    if path.is_file():
        own = path.name == "predictions.jsonl" and (path.parent / "spec.json").is_file()
        return _runs([path.parent]) if own else _published("", [path], extended)
    runs = [
        spec.parent for pattern in ("", "*/", "runs/*/") for spec in sorted(path.glob(f"{pattern}spec.json"))
    ]
    if runs:
        return _runs(runs)
    here = sorted(path.iterdir())
    inside = [(folder.name, sorted(folder.iterdir())) for folder in here if folder.is_dir()]
    return _published("", here, extended) or [
        file for name, paths in inside for file in _published(name, paths, extended)
    ]


def _published(group: str, paths: Sequence[Path], extended: bool) -> list[PredictionFile]:
    found = []
    for path in paths:
        ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), None)
        if ending is not None and path.is_file():
            label = path.name.removesuffix(ending)
            plain = label in SETS and not SETS[label].extended
            name = f"{label}_e" if plain and (extended or _in_extended_folder(path)) else label
            found.append(
                PredictionFile(
                    group=group, set=name, label=label, table=Table(path=path), read=_published_prediction
                )
            )
    return found


def _in_extended_folder(path: Path) -> bool:
    """The official scripts write LongBench-E under `pred_e`, with the file names of LongBench."""
    return any(re.match(r"pred_e(?![a-z])", part) for part in path.resolve().parent.parts)


def _runs(folders: Sequence[Path]) -> list[PredictionFile]:
    """The runs of this harness that are LongBench's, grouped by all that is not their task."""
    found = []
    groups: dict[str, set[str]] = defaultdict(set)
    for folder in folders:
        spec = files.read_json(folder / "spec.json")
        try:
            if spec["task"]["task"] == "longbench":
                found.append((_group(spec, groups), spec["task"], folder / "predictions.jsonl"))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{folder / 'spec.json'} was not written by this version of the harness"
            ) from error
    return [
        PredictionFile(
            group=group,
            set=task["set"],
            label=task["set"],
            table=Table(path=file),
            read=_recorded_prediction,
            code_similarity="indel" if task["metric"] == "code_similarity_indel" else "difflib",
        )
        for group, task, file in found
    ]


def _group(spec: Mapping[str, Any], groups: dict[str, set[str]]) -> str:
    """Words for a run's setting, told apart by a hash from another setting with the same words."""
    words = [spec["method"]["name"], *([] if spec["budget"] is None else [f"budget {spec['budget']}"])]
    title = ", ".join([*words, f"protocol {spec['protocol']['name']}", f"model {spec['model']['id']}"])
    setting = json.dumps({name: part for name, part in spec.items() if name != "task"}, sort_keys=True)
    groups[title].add(setting)
    return (
        title if len(groups[title]) == 1 else f"{title} ({hashlib.sha256(setting.encode()).hexdigest()[:12]})"
    )


def _published_prediction(row: LongBenchSet, fields: Row) -> Prediction:
    return Prediction(
        id="",
        text=fields.text("pred"),
        answers=read_answers(row, fields),
        classes=read_classes(row, fields),
        length=fields.number("length") if row.extended or "length" in fields.fields else None,
    )


def _recorded_prediction(row: LongBenchSet, fields: Row) -> Prediction:
    if fields.value("error") is not None:
        raise ValueError(
            f"{fields.where}: sample {fields.text('id')!r} has no answer ({fields.value('error')})"
        )
    meta = fields.within("meta")
    return Prediction(
        id=fields.text("id"),
        text=fields.text("text"),
        answers=read_answers(row, fields, "references"),
        classes=read_classes(row, meta),
        length=meta.number("length"),
    )


def _score_file(file: PredictionFile, code_similarity: str, data: Path | None) -> SetScore:
    empty = SetScore(group=file.group, label=file.label, row=None)
    try:
        row = find_set(file.set)
    except ValueError as error:
        return replace(empty, problems=(f"{file.table}: {error}",))
    empty = replace(empty, row=row, metric=metric_name(row, code_similarity))
    try:
        check_scorer(row, code_similarity)
        items = None if data is None else read_items(row, data).items
    except ValueError as error:
        return replace(empty, problems=(str(error),))
    problems: list[str] = []
    predictions = list(_predictions(file, row, items, problems))
    scored = [
        score_answer(row, each.text, each.answers, each.classes, code_similarity) for each in predictions
    ]
    values = [100 * value for value, _ in scored]
    return replace(
        empty,
        score=fmean(values) if values else None,
        buckets=_by_bucket(predictions, values) if row.extended else None,
        rows=len(values),
        scorer_errors=sum(failed for _, failed in scored),
        problems=tuple(problems if values or problems else [f"{file.table} has no rows"]),
        remarks=tuple(_remarks(file, row, len(values) + len(problems))),
    )


def _predictions(
    file: PredictionFile, row: LongBenchSet, items: Sequence[Item] | None, problems: list[str]
) -> Iterator[Prediction]:
    """The rows of a file that can be scored; why the others cannot is added to `problems`."""
    lines: list[Line] = []
    try:
        for line in file.table.lines():
            lines.append(line)
    except ValueError as error:
        problems.append(str(error))
    seen: set[str] = set()
    for number, line in enumerate(lines):
        try:
            prediction = file.read(row, line.parse())
            if prediction.id in seen:
                raise ValueError(f"{line.where}: sample {prediction.id!r} stands there a second time")
            if items is not None:
                _check_belongs(line.where, prediction, number, items)
        except ValueError as error:
            problems.append(str(error))
        else:
            seen |= {prediction.id} - {""}
            yield prediction
    if items is not None and file.read is _published_prediction and len(lines) < len(items):
        problems.append(f"{file.table} has {len(lines)} rows, and the data {len(items)}")


def _check_belongs(where: str, prediction: Prediction, number: int, items: Sequence[Item]) -> None:
    """Published predictions stand in the data's order; recorded ones say which sample they answer."""
    if prediction.id:
        item = next((item for item in items if item.id == prediction.id), None)
    else:
        item = items[number] if number < len(items) else None
    if item is None:
        raise ValueError(f"{where}: the data has no row for this prediction")
    if item.answers != prediction.answers:
        raise ValueError(f"{where}: the answers are not those of row {item.id!r} of the data")


def _by_bucket(predictions: Sequence[Prediction], values: Sequence[float]) -> dict[str, float | None]:
    buckets: dict[str, list[float]] = {name: [] for name in BUCKETS}
    for prediction, value in zip(predictions, values, strict=True):
        assert prediction.length is not None, "LongBench-E predictions are read with their length"
        buckets[bucket(prediction.length)].append(value)
    return {name: fmean(part) if part else None for name, part in buckets.items()}


def _remarks(file: PredictionFile, row: LongBenchSet, rows: int) -> Iterator[str]:
    if rows > row.rows:
        hint = "; for LongBench-E, say so with --extended" if rows == row.extended_rows else ""
        yield f"{file.table} has {rows} rows, and the published set {row.rows}{hint}"
