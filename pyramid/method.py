"""What a compression method is: it looks at one layer's attention and decides what stays.

To add one, write a frozen dataclass in `pyramid/methods/<name>.py` whose fields are the parameters of
`conf/method/<name>.yaml`, and point `METHOD` at it. Most methods only write `score`; see
`pyramid/methods/snapkv.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor

from pyramid import scoring, selection
from pyramid.budget import Budget, BudgetPolicy, Uniform, budget_tokens, check_budget
from pyramid.cache import Phase
from pyramid.selection import Lengths
from pyramid.store import LayerStore

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Nothing goes. What is to be remembered replaces what was remembered under the same name:

    columns: per-entry tensors (rows, heads, entries), which later go with their entries.
    fixed: per-row tensors (rows, ...); marks: per-row host integers.
    """

    columns: Mapping[str, Tensor] = field(default_factory=dict)
    fixed: Mapping[str, Tensor] = field(default_factory=dict)
    marks: Mapping[str, Lengths] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evict(Keep):
    """Entries of this layer go; the model above does not notice.

    index: (rows, heads, kept) entries that stay, ascending, right-aligned; lengths: how many each row keeps.
    columns: as for `Keep`, given for all entries and evicted with them.
    oldest: where the entries that stay are each row's so many oldest ones and its newest, this says so: one entry
        that goes while decoding is then forgotten by moving these, and not by copying all.
    rejoin: how many of the oldest survivors are moved, by rotating their keys, to directly precede the
        others, so that distances inside the cache have no gap where entries went. 0 leaves every key at its
        true position.
    """

    index: Tensor
    lengths: Lengths
    oldest: int | None = None
    rejoin: int = 0


@dataclass(frozen=True, kw_only=True)
class Narrow(Keep):
    """Tokens leave the hidden-state stream: no layer above computes or stores them. This layer keeps all it has.

    index: (rows, kept) tokens of the stream that go on, ascending, right-aligned; lengths: how many of each.
    """

    index: Tensor
    lengths: Lengths


Decision = Keep  # or one of its two kinds, Evict and Narrow


