"""How many tokens each layer may hold. Host arithmetic on plain integers, so that totals are exact and cost
no device sync.

A budget is the mean number of tokens held per key/value head and layer after the prompt, window and sinks
included. Every policy spends exactly `num_layers * budget` whenever the prompt is longer than the budget, and
everything when it is not; `PublishedPyramid`, which reproduces an overspending schedule on purpose, is the
one named exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

Budget = int | float


def check_budget(budget: object, *, above: int, what: str) -> None:
    """Refuse a budget that no prompt could meet.

    Args:
        above: tokens that are always kept; a budget in tokens must exceed them.
        what: what those tokens are, for the message.
    Errors: ValueError naming the value and the mend.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise ValueError(
            f"budget={budget!r} is not a number: give tokens (budget=128) or a share of the prompt (budget=0.1)"
        )
    if isinstance(budget, float):
        if not 0 < budget <= 1:
            raise ValueError(
                f"budget={budget!r} is neither a whole number of tokens nor a share of the prompt in (0, 1]"
            )
    elif budget <= above:
        raise ValueError(f"budget={budget} must be above the {above} tokens that are always kept ({what})")


def budget_tokens(budget: Budget, length: int) -> int:
    """The budget in tokens for a prompt of `length` tokens: a share is rounded half up."""
    return budget if isinstance(budget, int) else int(Fraction(str(budget)) * length + Fraction(1, 2))


class BudgetPolicy(Protocol):
    def allocate(self, *, budget: int, window: int, num_layers: int, length: int) -> tuple[int, ...]:
        """Tokens per layer, bottom first, each at most `length`.

        Args:
            budget: mean tokens per layer, `window` included.
            window: newest tokens that every layer keeps.
            length: tokens of the prompt.
        """
        ...


@dataclass(frozen=True)
class Uniform:
    """The same number of tokens in every layer."""

    def allocate(self, *, budget: int, window: int, num_layers: int, length: int) -> tuple[int, ...]:
        return (min(budget, length),) * num_layers


@dataclass(frozen=True)
class Pyramid:
    """An arithmetic sequence that falls from the bottom layer to the top (PyramidKV, arXiv 2406.02069,
    section 4.2.1).

    With b = budget - window, the top layer gets b / beta and the bottom layer 2b - b / beta on top of the
    window. Where the prompt has fewer tokens than the bottom layer's share, the sequence starts at the prompt
    and ends higher: still linear, same total. The paper's real numbers are rounded by largest remainder,
    lower layers first, which keeps both the total and the order.
    """

    beta: float = 20.0

    def allocate(self, *, budget: int, window: int, num_layers: int, length: int) -> tuple[int, ...]:
        if length <= budget:
            return (length,) * num_layers
        return _linear(budget - window, window, num_layers, length - window, Fraction(str(self.beta)))


@lru_cache(maxsize=4096)
def _linear(selected: int, window: int, num_layers: int, most: int, beta: Fraction) -> tuple[int, ...]:
    if num_layers == 1:
        return (selected + window,)
    bottom = min(2 * selected - selected / beta, Fraction(most))
    top = 2 * selected - bottom
    exact = [bottom - (bottom - top) * layer / (num_layers - 1) for layer in range(num_layers)]
    floors = [int(value) for value in exact]
    spare = num_layers * selected - sum(floors)
    by_remainder = sorted(range(num_layers), key=lambda layer: (floors[layer] - exact[layer], layer))
    for layer in by_remainder[:spare]:
        floors[layer] += 1
    return tuple(tokens + window for tokens in floors)


@dataclass(frozen=True)
class PublishedPyramid:
    """The integer schedule of the PyramidKV authors' code (Zefan-Cai/KVCache-Factory at c97f9d7),
    overspending included.

    Two floor divisions leave up to (num_layers - 2) / 2 tokens per layer above the budget, and a prompt below
    twice the selected tokens gets the uniform allocation. For comparisons with published numbers only.
    """

    beta: int = 20

    def allocate(self, *, budget: int, window: int, num_layers: int, length: int) -> tuple[int, ...]:
        selected = budget - window
        if length < budget:
            return (length,) * num_layers
        if length < 2 * selected or num_layers == 1:
            return (budget,) * num_layers
        top = int(selected // self.beta)
        bottom = 2 * selected - top
        if bottom >= length - window:
            bottom = length - window
            top = 2 * selected - bottom
        step = (bottom - top) // (num_layers - 1)
        return tuple(bottom - layer * step + window for layer in range(num_layers))
