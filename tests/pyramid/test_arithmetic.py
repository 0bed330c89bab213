"""Every method holds, to the byte, what shape, budget and lengths say; and transformers' cache what FullKV's do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyramid import models
from pyramid.arithmetic import Shape, expected, read_weights, theory
from pyramid.measuring import ENGINE, STOCK, Order, Session
from pyramid.methods import build
from tests.conftest import ByteTokenizer, build_tiny_model
from tests.pyramid.methods.test_contract import METHODS, configured

PROMPT, NEW, BATCH = 90, 7, 3
SHAPE = Shape(layers=6, heads=2, head_size=8, number_bytes=4)
ENTRY = 2 * 2 * 8 * 4  # key and value, heads, head size, float32: what SHAPE's one layer takes for one token


def measured(method: Any, *, subjects: tuple[str, ...] = (ENGINE,), **changes: Any) -> dict[str, Any]:
    """A session's report on the tiny model, in this process."""
    loaded = models.LoadedModel(
        model=build_tiny_model(), tokenizer=ByteTokenizer(), max_length=2048, identity={}
    )
    order = Order(
        model=models.ModelSpec(),
        method=method,
        prompt=changes.pop("prompt", PROMPT),
        batch=BATCH,
        new=NEW,
        subjects=subjects,
        **changes,
    )
    return Session(order, loaded).run()


CASES = [(name, budget) for name in METHODS for budget in (0.85, 4096)]
CASES += [
    (name, 16) for name in METHODS if name not in ("fullkv", "pyramidinfer")
]  # below pyramidinfer's reach
MORE = [
    build("h2o", budget=32, decode_eviction=False),
    build("h2o", budget=92, decode_eviction="always"),
    build("streamingllm", budget=32, positions="true"),
    build("streamingllm", budget=92, decode_eviction="always"),
    build("pyramidkv", budget=40, schedule="published"),
    build("pyramidinfer", decay=0.8),
]


@pytest.mark.parametrize(
    "method",
    [*(configured(name, budget) for name, budget in CASES), *MORE],
    ids=[*(f"{name}-{budget}" for name, budget in CASES), *(repr(method) for method in MORE)],
)
def test_what_is_held_equals_the_arithmetic_to_the_byte(method: Any) -> None:
    """Counted twice: over the real tensors of the batch, and as the engine's answers tell it of a sequence."""
    engine, paper = measured(method)[ENGINE], expected(method, SHAPE, prompt=PROMPT, new=NEW)
    assert engine["bytes_after_prompt"] == BATCH * paper.after_prompt
    assert engine["bytes_at_end"] == BATCH * (paper.at_end or 0)
    sequence = engine["sequence"]
    assert sequence["held_after_prompt"]["bytes"] == paper.after_prompt
    assert sequence["held_at_end"]["bytes"] == paper.at_end
    assert engine["allocated_at_end"] >= engine["bytes_at_end"]


@pytest.mark.parametrize("name", ["fullkv", "h2o", "streamingllm"])
def test_a_cache_per_query_head_is_billed_as_one(name: str) -> None:
    method = configured(name, 16)
    engine = measured(method, cache_heads="query")[ENGINE]
    paper = expected(method, Shape(layers=6, heads=8, head_size=8, number_bytes=4), prompt=PROMPT, new=NEW)
    assert engine["bytes_at_end"] == BATCH * (paper.at_end or 0)
    assert paper.after_prompt == 4 * expected(method, SHAPE, prompt=PROMPT, new=NEW).after_prompt


@pytest.mark.parametrize("name", ["fullkv", "pyramidkv", "truncated"])
def test_steps_of_fixed_shapes_hold_the_same_and_give_the_same_answers(name: str) -> None:
    method = configured(name, 16)
    plain, fixed = measured(method), measured(method, decode="graph", repeats=2)
    assert fixed[ENGINE]["sequence"] == plain[ENGINE]["sequence"] and len(fixed[ENGINE]["trials"]) == 2
    for when in ("bytes_after_prompt", "bytes_at_end"):
        assert fixed[ENGINE][when] == plain[ENGINE][when]
    assert fixed[ENGINE]["allocated_at_end"] == fixed[ENGINE]["bytes_at_end"], (
        "buffers are as long as the answer"
    )


def test_the_arithmetic_agrees_with_numbers_worked_out_by_hand() -> None:
    """SnapKV at 16 of 90, with 6 fed tokens; H2O's sums are 4 bytes an entry and head; four sinks are kept twice."""
    found = expected(build("snapkv", budget=16), SHAPE, prompt=PROMPT, new=NEW)
    assert (found.after_prompt, found.at_end) == (6 * 16 * ENTRY, 6 * 22 * ENTRY)
    found = expected(build("h2o", budget=16), SHAPE, prompt=PROMPT, new=NEW)
    assert found.after_prompt == found.at_end == 6 * 16 * (ENTRY + 2 * 4)
    found = expected(build("streamingllm", budget=16), SHAPE, prompt=PROMPT, new=NEW)
    assert found.after_prompt == found.at_end == 6 * 16 * ENTRY + 6 * 4 * ENTRY // 2
    found = expected(build("fullkv"), SHAPE, prompt=PROMPT, new=1)
    assert found.after_prompt == found.at_end == 6 * 90 * ENTRY
    assert (
        expected(
            build("pyramidinfer", budget=0.8, answer_compression=True), SHAPE, prompt=PROMPT, new=NEW
        ).at_end
        is None
    ), "what depends on the answer is not worked out"


def test_transformers_own_cache_holds_what_fullkv_holds_and_gives_the_same_answers() -> None:
    report = measured(build("fullkv"), subjects=(ENGINE, STOCK))
    for when in ("bytes_after_prompt", "bytes_at_end"):
        assert report[STOCK][when] == report[ENGINE][when] > 0
    assert report["agree"] == 1.0


def test_a_step_reads_the_weights_but_not_the_whole_of_an_untied_embedding() -> None:
    model = build_tiny_model()
    assert not model.config.tie_word_embeddings
    whole = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert read_weights(model) == whole - 128 * 64 * 4
    assert read_weights(build_tiny_model("Mixtral")) is None, "which experts are read is not known"


def test_the_floor_is_what_is_read_over_the_bandwidth() -> None:
    """FullKV at batch 3: weights once, and the cache of three sequences, at its mean length over the answer."""
    model = build_tiny_model()
    found = theory(
        model, build("fullkv"), prompt=PROMPT, new=NEW, batch=BATCH, cache_heads="kv", bandwidth=1e6
    )
    cache = BATCH * 6 * ENTRY * (PROMPT + (NEW - 1) / 2)
    assert found["step_seconds"] == pytest.approx((read_weights(model) + cache) / 1e6)  # type: ignore[operator]
    found = theory(model, build("fullkv"), prompt=9, new=2, batch=1, cache_heads="kv", bandwidth=None)
    assert found["step_seconds"] is None and found["bytes_at_end"] == 6 * 10 * ENTRY


def test_the_shape_is_read_off_any_family() -> None:
    for family, size in (("Llama", 8), ("Qwen3", 16)):
        config = build_tiny_model(family).config
        shape = Shape.of(config, cache_heads="kv", number_bytes=torch.float16.itemsize)
        assert (shape.layers, shape.heads, shape.head_size, shape.entry_bytes) == (6, 2, size, 8 * size)