class Observation:
    """What a method may see of one layer, right after its attention.

    Expensive things are computed when asked for, once however many methods ask.

    query: (rows, query heads, new, size); store: what the layer holds, the new tokens last.
    query_lengths: new tokens of each row; tokens: all that each row has seen so far, new ones included;
        prompt: all that it had seen when its prompt, or its latest turn, was complete. A share as budget is a
        share of that.
    """

    def __init__(
        self,
        *,
        layer: int,
        num_layers: int,
        phase: Phase,
        query: Tensor,
        store: LayerStore,
        query_lengths: Lengths,
        tokens: Lengths,
        prompt: Lengths,
        bottom: Lengths,
        budgets: tuple[Budget, ...] | None = None,
        scaling: float,
        mass: Tensor | None = None,
    ) -> None:
        self.layer, self.num_layers, self.phase = layer, num_layers, phase
        self.query, self.store, self.scaling = query, store, scaling
        self.query_lengths, self.tokens, self.prompt = query_lengths, tokens, prompt
        self.bottom, self.budgets = bottom, budgets
        self._memory: dict[Any, Any] = {} if mass is None else {"mass": mass}

    @property
    def lengths(self) -> Lengths:
        """Entries each row holds in this layer, new ones included."""
        return self.store.lengths

    @property
    def entries(self) -> int:
        return self.store.entries

    @property
    def device(self) -> Any:
        return self.query.device

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """The value of `compute()`, computed by whoever asks first under this key."""
        if key not in self._memory:
            self._memory[key] = compute()
        return self._memory[key]

    def window_attention(self, last: int) -> Tensor:
        """(rows, kv heads, group, window, entries) attention of the last new tokens; see
        `scoring.window_attention`.
        """
        compute = lambda: scoring.window_attention(  # noqa: E731
            self.query,
            self.store.keys,
            self.scaling,
            last=last,
            lengths=self.lengths,
            query_lengths=self.query_lengths,
        )
        return self.once(("window", last), compute)

    def attention_mass(self) -> Tensor:
        """(rows, kv heads, entries) attention from all new tokens; see `scoring.attention_mass`."""
        compute = lambda: scoring.attention_mass(  # noqa: E731
            self.query,
            self.store.keys,
            self.scaling,
            lengths=self.lengths,
            query_lengths=self.query_lengths,
        )
        return self.once("mass", compute)

    def weighted_attention(self, weights: Tensor) -> Tensor:
        """(rows, kv heads, entries) attention from the last new tokens, each counted by its weight.

        Args: weights: (rows, window)."""
        window = weights.shape[1]
        return scoring.attention_mass(
            self.query[:, :, self.query.shape[2] - window :],
            self.store.keys,
            self.scaling,
            lengths=self.lengths,
            query_lengths=tuple(min(length, window) for length in self.query_lengths),
            weights=weights,
        )

    def age(self) -> tuple[Tensor, Tensor]:
        """(entries,) distance from the newest entry, and (rows, entries) from the row's oldest; see
        `selection.age`.
        """
        return self.once("age", lambda: selection.age(self.lengths, self.entries, self.device))

    def ranking(self, scores: Tensor) -> Tensor:
        """`selection.rank` of these scores, once for each score tensor."""
        kept, ranking = self.once(
            ("rank", id(scores)), lambda: (scores, selection.rank(scores, self.lengths))
        )
        assert kept is scores
        return ranking


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to compress. Stateless: whatever has to be remembered between steps lies in the store's columns.

    phases: when `observe` is called. needs_mass: `observe` asks for `attention_mass`, which then may be computed
        together with the attention itself.
    own_prefill: changes the prompt's own computation, so that no other method can share its prefill.
    """

    version: ClassVar[int] = 1
    needs_mass: ClassVar[bool] = False
    own_prefill: ClassVar[bool] = False

    @property
    def phases(self) -> Phase:
        return Phase.PROMPT | Phase.TURN

    @cached_property
    def decoding_kind(self) -> Any:
        """Rows of methods of one kind may decode in one group: those that do not act on steps, and those that differ
        in their budget only."""
        if not Phase.STEP & self.phases:
            return "reading"
        return type(self), tuple(
            (name, value) for name, value in self.parameters().items() if name != "budget"
        )

    @abstractmethod
    def observe(self, seen: Observation) -> Decision:
        """Look at a layer and decide."""

    def check(self, *, length: int, num_layers: int) -> None:
        """Refuse a prompt before it is read. Args: length: its tokens. Errors: ValueError with the mend."""
        return

    def shorten(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt as the model is to read it. Only methods with `own_prefill` may change it."""
        return prompt

    def parameters(self) -> dict[str, Any]:
        """Every field, as plain values: what a result records."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, kw_only=True)
class EvictingMethod(Method):
    """Keeps the best-scored entries of every layer up to a budget.

    budget: mean tokens per kv head and layer after the prompt, an int, or a share of the prompt in (0, 1].
    """

    budget: Budget

    def __post_init__(self) -> None:
        protected, what = self.protected
        check_budget(self.budget, above=protected, what=what)

    @property
    def protected(self) -> tuple[int, str]:
        """Entries that every layer keeps whatever their score, and what they are."""
        return 0, "none"

    @property
    def policy(self) -> BudgetPolicy:
        return Uniform()

    def score(self, seen: Observation) -> Tensor:
        """(rows, kv heads, entries): higher stays, +inf is sure to stay."""
        raise NotImplementedError(f"{type(self).__name__} must define score, or its own observe")

    def keep(self, seen: Observation) -> Lengths:
        """Entries each row may hold in this layer."""
        budgets = seen.budgets or (self.budget,) * len(seen.lengths)
        rows = zip(budgets, seen.prompt, seen.lengths, strict=True)
        return tuple(
            min(self._allowed(budget, prompt, seen.num_layers)[seen.layer], held)
            for budget, prompt, held in rows
        )

    @cached_property
    def _known(self) -> dict[Any, tuple[int, ...]]:
        """What `_allowed` has found: every layer of every step asks for the same."""
        return {}

    def _allowed(self, share: Budget, prompt: int, num_layers: int) -> tuple[int, ...]:
        """Entries a row of this budget and prompt may hold in each layer."""
        key = (type(share), share, prompt, num_layers)  # 1 is one token, 1.0 the whole prompt
        if key not in self._known:
            budget, (protected, _) = budget_tokens(share, prompt), self.protected
            self._known[key] = (
                (max(budget, prompt),) * num_layers
                if prompt <= max(budget, protected)
                else self.policy.allocate(
                    budget=budget, window=protected, num_layers=num_layers, length=prompt
                )
            )
        return self._known[key]

    def check(self, *, length: int, num_layers: int) -> None:
        budget, (protected, what) = budget_tokens(self.budget, length), self.protected
        if budget <= protected < length:
            raise ValueError(
                f"budget={self.budget} of a prompt of {length} tokens is {budget}, "
                f"not above the {protected} that are always kept ({what})"
            )

    def observe(self, seen: Observation) -> Decision:
        keep = self.keep(seen)
        if keep == seen.lengths:
            return Keep()
        scores = self.score(seen)
        if all(held - kept == 1 for held, kept in zip(seen.lengths, keep, strict=True)):
            return Evict(index=selection.all_but_worst(scores, seen.lengths), lengths=keep)
        return Evict(index=selection.best(seen.ranking(scores), keep), lengths=keep)


@dataclass(frozen=True, kw_only=True)
class CappedMethod(EvictingMethod):
    """Holds its budget while the answer grows, too.

    decode_eviction: True caps every sequence that its prompt brought over the budget; `always` also those
        whose prompt fitted, once the answer outgrows the budget; False compresses once, after the prompt.
    """

    decode_eviction: bool | Literal["always"] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decode_eviction not in (True, False, "always"):
            raise ValueError(f"decode_eviction={self.decode_eviction!r} is none of true, false, always")

    @property
    def phases(self) -> Phase:
        return super().phases | (Phase.STEP if self.decode_eviction else Phase(0))

    def keep(self, seen: Observation) -> Lengths:
        keep = super().keep(seen)
        if seen.phase is not Phase.STEP or self.decode_eviction == "always":
            return keep
        rows = zip(keep, seen.lengths, seen.tokens, strict=True)
        return tuple(allowed if held < tokens else held for allowed, held, tokens in rows)


def protect(scores: Tensor, seen: Observation, *, oldest: int = 0, newest: int | Sequence[int] = 0) -> Tensor:
    """Scores with +inf for each row's oldest and newest entries.

    Args: scores: (rows, heads, entries); newest: for all rows or for each.
    """
    limits = (newest,) * len(seen.lengths) if isinstance(newest, int) else tuple(newest)
    sure = selection.ends(seen.lengths, seen.entries, oldest, limits, seen.device)
    return scores.masked_fill(sure[:, None, :], math.inf)
