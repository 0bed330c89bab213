"""Whether lm-evaluation-harness's tasks come out here as they do with its own model for transformers.

    python -m scripts.check_lm_eval --data ../shared/data/gsm8k/test.jsonl --items 50

Both models answer the same items in lm_eval's own loop: `hf`, and `pyramid` with the whole cache, on the same folder
of weights in float32. Texts must be equal and so must all scores. The last line is one JSON object; exit code 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def answers(model: str, arguments: Mapping[str, Any], options: argparse.Namespace) -> Any:
    """lm_eval's results and samples for one model."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    from evaluation.lm_eval_loading import load, quiet

    loaded = load(options.task, include_path=options.include_path, metadata={}, data=options.data)
    evaluate: Any = simple_evaluate
    with quiet():
        return evaluate(
            model=model,
            model_args=dict(arguments),
            tasks=list(loaded.tasks.values()),
            task_manager=TaskManager(include_defaults=False),
            limit=options.items,
            batch_size=options.batch_size,
            apply_chat_template=options.chat_template,
            bootstrap_iters=0,
        )


def compare(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """How many items and answers there are, which differ, and the scores of both. Answers are texts, or likelihoods,
    which may differ in their last digits."""
    items, differing = 0, []
    for task, samples in theirs["samples"].items():
        mine = {(sample["doc_id"], sample["filter"]): sample for sample in ours["samples"][task]}
        for sample in samples:
            items += 1
            other = mine[sample["doc_id"], sample["filter"]]
            if sample["arguments"] != other["arguments"] or not _alike(sample["resps"], other["resps"]):
                differing.append(f"{task}/{sample['doc_id']}")
    scores = [{task: _scores(row) for task, row in each["results"].items()} for each in (theirs, ours)]
    return {
        "judgements": items,  # an item is judged once by each filter
        "differing": sorted(set(differing)),
        "scores_equal": _alike(*scores),
        "scores_theirs": scores[0],
        "scores_ours": scores[1],
    }


def _alike(first: Any, second: Any) -> bool:
    """Equal, and numbers to four digits."""
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(_alike(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_alike, first, second))
    if isinstance(first, str | bool):
        return first == second
    return abs(float(first) - float(second)) <= 1e-4 * max(1.0, abs(float(first)))


def _scores(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(row[name]) for name in row if "," in name and "_stderr" not in name}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        found, seconds = _run(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, took in seconds.items():
        print(f"{name}: {took:.0f} s")
    print(f"{found['judgements']} judgements, {len(found['differing'])} answers differ: {found['differing']}")
    print(json.dumps(found))
    return 0 if found["scores_equal"] and not found["differing"] else 1


def _run(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, float]]:
    import scripts.lm_eval  # noqa: F401  registers `pyramid`
    from pyramid.checkpoints import find_checkpoint
    from pyramid.models import ModelSpec

    folder = str(options.pretrained or find_checkpoint(ModelSpec().id).folder())
    shared = {"pretrained": folder, "dtype": "float32"}
    models = {"hf": {**shared, "device": "cpu"}, "pyramid": {**shared, "device": "cpu", "method": "fullkv"}}
    results, seconds = {}, {}
    for name, given in models.items():
        started = time.perf_counter()
        results[name] = answers(name, given, options)
        seconds[name] = time.perf_counter() - started
    return compare(results["hf"], results["pyramid"]), seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.check_lm_eval",
        description="Compare lm_eval's own model with this one under FullKV.",
    )
    parser.add_argument("--task", default="gsm8k_cot", help="a task of lm_eval")
    parser.add_argument("--include-path", type=Path, help="a folder with tasks of one's own")
    parser.add_argument("--data", type=Path, help="a file to read instead of the data set on the hub")
    parser.add_argument("--items", type=int, default=50, help="how many, from the first on")
    parser.add_argument("--pretrained", help="a folder or a hub id; the default model's folder without it")
    parser.add_argument("--batch-size", type=int, default=1, help="prompts read together")
    parser.add_argument("--chat-template", action="store_true", help="wrap prompts in the model's template")
    return parser


if __name__ == "__main__":
    sys.exit(main())
