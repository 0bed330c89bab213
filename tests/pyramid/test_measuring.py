"""What is timed and counted, and what is not: on a tiny model in this process, with a clock that tests wind."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import pyramid.clock
from pyramid import models
from pyramid.clock import EXHAUSTED, Clock, SplitBatch
from pyramid.generation import Generator
from pyramid.machine import (
    GIB,
    NoGauge,
    ResidentGauge,
    copy_bandwidth,
    describe,
    is_exhausted,
    limited_memory,
)
from pyramid.measuring import ENGINE, STOCK, Order, Session, prompts_of
from pyramid.methods import build
from tests.conftest import ByteTokenizer, build_tiny_model

CPU = torch.device("cpu")


def session(method: Any = None, **changes: Any) -> Session:
    loaded = models.LoadedModel(
        model=build_tiny_model(), tokenizer=ByteTokenizer(), max_length=2048, identity={}
    )
    given: dict[str, Any] = {"prompt": 40, "batch": 2, "new": 5, **changes}
    return Session(Order(model=models.ModelSpec(), method=method or build("fullkv"), **given), loaded)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces the clock: each look at it is one second later. The list grows by every look."""
    seen: list[float] = []
    counter = itertools.count()

    def tick(device: object) -> float:
        seen.append(float(next(counter)))
        return seen[-1]

    monkeypatch.setattr(pyramid.clock, "synchronized_time", tick)
    return seen


def test_the_first_token_ends_where_the_prompts_pass_ends_and_noting_it_costs_nobody(
    ticks: list[float],
) -> None:
    """Four looks at the clock a call: begin, first logits, noted, end. Hence prefill is apart from decoding (F04)."""
    report = session().run()[ENGINE]
    (trial,) = report["trials"]
    assert (trial["first_token"], trial["answer"]) == (1.0, 1.0)
    assert len(ticks) == 2 * 4, "a short call first, then the measured one"


def test_where_the_last_token_is_read_again_the_first_token_comes_a_pass_later() -> None:
    model, passes = build_tiny_model(), []
    hook = model.register_forward_hook(lambda *_: passes.append(len(clock.holders)))
    generator = Generator(model=model, tokenizer=ByteTokenizer(), first_token="compressed")
    measured = session(first_token="compressed")
    with Clock(model, NoGauge(), rows=2, passes=measured.subjects[0].passes) as clock:
        generator.generate(measured_requests(measured), [build("fullkv")])
    hook.remove()
    assert passes[0] == 0 and passes[1:] == [0, *[1] * (len(passes) - 2)] and len(passes) == 1 + 5


def measured_requests(measured: Session) -> list[Any]:
    from pyramid.types import Request

    return [
        Request(id=str(number), segments=(prompt,), max_new_tokens=5, min_new_tokens=5)
        for number, prompt in enumerate(measured.prompts)
    ]


def test_warm_up_calls_are_made_and_not_recorded_and_who_goes_first_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = session(subjects=(ENGINE, STOCK), repeats=3, warmups=1)
    calls = []
    for subject in measured.subjects:
        call = subject.call
        monkeypatch.setattr(
            subject,
            "call",
            lambda prompts, new, call=call, name=subject.name: (
                calls.append((name, len(prompts[0]), new)),
                call(prompts, new),
            )[1],
        )
    report = measured.run()
    assert [len(report[name]["trials"]) for name in (ENGINE, STOCK)] == [3, 3]
    short, *rounds = pairs(calls)
    assert [new for _, _, new in short] == [3, 3]
    assert [name for one in rounds for name, _, _ in one] == [ENGINE, STOCK, STOCK, ENGINE] * 2
    assert {(length, new) for one in rounds for _, length, new in one} == {(40, 5)}


def pairs(values: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(values[start : start + 2]) for start in range(0, len(values), 2)]


def test_every_answer_has_exactly_its_length_whatever_stop_tokens_the_model_has() -> None:
    model = build_tiny_model()
    every = list(range(128))
    before, model.generation_config.eos_token_id = model.generation_config.eos_token_id, every
    try:
        measured = session(subjects=(ENGINE, STOCK))
        report = measured.run()
        assert all(len(tokens) == 5 for subject in measured.subjects for tokens in subject.tokens)
        assert report["agree"] == 1.0 and model.generation_config.eos_token_id == every
    finally:
        model.generation_config.eos_token_id = before


