"""What every method in conf/method owes, whatever its idea."""

from __future__ import annotations

import copy
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pyramid.cache import CompressedCache
from pyramid.engine import attached, cache_argument
from pyramid.generation import Generator
from pyramid.method import Method
from pyramid.methods import build, names
from pyramid.types import Answer, Request

CONF = Path(__file__).resolve().parents[3] / "conf"
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
LENGTHS = (300, 40, 200, 97, 130, 300)
BUDGET = 64
REACHABLE = {"pyramidinfer": 0.85}  # methods that cannot go as low as BUDGET on every prompt here


def configured(name: str, budget: Any = None, *overrides: str) -> Any:
    """The method as the command line would build it, by default at a budget that it can hold on these prompts."""
    budget = REACHABLE.get(name, BUDGET) if budget is None else budget
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"method={name}", f"budget={budget}", *overrides])
    parameters: Any = OmegaConf.to_container(config.method, resolve=True)
    return build(**{"budget": config.budget, **parameters})


@pytest.fixture(scope="module")
def generator(tiny_model: Any, byte_tokenizer: Any) -> Generator:
    return Generator(model=tiny_model(), tokenizer=byte_tokenizer)


@pytest.fixture(scope="module")
def requests_of(prompt_of: Any) -> Any:
    def make(lengths: tuple[int, ...], new: int = 12) -> list[Request]:
        return [
            Request(id=str(i), segments=(prompt_of(n, i),), max_new_tokens=new) for i, n in enumerate(lengths)
        ]

    return make


def told(answers: list[Answer]) -> list[tuple[Any, ...]]:
    """All that an answer says but its timings."""
    return [(a.token_ids, a.held_after_prompt, a.held_at_end, a.compressed, a.error) for a in answers]


def test_every_method_has_a_yaml_and_every_yaml_a_method() -> None:
    assert names() == METHODS


@pytest.mark.parametrize("name", METHODS)
def test_a_fitting_prompt_is_answered_as_fullkv_answers_it(
    name: str, generator: Generator, requests_of: Any
) -> None:
    """Budget at, just above and far above the prompt, as tokens and as the whole prompt; nothing counts as
    compressed.
    """
    requests = requests_of((1, 2, 9, 33, 63, 64), new=20)
    expected = [answer.token_ids for answer in generator.generate(requests, [build("fullkv")])[0]]
    for budget in (64, 65, 4096, 1.0):
        answers = generator.generate(requests, [configured(name, budget)])[0]
        assert [answer.token_ids for answer in answers] == expected, budget
        assert not any(answer.compressed for answer in answers)


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "random"])
def test_prompts_around_a_wide_window_are_answered_as_fullkv_answers_them(
    name: str, generator: Generator, requests_of: Any
) -> None:
    """Shorter than the window, as long, and a little longer, all within the budget (kvpress issue 134)."""
    requests = requests_of((1, 20, 31, 32, 33), new=20)
    answers = generator.generate(requests, [configured(name, BUDGET, "protocol.window=32")])[0]
    assert told(answers) == told(generator.generate(requests, [build("fullkv")])[0])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", [BUDGET, 0.25, 260, 0.85])
def test_the_budget_is_held_to_the_token(
    name: str, budget: float, generator: Generator, requests_of: Any
) -> None:
    answers = generator.generate(requests_of((300, 299)), [configured(name, budget)])[0]
    for answer in answers:
        if name in REACHABLE and budget in (BUDGET, 0.25):
            assert answer.error is not None and "out of reach" in answer.error
            continue
        assert answer.error is None
        assert answer.held_after_prompt is not None
        share = int(budget * answer.prompt_tokens + 0.5) if isinstance(budget, float) else budget
        held = answer.prompt_tokens if name == "fullkv" else share
        assert sum(answer.held_after_prompt.tokens) == 6 * held
        assert answer.compressed == (name != "fullkv")


@pytest.mark.parametrize("name", METHODS)
def test_batches_do_not_change_answers(name: str, generator: Generator, requests_of: Any) -> None:
    """Padded with five others or alone: same tokens, same holdings."""
    requests, method = requests_of(LENGTHS), configured(name)
    together = told(generator.generate(requests, [method])[0])
    pairs = [told(generator.generate(requests[i : i + 2], [method])[0]) for i in range(0, 6, 2)]
    alone = [told(generator.generate([request], [method])[0]) for request in requests]
    assert together == [*chain(*pairs)] == [*chain(*alone)]


@pytest.mark.parametrize("name", METHODS)
def test_repetition_changes_nothing(name: str, generator: Generator, requests_of: Any) -> None:
    requests, method = requests_of(LENGTHS), configured(name)
    assert told(generator.generate(requests, [method])[0]) == told(generator.generate(requests, [method])[0])


@pytest.mark.parametrize("name", METHODS)
def test_the_newest_token_stays(name: str, tiny_model: Any, prompt_of: Any) -> None:
    """Its key, computed in the lowest layer from the token alone, is the last entry of every head."""
    method = configured(name)
    if type(method).shorten is not Method.shorten:
        pytest.skip("cuts the prompt's text instead of its cache")
    model, prompt = tiny_model(), prompt_of(300)
    found = []
    for one in (build("fullkv"), method):
        cache = CompressedCache([one], 6)
        with attached(model), torch.inference_mode():
            model(torch.tensor([prompt]), **{cache_argument(model.get_decoder()): cache})
        found.append(cache.groups[0].stores[0].keys[:, :, -1])
    assert torch.equal(*found)


