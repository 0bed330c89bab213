"""Generation: a cell in company answers as it answers alone, and every rule of the protocol does what it
says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pyramid.engine import cache_argument, compress
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


def test_a_prompt_of_several_requests_is_read_once(generator: Generator, prompt_of: Any) -> None:
    """The endings of a question, each of them a request: rows of their own from one reading, with and without padding,
    evicted at steps or not; what each is said to have cost is what it costs alone."""
    prompts = [prompt_of(200), prompt_of(90)]
    endings = [(5, 6, 7), (8, 9), (10,), (5, 9, 11, 12)]
    requests = [
        Request(id=f"{which}.{n}", segments=(prompts[which],), max_new_tokens=1, continuation=ending)
        for n, ending in enumerate(endings)
        for which in (0, 1)
    ]
    methods = [build("fullkv"), *(build(name, budget=32) for name in ("h2o", "streamingllm", "pyramidkv"))]
    read: list[tuple[int, ...]] = []
    hook = generator.model.get_input_embeddings().register_forward_hook(
        lambda module, arguments, output: read.append(tuple(output.shape[:2]))
    )
    try:
        found = generator.generate(requests, methods)
    finally:
        hook.remove()
    assert [shape for shape in read if shape[1] > 20] == [(2, 200)]
    for method, answers in zip(methods, found, strict=True):
        for request, answer in zip(requests, answers, strict=True):
            alone = generator.generate([request], [method])[0][0]
            torch.testing.assert_close(
                answer.log_likelihoods, alone.log_likelihoods, atol=1e-4, rtol=1e-4, msg=str(method)
            )
            same = {"log_likelihoods": (), "seconds": {}}
            assert replace(answer, **same) == replace(alone, **same)


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


TURNS = ["fullkv", "streamingllm", "h2o", "snapkv", "pyramidkv", "pyramidinfer", "random"]


def _method(name: str) -> Any:
    budgets = {"fullkv": None, "pyramidinfer": 0.8}
    budget = budgets.get(name, 48)
    return build(name) if budget is None else build(name, budget=budget)


def _conversations(prompt_of: Any) -> list[Request]:
    """Two conversations of three turns, of unlike lengths, whose answers end at different tokens."""
    return [
        Request(
            id=str(n),
            segments=(prompt_of(n),),
            max_new_tokens=new,
            stop_ids=(40, 41, 42, 43),
            follow_ups=(prompt_of(30, n), prompt_of(n // 4, 5)),
        )
        for n, new in ((150, 12), (90, 7))
    ]


def test_later_turns_of_a_conversation_equal_one_prompt_under_fullkv(
    generator: Generator, prompt_of: Any
) -> None:
    for request in _conversations(prompt_of):
        first = generator.generate([request], [build("fullkv")])[0][0]
        text, before = request.segments[0], first
        for follow_up, answer in zip(request.follow_ups, first.follow_ups, strict=True):
            text += (*before.token_ids, *follow_up)
            whole = replace(request, segments=(text,), follow_ups=())
            again = generator.generate([whole], [build("fullkv")])[0][0]
            assert (answer.token_ids, answer.finish) == (again.token_ids, again.finish)
            assert answer.held_after_prompt == again.held_after_prompt
            assert answer.held_at_end == again.held_at_end and answer.prompt_tokens == len(follow_up)
            before = answer


@pytest.mark.parametrize("name", TURNS)
def test_later_turns_use_the_compressed_cache_of_the_earlier_ones(
    name: str, generator: Generator, prompt_of: Any
) -> None:
    """A conversation equals the same calls made by hand inside `compress`, token by token and entry by entry."""
    for request in _conversations(prompt_of):
        method = _method(name)
        answer = generator.generate([request], [method])[0][0]
        with compress(generator.model, method) as compression, torch.inference_mode():
            model: Any = generator.model
            argument = cache_argument(model.get_decoder())
            fresh, fed, past = list(request.segments[0]), 0, None
            for turn, follow_up in zip((answer, *answer.follow_ups), (*request.follow_ups, ()), strict=True):
                chosen: list[int] = []
                held = None
                while True:
                    out = model(
                        torch.tensor([fresh]),
                        position_ids=torch.arange(fed, fed + len(fresh))[None],
                        use_cache=True,
                        **{argument: past},
                    )
                    fed, past = fed + len(fresh), out.past_key_values
                    assert compression.cache is not None
                    held = held or compression.cache.groups[0].held(0)
                    token = int(out.logits[0, -1].argmax())
                    if token in request.stop_ids:
                        fresh = list(follow_up)
                        break
                    chosen.append(token)
                    fresh = [token]
                    if len(chosen) == request.max_new_tokens:
                        fresh = [token, *follow_up]
                        break
                assert turn.token_ids == tuple(chosen)
                assert turn.held_after_prompt == held
                assert turn.held_at_end == compression.cache.groups[0].held(0)


def test_conversations_in_company_are_those_alone(generator: Generator, prompt_of: Any) -> None:
    requests = _conversations(prompt_of)
    methods = [*map(_method, TURNS), build("snapkv", budget=0.5), build("h2o", budget=32)]
    table = generator.generate(requests, methods)
    for method, answers in zip(methods, table, strict=True):
        for request, answer in zip(requests, answers, strict=True):
            assert untimed(answer) == untimed(generator.generate([request], [method])[0][0]), method
    snapkv = table[TURNS.index("snapkv")][0]
    assert snapkv.held_after_prompt is not None and snapkv.held_after_prompt.tokens == (48,) * 6
    for turn in snapkv.follow_ups:
        assert turn.held_after_prompt is not None and turn.held_after_prompt.tokens == (48,) * 6


def test_an_answer_ends_before_a_stop_text(generator: Generator, prompt_of: Any) -> None:
    """Also where the text spans several tokens; the earliest of several counts."""
    request = Request(id="", segments=(prompt_of(60),), max_new_tokens=12)
    free = generator.generate([request], [build("fullkv")])[0][0]
    stops = (free.text[7:10], free.text[4:6], "never said")
    answer = generator.generate([replace(request, stop_texts=stops)], [build("fullkv")])[0][0]
    cut = min(free.text.find(stop) for stop in stops[:2])
    assert (answer.finish, answer.text) == ("stop", free.text[:cut])
    assert len(answer.token_ids) < 12
    unheard = generator.generate([replace(request, stop_texts=("never said",))], [build("fullkv")])[0][0]
    assert untimed(unheard) == untimed(free)


def test_temperature_draws_by_the_softmax_and_alike_for_all_methods(
    generator: Generator, prompt_of: Any
) -> None:
    """One-token answers of 600 seeds fall as an independent softmax says (chi-square, 99.9 %); a method that keeps
    everything draws what FullKV draws; without warmth the likeliest token comes."""
    prompt = prompt_of(20)
    hot = [
        Request(id="a", segments=(prompt,), max_new_tokens=1, temperature=0.3, seed=seed)
        for seed in range(600)
    ]
    drawn = [answer.token_ids[0] for answer in generator.generate(hot, [build("fullkv")])[0]]
    with torch.inference_mode():
        logits = generator.model(torch.tensor([prompt])).logits[0, -1].double()
    expected = 600 * torch.softmax(logits / 0.3, -1)
    counts = torch.bincount(torch.tensor(drawn), minlength=len(expected)).double()
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    statistic, freedom = float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1
    assert statistic < freedom + 3.1 * (2 * freedom) ** 0.5 + 5
    assert len(set(drawn)) > 3
    long = Request(id="a", segments=(prompt_of(80),), max_new_tokens=20, temperature=1.0, seed=3)
    full, roomy = generator.generate([long], [build("fullkv"), build("snapkv", budget=4096)])
    assert full[0].token_ids == roomy[0].token_ids
    other = generator.generate([replace(long, seed=4)], [build("fullkv")])[0][0]
    assert other.token_ids != full[0].token_ids
    cold = replace(long, temperature=1e-6)
    greedy = generator.generate([replace(long, temperature=0.0)], [build("fullkv")])[0][0]
    assert generator.generate([cold], [build("fullkv")])[0][0].token_ids == greedy.token_ids


@pytest.mark.parametrize("first_token", ["full", "compressed"])
def test_a_continuation_is_scored_as_the_stock_model_scores_it(
    first_token: str, generator: Generator, prompt_of: Any
) -> None:
    """FullKV against one plain forward pass, continuations of one token and of more than one block among them."""
    requests = [
        Request(id=str(n), segments=(prompt_of(n),), max_new_tokens=1, continuation=prompt_of(length, 9))
        for n, length in ((120, 70), (40, 1), (77, 33), (60, 2))
    ]
    scored = replace(generator, first_token=first_token).generate(requests, [build("fullkv")])[0]
    for request, answer in zip(requests, scored, strict=True):
        prompt, wanted = request.segments[0], request.continuation
        with torch.inference_mode():
            logits = generator.model(torch.tensor([prompt + wanted])).logits[0, len(prompt) - 1 : -1]
        chances = logits.log_softmax(-1)
        expected = chances[torch.arange(len(wanted)), torch.tensor(wanted)]
        torch.testing.assert_close(torch.tensor(answer.log_likelihoods), expected, atol=1e-4, rtol=1e-4)
        assert answer.greedy == tuple((logits.argmax(-1) == torch.tensor(wanted)).tolist())
        assert answer.finish == "scored" and answer.token_ids == wanted


@pytest.mark.parametrize("name", TURNS)
def test_a_scored_token_is_treated_as_a_generated_one(
    name: str, generator: Generator, prompt_of: Any
) -> None:
    """What a method has generated it finds the likeliest, holding as much as it held then; and the company of other
    methods changes no likelihood."""
    request = Request(id="", segments=(prompt_of(140),), max_new_tokens=40)
    methods = [_method(name), build("h2o", budget=64), build("snapkv", budget=64)]
    said = generator.generate([request], [methods[0]])[0][0]
    again = replace(request, continuation=said.token_ids)
    scored, *_ = (answers[0] for answers in generator.generate([again], methods))
    assert scored.greedy == (True,) * 40
    assert scored.held_at_end == said.held_at_end and scored.held_after_prompt == said.held_after_prompt
    alone = generator.generate([again], methods[:1])[0][0]
    torch.testing.assert_close(
        torch.tensor(scored.log_likelihoods), torch.tensor(alone.log_likelihoods), atol=1e-5, rtol=1e-5
    )
