"""Runs with chosen scores, for tests of what is made of runs: written as the harness writes them, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from evaluation.frame import Result
from evaluation.results import RunSpec, load_runs
from evaluation.summary import summarize

PROTOCOL = {"name": "fair", "template": "chat", "question": "in_prompt", "window": 8}
LAYERS = 3


class Mean:
    """Scores are means over samples."""

    metrics = ("f1",)
    lower_is_better = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {"f1": fmean(record["scores"]["f1"] for record in records)}


def record(number: int, score: float | None, kept: int, text: str = "an answer") -> dict[str, Any]:
    """One line of predictions.jsonl; a score of None is a failure."""
    failed = score is None
    return {
        "id": f"sample {number}",
        "text": "" if failed else text,
        "scores": {} if failed else {"f1": score},
        "references": ["the reference"],
        "prompt_tokens": 1000 + number,
        "new_tokens": None if failed else 10,
        "finish": "" if failed else "stop",
        "truncated": False,
        "compressed": None if failed else kept < 1000,
        "kept_tokens": None if failed else [kept + 1, kept, kept - 1],
        "bytes_after_prompt": None if failed else kept * LAYERS * 1024,
        "kept_tokens_at_end": None if failed else [kept + 11, kept + 10, kept + 9],
        "bytes_at_end": None if failed else (kept + 10) * LAYERS * 1024,
        "full_bytes_after_prompt": None if failed else 1000 * LAYERS * 1024,
        "prefill_work": None if failed else 1.0,
        "seconds": {} if failed else {"prefill": 0.5, "compression": 0.25, "decode": 0.125},
        "prompt_head": "The beginning",
        "prompt_tail": "the end.",
        "meta": {"prompt": "the prompt's name"},
        "error": "out of memory" if failed else None,
    }


def make(
    root: Path,
    method: str,
    budget: int | float | None,
    scores: Sequence[float | None],
    *,
    task: str = "longbench/qasper",
    task_version: int = 1,
    text: str = "an answer",
    parameters: Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Write a finished run under `root`. `options` replace parts of its specification."""
    kept = 1000 if budget is None else int(budget)
    parts: dict[str, Any] = {
        "model": {"id": "org/tiny", "dtype": "float32"},
        "method": {"name": method, "version": 1, **(parameters or {})},
        "budget": budget,
        "protocol": PROTOCOL,
        "task": {"name": task, "version": task_version},
        "subset": {"limit": None, "ids": None},
        "seed": 0,
        "engine": "1",
    }
    spec = RunSpec(**parts | options)
    folder = root / "runs" / spec.key
    folder.mkdir(parents=True, exist_ok=True)
    records = [record(number, score, kept, text) for number, score in enumerate(scores)]
    stand_in: Any = Mean(task)
    summary = summarize(records, spec=spec, task=stand_in, environments=[])
    (folder / "spec.json").write_text(json.dumps(json.loads(spec.canonical())))
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    (folder / "summary.json").write_text(json.dumps(summary))
    return next(Result(run) for run in load_runs(root) if run.key == spec.key)
