"""PyramidInfer against a hand-written layer loop, and its lengths against those that the authors' code gives."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch

from pyramid.cache import CompressedCache
from pyramid.engine import attached, cache_argument
from pyramid.generation import Generator
from pyramid.methods import build
from pyramid.types import Request

# Measured by running mutonix/pyramidinfer (61ac641, and its first release for the answer) on random models.
LONG = (
    "512 512 511 510 509 507 504 500 495 489 481 472 462 450 437 423 408 392 376 359 342 325 308 292 276 261 246"
    " 232 219"
)
PREFILL = [
    (128, 8, {"decay": 0.9}, "128 128 127 125 121 116 109 101"),
    (128, 8, {"decay": 0.9, "schedule": "constant"}, "128 117 107 98 98 98 98 98"),
    (256, 8, {"decay": 0.8, "interval": 2}, "256 256 256 250 250 230 230 199"),
    (
        128,
        32,
        {"decay": 0.9},
        "128 128 127 126 125 124 123 122 120 118 116 114 111 108 105 101 97" + " 93" * 15,
    ),
    (512, 32, {"decay": 0.9}, LONG + " 207 196 186"),
]
RETENTION = [  # mean share held, of prompts of 512 and 2048 tokens
    ("llama2_7b", 32, 0.757, 0.765),
    ("llama2_13b", 40, 0.723, 0.723),
    ("llama2_70b", 80, 0.774, 0.780),
    ("llama3_8b", 32, 0.757, 0.765),
    ("llama3_70b", 80, 0.774, 0.780),
]


@pytest.mark.parametrize(("prompt", "layers", "parameters", "expected"), PREFILL)
def test_prompt_lengths_per_layer(
    prompt: int, layers: int, parameters: dict[str, Any], expected: str
) -> None:
    method = build("pyramidinfer", min_context=64, **parameters)
    assert method.lengths(prompt, layers) == tuple(map(int, expected.split()))


@pytest.mark.parametrize(("preset", "layers", "short", "long"), RETENTION)
def test_what_the_authors_settings_really_keep(preset: str, layers: int, short: float, long: float) -> None:
    method = build("pyramidinfer", preset=preset, budget=128)
    assert method.budget is None
    for prompt, share in ((512, short), (2048, long)):
        assert sum(method.lengths(prompt, layers)) / prompt / layers == pytest.approx(share, abs=6e-4)


def test_linear_is_linear() -> None:
    """Shares fall evenly from 1 to the decay; the authors' `linear` is dead code that acts as `constant`."""
    lengths = build("pyramidinfer", decay=0.5, schedule="linear", recent_ratio=0.0, min_context=1).lengths(
        1001, 4
    )
    assert lengths == (1001, 1001, 1 + 875, 1 + int(875 * 0.75))


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize(
    ("layers", "prompt", "budget"), [(30, 2000, 0.6), (32, 4096, 2600), (6, 300, 0.9), (7, 999, 850)]
)
def test_a_budget_is_solved_to_the_token(schedule: str, layers: int, prompt: int, budget: float) -> None:
    lengths = build("pyramidinfer", budget=budget, schedule=schedule).lengths(prompt, layers)
    assert sum(lengths) == layers * (int(budget * prompt + 0.5) if isinstance(budget, float) else budget)
    assert list(lengths) == sorted(lengths, reverse=True) and lengths[0] == prompt


