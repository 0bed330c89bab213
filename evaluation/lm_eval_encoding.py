"""From a request of lm-evaluation-harness to token ids, cut and joined as its own model for transformers does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.types import Sample
from pyramid.types import Tokenizer

GREEDY = ("do_sample", "temperature", "until", "max_gen_toks")
IDLE = {
    "top_p": (1,),
    "top_k": (0, -1),
    "num_beams": (1,),
    "num_return_sequences": (1,),
}  # what changes nothing


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """max_length: positions the model has for prompt and answer. max_gen_toks: tokens of an answer where the task says
    nothing."""

    tokenizer: Tokenizer
    max_length: int
    max_gen_toks: int = 256

    def prompts(self, id: str, kind: str, arguments: Sequence[Any]) -> list[Sample]:
        """What is asked for by a request of `kind`, as lm_eval calls it: several prompts for a long rolling text.

        Errors: ValueError if the request asks for something that is not known here, or for nothing."""
        if kind == "generate_until":
            return [self.generation(id, *arguments)]
        if kind == "loglikelihood":
            return [self.likelihood(id, *arguments)]
        if kind == "loglikelihood_rolling":
            return self.rolling(id, *arguments)
        raise ValueError(f"requests of the kind {kind!r} are not known here")

    def generation(self, id: str, context: str, settings: Mapping[str, Any]) -> Sample:
        """An answer to `context`, whose beginning is left out where prompt and answer would be too long."""
        from lm_eval.models.utils import normalize_gen_kwargs

        found: dict[str, Any] = dict(normalize_gen_kwargs(dict(settings), self.max_gen_toks))
        sampled = bool(found["do_sample"] and found["temperature"])
        if sampled:
            _refuse_unknown(found)
        room = self.max_length - found["max_gen_toks"]
        if room < 1:
            raise ValueError(
                f"answers of {found['max_gen_toks']} tokens do not fit into the model's {self.max_length}: set a "
                "smaller max_gen_toks"
            )
        ids = self._encode(context) or [self._prefix]
        return Sample(
            id=id,
            context="",
            ids=tuple(ids[-room:]),
            max_new_tokens=found["max_gen_toks"],
            stop_texts=tuple(stop for stop in found["until"] if stop),
            temperature=float(found["temperature"]) if sampled else 0.0,
            meta=_left_out(len(ids) - room),
        )

    def likelihood(self, id: str, context: str, continuation: str) -> Sample:
        """How likely `continuation` is after `context`. Blanks between them belong to the continuation, and both are
        encoded together, so that no word is cut where the model would not cut it."""
        if not context:
            ids = self.tokenizer.encode(continuation)
            before, after = ([self._prefix], ids) if ids[:1] != [self._prefix] else (ids[:1], ids[1:])
        else:
            stripped = context.rstrip()
            blanks = context[len(stripped) :]
            before = self._encode(stripped)
            after = self._encode(stripped + blanks + continuation)[len(before) :]
        return self._scored(id, before or [self._prefix], after)

    def rolling(self, id: str, text: str) -> list[Sample]:
        """How likely a whole text is, from its first token: in windows as long as the model allows."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        windows = get_rolling_token_windows(
            token_list=self._encode(text),
            prefix_token=self._prefix,
            max_seq_len=self.max_length,
            context_len=1,
        )
        found = [
            self._scored(f"{id}.{number}", *make_disjoint_window(window))
            for number, window in enumerate(windows)
        ]
        if not found:
            raise ValueError(f"request {id} asks for the likelihood of an empty text")
        return found

    def _scored(self, id: str, before: list[int], after: list[int]) -> Sample:
        """The last token of a continuation is asked for and never read, so one more fits."""
        if not 0 < len(after) <= self.max_length:
            raise ValueError(
                f"request {id} asks for the likelihood of {len(after)} tokens; from 1 to {self.max_length} can be"
            )
        room = self.max_length + 1 - len(after)
        return Sample(
            id=id,
            context="",
            ids=tuple(before[-room:]),
            continuation=tuple(after),
            max_new_tokens=0,
            meta=_left_out(len(before) - room),
        )

    def _encode(self, text: str) -> list[int]:
        """With what the tokenizer itself puts in front, unless it is there already."""
        start = self.tokenizer.decode([self._prefix], skip_special=False)
        return self.tokenizer.encode(text, special=not text.startswith(start))

    @property
    def _prefix(self) -> int:
        """What stands before a text that has nothing before it."""
        marks = [self.tokenizer.bos_id, *self.tokenizer.stop_ids]
        known = [mark for mark in marks if mark is not None]
        if not known:
            raise ValueError(
                "the tokenizer has neither a start token nor an end token, which lm_eval's prompts need"
            )
        return known[0]


def chat_template(tokenizer: Tokenizer) -> Any:
    """lm_eval's call for rendering a conversation. Errors: ValueError, when called, for a model without a template."""

    def render(messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        begun = "" if add_generation_prompt else messages[-1]["content"]
        rendered = tokenizer.chat(messages if add_generation_prompt else messages[:-1])
        if rendered is None:
            raise ValueError(
                "the model has no chat template: set protocol.template=none, or leave out --apply_chat_template"
            )
        return rendered + begun

    return render


def _refuse_unknown(settings: Mapping[str, Any]) -> None:
    """Errors: ValueError for a way of drawing tokens that is not built here."""
    for name, value in settings.items():
        if name not in GREEDY and value is not None and value not in IDLE.get(name, ()):
            raise ValueError(
                f"the task draws tokens with {name}={value!r}; here temperature alone is known: set do_sample=False"
            )


def _left_out(tokens: int) -> dict[str, Any]:
    return {"left_out_at_the_beginning": tokens} if tokens > 0 else {}
