"""The task as the harness sees it: identity, seeds, limits, refusals, and the settings that select it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.prompts import Prompter
from evaluation.task import Task
from needle.task import TASK, NeedleTask
from pyramid.types import Answer
from tests.needle.conftest import build_tokenizer

PromptersOf = Callable[..., Prompter]
CONF = Path(__file__).resolve().parents[2] / "conf"


def _task(folder: Path, **changes: Any) -> NeedleTask:
    return NeedleTask(**{"lengths": [500], "depths": [0, 50], "haystack": str(folder), **changes})


def test_satisfies_the_contract(haystack_folder: Path) -> None:
    task = TASK(lengths=[500], depths=[0], haystack=str(haystack_folder))
    promised = [name for name in (*Task.__annotations__, *vars(Task)) if not name.startswith("_")]
    assert len(promised) > 5 and all(hasattr(task, name) for name in promised)
    assert task.name == "needle" and task.metrics[0] == "word_recall"


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": [501]},
        {"depths": [0]},
        {"needle": "number_7"},
        {"layout": "paper"},
        {"seed": 1},
        {"max_new_tokens": 31},
        {"haystack": "python_reference"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_parameter_is_identity(haystack_folder: Path, change: dict[str, Any]) -> None:
    assert _task(haystack_folder, **change).identity() != _task(haystack_folder).identity()


def test_identity_is_what_is_run_and_not_where_it_lies(haystack_folder: Path) -> None:
    identity = _task(haystack_folder).identity()
    assert identity == _task(haystack_folder, max_new_tokens=30).identity()
    assert len(identity["haystack_sha256"]) == 64
    assert str(haystack_folder) not in str(identity)


def test_order_and_ids_are_fixed(haystack_folder: Path, prompter_of: PromptersOf) -> None:
    samples = _task(haystack_folder, lengths=[600, 500], depths=[50, 0.5]).samples(
        prompter_of(build_tokenizer("gpt"))
    )
    assert [sample.id for sample in samples] == [
        "length600_depth50",
        "length600_depth0.5",
        "length500_depth50",
        "length500_depth0.5",
    ]


def test_seed_draws_the_numbers_of_each_cell(haystack_folder: Path, prompter_of: PromptersOf) -> None:
    prompter = prompter_of(build_tokenizer("gpt"))

    def numbers(seed: int, **changes: Any) -> list[str]:
        samples = _task(haystack_folder, needle="number_7", seed=seed, **changes).samples(prompter)
        return [sample.references[0] for sample in samples]

    assert numbers(0) == numbers(0) and len(set(numbers(0))) == 2
    assert not set(numbers(0)) & set(numbers(1))
    assert numbers(0, depths=[50]) == numbers(0)[1:], (
        "a cell's number does not depend on the rest of the grid"
    )


def test_question_is_apart_from_what_may_be_compressed(
    haystack_folder: Path, prompter_of: PromptersOf
) -> None:
    """With the question after compression, the second segment starts with it, the first has the needle."""
    tokenizer = build_tokenizer("gpt")
    prompter = prompter_of(tokenizer, question="after_compression")
    for sample in _task(haystack_folder).samples(prompter):
        first, second = (tokenizer.decode(segment) for segment in prompter.render(sample).segments)
        assert "Dolores Park" in first and "Question" not in first
        assert second.startswith(sample.question)


def test_length_over_the_limit_is_refused_and_the_longest_one_fits(
    haystack_folder: Path, prompter_of: PromptersOf
) -> None:
    """The answer needs room too, and a protocol may set a lower limit than the model."""
    tokenizer = build_tokenizer("gpt")
    for prompter in (
        prompter_of(tokenizer, model_max_length=730),
        prompter_of(tokenizer, max_prompt_tokens=700),
    ):
        with pytest.raises(ValueError, match="needle length 701 does not fit.*up to 700 tokens"):
            _task(haystack_folder, lengths=[500, 701]).samples(prompter)
        sample = _task(haystack_folder, lengths=[700]).samples(prompter)[0]
        assert prompter.render(sample).tokens == 700 and not prompter.render(sample).truncated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"needle": "number7"}, r"needle 'number7' is unknown; did you mean 'number_7'\?"),
        ({"layout": "papre"}, r"layout 'papre' is unknown; did you mean 'paper'\?"),
        ({"needle": "x"}, "take one of san_francisco, number_7, number_64, several"),
        ({"haystack": "auto"}, "haystack 'auto' is neither"),
        ({"lengths": []}, "lengths is empty"),
        ({"lengths": 500}, r"500, which is no list; write lengths=\[500\]"),
        ({"lengths": [0]}, "length 0 is no number of tokens"),
        ({"lengths": [1.5]}, "length 1.5 is no number of tokens"),
        ({"lengths": ["long"]}, "length 'long' is no number of tokens"),
        ({"lengths": [500, 500]}, "lengths holds 500 more than once"),
        ({"depths": [101]}, "depth 101 is no percentage"),
        ({"depths": [-1]}, "depth -1 is no percentage"),
        ({"max_new_tokens": 0}, "max_new_tokens 0 leaves no answer"),
    ],
    ids=str,
)
def test_bad_parameters_are_refused_at_once(
    haystack_folder: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _task(haystack_folder, **change)


def test_summary_is_the_mean_of_each_score(haystack_folder: Path, prompter_of: PromptersOf) -> None:
    task = _task(haystack_folder)
    samples = task.samples(prompter_of(build_tokenizer("gpt")))
    answers = ("Eat a sandwich and sit in Dolores Park on a sunny day.", "sandwich, Dolores Park")
    records = [
        {"scores": task.score(sample, Answer(id="", text=text)), "meta": sample.meta}
        for sample, text in zip(samples, answers, strict=True)
    ]
    assert task.summarize(records) == pytest.approx(
        {"word_recall": (1 + 2 / 11) / 2, "strict_hit": 0.5, "key_facts": 1}
    )
    assert task.summarize([]) == {}


def test_draws_its_heatmap(haystack_folder: Path, prompter_of: PromptersOf, tmp_path: Path) -> None:
    task = _task(haystack_folder)
    samples = task.samples(prompter_of(build_tokenizer("gpt")))
    records = [
        {"scores": task.score(sample, Answer(id="", text="sandwich")), "meta": sample.meta}
        for sample in samples
    ]
    assert [file.name for file in task.draw(records, tmp_path)] == ["heatmap.csv", "heatmap.png"]


def _suite(name: str) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", [f"suite={name}"])
    suite = OmegaConf.to_container(config.suite, resolve=True)
    assert isinstance(suite, dict)
    return {str(key): value for key, value in suite.items()}


@pytest.mark.parametrize("name", ["needle", "needle_paper", "needle_smoke"])
def test_suites_compose_to_tasks(name: str) -> None:
    suite = _suite(name)
    assert suite["name"] == name
    values = dict(suite["tasks"]["needle"])
    assert values.pop("kind") == "needle"
    TASK(**values)


def test_grids() -> None:
    """The default is 20 prompts of up to 2,000 tokens; the paper's has 71 lengths and 10 depths."""
    default, paper = (_suite(name)["tasks"]["needle"] for name in ("needle", "needle_paper"))
    assert len(default["lengths"]) * len(default["depths"]) == 20 and max(default["lengths"]) == 2000
    assert paper["lengths"] == list(range(1000, 8001, 100))
    assert paper["depths"] == [round(100 * step / 9) for step in range(10)]
    assert default["needle"] == paper["needle"] == "san_francisco" and default["haystack"] == "paul_graham"
