"""From the records of a run to the numbers of its row in a table, and the warnings that belong under it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from evaluation.results import RunSpec
from evaluation.statistics import bootstrap_interval
from evaluation.task import Task

Record = Mapping[str, Any]
MEANS: Mapping[str, Callable[[Sequence[float]], float]] = {"arithmetic": fmean, "geometric": geometric_mean}


def summarize(
    records: Sequence[Record], *, spec: RunSpec, task: Task, environments: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """What a run scored, held and cost; the headline metric comes first in `scores`.

    Failed samples are counted and enter no mean. `means` and `intervals` have a metric only where the task's score is
    an arithmetic or geometric mean of its samples' scores. `held` is in tokens per layer and key/value head, and in
    bytes over all layers; each number is a mean over samples. `seconds` are sums over samples.
    """
    answered = [record for record in records if record["error"] is None]
    summed = task.summarize(answered) if answered else {}
    scores = {metric: summed[metric] for metric in task.metrics if metric in summed} | summed
    held, means = _held(answered), _means(answered, scores)
    return {
        "n": len(records),
        "failed": len(records) - len(answered),
        "complete": len(records) == len(answered),
        "scores": scores,
        "means": means,
        "intervals": {metric: _interval(_values(answered, metric), mean) for metric, mean in means.items()},
        "lower_is_better": list(task.lower_is_better),
        "held": held,
        "compressed": sum(record["compressed"] for record in answered),
        "truncated": sum(record["truncated"] for record in answered),
        "prompt_tokens": _mean([record["prompt_tokens"] for record in answered]),
        "new_tokens": _mean([record["new_tokens"] for record in answered]),
        "prefill_work": _mean([record["prefill_work"] for record in answered]),
        "seconds": _seconds(answered),
        "environments": list(environments),
        "warnings": _warnings(records, answered, held, spec, environments),
    }


def turns(record: Record) -> list[Record]:
    """The record of a sample's first turn, which is the sample's own, and those of its further turns."""
    return [record, *record.get("follow_ups", ())]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _held(answered: Sequence[Record]) -> dict[str, Any]:
    kept = [record["kept_tokens"] for record in answered]
    at_end = [record["kept_tokens_at_end"] for record in answered]
    full_bytes = sum(record["full_bytes_after_prompt"] for record in answered)
    held_bytes = sum(record["bytes_after_prompt"] for record in answered)
    return {
        "tokens_after_prompt": _mean([math.fsum(layers) / len(layers) for layers in kept]),
        "tokens_at_end": _mean([math.fsum(layers) / len(layers) for layers in at_end]),
        "tokens_after_prompt_per_layer": [_mean(layer) for layer in zip(*kept, strict=True)],
        "tokens_at_end_per_layer": [_mean(layer) for layer in zip(*at_end, strict=True)],
        "bytes_after_prompt": _mean([record["bytes_after_prompt"] for record in answered]),
        "bytes_at_end": _mean([record["bytes_at_end"] for record in answered]),
        "full_bytes_after_prompt": _mean([record["full_bytes_after_prompt"] for record in answered]),
        "share_of_full_bytes": held_bytes / full_bytes if full_bytes else None,
    }


def _values(answered: Sequence[Record], metric: str) -> list[float]:
    return [record["scores"][metric] for record in answered if metric in record["scores"]]


def _means(answered: Sequence[Record], scores: Mapping[str, float]) -> dict[str, str]:
    """Metric to the kind of mean that its score is, where it is one."""
    found = {}
    for metric, score in scores.items():
        values = _values(answered, metric)
        possible = MEANS if values and min(values) > 0 else {"arithmetic": fmean} if values else {}
        kinds = [kind for kind, mean in possible.items() if math.isclose(mean(values), score, abs_tol=1e-9)]
        if kinds:
            found[metric] = kinds[0]
    return found


def _interval(values: Sequence[float], mean: str) -> list[float]:
    if mean == "geometric":
        return [math.exp(end) for end in bootstrap_interval([math.log(value) for value in values])]
    return list(bootstrap_interval(values))


def _seconds(answered: Sequence[Record]) -> dict[str, float]:
    phases = dict.fromkeys(phase for record in answered for phase in record["seconds"])
    return {phase: math.fsum(record["seconds"].get(phase, 0.0) for record in answered) for phase in phases}


def _warnings(
    records: Sequence[Record],
    answered: Sequence[Record],
    held: Mapping[str, Any],
    spec: RunSpec,
    environments: Sequence[Mapping[str, str]],
) -> list[str]:
    """What a reader of the numbers must know, one sentence each."""
    warnings = []
    n, failed = len(records), len(records) - len(answered)
    if failed:
        warnings.append(
            f"{failed} of {n} samples failed and are in no mean; the same command tries them again"
        )
    if spec.budget is not None and answered:
        if not any(record["compressed"] for record in answered):
            warnings.append(
                f"0 of {len(answered)} samples were compressed: no prompt was longer than what the method "
                "keeps, so these scores say nothing about it"
            )
        allowed = _allowed(spec.budget, answered)
        if spec.protocol.get("question") != "after_compression" and held["tokens_after_prompt"] > allowed + 1:
            warnings.append(
                f"{held['tokens_after_prompt']:.1f} tokens a layer were held after the prompt, over the "
                f"budget of {allowed:.1f}"
            )
    truncated = sum(record["truncated"] for record in records)
    if truncated:
        warnings.append(f"{truncated} of {n} prompts were cut in the middle to fit")
    if len(environments) > 1:
        warnings.append(
            f"computed in {len(environments)} different environments, which environment.json lists"
        )
    return warnings


def _allowed(budget: int | float, answered: Sequence[Record]) -> float:
    """Tokens a layer that the budget grants, as a mean over samples."""
    if isinstance(budget, int):
        return float(budget)
    return math.fsum(budget * record["prompt_tokens"] for record in answered) / len(answered)
