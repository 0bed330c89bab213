"""Steps of fixed shapes give the tokens and hold the bytes that plain decoding gives and holds; on a CPU the step is
called where on CUDA it is replayed. The test of the captured graph itself needs a device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyramid.generation import Generator
from pyramid.method import Phase
from pyramid.methods import build, names
from pyramid.static_decoding import StaticDecoder, check, read_prompts
from pyramid.types import Answer, Request
from tests.conftest import FAMILIES, ByteTokenizer, build_tiny_model
from tests.pyramid.methods.test_contract import configured

LENGTHS, NEW = (120, 90, 33), 16
METHODS = [name for name in names() if not Phase.STEP & configured(name, 0.85).phases]


def plainly(model: Any, method: Any, prompts: Any, new: int = NEW, heads: str = "kv") -> list[Answer]:
    generator = Generator(model=model, tokenizer=ByteTokenizer(), cache_heads=heads)
    requests = [
        Request(id=str(number), segments=(prompt,), max_new_tokens=new)
        for number, prompt in enumerate(prompts)
    ]
    (answers,) = generator.generate(requests, [method])
    return answers


def same(
    model: Any,
    method: Any,
    prompts: Any,
    decoder: StaticDecoder | None = None,
    new: int = NEW,
    heads: str = "kv",
) -> None:
    """Assert equal tokens and equal holdings of every row."""
    plain = plainly(model, method, prompts, new, heads)
    cache, logits = read_prompts(model, method, prompts, heads=heads)
    (group,) = cache.groups
    assert [group.held(row) for row in range(len(prompts))] == [answer.held_after_prompt for answer in plain]
    tokens = (decoder or StaticDecoder(model, heads)).decode(group, logits, new)
    assert [tuple(row) for row in tokens.tolist()] == [answer.token_ids for answer in plain]
    assert [group.held(row) for row in range(len(prompts))] == [answer.held_at_end for answer in plain]


@pytest.fixture(scope="module")
def prompts(prompt_of: Any) -> list[tuple[int, ...]]:
    return [prompt_of(length, number) for number, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("heads", ["kv", "query"])
def test_every_method_that_does_not_act_on_steps(name: str, heads: str, prompts: Any) -> None:
    """Prompts of unlike lengths, some within the budget, in one batch; layers of unlike width for PyramidKV."""
    budget = 0.85 if name == "pyramidinfer" else 40
    same(build_tiny_model(), configured(name, budget), prompts, heads=heads)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "Llama"])
def test_every_family(family: str, prompts: Any) -> None:
    same(build_tiny_model(family), build("pyramidkv", budget=24), prompts)


def test_one_decoder_serves_batches_of_any_shape_one_after_another(prompts: Any, prompt_of: Any) -> None:
    """What a batch left in the buffers is in no later answer, be its shape the same or another."""
    model = build_tiny_model()
    decoder = StaticDecoder(model)
    others = [prompt_of(length, 9) for length in LENGTHS]
    for batch, new in ((prompts, NEW), (others, NEW), (others[:1], 5), (prompts, NEW), (prompts, 1)):
        same(model, build("snapkv", budget=40), batch, decoder, new)
    assert len({buffer.keys.shape for buffer in decoder.buffers}) == 1


def test_memory_is_allocated_once_for_a_shape(prompts: Any) -> None:
    """What a graph is replayed on must stay where it is."""
    model = build_tiny_model()
    decoder, places = StaticDecoder(model), []
    for _ in range(2):
        same(model, build("snapkv", budget=40), prompts, decoder)
        tensors = [decoder.ids, decoder.positions, decoder.fed, decoder.chosen, *decoder.alive.values()]
        tensors += [tensor for buffer in decoder.buffers for tensor in (buffer.keys, buffer.values)]
        places.append([tensor.data_ptr() for tensor in tensors])
    assert places[0] == places[1]
    assert all(buffer.keys.shape[2] == buffer.start + NEW - 1 for buffer in decoder.buffers)


def test_nothing_stays_on_the_model(prompts: Any) -> None:
    model = build_tiny_model()
    before = model.config._attn_implementation
    same(model, build("fullkv"), prompts)
    assert model.config._attn_implementation == before
    assert not any(layer._forward_pre_hooks for layer in model.get_decoder().layers)


def test_methods_that_act_on_steps_are_refused_with_the_mend(prompts: Any) -> None:
    for method in (build("h2o", budget=32), build("streamingllm", budget=32)):
        with pytest.raises(ValueError, match="decode_eviction=false"):
            check(method)
    cache, logits = read_prompts(build_tiny_model(), build("h2o", budget=32), prompts)
    with pytest.raises(ValueError, match="H2O does"):
        StaticDecoder(build_tiny_model()).decode(cache.groups[0], logits, 2)
    with pytest.raises(ValueError, match="first_token=full"):
        check(build("fullkv"), "compressed")
    with pytest.raises(ValueError, match="always kept"):
        read_prompts(build_tiny_model(), build("snapkv", budget=0.01), prompts)
    same(build_tiny_model(), build("h2o", budget=32, decode_eviction=False), prompts)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_captured_graph_gives_the_same_tokens(prompts: Any) -> None:
    """Twice with the same decoder, so that the second batch is answered by replay alone."""
    import copy

    model = copy.deepcopy(build_tiny_model()).to("cuda")
    decoder = StaticDecoder(model)
    for _ in range(2):
        same(model, build("pyramidkv", budget=40), prompts, decoder)
    assert decoder.replay == decoder.graph.replay
