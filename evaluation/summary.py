"""From the records of a run to the numbers of its row in a table, and the warnings that belong under it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.results import RunSpec
from evaluation.statistics import bootstrap_interval
from evaluation.task import Task

Record = Mapping[str, Any]


def summarize(
    records: Sequence[Record], *, spec: RunSpec, task: Task, environments: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """What a run scored, held and cost; the headline metric comes first in `scores`.

    Failed samples are counted and enter no mean. `intervals` has a metric only where the task's score is
    the mean of its samples' scores. `held` is in tokens per layer and key/value head, and in bytes over all
    layers; each number is a mean over samples. `seconds` are sums over samples.
    """
    answered = [record for record in records if record["error"] is None]
    summed = task.summarize(answered) if answered else {}
    scores = {metric: summed[metric] for metric in task.metrics if metric in summed} | summed
    held = _held(answered)
    return {
        "n": len(records),
        "failed": len(records) - len(answered),
        "complete": len(records) == len(answered),
        "scores": scores,
        "intervals": _intervals(answered, scores),
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


def _intervals(answered: Sequence[Record], scores: Mapping[str, float]) -> dict[str, list[float]]:
    intervals = {}
    for metric, score in scores.items():
        values = [record["scores"][metric] for record in answered if metric in record["scores"]]
        if values and math.isclose(math.fsum(values) / len(values), score, abs_tol=1e-9):
            intervals[metric] = list(bootstrap_interval(values))
    return intervals


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
