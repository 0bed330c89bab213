"""The engine on many model families: FullKV is the stock model to the bit, and nothing stays behind on a
model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from pyramid.cache import CompressedCache
from pyramid.engine import attached, cache_argument, compress
from pyramid.methods import build
from tests.conftest import FAMILIES

LENGTHS = (150, 97, 60)
TURN, PADDED_TURN = (30, 30, 30), (30, 11, 30)


def padded(prompts: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


@torch.inference_mode()
def logits_of(
    model: Any, prompt_of: Callable[..., tuple[int, ...]], cache: Any, turn: tuple[int, ...] = TURN
) -> list[torch.Tensor]:
    """A padded prompt, four greedy steps and a second turn; the logits of each."""
    name = cache_argument(model.get_decoder())
    ids, mask = padded([prompt_of(length, row) for row, length in enumerate(LENGTHS)])
    outputs = []
    for step in range(6):
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = model(ids, attention_mask=mask, position_ids=places, logits_to_keep=1, **{name: cache})
        outputs.append(output.logits[:, -1])
        if step == 4:
            ids, fresh = padded([prompt_of(length, row + 9) for row, length in enumerate(turn)])
        else:
            ids = outputs[-1].argmax(-1, keepdim=True)
            fresh = torch.ones_like(ids)
        mask = torch.cat([mask, fresh], 1)
    return outputs


@pytest.mark.parametrize("family", FAMILIES)
def test_fullkv_is_the_stock_model_to_the_bit(family: str, tiny_model: Any, prompt_of: Any) -> None:
    """With padding, while decoding and in a second turn."""
    model = tiny_model(family)
    stock = logits_of(model, prompt_of, DynamicCache(config=model.config))
    with attached(model):
        ours = logits_of(model, prompt_of, CompressedCache([build("fullkv")], 6))
    for expected, found in zip(stock, ours, strict=True):
        assert torch.equal(expected, found)


def test_a_padded_second_turn_differs_by_rounding_only(tiny_model: Any, prompt_of: Any) -> None:
    """The store closes the gap that such padding leaves between two turns, so kernels add in another order."""
    model = tiny_model()
    stock = logits_of(model, prompt_of, DynamicCache(config=model.config), PADDED_TURN)
    with attached(model):
        ours = logits_of(model, prompt_of, CompressedCache([build("fullkv")], 6), PADDED_TURN)
    torch.testing.assert_close(stock[-1], ours[-1], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("method", ["streamingllm", "h2o", "snapkv", "pyramidkv"])
@pytest.mark.parametrize("family", ["Llama", "Phi3", "Cohere", "Glm4", "Qwen3"])
def test_eager_and_sdpa_agree(family: str, method: str, tiny_model: Any, prompt_of: Any) -> None:
    model = tiny_model(family)
    found = []
    for kernel in ("sdpa", "eager"):
        with attached(model, kernel):
            found.append(logits_of(model, prompt_of, CompressedCache([build(method, budget=40)], 6)))
    for sdpa, eager in zip(*found, strict=True):
        torch.testing.assert_close(sdpa, eager, atol=1e-4, rtol=1e-4)


def held(cache: CompressedCache) -> tuple[int, ...]:
    return cache.groups[0].held(0).tokens


def test_nothing_is_left_on_the_model_after_an_exception(tiny_model: Any, prompt_of: Any) -> None:
    model = tiny_model()
    ids = torch.tensor([prompt_of(100)])
    before = model(ids).logits
    with pytest.raises(RuntimeError, match="stop"), compress(model, build("snapkv", budget=32)):
        model(ids)
        raise RuntimeError("stop")
    assert model.config._attn_implementation == "sdpa"
    modules = list(model.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in modules)
    assert torch.equal(before, model(ids).logits)


def test_every_prompt_on_one_model_is_compressed(tiny_model: Any, prompt_of: Any) -> None:
    """Long, short and long again: state of one call never reaches the next (KVCache-Factory issues 15, 21,
    54).
    """
    model = tiny_model()
    for method in ("streamingllm", "h2o", "snapkv", "random"):
        for length in (300, 120, 300):
            with compress(model, build(method, budget=64)) as compression:
                model.generate(torch.tensor([prompt_of(length)]), max_new_tokens=1, do_sample=False)
            assert compression.cache is not None
            assert held(compression.cache) == (64,) * 6, (method, length)


def test_generate_and_a_plain_loop_answer_alike(tiny_model: Any, prompt_of: Any) -> None:
    """transformers' own generate() inside compress() gives true positions, so its text is the loop's."""
    model, prompt = tiny_model(), prompt_of(300)
    for method in ("fullkv", "streamingllm", "h2o", "snapkv", "pyramidkv", "random"):
        with compress(model, build(method, budget=64)):
            generated = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, 300),
                max_new_tokens=8,
                do_sample=False,
                eos_token_id=None,
            )
        name, cache, loop = (
            cache_argument(model.get_decoder()),
            CompressedCache([build(method, budget=64)], 6),
            [],
        )
        with attached(model), torch.inference_mode():
            ids, places = torch.tensor([prompt]), torch.arange(300)[None]
            for step in range(8):
                ids = model(ids, position_ids=places, **{name: cache}).logits[:, -1].argmax(-1, keepdim=True)
                places = torch.tensor([[300 + step]])
                loop.append(int(ids))
        assert generated[0, 300:].tolist() == loop, method


def test_positions_of_new_tokens_stay_true(tiny_model: Any, prompt_of: Any) -> None:
    """After eviction to 64 of 300 tokens the next positions are 300, 301, ... (transformers issue 47597)."""
    model, places = tiny_model(), []
    decoder = model.get_decoder()
    hook = decoder.rotary_emb.register_forward_pre_hook(
        lambda module, args, kwargs: places.append(kwargs["position_ids"][0, -1].item()), with_kwargs=True
    )
    try:
        with compress(model, build("pyramidkv", budget=64)):
            model.generate(
                torch.tensor([prompt_of(300)]), max_new_tokens=4, do_sample=False, eos_token_id=None
            )
    finally:
        hook.remove()
    assert places == [299, 300, 301, 302]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_twelve_tokens_at_once_equal_twelve_steps(kernel: str, tiny_model: Any, prompt_of: Any) -> None:
    """Layers of unequal length each get a mask of their own (transformers issue 35168)."""
    model, name = tiny_model(), cache_argument(tiny_model().get_decoder())
    prompt, more = torch.tensor([prompt_of(300)]), prompt_of(12, 5)
    ends = []
    for chunks in ([more], [(token,) for token in more]):
        cache, place = CompressedCache([build("pyramidkv", budget=64)], 6), 300
        with attached(model, kernel), torch.inference_mode():
            model(prompt, **{name: cache})
            for chunk in chunks:
                cache.next_phase = type(cache.phase).STEP
                places = torch.arange(place, place + len(chunk))[None]
                logits = model(torch.tensor([chunk]), position_ids=places, **{name: cache}).logits[:, -1]
                place += len(chunk)
        ends.append(logits)
    torch.testing.assert_close(*ends, atol=1e-5, rtol=1e-5)


def test_wrong_use_is_refused_in_one_sentence(tiny_model: Any, prompt_of: Any) -> None:
    model, ids = tiny_model(), torch.tensor([prompt_of(20), prompt_of(20, 1)])
    filled = model(ids).past_key_values if "past_key_values" in model(ids) else None
    with compress(model, build("snapkv", budget=16)):
        with pytest.raises(ValueError, match="padding on the left"):
            model(ids, attention_mask=torch.tensor([[1] * 19 + [0], [1] * 20]))
        with pytest.raises(ValueError, match="filled without compression"):
            model(ids, **{cache_argument(model.get_decoder()): filled})
        with pytest.raises(ValueError, match="beam search"):
            model.generate(ids, num_beams=2, max_new_tokens=3, do_sample=False)
    with pytest.raises(ValueError, match="cut your prompt"), compress(model, build("truncated", budget=16)):
        pass
    with attached(model), pytest.raises(ValueError, match="without a compressed cache"):
        model(ids)


def test_a_query_head_cache_selects_per_query_head_and_is_billed_for_it(
    tiny_model: Any, prompt_of: Any
) -> None:
    model = tiny_model()
    bytes_held = {}
    for heads in ("kv", "query"):
        with compress(model, build("snapkv", budget=64), cache_heads=heads) as compression:
            model(torch.tensor([prompt_of(300)]))
        assert compression.cache is not None
        store = compression.cache.groups[0].stores[0]
        assert store.keys.shape == (1, 2 if heads == "kv" else 8, 64, 8)
        bytes_held[heads] = compression.cache.groups[0].held(0).bytes
    assert bytes_held["kv"] == 2 * 6 * 2 * 64 * 8 * 4
    assert bytes_held["query"] == 4 * bytes_held["kv"]


def test_full_attention_gives_the_same_whatever_heads_are_stored(tiny_model: Any, prompt_of: Any) -> None:
    model = tiny_model()
    expected = logits_of(model, prompt_of, DynamicCache(config=model.config))
    with attached(model):
        found = logits_of(model, prompt_of, CompressedCache([build("fullkv")], 6, heads="query"))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_finite_with_padding_and_eviction(
    dtype: torch.dtype, tiny_model: Any, prompt_of: Any
) -> None:
    import copy

    model = copy.deepcopy(tiny_model()).to(dtype)
    for method in ("fullkv", "streamingllm", "h2o", "snapkv", "pyramidkv"):
        with attached(model):
            outputs = logits_of(model, prompt_of, CompressedCache([build(method, budget=40)], 6))
        assert all(torch.isfinite(logits).all() for logits in outputs), method
