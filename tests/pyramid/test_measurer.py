"""Measurements in processes of their own: what comes back, what a death says, and how the largest batch is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

import pyramid.measurer
from pyramid import models
from pyramid.clock import EXHAUSTED
from pyramid.measurer import Measurer, answer_of, carry_out, largest
from pyramid.measuring import ENGINE, STOCK, Order
from pyramid.methods import build
from pyramid.types import Request

MODEL = models.ModelSpec(
    name="made",
    id="made/up",
    weights="random",
    checkpoint={
        "id": "made/up",
        "architecture": {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 2048,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 300,
            "max_position_embeddings": 4096,
        },
    },
)
TRIAL = {"first_token": 3.0, "compression": 1.0, "answer": 4.0, "peak_prompt": None, "peak_answer": None}
HELD = {"tokens": [10, 12], "bytes": 100}


def request(length: int = 20, new: int = 5) -> Request:
    return Request(id="a point", segments=((0,) * length,), max_new_tokens=new)


def report_of(**engine: Any) -> dict[str, Any]:
    sequence = {
        "held_after_prompt": HELD,
        "held_at_end": HELD | {"bytes": 140},
        "compressed": True,
        "full_bytes_after_prompt": 400,
        "prefill_work": 1.0,
        "token_ids": [1, 2, 3, 4, 5],
    }
    return {
        ENGINE: {"error": None, "trials": [TRIAL], "sequence": sequence, **engine},
        "machine": {"threads": 1},
    }


def test_one_process_a_point_and_no_peak_from_the_point_before() -> None:
    """F01 and F02: a long prompt, then a short one. Each report has all figures apart, and a peak of its own."""
    long = carry_out(
        Order(model=MODEL, method=build("fullkv"), prompt=2000, batch=4, new=4, subjects=(ENGINE, STOCK))
    )
    short = carry_out(Order(model=MODEL, method=build("streamingllm", budget=32), prompt=100, batch=4, new=4))
    first, second = long[ENGINE]["trials"][0], short[ENGINE]["trials"][0]
    assert first["peak_prompt"] > 2 * second["peak_prompt"] > 0, "8,000 tokens of 2,048 numbers are 64 MB"
    assert set(first) == set(TRIAL) and first["answer"] > 0 and first["first_token"] > 0
    entry = 2 * 2 * 2 * 16 * 4  # layers, key and value, heads, head size, float32
    assert long[ENGINE]["bytes_after_prompt"] == long[STOCK]["bytes_after_prompt"] == 4 * 2000 * entry
    assert short[ENGINE]["bytes_after_prompt"] == 4 * (32 * entry + 4 * entry // 2)
    assert long["agree"] == 1.0 and short["agree"] is None
    assert (
        long["kernel"] == "sdpa"
        and long["machine"]["versions"]["torch"]
        and long["theory"]["step_seconds"] > 0
    )


def test_memory_exhausted_is_an_outcome_and_a_refusal_is_a_sentence() -> None:
    order = Order(model=MODEL, method=build("fullkv"), prompt=3000, batch=64, new=2, memory_gib=0.5)
    assert carry_out(order)[ENGINE] == {"error": EXHAUSTED}
    order = Order(model=MODEL, method=build("snapkv", budget=0.001), prompt=300, batch=1, new=2)
    report = carry_out(order)
    assert "always kept" in report["error"] and "Traceback" in report["words"]


def test_a_process_that_dies_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(code: str) -> dict[str, Any]:
        start = subprocess.Popen
        monkeypatch.setattr(
            pyramid.measurer.subprocess,
            "Popen",
            lambda command, **options: start([sys.executable, "-c", code], **options),
        )
        found = carry_out(Order(model=MODEL, method=build("fullkv"), prompt=1, batch=1, new=1))
        monkeypatch.undo()
        return found

    killed = dying("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert killed["error"] == EXHAUSTED and "SIGKILL" in killed["words"]
    crashed = dying("import sys; print('a bad day', file=sys.stderr); sys.exit(3)")
    assert crashed["error"] == "the measuring process ended with code 3: a bad day"


def test_a_measuring_process_ends_when_whoever_ordered_it_is_gone() -> None:
    """The reader of its orders closes the pipe, as the system does when a process dies; it would run for minutes."""
    import pickle

    order = Order(model=MODEL, method=build("fullkv"), prompt=4000, batch=8, new=64, repeats=1000)
    process = subprocess.Popen(
        [sys.executable, "-m", "pyramid.measuring"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(pyramid.measurer.ROOT)},
    )
    try:
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(order))
        process.stdin.flush()
        time.sleep(0.5)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5, 8, 31, 88, 100])
@pytest.mark.parametrize("most", [1, 40, 4096])
def test_the_largest_batch_is_found_without_trying_one_twice(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(rows: int) -> bool:
        tried.append(rows)
        return rows <= limit

    assert largest(fits, most) == min(limit, most)
    assert len(set(tried)) == len(tried) <= 2 * max(1, min(limit, most)).bit_length() + 2
    assert max(tried) <= most


def search(monkeypatch: pytest.MonkeyPatch, room: dict[str, int], shaky: int = 0) -> Any:
    """The answer of a search in which a subject has room for so many; the last measurement for `shaky` fewer."""
    orders: list[Order] = []

    def carried_out(order: Order) -> dict[str, Any]:
        (subject,) = order.subjects
        orders.append(order)
        fits = order.batch <= room[subject] - (shaky if order.repeats > 1 else 0)
        report = report_of(batch_seen=order.batch) if fits else {}
        return {subject: report[ENGINE]} if fits else {subject: {"error": EXHAUSTED}}

    monkeypatch.setattr(pyramid.measurer, "carry_out", carried_out)
    measurer = Measurer(model=MODEL, batches={"a point": None}, repeats=3)
    ((answer,),) = measurer.generate([request()], [build("fullkv")])
    assert {order.repeats for order in orders} <= {1, 3}
    return answer


def test_the_largest_batch_is_searched_for_both_and_measured_there(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = search(monkeypatch, {ENGINE: 11, STOCK: 5})
    assert answer.measured["batch"] == answer.measured["batch_seen"] == 11 and answer.error is None
    assert answer.measured[STOCK]["batch"] == 5 and answer.measured[STOCK]["error"] is None
    tries = [(each["batch"], each["fits"]) for each in answer.measured["search"]]
    up, between = (
        [(1, True), (2, True), (4, True), (8, True), (16, False)],
        [(12, False), (10, True), (11, True)],
    )
    assert tries == [*up, *between, (11, True)]
    assert answer.held_after_prompt.bytes == 11 * 100


def test_what_the_repeated_measurement_does_not_bear_is_tried_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = search(monkeypatch, {ENGINE: 11, STOCK: 5}, shaky=2)
    assert answer.measured["batch"] == 9 and answer.measured[STOCK]["batch"] == 3


def test_no_room_for_one_is_memory_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = search(monkeypatch, {ENGINE: 0, STOCK: 3})
    assert answer.error == EXHAUSTED and answer.held_after_prompt is None
    answer = search(monkeypatch, {ENGINE: 3, STOCK: 0})
    assert answer.error is None and answer.measured[STOCK]["error"] == EXHAUSTED


def test_with_a_decoder_of_fixed_shapes_everybody_has_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buffers outlive the call, and would stand in the other's peaks."""
    orders: list[Order] = []

    def carried_out(order: Order) -> dict[str, Any]:
        orders.append(order)
        (subject,) = order.subjects
        return {subject: report_of(who=subject)[ENGINE], "agree": None}

    monkeypatch.setattr(pyramid.measurer, "carry_out", carried_out)
    measurer = Measurer(model=MODEL, batches={"a point": 2}, decode="graph")
    ((answer,),) = measurer.generate([request()], [build("fullkv")])
    assert [order.subjects for order in orders] == [(ENGINE,), (STOCK,)]
    assert answer.measured["who"] == ENGINE and answer.measured[STOCK]["who"] == STOCK


def test_a_failure_of_another_kind_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyramid.measurer, "carry_out", lambda order: {"error": "a bug", "words": "Traceback"})
    measurer = Measurer(model=MODEL, batches={"a point": None})
    ((answer,),) = measurer.generate([request()], [build("snapkv", budget=32)])
    assert answer.error == "a bug" and answer.measured["words"] == "Traceback"
    assert len(answer.measured["search"]) == 1


def test_an_answers_seconds_and_bytes_are_those_of_the_batch() -> None:
    trials = [TRIAL, TRIAL | {"first_token": 9.0}, TRIAL | {"first_token": 4.0, "answer": 6.0}]
    answer = answer_of(request(), 8, report_of(trials=trials, bytes_at_end=1120))
    assert answer.seconds == {"prefill": 3.0, "compression": 1.0, "decode": 4.0}
    assert answer.held_at_end is not None and answer.held_at_end.bytes == 8 * 140
    assert answer.held_at_end.tokens == (10, 12) and answer.full_bytes_after_prompt == 8 * 400
    assert answer.measured["trials"] == trials and answer.measured["machine"] == {"threads": 1}
    assert (answer.prompt_tokens, answer.finish, len(answer.token_ids)) == (20, "length", 5)
