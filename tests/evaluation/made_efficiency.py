"""Efficiency runs with chosen numbers, written as the harness writes them, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.efficiency import Efficiency
from evaluation.frame import Result
from evaluation.results import RunSpec, load_runs
from evaluation.summary import summarize
from tests.evaluation.made_runs import PROTOCOL

ENTRY = 1000  # bytes of one token in all layers
MACHINE = {
    "device": "CPU Made Up",
    "versions": {"torch": "2", "cuda": None},
    "threads": 2,
    "cores": 2,
    "load_before": 0.5,
    "cpu_governor": None,
    "gpu": None,
    "peaks_are": "resident set of the process (RSS)",
}


def trial(
    first_token: float, answer: float, compression: float = 0.0, peak: int | None = None
) -> dict[str, Any]:
    return {
        "first_token": first_token,
        "compression": compression,
        "answer": answer,
        "peak_prompt": peak,
        "peak_answer": peak,
    }


def point(
    length: int,
    batch: int | str,
    new: int,
    trials: Sequence[dict[str, Any]],
    *,
    kept: int | None = None,
    stock: Sequence[dict[str, Any]] | None = None,
    rows: int = 0,
    error: str | None = None,
    expected: int = 0,
    search: Sequence[tuple[int, bool]] = (),
) -> dict[str, Any]:
    """One line of predictions.jsonl. kept: tokens after the prompt, one more with each token fed; stock: the trials of
    transformers' generate(); rows: the batch, where it was searched; expected: bytes by which the arithmetic differs.
    """
    rows = rows or (0 if batch == "largest" else int(batch))
    held, full = rows * (kept or length) * ENTRY, rows * length * ENTRY
    grown = held + rows * (new - 1) * ENTRY
    sizes = {"bytes_after_prompt": held, "bytes_at_end": grown}
    sizes |= {"allocated_after_prompt": held, "allocated_at_end": grown + 64}
    measured: dict[str, Any] = {"batch": rows, "machine": MACHINE, "kernel": "sdpa", "dtype": "float32"}
    if search:
        measured["search"] = [{"batch": tried, "fits": fits} for tried, fits in search]
    if error is None:
        measured |= {"agree": None, "trials": list(trials), **sizes}
        measured["theory"] = {
            "bytes_after_prompt": held + expected,
            "bytes_at_end": grown + expected,
            "step_seconds": 0.1,
        }
    if stock is not None:
        whole = rows * (length + new - 1) * ENTRY
        measured["agree"] = 1.0
        measured["stock"] = {"error": None, "trials": list(stock)} | {
            "bytes_after_prompt": full,
            "bytes_at_end": whole,
            "allocated_after_prompt": full,
            "allocated_at_end": whole,
        }
    failed = error is not None
    seconds = (
        {"prefill": trials[0]["first_token"], "compression": 0.0, "decode": trials[0]["answer"]}
        if trials
        else {}
    )
    return {
        "id": f"{length}+{new}x{batch}",
        "text": "",
        "scores": {} if failed else {"seconds_per_token": sum(seconds.values()) / (rows * new)},
        "references": [],
        "prompt_tokens": length,
        "new_tokens": None if failed else new,
        "finish": "" if failed else "length",
        "truncated": False,
        "compressed": None if failed else kept is not None,
        "kept_tokens": None if failed else [kept or length] * 2,
        "bytes_after_prompt": None if failed else held,
        "kept_tokens_at_end": None if failed else [(kept or length) + new - 1] * 2,
        "bytes_at_end": None if failed else grown,
        "full_bytes_after_prompt": None if failed else full,
        "prefill_work": None if failed else 1.0,
        "seconds": seconds,
        "prompt_head": "",
        "prompt_tail": "",
        "measured": measured,
        "meta": {"length": length, "batch": batch, "new_tokens": new},
        "error": error,
    }


def make(
    root: Path,
    method: str,
    budget: int | float | None,
    records: Sequence[dict[str, Any]],
    *,
    parameters: Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Write a finished run under `root`. `options` replace parts of its specification."""
    points = [record["meta"] for record in records]
    task = Efficiency(
        lengths=sorted({meta["length"] for meta in points}),
        batches=list(dict.fromkeys(meta["batch"] for meta in points)),
        new_tokens=sorted({meta["new_tokens"] for meta in points}),
    )
    parts: dict[str, Any] = {
        "model": {"id": "org/tiny", "dtype": "float32"},
        "method": {"name": method, "version": 1, **(parameters or {})},
        "budget": budget,
        "protocol": PROTOCOL,
        "task": {"name": task.name, **task.identity()},
        "subset": {"limit": None, "ids": None},
        "seed": 0,
        "engine": "1",
    }
    spec = RunSpec(**parts | options)
    folder = root / "runs" / spec.key
    folder.mkdir(parents=True)
    stand_in: Any = task
    summary = summarize(records, spec=spec, task=stand_in, environments=[])
    (folder / "spec.json").write_text(json.dumps(json.loads(spec.canonical())))
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    (folder / "summary.json").write_text(json.dumps(summary))
    return next(Result(run) for run in load_runs(root) if run.key == spec.key)
