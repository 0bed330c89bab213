"""PyramidInfer: tokens leave the computation layer by layer while the prompt is read (arXiv 2405.12532, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pyramid import selection
from pyramid.budget import Budget, budget_tokens, check_budget
from pyramid.method import Decision, Evict, Keep, Method, Narrow, Observation, Phase, protect
from pyramid.selection import Lengths

SCHEDULES = ("cosine", "linear", "constant")
PRESETS: dict[str, dict[str, Any]] = {  # the authors' configurations, mutonix/pyramidinfer at 61ac641
    "llama2_7b": {"decay": 0.9, "interval": 1, "min_context": 64},
    "llama2_13b": {"decay": 0.8, "interval": 2, "min_context": 64},
    "llama2_70b": {"decay": 0.9, "interval": 3, "min_context": 64},
    "llama3_8b": {"decay": 0.9, "interval": 1, "min_context": 64},
    "llama3_70b": {"decay": 0.9, "interval": 3, "min_context": 64},
}


@dataclass(frozen=True, kw_only=True)
class PyramidInfer(Method):
    """After each layer, the tokens that the recent ones attend to least leave the hidden-state stream; a layer's
    cache holds what reached it. docs/methods/pyramidinfer.md says where paper, authors' code and this differ.

    budget: mean tokens per layer, or a share of the prompt; the decay is then solved for, to the token.
    decay, preset: instead of a budget, the final decay of the context, or one of the authors' configurations.
    schedule: how the share of the context that stays falls from 1 to `decay` over the layers: `cosine`, `linear`,
        or `constant`, which is `decay` everywhere. Shares multiply, since each layer's context is already shorter.
    recent_ratio: the newest part of the prompt, which always stays and whose attention decides.
    min_context: a context is never cut below this; the authors' 64 would put half of a short prompt out of
        reach. interval: selections happen at every such layer.
    sinks: oldest tokens that always stay. distance: weight of the newest deciding token, the oldest counts 1.
    answer_compression: also evict from the answer: whenever a layer holds `answer_block` tokens of it before the
        recent ones, the best `answer_ratio` times the schedule's share of them, which falls to `answer_decay`, stay.
    published_bug: count seen instead of held tokens in that rule, as the authors' current code does by mistake.
    """

    own_prefill: ClassVar[bool] = True

    budget: Budget | None = None
    preset: str | None = None
    decay: float | None = None
    schedule: str = "cosine"
    recent_ratio: float = 0.2
    min_context: int = 16
    interval: int = 1
    sinks: int = 4
    distance: float = 1.2
    answer_compression: bool = False
    answer_schedule: str = "cosine"
    answer_decay: float = 0.1
    answer_ratio: float = 0.9
    answer_block: int = 16
    published_bug: bool = False

    def __post_init__(self) -> None:
        if self.preset is not None:
            if self.preset not in PRESETS:
                raise ValueError(f"preset={self.preset!r} is none of {', '.join(PRESETS)}")
            for name, value in PRESETS[self.preset].items():
                object.__setattr__(self, name, value)
        if self.decay is not None:
            object.__setattr__(self, "budget", None)  # a decay decides what is held
        else:
            check_budget(self.budget, above=self.sinks, what="the sinks")
        for name in ("decay", "recent_ratio", "answer_decay", "answer_ratio"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r} is outside [0, 1]")
        for name in ("schedule", "answer_schedule"):
            if getattr(self, name) not in SCHEDULES:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(SCHEDULES)}")
        for name, least in (
            ("min_context", 1),
            ("interval", 1),
            ("sinks", 0),
            ("distance", 0),
            ("answer_block", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)!r} must be at least {least}")
        if self.published_bug and not self.answer_compression:
            raise ValueError(
                "published_bug=true is about the answer's compression: set answer_compression=true"
            )

    @property
    def phases(self) -> Phase:
        return Phase.PROMPT | Phase.TURN | Phase.STEP if self.answer_compression else Phase.PROMPT

    def check(self, *, length: int, num_layers: int) -> None:
        self.lengths(length, num_layers)

    def lengths(self, prompt: int, num_layers: int) -> Lengths:
        """Tokens that each layer holds of a prompt, bottom first.

        Errors: ValueError if the budget is below what narrowing can reach."""
        shape = (prompt, num_layers, self.schedule, self.recent_ratio, self.min_context, self.interval)
        if self.decay is not None:
            return _lengths(*shape, self.decay, False)
        assert self.budget is not None
        return _solved(*shape, budget_tokens(self.budget, prompt))

    def observe(self, seen: Observation) -> Decision:
        if seen.phase is Phase.PROMPT:
            return self._narrow(seen)
        if seen.phase is Phase.TURN:
            return Keep(**self._fresh_memory(seen))
        return self._compress_answer(seen)

    def _narrow(self, seen: Observation) -> Decision:
        plans = [self.lengths(prompt, seen.num_layers) for prompt in seen.prompt]
        memory = self._fresh_memory(seen) if self.answer_compression else {}
        above = seen.layer + 1
        if above == seen.num_layers or all(plan[above] == plan[seen.layer] for plan in plans):
            return Keep(**memory)
        keep = tuple(plan[above] for plan in plans)
        recent = [self._recent(prompt) + 1 for prompt in seen.prompt]
        votes = seen.weighted_attention(_row_weights(recent, max(recent), self.distance, seen.device))
        scores = protect(votes.mean(1, keepdim=True), seen, oldest=self.sinks, newest=recent)[:, 0]
        index = selection.best(selection.rank(scores, seen.lengths), keep)
        return Narrow(index=index, lengths=keep, **memory)

    def _recent(self, tokens: int) -> int:
        return int(tokens * self.recent_ratio)

    def _fresh_memory(self, seen: Observation) -> dict[str, Any]:
        """What the answer's rule remembers of a prompt or turn that has just been read.

        marks: `answer`, where the answer begins in this layer; `mark`, see `_compress_answer`.
        attention: (rows, queries, entries) head-averaged attention of the newest queries over the newest entries:
            over the answer, of which there is nothing yet; over all, if the published mistake reaches the prompt."""
        attention = torch.zeros(len(seen.lengths), 0, 0, device=seen.device)
        if self.published_bug:
            attention = seen.window_attention(max(map(self._recent, seen.prompt)) + 1).mean((1, 2))
        marks = {"answer": seen.lengths, "mark": seen.lengths, "bytes": (0,) * len(seen.lengths)}
        return {"marks": marks, "fixed": {"attention": attention}}

    def _compress_answer(self, seen: Observation) -> Decision:
        """Where a layer has gathered a block of the answer before the recent tokens, thin that block out.

        The rule of the authors' first code (section 3.3 of the paper's text): with r recent tokens of what the lowest
        layer holds, a block is due once held - r - mark reaches its size, and the mark then is what is held - r."""
        store, rows = seen.store, range(len(seen.lengths))
        recent = [self._recent(held + 1) for held in seen.bottom]
        attention = self._attention_so_far(seen, max(recent) + 1)
        counted = seen.tokens if self.published_bug else seen.lengths
        due = [counted[row] - recent[row] - store.marks["mark"][row] >= self.answer_block for row in rows]
        share = _share(self.answer_schedule, self.answer_decay, seen.layer, seen.num_layers)
        blocks = [min(self.answer_block, seen.lengths[row] - recent[row] - 1) for row in rows]
        stay = [max(int(block * self.answer_ratio * share), 1) for block in blocks]
        keep = tuple(seen.lengths[row] - due[row] * max(blocks[row] - stay[row], 0) for row in rows)
        marks = {
            "mark": tuple(keep[row] - recent[row] if due[row] else store.marks["mark"][row] for row in rows),
            "bytes": tuple(
                4 * min(attention.shape[1], recent[row] + 1) * (keep[row] - store.marks["answer"][row])
                for row in rows
            ),
        }
        if keep == seen.lengths:
            return Keep(fixed={"attention": attention}, marks=marks)
        scores = self._answer_scores(seen, attention, recent, blocks)
        index = selection.best(selection.rank(scores, seen.lengths), keep)
        covered = attention.shape[2] - min(held - kept for held, kept in zip(seen.lengths, keep, strict=True))
        everything = F.pad(attention, (seen.entries - attention.shape[2], 0))
        thinned = everything.gather(2, index[:, None].expand(-1, attention.shape[1], -1))[:, :, -covered:]
        heads = index[:, None].expand(-1, store.heads, -1)
        return Evict(index=heads, lengths=keep, fixed={"attention": thinned}, marks=marks)

    def _attention_so_far(self, seen: Observation, queries: int) -> Tensor:
        """The remembered attention with the new tokens' rows and columns, cut to the newest `queries`."""
        before, new = seen.store.fixed["attention"], seen.query.shape[2]
        covered = before.shape[2] + new
        rows = seen.window_attention(new).mean((1, 2))[:, :, seen.entries - covered :]
        return torch.cat([F.pad(before, (0, new)), rows], 1)[:, -queries:]

    def _answer_scores(
        self, seen: Observation, attention: Tensor, recent: list[int], blocks: list[int]
    ) -> Tensor:
        """(rows, entries) weighted attention for each row's block before its recent tokens, +inf elsewhere.

        The prompt stays whatever its score, except under the published mistake."""
        weights = _row_weights(
            [count + 1 for count in recent], attention.shape[1], self.distance, seen.device
        )
        votes = (attention * weights[:, :, None]).sum(1)
        scores = torch.full((len(blocks), seen.entries), math.inf, device=seen.device)
        scores[:, seen.entries - votes.shape[1] :] = votes
        newest, oldest = seen.age()
        for row, (count, block) in enumerate(zip(recent, blocks, strict=True)):
            candidates = (newest > count) & (newest <= count + block)
            if not self.published_bug:
                candidates &= oldest[row] >= seen.store.marks["answer"][row]
            scores[row].masked_fill_(~candidates, math.inf)
        return scores


