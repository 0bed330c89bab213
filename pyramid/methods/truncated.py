"""Truncated prompt: cut the prompt to the budget before the model reads it. What no compression has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyramid.budget import Budget, budget_tokens, check_budget
from pyramid.method import Decision, Keep, Method, Observation, Phase


@dataclass(frozen=True, kw_only=True)
class Truncated(Method):
    """Keeps the first and the last half of the budget of the prompt's tokens and renumbers them, as LongBench
    cuts prompts that are too long.
    """

    own_prefill: ClassVar[bool] = True

    budget: Budget

    def __post_init__(self) -> None:
        check_budget(self.budget, above=1, what="the first and the last token")

    @property
    def phases(self) -> Phase:
        return Phase(0)

    def shorten(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        budget = budget_tokens(self.budget, len(prompt))
        if budget >= len(prompt):
            return prompt
        tail = budget // 2
        return prompt[: budget - tail] + prompt[len(prompt) - tail :]

    def observe(self, seen: Observation) -> Decision:
        return Keep()


METHOD = Truncated
