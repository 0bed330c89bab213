"""The values the harness is made of. Frozen, plain, and free of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One item of a task, before any tokenizer has seen it.

    The prompt is `context` followed directly by `question`. Where the protocol asks the question after
    compression, only `context` is compressed. `references` may be empty only for tasks whose score needs
    none.
    stop_texts: an answer ends before the first of these. temperature: 0 takes the likeliest token.
    follow_ups: the user's further messages, each answered in turn on the same cache.
    ids, continuation: instead of texts, the prompt's token ids as they are, without template or truncation,
        and the token ids after it whose likelihood is asked for.
    parts: further prompts that belong to the sample, such as the other choices of a question. Each is answered
        by itself, and the answers follow the sample's own as its `follow_ups`.
    """

    id: str
    context: str
    question: str = ""
    references: tuple[str, ...] = ()
    max_new_tokens: int
    min_new_tokens: int = 0
    template: bool = True  # whether a chat template may wrap the prompt
    stop_at_newline: bool = False
    stop_texts: tuple[str, ...] = ()
    temperature: float = 0.0
    follow_ups: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    continuation: tuple[int, ...] = ()
    parts: tuple[Sample, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)  # JSON values only; stored with the prediction


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A sample as the model will read it: token ids, in one segment or, if the question comes later, in two.

    follow_ups: what is fed after each answer: the end of the assistant's message, the user's next one, and the
        beginning of the next answer."""

    segments: tuple[tuple[int, ...], ...]
    stop_ids: tuple[int, ...]
    follow_ups: tuple[tuple[int, ...], ...] = ()
    truncated: bool = False
    head: str = ""  # first and last characters of the rendered prompt, kept with the prediction
    tail: str = ""

    @property
    def tokens(self) -> int:
        return sum(len(segment) for segment in self.segments)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The rules all methods of a table share. Every table prints them; docs/protocol.md gives the reasons.

    template: `chat` wraps prompts in the model's own chat template where the sample allows it; `none` never
        does.
    question: `in_prompt` compresses context and question together; `after_compression` feeds the question
        afterwards.
    first_token: `full` takes the first new token from full attention; `compressed` runs the last prompt token
        again on the compressed cache.
    cache_heads: `kv` keeps one entry per key/value head; `query` repeats them per query head, as published
        code did.
    stop_at_newline: `task` follows the sample, `always` ends every answer at a newline.
    max_prompt_tokens: a prompt is cut in the middle to this many tokens before the chat template is put around it; None
        means the model's own limit, which the template and the answer count to.
    layout: how a task builds its prompts where the published ones differ: `fair` or `paper`.

    The others are what the methods' configurations read from here, so that all of a table agree on them: the
    observation window with its pooling, whether H2O and StreamingLLM evict while decoding, H2O's part of
    recent tokens, the positions StreamingLLM counts and the pyramid's rounding.
    """

    name: str
    template: str = "chat"
    question: str = "in_prompt"
    first_token: str = "full"
    cache_heads: str = "kv"
    stop_at_newline: str = "task"
    max_prompt_tokens: int | None = None
    layout: str = "fair"
    window: int = 8
    kernel: int = 7
    pooling: str = "max"
    decode_eviction: bool | str = True
    recent: int | float = 0.5
    positions: str = "cache"
    schedule: str = "exact"

    def __post_init__(self) -> None:
        for field_name, allowed in _CHOICES.items():
            value = getattr(self, field_name)
            if value not in allowed:
                raise ValueError(f"protocol.{field_name}={value!r} is none of {', '.join(allowed)}")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 2:
            raise ValueError(
                f"protocol.max_prompt_tokens={self.max_prompt_tokens} must be at least 2, or null"
            )


_CHOICES = {
    "template": ("chat", "none"),
    "question": ("in_prompt", "after_compression"),
    "first_token": ("full", "compressed"),
    "cache_heads": ("kv", "query"),
    "stop_at_newline": ("task", "always"),
    "layout": ("fair", "paper"),
}
