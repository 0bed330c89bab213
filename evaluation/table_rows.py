"""The rows of a table: which runs belong together, in which order, under which names, and what they rest
on."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from evaluation import mixture
from evaluation.frame import Result, budget_place, budget_text
from evaluation.palette import look, place
from evaluation.sheet import MISSING, Cell

# the English sets in the papers' order, with the heads that the papers give their columns
LONGBENCH_COLUMNS = {
    "narrativeqa": "NrtvQA",
    "qasper": "Qasper",
    "multifieldqa_en": "MF-en",
    "hotpotqa": "HotpotQA",
    "2wikimqa": "2WikiMQA",
    "musique": "Musique",
    "gov_report": "GovReport",
    "qmsum": "QMSum",
    "multi_news": "MultiNews",
    "trec": "TREC",
    "triviaqa": "TriviaQA",
    "samsum": "SAMSum",
    "passage_count": "PCount",
    "passage_retrieval_en": "PRe",
    "lcc": "Lcc",
    "repobench-p": "RB-P",
}
# the Chinese sets, in the same manner
CHINESE_COLUMNS = {
    "multifieldqa_zh": "MF-zh",
    "dureader": "DuReader",
    "vcsum": "VCSUM",
    "lsht": "LSHT",
    "passage_retrieval_zh": "PRz",
}
TITLES = {
    "longbench": "LongBench",
    "needle": "Needle in a haystack",
    "gsm8k": "GSM8K",
    "mt_bench": "MT-Bench",
    "perplexity": "Perplexity",
    "lm_eval": "lm-evaluation-harness",
}


LABELS = ("method", "budget")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method at one budget, under one value of whatever the table mixes on permission.

    results: task to its run."""

    label: str
    budget: int | float | None
    results: Mapping[str, Result]

    @property
    def any(self) -> Result:
        return next(iter(self.results.values()))


def group_name(results: Sequence[Result]) -> str:
    """A name for runs that stand together: task family, model, protocol, and a hash of what they share."""
    spec = results[0].run.spec
    shared = [spec.model, spec.protocol, spec.subset, spec.seed, spec.engine]
    tasks = sorted({json.dumps(result.run.spec.task, sort_keys=True) for result in results})
    digest = sha256(json.dumps([shared, tasks], sort_keys=True).encode()).hexdigest()[:6]
    model = str(spec.model.get("id", "model")).split("/")[-1].removeprefix("wheel:")
    words = (results[0].family, model, str(spec.protocol.get("name")), digest)
    return "-".join("".join(c if c.isalnum() or c in "._" else "_" for c in word.lower()) for word in words)


def groups(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Name to runs, for every table that these runs fill: by task family, and what must not be mixed kept
    apart."""
    found = {}
    for family in dict.fromkeys(result.family for result in results):
        for group in mixture.split([result for result in results if result.family == family]):
            found[group_name(group)] = group
    return found


def rows(results: Sequence[Result], mix: Collection[str] = ()) -> list[Row]:
    """Methods and budgets in the order of a table: no budget first, then budget by budget, methods in their
    order."""
    found: dict[tuple[Any, ...], dict[str, Result]] = {}
    apart = [factor for factor in mix if factor in ("model", "protocol", "version")]
    for result in results:
        spec = result.run.spec
        values = [json.dumps(mixture.factor_value(result, factor), sort_keys=True) for factor in apart]
        key = (json.dumps(spec.method, sort_keys=True), spec.budget, *values)
        twin = 0  # runs of the same task that differ in their samples or in the task's version
        while result.task in found.setdefault((*key, twin), {}):
            twin += 1
        found[(*key, twin)][result.task] = result
    parts = list(found.values())
    labels = _labels([next(iter(part.values())) for part in parts], mix)
    unsorted = [
        Row(label=label, budget=next(iter(part.values())).budget, results=part)
        for label, part in zip(labels, parts, strict=True)
    ]
    return sorted(unsorted, key=lambda row: (budget_place(row.budget), place(row.any.method), row.label))


def labelled(row: Row) -> list[Cell]:
    """The first cells of a row, under the heads `LABELS`."""
    text = budget_text(row.budget)
    return [Cell(row.label), Cell(text) if text else MISSING]


def basis(results: Sequence[Result]) -> list[str]:
    """What a table's numbers rest on, and the warnings of its runs, each once."""
    specs = [result.run.spec for result in results]
    notes = [f"protocol: {named(protocol)}" for protocol in _distinct(spec.protocol for spec in specs)]
    notes += [f"model: {named(model)}" for model in _distinct(spec.model for spec in specs)]
    notes += list(
        dict.fromkeys(
            f"subset: {named(spec.subset)}; seed {spec.seed}; engine {spec.engine}" for spec in specs
        )
    )
    tasks = _distinct(spec.task for spec in specs)
    notes += [f"task {task['name']}: {named(task, skip='name')}" for task in tasks]
    methods = _distinct(spec.method for spec in specs)
    notes += [f"{look(method['name']).label}: {named(method, skip='name')}" for method in methods]
    concerned: dict[str, list[str]] = {}
    for result in results:
        for warning in result.summary["warnings"]:
            concerned.setdefault(warning, []).append(f"{result.label} on {result.task}")
    for warning, labels in concerned.items():
        who = "all" if len(labels) == len(results) > 1 else ", ".join(labels)
        notes.append(f"warning: {who}: {warning}")
    return notes


def _distinct(values: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def named(values: Any, skip: str = "") -> str:
    """JSON values as words: `name fair, template chat, max_prompt_tokens none`."""
    if isinstance(values, Mapping):
        parts = [f"{name} {named(value)}" for name, value in values.items() if name != skip]
        return ", ".join(parts) or "nothing"
    if isinstance(values, list):
        return "[" + ", ".join(map(named, values)) + "]"
    return "none" if values is None else str(values)


def column_name(task: str) -> str:
    """The head of a task's column: short for LongBench's sets, else the task's own name."""
    return (LONGBENCH_COLUMNS | CHINESE_COLUMNS).get(set_name(task), task)


def task_order(results: Iterable[Result]) -> list[str]:
    """Tasks in the papers' order of columns; others after them, by name."""
    known = [*LONGBENCH_COLUMNS, *CHINESE_COLUMNS]
    names = {result.task for result in results}
    return sorted(names, key=lambda n: (known.index(set_name(n)) if set_name(n) in known else len(known), n))


def baseline(results: Sequence[Result], result: Result) -> Result | None:
    """The full cache's run of the same task, of as like a kind as there is."""
    same = [other for other in results if other.is_baseline and other.task == result.task]
    return min(same, key=lambda other: len(mixture.differences(result, other)), default=None)


def set_name(task: str) -> str:
    return task.split("/")[-1]


def _labels(results: Sequence[Result], mix: Collection[str]) -> list[str]:
    """The methods' names, with what tells rows of one name apart."""
    labels = []
    for result in results:
        twins = [other.run.spec.method for other in results if other.method == result.method]
        method = result.run.spec.method
        apart = [n for n in method if any(n not in twin or twin[n] != method[n] for twin in twins)]
        extra = [f"{name}={named(method[name])}" for name in apart if name != "version"]
        for factor in mix:
            texts = {mixture.value_text(other, factor) for other in results}
            extra += [mixture.value_text(result, factor)] if len(texts) > 1 else []
        labels.append(look(result.method).label + (f" ({', '.join(extra)})" if extra else ""))
    return labels


def family_title(results: Sequence[Result]) -> str:
    return TITLES.get(results[0].family, results[0].family)