def test_prompts_depend_on_seed_and_size_only() -> None:
    order = session().order
    assert prompts_of(order, 128) == prompts_of(session(build("snapkv", budget=16)).order, 128)
    assert prompts_of(order, 128) != prompts_of(session(seed=1).order, 128)
    assert {len(prompt) for prompt in prompts_of(order, 128)} == {40} and len(prompts_of(order, 128)) == 2


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_subject_without_room_drops_out_and_the_other_is_measured(error: Exception) -> None:
    measured = session(subjects=(ENGINE, STOCK), repeats=2)
    engine = measured.subjects[0]
    call, calls = engine.call, []

    def full(prompts: Any, new: int) -> float:
        calls.append(new)
        if len(calls) == 3:  # the short one and the first measured one went well
            raise error
        return call(prompts, new)

    engine.call = full
    report = measured.run()
    assert report[ENGINE] == {"error": EXHAUSTED} and len(report[STOCK]["trials"]) == 2
    assert report["agree"] is None and len(calls) == 3


def test_other_errors_are_nobodys_outcome() -> None:
    measured = session()
    measured.subjects[0].call = lambda prompts, new: 1 / 0
    with pytest.raises(ZeroDivisionError):
        measured.run()
    with pytest.raises(ValueError, match="must be above|not above|always kept"):
        session(build("snapkv", budget=0.01)).run()


@pytest.mark.parametrize("late", [False, True])
def test_a_batch_is_never_measured_in_parts(late: bool) -> None:
    """The generator halves what does not fit; what is then measured would be two batches of one."""
    model = build_tiny_model()
    seen: list[int] = []

    def no_room(module: Any, args: Any, kwargs: Any) -> None:
        rows, tokens = kwargs["input_ids"].shape
        seen.append(rows)
        if rows == 2 and tokens == (1 if late else 40):
            raise torch.OutOfMemoryError("CUDA out of memory")

    measured = session()
    measured.prompts = [prompt[:40] for prompt in measured.prompts]
    hook = model.register_forward_pre_hook(no_room, with_kwargs=True)
    try:
        assert measured.run()[ENGINE] == {"error": EXHAUSTED}
        with pytest.raises(SplitBatch), Clock(model, NoGauge(), rows=2, passes=1):
            model(input_ids=torch.ones(1, 40, dtype=torch.long))
    finally:
        hook.remove()
    assert not model._forward_pre_hooks and not model._forward_hooks, "nothing stays on the model"


def test_a_peak_is_that_of_its_own_region() -> None:
    """F01: 256 MiB taken and given back before the reset are in no later peak; 128 MiB taken after it are."""
    gauge = ResidentGauge()
    gauge.reset()
    block = torch.ones(64 * 1024**2)
    before = gauge.peak()
    del block
    gauge.reset()
    quiet = gauge.peak()
    block = torch.ones(32 * 1024**2)
    after = gauge.peak()
    assert before is not None and quiet is not None and after is not None and block[0] == 1
    mebi = 1024**2
    assert before > 240 * mebi and quiet < 64 * mebi and 120 * mebi < after - quiet < 160 * mebi


def test_what_cannot_be_measured_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyramid.machine
    import pyramid.measuring

    def absent(name: str) -> int:
        raise OSError("no /proc here")

    monkeypatch.setattr(pyramid.machine, "_resident", absent)
    report = session().run()[ENGINE]
    assert report["trials"][0]["peak_prompt"] is None and report["trials"][0]["peak_answer"] is None
    assert describe(CPU)["versions"]["cuda"] is None


def test_memory_is_limited_within_and_not_after() -> None:
    with limited_memory(CPU, 0.5, 0), pytest.raises(RuntimeError) as caught:
        torch.ones(GIB // 4)
    assert is_exhausted(caught.value)
    assert torch.ones(GIB // 4)[0] == 1
    assert not is_exhausted(RuntimeError("size mismatch")) and is_exhausted(MemoryError())
    with pytest.raises(ValueError, match="memory_gib=100000 is more than"), limited_memory(CPU, 100_000, 0):
        pass


def test_weights_are_part_of_the_limit() -> None:
    with limited_memory(CPU, 2.5, 2 * GIB), pytest.raises(RuntimeError, match="allocate memory"):
        torch.ones(GIB // 4)


def test_the_bandwidth_is_a_positive_number_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyramid.machine

    monkeypatch.setattr(pyramid.machine, "COPIED", {"cpu": 1024**2})
    speed = copy_bandwidth(CPU)
    assert speed is not None and speed > 0

    def none(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "ones", none)
    assert copy_bandwidth(CPU) is None