@pytest.mark.parametrize("name", METHODS)
def test_first_token_comes_from_full_attention(name: str, generator: Generator, requests_of: Any) -> None:
    """A budget one below the prompt, or far below: the first new token is FullKV's (the default
    `first_token`).
    """
    if configured(name).own_prefill:
        pytest.skip("changes the prompt's own computation")
    requests = requests_of((300,), new=1)
    expected = generator.generate(requests, [build("fullkv")])[0][0].token_ids
    for budget in (299, None):
        assert generator.generate(requests, [configured(name, budget)])[0][0].token_ids == expected


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", [0, -1, "null", "abc", 64.5, 1.01])
def test_impossible_budgets_are_refused(name: str, budget: Any) -> None:
    if name == "fullkv":
        assert configured(name, budget) == build("fullkv")  # it has no budget to be wrong
    else:
        with pytest.raises(ValueError, match="budget="):
            configured(name, budget)


@pytest.mark.parametrize("name", METHODS)
def test_eviction_keeps_everything_finite(
    name: str, tiny_model: Any, byte_tokenizer: Any, requests_of: Any
) -> None:
    """bfloat16, left padding, prompts of one and two tokens among longer ones."""
    model = copy.deepcopy(tiny_model()).to(torch.bfloat16)
    answers = Generator(model=model, tokenizer=byte_tokenizer).generate(
        requests_of((1, 2, 300)), [configured(name)]
    )[0]
    assert [len(answer.token_ids) for answer in answers] == [12, 12, 12]


def test_methods_that_cap_hold_their_budget_at_every_step(generator: Generator, requests_of: Any) -> None:
    """After 150 new tokens H2O and StreamingLLM hold 64; SnapKV and PyramidKV hold 64 and what was generated."""
    requests = requests_of((300,), new=150)
    for name, at_end in {"h2o": 64, "streamingllm": 64, "snapkv": 64 + 149, "pyramidkv": 64 + 149}.items():
        held = generator.generate(requests, [configured(name)])[0][0].held_at_end
        assert held is not None and held.mean_tokens == at_end, name


def test_a_short_row_beside_a_long_one_keeps_its_own_sinks(generator: Generator, requests_of: Any) -> None:
    """A prompt shorter than the sinks, whose answer outgrows the budget, streams as it would alone."""
    requests, method = (
        requests_of((300, 2), new=90),
        configured("streamingllm", 32, "protocol.decode_eviction=always"),
    )
    together = told(generator.generate(requests, [method])[0])
    assert together == [told(generator.generate([request], [method])[0])[0] for request in requests]


@pytest.mark.parametrize("name", ["h2o", "streamingllm"])
def test_decode_eviction_has_three_settings(name: str, generator: Generator, requests_of: Any) -> None:
    requests = requests_of((300, 40), new=60)
    expected = {"true": (64, 40 + 59), "always": (64, 64), "false": (64 + 59, 40 + 59)}
    for setting, at_end in expected.items():
        answers = generator.generate(
            requests, [configured(name, BUDGET, f"protocol.decode_eviction={setting}")]
        )[0]
        assert tuple(a.held_at_end.mean_tokens for a in answers if a.held_at_end) == at_end, setting


def test_all_window_methods_of_a_protocol_share_window_kernel_and_pooling() -> None:
    settings = {(m.window, m.kernel, m.pooling) for m in map(configured, ("snapkv", "pyramidkv"))}
    assert settings == {(8, 7, "max")}
    wide = [configured(name, BUDGET, "protocol.window=32") for name in ("snapkv", "pyramidkv", "random")]
    assert {method.window for method in wide} == {32}


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean pyramidkv"):
        build("pyramid_kv", budget=64)
    with pytest.raises(ValueError, match=r"no parameter 'windows'.*did you mean window"):
        build("snapkv", budget=64, windows=8)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("snapkv", {"window": 64}, "budget=64 must be above the 64"),
        ("snapkv", {"window": 0}, "window=0"),
        ("snapkv", {"kernel": 4}, "kernel=4 must be odd"),
        ("snapkv", {"pooling": "mean"}, "pooling='mean'"),
        ("pyramidkv", {"beta": 0.5}, "beta=0.5"),
        ("pyramidkv", {"schedule": "cosine"}, "schedule='cosine'"),
        ("streamingllm", {"sinks": 64}, "budget=64 must be above the 64"),
        ("streamingllm", {"sinks": -1}, "sinks=-1"),
        ("streamingllm", {"positions": "slots"}, "positions='slots'"),
        ("h2o", {"recent": 1.5}, "recent=1.5"),
        ("h2o", {"recent": 64}, "budget=64 must be above the 64"),
        ("h2o", {"decode_eviction": "sometimes"}, "decode_eviction='sometimes'"),
        ("random", {"window": 0}, "window=0"),
    ],
)
def test_impossible_parameters_are_refused_by_name_and_value(
    name: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, budget=64, **parameters)


def test_a_share_too_small_for_what_is_protected_fails_that_prompt_only(
    generator: Generator, requests_of: Any
) -> None:
    answers = generator.generate(requests_of((300, 40)), [build("snapkv", budget=0.1)])[0]
    assert answers[0].error is None
    assert answers[1].error == (
        "budget=0.1 of a prompt of 40 tokens is 4, not above the 8 that are always kept (the window)"
    )


@pytest.mark.parametrize("recent", [0.0, 1.0])
def test_h2o_with_heavy_hitters_only_or_recent_only(
    recent: float, generator: Generator, requests_of: Any
) -> None:
    """Either extreme answers, and recent only is StreamingLLM without sinks at true positions."""
    requests = requests_of((300,), new=20)
    answer = generator.generate(requests, [build("h2o", budget=64, recent=recent)])[0][0]
    assert len(answer.token_ids) == 20
    if recent == 1.0:
        streaming = build("streamingllm", budget=64, sinks=0, positions="true")
        assert answer.token_ids == generator.generate(requests, [streaming])[0][0].token_ids
