"""From a sample to the token ids a model reads: chat template, truncation in the middle, exactly one start
token.
"""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.types import Prompt, Protocol, Sample
from pyramid.types import Tokenizer

SHOWN = 80  # characters of the rendered prompt's head and tail that a record keeps


@dataclass(frozen=True, kw_only=True)
class Prompter:
    """Renders samples for one model under one protocol.

    model_max_length: positions the model was made for; prompt and answer together never exceed it.
    """

    tokenizer: Tokenizer
    protocol: Protocol
    model_max_length: int

    def render(self, sample: Sample) -> Prompt:
        """Token ids of `sample`.

        Truncation drops tokens in the middle of context + question, before the template is put around them,
        until prompt and answer fit. Errors: ValueError if even the template and the answer alone do not fit.
        """
        limit = self.model_max_length - sample.max_new_tokens
        if self.protocol.max_prompt_tokens is not None:
            limit = min(limit, self.protocol.max_prompt_tokens)
        text = sample.context + sample.question
        question = sample.question
        ids = self._encode(self._wrap(text, sample))
        truncated = len(ids) > limit
        if truncated:
            text, question = self._shorten(sample, limit)
        rendered = self._wrap(text, sample)
        segments = self._segments(rendered, question)
        return Prompt(
            segments=segments,
            stop_ids=self._stop_ids(sample),
            truncated=truncated,
            head=rendered[:SHOWN],
            tail=rendered[-SHOWN:],
        )

    def _wrap(self, text: str, sample: Sample) -> str:
        if self.protocol.template != "chat" or not sample.template:
            return text
        rendered = self.tokenizer.chat([{"role": "user", "content": text}])
        return text if rendered is None else rendered

    def _encode(self, rendered: str) -> tuple[int, ...]:
        """Ids with exactly one start token, if the model has one that its tokenizer would add."""
        bos = self.tokenizer.bos_id
        ids = self.tokenizer.encode(rendered)
        if bos is not None and ids[:1] != [bos] and self.tokenizer.encode("", special=True)[:1] == [bos]:
            ids = [bos, *ids]
        return tuple(ids)

    def _segments(self, rendered: str, question: str) -> tuple[tuple[int, ...], ...]:
        if self.protocol.question == "in_prompt" or not question:
            return (self._encode(rendered),)
        cut = rendered.rfind(question)
        if cut < 0:  # templates may strip what stands at a message's ends
            cut = rendered.rindex(question.strip())
        return (self._encode(rendered[:cut]), tuple(self.tokenizer.encode(rendered[cut:])))

    def _shorten(self, sample: Sample, limit: int) -> tuple[str, str]:
        """The text with tokens removed from its middle until the rendered prompt fits `limit`, and what is
        left of the question.
        """
        text = sample.context + sample.question
        ids = self.tokenizer.encode(text)
        room = limit - (len(self._encode(self._wrap("", sample))))
        while room > 0:
            half = room // 2
            head, tail = (
                self.tokenizer.decode(ids[: room - half]),
                self.tokenizer.decode(ids[len(ids) - half :]),
            )
            excess = len(self._encode(self._wrap(head + tail, sample))) - limit
            if excess <= 0:
                question = sample.question if tail.endswith(sample.question) else tail
                return head + tail, question
            room -= excess
        raise ValueError(
            f"sample {sample.id!r}: an answer of {sample.max_new_tokens} tokens and the prompt's template do not fit "
            f"into the model's {self.model_max_length} positions"
        )

    def _stop_ids(self, sample: Sample) -> tuple[int, ...]:
        stops = list(self.tokenizer.stop_ids)
        if sample.stop_at_newline or self.protocol.stop_at_newline == "always":
            stops.append(self.tokenizer.encode("\n")[-1])
        return tuple(dict.fromkeys(stops))
