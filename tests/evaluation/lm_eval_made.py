"""Small tasks of every kind that lm-evaluation-harness knows, as files, and its own model as the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

WORDS = ("red", "green", "blue", "seven", "nine", "the sea", "a hill", "no one")


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f"{WORDS[n % 8]} and {WORDS[(3 * n + 1) % 8]} make what, number {n}?",
            "choices": [WORDS[(n + 1) % 8], WORDS[(n + 2) % 8] + " or so", WORDS[(n + 5) % 8]],
            "label": n % 3,
            "mark": "t"
            if n
            else "x",  # the tiny model's answers have a t, but for the one that is stopped before it
            "text": " ".join(WORDS[(n * i + i) % 8] for i in range(20 + 60 * n)),
        }
        for n in range(count)
    ]


def tasks(data: Path) -> dict[str, dict[str, Any]]:
    asked = {"doc_to_text": "Question: {{question}}\nAnswer:", "fewshot_split": "test"}
    likely = {**asked, "doc_to_choice": "choices", "doc_to_target": "label", "output_type": "multiple_choice"}
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
    }
    own = {
        "made_answers": {
            **asked,
            "doc_to_target": "{{mark}}",
            "output_type": "generate_until",
            "num_fewshot": 2,
            "generation_kwargs": {"until": ["\0", "Question:"], "max_gen_toks": 24, "do_sample": False},
            "filter_list": [
                {"name": "whole", "filter": [{"function": "take_first"}]},
                {
                    "name": "letter",
                    "filter": [{"function": "regex", "regex_pattern": "([a-z])"}, {"function": "take_first"}],
                },
            ],
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        },
        "made_long": {
            **asked,
            "doc_to_text": "{{text}}",
            "doc_to_target": "{{mark}}",
            "output_type": "generate_until",
            "generation_kwargs": {"until": [], "max_gen_toks": 8},
        },
        "made_choices": {**likely, "num_fewshot": 1},
        "made_twins": {**likely, "doc_to_text": "{{question}}", "num_fewshot": 0},
        "made_letters": {**likely, "doc_to_choice": ["t", "x", "e"], "target_delimiter": ""},
        "made_ends": {**asked, "doc_to_target": " {{choices[0]}}", "output_type": "loglikelihood"},
        "made_texts": {
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "output_type": "loglikelihood_rolling",
            "metric_list": [
                {"metric": name, "aggregation": "weighted_perplexity", "higher_is_better": False}
                for name in ("word_perplexity", "byte_perplexity")
            ],
        },
    }
    return {name: {**common, **config} for name, config in own.items()}


def write(folder: Path, count: int = 4) -> Path:
    """A folder for `include_path`, with its data, and a group of two of its tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(count)))
    for name, config in tasks(data).items():
        (folder / f"{name}.yaml").write_text(
            yaml.safe_dump({"task": name, **config, "metadata": {"version": 1}})
        )
    group = {
        "group": "made_both",
        "task": ["made_choices", "made_twins"],
        "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}],
    }
    (folder / "made_both.yaml").write_text(yaml.safe_dump(group))
    return folder


def evaluated(model: Any, names: list[str], folder: Path, **options: Any) -> Any:
    """What lm_eval's own loop says of a model."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    evaluate: Any = simple_evaluate
    found = evaluate(
        model=model, tasks=names, task_manager=manager, bootstrap_iters=0, log_samples=True, **options
    )
    assert found is not None
    return found


def reference(folder: Path) -> Any:
    """lm_eval's own model for transformers, in float32, one prompt at a time."""
    from lm_eval.models.huggingface import HFLM

    model: Any = HFLM
    return model(pretrained=str(folder), dtype="float32", device="cpu", batch_size=1)
