"""A generator whose answers are measurements: each request stands for a whole batch like it, which is answered
in a process of its own, so that no peak, cache or warm kernel leaks from one measurement into the next.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyramid.clock import EXHAUSTED
from pyramid.measuring import ENGINE, STOCK, Order
from pyramid.method import Method
from pyramid.methods.fullkv import FullKV
from pyramid.models import ModelSpec
from pyramid.types import Answer, Held, Request

ROOT = Path(__file__).resolve().parent.parent
MOST_ROWS = 4096  # where the search for the largest batch ends
TAIL = 4000  # characters of a failed process's own words that are kept


@dataclass(frozen=True, kw_only=True)
class Measurer:
    """Answers requests by measuring, as `Generator.generate` answers them by generating.

    An answer's bytes and seconds are those of its whole batch, its tokens those of one sequence; all else that
    was found stands in `measured`.
    batches: request's id to the prompts in its batch; None searches the largest batch that fits.
    stock: let transformers' own generate() take turns with FullKV. The rest as for `Order`.
    """

    model: ModelSpec
    batches: Mapping[str, int | None]
    stock: bool = True
    repeats: int = 3
    warmups: int = 1
    decode: str = "plain"
    memory_gib: float | None = None
    first_token: str = "full"
    cache_heads: str = "kv"

    def generate(self, requests: Sequence[Request], methods: Sequence[Method]) -> list[list[Answer]]:
        return [[self._answer(request, method) for request in requests] for method in methods]

    def _answer(self, request: Request, method: Method) -> Answer:
        order = Order(
            model=self.model,
            method=method,
            prompt=request.prompt_tokens,
            batch=self.batches[request.id] or 1,
            new=request.max_new_tokens,
            seed=request.seed,
            subjects=(ENGINE, STOCK) if self.stock and isinstance(method, FullKV) else (ENGINE,),
            repeats=self.repeats,
            warmups=self.warmups,
            decode=self.decode,
            memory_gib=self.memory_gib,
            first_token=self.first_token,
            cache_heads=self.cache_heads,
        )
        if self.batches[request.id] is not None:
            return answer_of(request, order.batch, _measured(order))
        batch, report = measured_at_largest(order, ENGINE)
        if STOCK in order.subjects and report.get("error") is None:
            others, stock = measured_at_largest(order, STOCK)
            report[STOCK] = (stock.get(STOCK) or {"error": stock["error"]}) | {
                "batch": others,
                "search": stock.get("search"),
            }
        return answer_of(request, batch, report)


def _measured(order: Order) -> dict[str, Any]:
    """What is measured at a batch of this size. A decoder of fixed shapes keeps its buffers, which would be in the
    peaks of whoever takes turns with it: so there everybody has a process."""
    if order.decode == "plain" or STOCK not in order.subjects:
        return carry_out(order)
    report = carry_out(replace(order, subjects=(ENGINE,)))
    stock = carry_out(replace(order, subjects=(STOCK,)))
    return report | {STOCK: stock.get(STOCK) or {"error": stock["error"]}}


def measured_at_largest(order: Order, subject: str) -> tuple[int, dict[str, Any]]:
    """The largest batch that `subject` can answer, and what was measured there; each try is a process of its
    own. What the last, repeated measurement does not bear after all is tried with one prompt less."""
    order = replace(order, subjects=(subject,))
    search: list[dict[str, Any]] = []

    def tried(rows: int, **changes: Any) -> dict[str, Any]:
        report = carry_out(replace(order, batch=rows, **changes))
        error = error_of(report, subject)
        search.append({"batch": rows, "fits": error is None})
        if error not in (None, EXHAUSTED):
            raise Failed(report)
        return report

    try:
        rows = largest(lambda rows: error_of(tried(rows, repeats=1, warmups=0), subject) is None, MOST_ROWS)
        report: dict[str, Any] = {"error": EXHAUSTED}
        while rows and error_of(report := tried(rows), subject) is not None:
            rows -= 1
    except Failed as failed:
        rows, report = 0, failed.report
    return rows, report | {"search": search}


class Failed(RuntimeError):
    """A try failed for another reason than memory."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(report)
        self.report = report


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, if all below it do: found by doubling, then by halving the
    gap. 0 if not even 1 fits."""
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while low and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def error_of(report: Mapping[str, Any], subject: str) -> str | None:
    """Why a subject has no measurement, or None if it has."""
    return report.get("error") or report[subject]["error"]


def carry_out(order: Order) -> dict[str, Any]:
    """What `pyramid.measuring` reports in a process of its own, or `error` and the process's last words."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "pyramid.measuring"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # its end says more than this
                process.stdin.write(pickle.dumps(order))
                process.stdin.flush()  # and stays open: when it closes, the other side knows that we are gone
            written = process.stdout.read()
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
        words.seek(0)
        said = words.read()[-TAIL:].strip()
    if code == -signal.SIGKILL:
        return {"error": EXHAUSTED, "words": f"the system ended the process (SIGKILL)\n{said}"}
    if code != 0:
        last = said.splitlines()[-1:] or ["without a word"]
        return {"error": f"the measuring process ended with code {code}: {last[0]}", "words": said}
    report = json.loads(written)
    return report | ({"words": said} if report.get("error") else {})


def answer_of(request: Request, batch: int, report: Mapping[str, Any]) -> Answer:
    """A report as an answer: `measured` has the engine's measurement, and the rest under its own names."""
    engine = report.get(ENGINE) or {"error": report["error"]}
    others = {name: value for name, value in report.items() if name not in (ENGINE, "error")}
    measured = {
        "batch": batch,
        **others,
        **{n: v for n, v in engine.items() if n not in ("error", "sequence")},
    }
    if engine["error"] is not None:
        return Answer(
            id=request.id, prompt_tokens=request.prompt_tokens, error=engine["error"], measured=measured
        )
    sequence, trials = engine["sequence"], engine["trials"]
    compression = statistics.median(trial["compression"] for trial in trials)
    return Answer(
        id=request.id,
        token_ids=tuple(sequence["token_ids"]),
        finish="length",
        prompt_tokens=request.prompt_tokens,
        held_after_prompt=_held(sequence["held_after_prompt"], batch),
        held_at_end=_held(sequence["held_at_end"], batch),
        compressed=sequence["compressed"],
        full_bytes_after_prompt=sequence["full_bytes_after_prompt"] * batch,
        prefill_work=sequence["prefill_work"],
        seconds={
            "prefill": statistics.median(trial["first_token"] - trial["compression"] for trial in trials),
            "compression": compression,
            "decode": statistics.median(trial["answer"] for trial in trials),
        },
        measured=measured,
    )


def _held(sequence: Mapping[str, Any], batch: int) -> Held:
    return Held(tokens=tuple(sequence["tokens"]), bytes=sequence["bytes"] * batch)
