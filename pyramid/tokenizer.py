"""Tokenizers as `pyramid.types.Tokenizer` wants them: transformers' own, and bytes for random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class ModelTokenizer:
    """A checkpoint's own tokenizer. It needs no padding token: nothing here pads.

    stop_ids: every id that ends an answer.
    chat_options: further variables for the chat template, such as a fixed date or no thinking.
    """

    inner: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    chat_options: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, text: str, special: bool = False) -> list[int]:
        return list(self.inner.encode(text, add_special_tokens=special, verbose=False))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        text = self.inner.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return str(text)

    def chat(self, messages: Sequence[dict[str, str]]) -> str | None:
        if not self.inner.chat_template:
            return None
        rendered = self.inner.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **self.chat_options
        )
        return str(rendered)

    @property
    def bos_id(self) -> int | None:
        start = self.inner.bos_token_id
        return start if isinstance(start, int) else None


@dataclass(frozen=True, kw_only=True)
class ByteTokenizer:
    """One token a byte, for models with random weights, whose text means nothing and must need no download.

    Id 0 starts a text and id 1 ends it; byte b is id b + 2, and higher ids wrap around, so that all decode.
    """

    stop_ids: tuple[int, ...] = (1,)
    bos_id: int | None = 0
    smallest_vocabulary = 258

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [0] * special + [byte + 2 for byte in text.encode()]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return bytes((index - 2) % 256 for index in ids if index > 1).decode(errors="replace")

    def chat(self, messages: Sequence[dict[str, str]]) -> str | None:
        return None
