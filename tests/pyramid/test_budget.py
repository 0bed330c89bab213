"""Budgets: totals to the token at every depth, and the published schedule as published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyramid.budget import PublishedPyramid, Pyramid, Uniform, budget_tokens, check_budget


@given(
    budget=st.integers(9, 3000),
    layers=st.integers(1, 96),
    length=st.integers(1, 40_000),
    beta=st.sampled_from([1.0, 1.5, 14.0, 20.0, 100.0]),
)
def test_pyramid_spends_its_budget_exactly_and_never_grows_upwards(
    budget: int, layers: int, length: int, beta: float
) -> None:
    tokens = Pyramid(beta).allocate(budget=budget, window=8, num_layers=layers, length=length)
    assert sum(tokens) == layers * min(budget, length)
    assert list(tokens) == sorted(tokens, reverse=True)
    assert max(tokens) <= length
    assert min(tokens) >= min(8, length)


@pytest.mark.parametrize("share", [1.1, 1.5, 2, 10])
@pytest.mark.parametrize("layers", [3, 7])
def test_a_pyramid_appears_as_soon_as_the_prompt_exceeds_the_budget(share: float, layers: int) -> None:
    tokens = Pyramid().allocate(budget=64, window=8, num_layers=layers, length=int(64 * share))
    assert tokens[0] > tokens[-1]


def test_pyramid_ends_are_the_papers() -> None:
    """Equation 1 of arXiv 2406.02069 for budget 128, window 8, 32 layers: 242 at the bottom, 14 at the top."""
    tokens = Pyramid().allocate(budget=128, window=8, num_layers=32, length=7500)
    assert (tokens[0], tokens[-1], sum(tokens)) == (242, 14, 4096)


@pytest.mark.parametrize(
    ("layers", "budget", "length", "first", "last", "total"),
    [
        (32, 128, 7500, 242, 25, 4272),
        (32, 64, 7500, 118, 25, 2288),
        (32, 64, 112, 112, 19, 2096),
        (32, 64, 111, 64, 64, 2048),
        (32, 64, 63, 63, 63, 2016),
        (80, 128, 100_000, 242, 84, 13040),
        (80, 64, 100_000, 118, 39, 6280),
        (32, 2048, 100_000, 3986, 111, 65552),
        (32, 512, 100_000, 991, 61, 16832),
    ],
)
def test_published_schedule(layers: int, budget: int, length: int, first: int, last: int, total: int) -> None:
    """The integer arithmetic of the authors' code, overspending included (its issue 22 reports 4016 = 4272 -
    32 * 8).
    """
    tokens = PublishedPyramid().allocate(budget=budget, window=8, num_layers=layers, length=length)
    assert (tokens[0], tokens[-1], sum(tokens)) == (first, last, total)


def test_uniform_is_capped_by_the_prompt() -> None:
    assert Uniform().allocate(budget=64, window=8, num_layers=3, length=300) == (64, 64, 64)
    assert Uniform().allocate(budget=64, window=8, num_layers=3, length=20) == (20, 20, 20)


def test_a_share_is_of_the_prompt_and_rounds_half_up() -> None:
    assert [budget_tokens(0.1, length) for length in (300, 305, 304)] == [30, 31, 30]
    assert budget_tokens(1.0, 301) == 301
    assert budget_tokens(64, 301) == 64


@pytest.mark.parametrize("budget", [8, 0, -1, 0.0, 1.5, 64.5, None, "128", True])
def test_impossible_budgets_are_refused_by_value(budget: object) -> None:
    with pytest.raises(ValueError, match=f"budget={budget!r}"):
        check_budget(budget, above=8, what="the window")


@pytest.mark.parametrize("budget", [9, 0.01, 1.0])
def test_possible_budgets_pass(budget: float) -> None:
    check_budget(budget, above=8, what="the window")
