"""From a sample to the token ids a model reads: chat template, truncation in the middle, exactly one start
token.
"""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.types import Prompt, Protocol, Sample
from pyramid.types import Tokenizer

ANSWER_MARK = "(the answer stands here)"
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

        Truncation drops tokens in the middle of context + question, before the template is put around them: down to
        the protocol's limit, as LongBench's own script does it, and further where prompt and answer do not fit the
        model. Errors: ValueError if even the template and the answer alone do not fit.
        """
        if sample.ids:
            return self._given(sample)
        follow_ups = tuple(tuple(self.tokenizer.encode(text)) for text in self._follow_ups(sample))
        turns = 1 + len(follow_ups)
        limit = self.model_max_length - turns * sample.max_new_tokens - sum(map(len, follow_ups))
        wanted = self.protocol.max_prompt_tokens
        ids = self._encode(sample.context + sample.question) if wanted is not None else ()
        if wanted is not None and len(ids) > wanted:
            truncated, (segments, rendered) = True, self._cut(sample, ids, wanted)
        else:
            truncated, (segments, rendered) = False, self._read(sample.context, sample.question, sample)
        if sum(map(len, segments)) > limit:
            truncated, (segments, rendered) = True, self._fitted(sample, limit)
        return Prompt(
            segments=segments,
            follow_ups=follow_ups,
            stop_ids=self._stop_ids(sample),
            truncated=truncated,
            head=rendered[:SHOWN],
            tail=rendered[-SHOWN:],
        )

    def _given(self, sample: Sample) -> Prompt:
        """A sample of token ids as it is."""
        after = (
            len(sample.continuation) - 1 if sample.continuation else sample.max_new_tokens
        )  # the last is not read
        whole = len(sample.ids) + after
        if whole > self.model_max_length:
            raise ValueError(
                f"sample {sample.id!r} has {whole} tokens, and the model was made for {self.model_max_length}"
            )
        return Prompt(
            segments=(sample.ids,),
            stop_ids=self._stop_ids(sample),
            head=self.tokenizer.decode(sample.ids[:SHOWN])[:SHOWN],
            tail=self.tokenizer.decode(sample.ids[-SHOWN:])[-SHOWN:],
        )

    def _follow_ups(self, sample: Sample) -> list[str]:
        """What stands between each answer and the next: the template's end of a message, the user's next one and the
        template's beginning of an answer; without a template, blank lines around the message."""
        messages, texts = [{"role": "user", "content": sample.context + sample.question}], []
        for message in sample.follow_ups:
            messages += [
                {"role": "assistant", "content": ANSWER_MARK},
                {"role": "user", "content": message},
            ]
            chat = self.protocol.template == "chat" and sample.template
            rendered = self.tokenizer.chat(messages) if chat else None
            texts.append(
                f"\n\n{message}\n\n"
                if rendered is None
                else rendered[rendered.rindex(ANSWER_MARK) + len(ANSWER_MARK) :]
            )
        return texts

    def _read(self, context: str, question: str, sample: Sample) -> tuple[tuple[tuple[int, ...], ...], str]:
        """The segments of a prompt as the model reads them, and its rendered text."""
        text = context + question
        rendered = self._wrap(text, sample)
        if self.protocol.question == "in_prompt" or not question:
            return (self._encode(rendered),), rendered
        # a chat template may strip blanks at a message's ends, so the stripped text is looked for
        start = rendered.rindex(text.strip()) - (len(text) - len(text.lstrip()))
        cut = start + len(context)
        return (self._encode(rendered[:cut]), tuple(self.tokenizer.encode(rendered[cut:]))), rendered

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

    def _cut(
        self, sample: Sample, ids: tuple[int, ...], room: int
    ) -> tuple[tuple[tuple[int, ...], ...], str]:
        """As `_read`, of the text whose first and last `room // 2` tokens stay, the start token counted. Decoded halves
        may encode to a few tokens more.

        Args: ids: of the whole text."""
        half = room // 2
        head, tail = self.tokenizer.decode(ids[:half]), self.tokenizer.decode(ids[-half:])
        question = sample.question if tail.endswith(sample.question) else tail
        return self._read((head + tail).removesuffix(question), question, sample)

    def _fitted(self, sample: Sample, limit: int) -> tuple[tuple[tuple[int, ...], ...], str]:
        """As `_cut`, so far that no more than `limit` tokens are read."""
        ids = self._encode(sample.context + sample.question)
        room = limit - len(self._encode(self._wrap("", sample))) + len(self._encode(""))
        if self.protocol.max_prompt_tokens is not None:
            room = min(room, self.protocol.max_prompt_tokens)
        while room > 1:
            segments, rendered = self._cut(sample, ids, room)
            if sum(map(len, segments)) <= limit:
                return segments, rendered
            room -= 2
        raise ValueError(
            f"sample {sample.id!r}: with {sample.max_new_tokens} tokens an answer, {limit} positions are left for the "
            "prompt, and its template alone does not fit into them"
        )

    def _stop_ids(self, sample: Sample) -> tuple[int, ...]:
        stops = list(self.tokenizer.stop_ids)
        if sample.stop_at_newline or self.protocol.stop_at_newline == "always":
            stops.append(self.tokenizer.encode("\n")[-1])
        return tuple(dict.fromkeys(stops))
