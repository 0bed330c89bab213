"""What goes into the library and what comes out of it, as plain Python: no tensors, no torch.

A harness that only exchanges these values with a generator needs not import a deep-learning library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to be answered.

    segments: token ids, fed one after another into the same cache. One segment is the ordinary prompt. With
        two, the first is prefilled and compressed before the second is fed, so the compression never saw the
        second.
    stop_ids: any of these ends the answer and is not part of it. They never apply to the first
        `min_new_tokens` tokens.
    stop_texts: an answer ends where its text contains one of these, and is cut before it.
    temperature: 0 takes the likeliest token. Above, tokens are drawn; request and seed alone determine the
        random numbers, so that all methods draw with the same ones, in whatever batch.
    follow_ups: further turns. The token ids of each are fed after the answer before it has ended, into the
        same cache, and answered in turn, by the same rules.
    continuation: if there is one, nothing is generated: these token ids are taken for the answer, and what
        their likelihood is stands in the answer.
    """

    id: str
    segments: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    min_new_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    follow_ups: tuple[tuple[int, ...], ...] = ()
    continuation: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return sum(len(segment) for segment in self.segments)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one sequence holds in the cache at one moment, counted from the tensors themselves."""

    tokens: tuple[int, ...]  # per layer, per key/value head: entries that belong to this sequence
    bytes: int  # keys, values and the method's own side data, all layers

    @property
    def mean_tokens(self) -> float:
        return sum(self.tokens) / len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one method made of one request.

    seconds: wall time by phase (`prefill`, `compression`, `decode`), this sequence's equal share of its
        batch.
    follow_ups: the answers to the request's further turns. Their `prompt_tokens` are those of the turn alone,
        what they held is counted after the turn was read, and at the end of its answer; the times of all
        turns stand in the first answer.
    log_likelihoods: natural logarithms of the probability of each token of the request's continuation.
    greedy: whether each of these tokens was the likeliest.
    measured: what a measurement found beside, as JSON values.
    error: why there is no answer; every other field is then empty, never a made-up value.
    """

    id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish: str = ""  # "stop", "length" or, for a continuation, "scored"
    prompt_tokens: int = 0
    held_after_prompt: Held | None = None
    held_at_end: Held | None = None
    compressed: bool = False  # entries were dropped at some point
    full_bytes_after_prompt: int = 0  # what the same prompt would hold without compression
    prefill_work: float = 1.0  # share of the full prompt's token-layers that were computed
    seconds: dict[str, float] = field(default_factory=dict)
    follow_ups: tuple[Answer, ...] = ()
    log_likelihoods: tuple[float, ...] = ()
    greedy: tuple[bool, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


class Tokenizer(Protocol):
    """The little that the harness needs of a tokenizer; transformers' tokenizers behind `pyramid.models`
    satisfy it.
    """

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of `text`; with `special`, the tokenizer's own start token is put in front."""
        ...

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...

    def chat(self, messages: Sequence[dict[str, str]]) -> str | None:
        """The conversation rendered by the model's chat template, ready for the assistant; None if it has
        none.
        """
        ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer: the tokenizer's end token and all of the generation config's."""
        ...