def test_an_unreachable_budget_says_what_the_least_is() -> None:
    method = build("pyramidinfer", budget=128)
    with pytest.raises(
        ValueError, match="budget of 128 tokens is out of reach .* prompt of 2000: .* at least 945 per layer"
    ):
        method.check(length=2000, num_layers=30)
    build("pyramidinfer", budget=945).check(length=2000, num_layers=30)
    build("pyramidinfer", budget=16).check(length=20, num_layers=30)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"decay": 1.5}, "decay=1.5 is outside"),
        ({"budget": 0.5, "recent_ratio": -0.1}, "recent_ratio=-0.1 is outside"),
        ({"budget": 0.5, "answer_ratio": 2.0}, "answer_ratio=2.0 is outside"),
        ({"budget": 0.5, "schedule": "sine"}, "schedule='sine' is none of cosine, linear, constant"),
        ({"preset": "llama4"}, "preset='llama4' is none of llama2_7b"),
        ({"budget": 0.5, "min_context": 0}, "min_context=0 must be at least 1"),
        ({"budget": 0.5, "interval": 0}, "interval=0 must be at least 1"),
        ({"budget": 0.5, "published_bug": True}, "set answer_compression=true"),
        ({}, "budget=None is not a number"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("pyramidinfer", **parameters)


def layer_loop(model: Any, prompt: tuple[int, ...], method: Any) -> tuple[torch.Tensor, list[Any]]:
    """The published prefill written out for one prompt: eager attention, whole matrices, tokens dropped between layers.

    Returns the last token's logits and each layer's cached keys and values."""
    base, module = model.model, sys.modules[type(model).__module__]
    recent = int(len(prompt) * method.recent_ratio) + 1
    lengths = method.lengths(len(prompt), len(base.layers))
    places = torch.arange(len(prompt))
    hidden, cached = base.embed_tokens(torch.tensor([prompt])), []
    for number, layer in enumerate(base.layers):
        attention, tokens = layer.self_attn, len(places)
        cos, sin = base.rotary_emb(hidden, places[None])
        normed = layer.input_layernorm(hidden)
        shape = (1, tokens, -1, attention.head_dim)
        q, k, v = (
            project(normed).view(shape) for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm(q), attention.k_norm(k)
        q, k = module.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        v = v.transpose(1, 2)
        cached.append((k, v))
        groups = q.shape[1] // k.shape[1]
        logits = q @ k.repeat_interleave(groups, 1).transpose(2, 3) * attention.scaling
        weights = logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf).softmax(-1)
        mixed = (weights @ v.repeat_interleave(groups, 1)).transpose(1, 2).reshape(1, tokens, -1)
        hidden = hidden + attention.o_proj(mixed)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        if number + 1 < len(lengths) and lengths[number + 1] < tokens:
            rows = torch.linspace(1, method.distance, recent)[:, None]
            votes = (weights.mean(1)[0, -recent:, :-recent] * rows).mean(0)
            votes[: method.sinks] = math.inf
            kept = votes.topk(lengths[number + 1] - recent).indices.sort().values
            kept = torch.cat([kept, torch.arange(tokens - recent, tokens)])
            places, hidden = places[kept], hidden[:, kept]
    return model.lm_head(base.norm(hidden))[0, -1], cached


@pytest.mark.parametrize("lengths", [(150,), (150, 97, 120)])
@pytest.mark.parametrize(
    "parameters",
    [
        {"decay": 0.8, "min_context": 16},
        {"budget": 0.9, "min_context": 16},
        {"decay": 0.9, "schedule": "constant"},
    ],
)
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_prefill_equals_the_layer_loop(
    family: str, parameters: dict[str, Any], lengths: tuple[int, ...], tiny_model: Any, prompt_of: Any
) -> None:
    """Logits, keys and values, alone and in a padded batch of three, whose rows keep what they keep alone."""
    model, method = tiny_model(family), build("pyramidinfer", **parameters)
    prompts = [prompt_of(length, row) for row, length in enumerate(lengths)]
    width = max(lengths)
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    cache = CompressedCache([method], 6)
    with torch.inference_mode(), attached(model):
        arguments = {
            "attention_mask": mask,
            "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
            "logits_to_keep": 1,
        }
        found = model(ids, **arguments, **{cache_argument(model.get_decoder()): cache}).logits[:, -1]
        for row, prompt in enumerate(prompts):
            logits, cached = layer_loop(model, prompt, method)
            torch.testing.assert_close(found[row], logits, atol=1e-5, rtol=1e-4)
            for store, (keys, values) in zip(cache.groups[0].stores, cached, strict=True):
                assert store.lengths[row] == keys.shape[2]
                torch.testing.assert_close(
                    store.keys[row, :, -keys.shape[2] :], keys[0], atol=1e-5, rtol=1e-4
                )
                torch.testing.assert_close(
                    store.values[row, :, -keys.shape[2] :], values[0], atol=1e-5, rtol=1e-4
                )


def test_it_runs_alike_on_every_kernel(tiny_model: Any, prompt_of: Any) -> None:
    prompts, method = torch.tensor([prompt_of(200)]), build("pyramidinfer", budget=0.8)
    found = []
    for kernel in ("sdpa", "eager"):
        cache = CompressedCache([method], 6)
        with torch.inference_mode(), attached(tiny_model(), kernel):
            found.append(
                tiny_model()(prompts, **{cache_argument(tiny_model().get_decoder()): cache}).logits[:, -1]
            )
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


def answered(
    generator: Generator, prompts: list[tuple[int, ...]], new: int = 64, **parameters: Any
) -> list[Any]:
    requests = [
        Request(id=str(n), segments=(prompt,), max_new_tokens=new) for n, prompt in enumerate(prompts)
    ]
    return generator.generate(requests, [build("pyramidinfer", decay=0.9, min_context=64, **parameters)])[0]


@pytest.mark.parametrize(
    ("layers", "bug", "first", "last"),
    [
        (8, False, "189 188 186 182", "168 159 149"),
        (32, False, "189 189 188 187", "141 141 141"),
        (8, True, "189 188 182 134", "39 39 39"),
        (32, True, "189 189 188 185", "39 39 39"),
    ],
)
def test_answer_lengths_per_layer(
    layers: int, bug: bool, first: str, last: str, tiny_model: Any, byte_tokenizer: Any, prompt_of: Any
) -> None:
    """128 prompt tokens and 64 new ones, under the first release's rule and under the current code's miscount."""
    generator = Generator(model=tiny_model("Llama", layers), tokenizer=byte_tokenizer)
    held = answered(generator, [prompt_of(128)], answer_compression=True, published_bug=bug)[
        0
    ].held_at_end.tokens
    assert " ".join(map(str, held[:4])) == first and " ".join(map(str, held[-3:])) == last


def test_answer_compression_leaves_the_prompt_alone_and_the_miscount_eats_it(
    tiny_model: Any, prompt_of: Any
) -> None:
    model, name = tiny_model(), cache_argument(tiny_model().get_decoder())
    survived = {}
    for bug in (False, True):
        cache = CompressedCache(
            [build("pyramidinfer", decay=0.9, min_context=64, answer_compression=True, published_bug=bug)], 6
        )
        with torch.inference_mode(), attached(model):
            model(torch.tensor([prompt_of(128)]), **{name: cache})
            before = [store.keys.clone() for store in cache.groups[0].stores]
            for step in range(63):
                token = torch.tensor([[prompt_of(1, step)[0]]])
                model(token, position_ids=torch.tensor([[128 + step]]), **{name: cache})
        survived[bug] = all(
            torch.equal(old, store.keys[:, :, : old.shape[2]])
            for old, store in zip(before, cache.groups[0].stores, strict=True)
        )
    assert survived == {False: True, True: False}


def test_answer_compression_in_a_batch_equals_single_runs(
    tiny_model: Any, byte_tokenizer: Any, prompt_of: Any
) -> None:
    generator = Generator(model=tiny_model(), tokenizer=byte_tokenizer)
    prompts = [prompt_of(128), prompt_of(200), prompt_of(90)]
    for bug in (False, True):
        together = answered(generator, prompts, 60, answer_compression=True, published_bug=bug)
        for prompt, answer in zip(prompts, together, strict=True):
            alone = answered(generator, [prompt], 60, answer_compression=True, published_bug=bug)[0]
            assert (answer.token_ids, answer.held_at_end.tokens) == (
                alone.token_ids,
                alone.held_at_end.tokens,
            )
            assert bug or answer.held_at_end.bytes == alone.held_at_end.bytes


def test_a_second_turn_on_a_narrowed_cache_works(
    tiny_model: Any, byte_tokenizer: Any, prompt_of: Any
) -> None:
    """Two segments: the second reads what the first left, at true positions (the authors' code crashes there)."""
    generator = Generator(model=tiny_model(), tokenizer=byte_tokenizer)
    request = Request(id="", segments=(prompt_of(200), prompt_of(30, 1)), max_new_tokens=5)
    for parameters in ({}, {"answer_compression": True}):
        answer = generator.generate(
            [request], [build("pyramidinfer", decay=0.9, min_context=64, **parameters)]
        )[0][0]
        assert answer.error is None and len(answer.token_ids) == 5
        expected = [kept + 30 for kept in build("pyramidinfer", decay=0.9, min_context=64).lengths(200, 6)]
        assert answer.held_after_prompt is not None
        assert parameters or list(answer.held_after_prompt.tokens) == expected


def test_the_share_of_prefill_work_is_what_reached_each_layer(
    tiny_model: Any, byte_tokenizer: Any, prompt_of: Any
) -> None:
    answer = answered(Generator(model=tiny_model(), tokenizer=byte_tokenizer), [prompt_of(200)], 1)[0]
    lengths = build("pyramidinfer", decay=0.9, min_context=64).lengths(200, 6)
    assert answer.prefill_work == pytest.approx(sum(lengths) / (6 * 200))
    assert answer.held_after_prompt.tokens == lengths