@lru_cache(maxsize=4096)
def _lengths(
    prompt: int,
    num_layers: int,
    schedule: str,
    recent_ratio: float,
    min_context: int,
    interval: int,
    decay: float,
    clamp: bool,
) -> Lengths:
    """Tokens per layer. clamp: cut down to `min_context` where the authors' rule would rather not cut at all."""
    recent = int(prompt * recent_ratio) + 1
    least = min(min_context, prompt - recent)
    lengths = [prompt]
    for layer in range(num_layers - 1):
        context = lengths[-1] - recent
        share = _share(schedule, decay, layer, num_layers)
        if layer % interval == 0 and context > least and share < 1:
            kept = int(context * share)
            context = kept if kept > least else least if clamp else context
        lengths.append(context + recent)
    return tuple(lengths)


def _share(schedule: str, decay: float, layer: int, num_layers: int) -> float:
    """Part of the context that a layer's selection leaves."""
    if schedule == "cosine":
        return decay + (1 - decay) * (math.cos(math.pi * layer / num_layers) + 1) / 2
    if schedule == "linear":
        return 1 - (1 - decay) * layer / num_layers
    return decay


@lru_cache(maxsize=4096)
def _solved(
    prompt: int,
    num_layers: int,
    schedule: str,
    recent_ratio: float,
    min_context: int,
    interval: int,
    budget: int,
) -> Lengths:
    """Tokens per layer that add up to num_layers * budget exactly.

    The decay is bisected; what its steps leave over goes to the lowest layers where a hair more decay would put it.
    """
    target = num_layers * min(budget, prompt)

    def held(decay: float) -> Lengths:
        return _lengths(prompt, num_layers, schedule, recent_ratio, min_context, interval, decay, True)

    low, high = 0.0, 1.0
    if sum(held(high)) <= target:
        return held(high)
    if min(held(low)) == prompt:
        return held(low)  # too short to be narrowed at all: read as FullKV reads it
    if sum(held(low)) > target:
        least = math.ceil(sum(held(low)) / num_layers)
        raise ValueError(
            f"a budget of {budget} tokens is out of reach for PyramidInfer on a prompt of {prompt}: with "
            f"recent_ratio={recent_ratio} and min_context={min_context} it holds at least {least} per layer"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(held(middle)) <= target else (low, middle)
    found, spare = list(held(low)), target - sum(held(low))
    for layer, more in enumerate(held(high)):
        extra = min(spare, more - found[layer])
        found[layer] += extra
        spare -= extra
    return tuple(found)


def _row_weights(recent: list[int], window: int, distance: float, device: Any) -> Tensor:
    """(rows, window) weight of the newest queries: in each row from 1 for the first of its `recent` ones to `distance`
    for the last, divided by their number; 0 for older ones."""
    count = torch.tensor(recent)[:, None]
    place = torch.arange(window)[None] - (window - count)
    weights = (1 + (distance - 1) * place / (count - 1).clamp(min=1)) / count
    return weights.masked_fill(place < 0, 0.0).to(device)


METHOD = PyramidInfer
