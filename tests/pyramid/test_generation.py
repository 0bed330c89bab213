"""Generation: a cell in company answers as it answers alone, and every rule of the protocol does what it
says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pyramid.generation import Generator
from pyramid.methods import build
from pyramid.types import Answer, Request

CELLS = [
    ("fullkv", {}),
    *(
        (name, {"budget": budget})
        for name in ("streamingllm", "h2o", "snapkv", "pyramidkv")
        for budget in (32, 64, 0.5)
    ),
    ("streamingllm", {"budget": 310}),  # beside the others: never over its budget, or only while decoding
    ("streamingllm", {"budget": 4096}),
    ("h2o", {"budget": 310}),
    *(("streamingllm", {"budget": budget, "decode_eviction": "always"}) for budget in (64, 310)),
    ("random", {"budget": 64}),
    ("truncated", {"budget": 64}),
]


@pytest.fixture(scope="module")
def generator(tiny_model: Any, byte_tokenizer: Any) -> Generator:
    return Generator(model=tiny_model(), tokenizer=byte_tokenizer)


def untimed(answer: Answer) -> Answer:
    return replace(answer, seconds={})


def test_company_changes_nothing(generator: Generator, prompt_of: Any) -> None:
    """Twenty cells on five prompts of mixed length, with answers that stop early at different tokens: all as
    alone.
    """
    requests = [
        Request(id=str(n), segments=(prompt_of(n),), max_new_tokens=new, stop_ids=(40, 41, 42, 43, 44))
        for n, new in ((300, 16), (40, 9), (177, 16), (120, 1), (300, 16))
    ]
    methods = [build(name, **parameters) for name, parameters in CELLS]
    company = generator.generate(requests, methods)
    finishes = set()
    for method, answers in zip(methods, company, strict=True):
        for request, answer in zip(requests, answers, strict=True):
            assert untimed(answer) == untimed(generator.generate([request], [method])[0][0]), method
            finishes.add((answer.finish, len(answer.token_ids) < request.max_new_tokens))
    assert ("stop", True) in finishes and ("length", False) in finishes


def test_company_with_the_question_afterwards(generator: Generator, prompt_of: Any) -> None:
    """Two segments of unlike length: the compression sees the first only, and company still changes nothing."""
    requests = [
        Request(id=str(n), segments=(prompt_of(n), prompt_of(q, 3)), max_new_tokens=8)
        for n, q in ((300, 20), (90, 7))
    ]
    methods = [build(name, **parameters) for name, parameters in CELLS if name != "truncated"]
    for method, answers in zip(methods, generator.generate(requests, methods), strict=True):
        for request, answer in zip(requests, answers, strict=True):
            alone = generator.generate([request], [method])[0][0]
            assert untimed(answer) == untimed(alone), method
    snapkv = generator.generate(requests, [build("snapkv", budget=64)])[0][0]
    assert snapkv.held_after_prompt is not None and snapkv.held_after_prompt.tokens == (64 + 20,) * 6


def test_segments_under_fullkv_equal_one_prompt(generator: Generator, prompt_of: Any) -> None:
    whole = prompt_of(200)
    answers = [
        generator.generate([Request(id="", segments=segments, max_new_tokens=10)], [build("fullkv")])[0][0]
        for segments in ((whole,), (whole[:150], whole[150:]))
    ]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].held_at_end == answers[1].held_at_end


def test_the_first_token_can_come_from_the_compressed_cache(generator: Generator, prompt_of: Any) -> None:
    """FullKV answers the same either way; what is held is the same; a strong compression may answer
    otherwise.
    """
    compressed = replace(generator, first_token="compressed")
    changed = 0
    for seed in range(6):
        request = Request(id="", segments=(prompt_of(300, seed),), max_new_tokens=3)
        full, full_again = (g.generate([request], [build("fullkv")])[0][0] for g in (generator, compressed))
        assert untimed(full) == untimed(full_again)
        for name in ("streamingllm", "h2o", "snapkv"):
            one, other = (
                g.generate([request], [build(name, budget=16)])[0][0] for g in (generator, compressed)
            )
            assert one.held_after_prompt == other.held_after_prompt
            changed += one.token_ids[0] != other.token_ids[0]
    assert changed


def test_a_stop_token_ends_the_answer_but_not_before_the_least_length(
    generator: Generator, prompt_of: Any
) -> None:
    request = Request(id="", segments=(prompt_of(50),), max_new_tokens=6)
    free = generator.generate([request], [build("fullkv")])[0][0]
    assert free.finish == "length" and len(free.token_ids) == 6
    stopped = generator.generate([replace(request, stop_ids=(free.token_ids[2],))], [build("fullkv")])[0][0]
    cut = free.token_ids.index(free.token_ids[2])
    assert (stopped.finish, stopped.token_ids) == ("stop", free.token_ids[:cut])
    first = replace(request, stop_ids=(free.token_ids[0],))
    assert generator.generate([first], [build("fullkv")])[0][0].token_ids == ()
    least = generator.generate([replace(first, min_new_tokens=2)], [build("fullkv")])[0][0]
    assert len(least.token_ids) >= 2 and free.token_ids[0] not in least.token_ids[:2]


def test_greedy_means_greedy_whatever_the_checkpoint_says(
    tiny_model: Any, generator: Generator, prompt_of: Any
) -> None:
    """Sampling settings in generation_config reach neither the first token nor the others (transformers issue
    33427).
    """
    import copy

    model = copy.deepcopy(tiny_model())
    model.generation_config.update(do_sample=True, temperature=0.6, repetition_penalty=1.3)
    request = Request(id="", segments=(prompt_of(100),), max_new_tokens=12)
    answer = replace(generator, model=model).generate([request], [build("fullkv")])[0][0]
    ids = list(request.segments[0])
    with torch.inference_mode():
        for _ in range(12):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert answer.token_ids == tuple(ids[100:])


def test_what_an_answer_records(generator: Generator, prompt_of: Any) -> None:
    """Bytes by arithmetic: 2 tensors * 6 layers * 2 heads * 8 numbers * 4 bytes a token; H2O's sums count as
    well.
    """
    request = Request(id="a", segments=(prompt_of(300),), max_new_tokens=5)
    names = ("fullkv", "snapkv", "h2o", "truncated")
    fullkv, snapkv, h2o, truncated = (
        answers[0] for answers in generator.generate([request], [build(name, budget=64) for name in names])
    )
    token_bytes = 2 * 6 * 2 * 8 * 4
    assert all(answer.full_bytes_after_prompt == 300 * token_bytes for answer in (fullkv, snapkv, h2o))
    assert fullkv.held_after_prompt is not None and fullkv.held_after_prompt.bytes == 300 * token_bytes
    assert snapkv.held_after_prompt is not None and snapkv.held_after_prompt.bytes == 64 * token_bytes
    assert h2o.held_after_prompt is not None and h2o.held_after_prompt.bytes == 64 * (token_bytes + 6 * 2 * 4)
    assert (
        snapkv.held_at_end is not None and snapkv.held_at_end.tokens == (64 + 4,) * 6
    )  # the last token is never fed
    assert (fullkv.prefill_work, snapkv.prefill_work, truncated.prefill_work) == (1.0, 1.0, 64 / 300)
    assert truncated.prompt_tokens == 300 and truncated.full_bytes_after_prompt == 300 * token_bytes
    assert set(snapkv.seconds) == {"prefill", "compression", "decode"} and min(snapkv.seconds.values()) > 0


def test_a_prompt_without_tokens_fails_alone(generator: Generator, prompt_of: Any) -> None:
    requests = [Request(id=str(n), segments=(prompt_of(n),), max_new_tokens=2) for n in (10, 0, 20)]
    answers = generator.generate(requests, [build("fullkv"), build("snapkv", budget=16)])
    for cell in answers:
        assert [answer.error is None for answer in cell] == [True, False, True]
        assert cell[1].token_ids == () and "empty prompt" in (cell[1].error or "")


def test_a_cell_that_fails_leaves_the_others_whole(generator: Generator, prompt_of: Any) -> None:
    """A share too small for SnapKV's window fails SnapKV's row; FullKV beside it answers."""
    request = Request(id="", segments=(prompt_of(40),), max_new_tokens=4)
    fullkv, snapkv = generator.generate([request], [build("fullkv"), build("snapkv", budget=0.1)])
    assert fullkv[0].error is None and len(fullkv[0].token_ids) == 4
    assert snapkv[0].error is not None
