"""Who judges: what every judge offers, and the one that is a model on this machine.

A judge answers each item or says why not; nothing that goes wrong with one item concerns another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evaluation.judge import Item, Reply
from pyramid.types import Answer, Request, Tokenizer


class Judge(Protocol):
    """name: of the model that judges."""

    @property
    def name(self) -> str: ...

    def identity(self) -> dict[str, Any]:
        """All that determines its replies, as JSON values."""
        ...

    def check(self) -> None:
        """Errors: ValueError if it is known beforehand that it cannot judge."""
        ...

    def replies(self, items: Sequence[Item]) -> Iterator[tuple[Item, Reply]]:
        """Each item with its reply, as soon as it is there; closing the iterator asks for no more."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalJudge:
    """A model on this machine, which decodes greedily.

    answer: gives one answer for each of some requests. model: what tells the model from any other. max_tokens: None
    leaves a judgment all positions that its prompt does."""

    name: str
    answer: Callable[[Sequence[Request]], Sequence[Answer]]
    tokenizer: Tokenizer
    max_length: int
    model: Mapping[str, Any]
    max_tokens: int | None = 2048
    batch_size: int = 4

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"judge.{name} is {value}; give a number from 1 on")

    def identity(self) -> dict[str, Any]:
        return {"kind": "local", "model": dict(self.model), "max_tokens": self.max_tokens, "temperature": 0.0}

    def check(self) -> None:
        """It is loaded, and so it can judge."""

    def replies(self, items: Sequence[Item]) -> Iterator[tuple[Item, Reply]]:
        """Longest prompt first, so that memory is tried at the start."""
        ids = {item.id: self._encode(item) for item in items}
        ordered = sorted(items, key=lambda item: len(ids[item.id]), reverse=True)
        for start in range(0, len(ordered), self.batch_size):
            batch = ordered[start : start + self.batch_size]
            yield from zip(batch, self._answer([ids[item.id] for item in batch]), strict=True)

    def _answer(self, prompts: Sequence[tuple[int, ...]]) -> list[Reply]:
        """Together, and if that cannot be done one by one."""
        try:
            answers = self.answer([self._request(number, ids) for number, ids in enumerate(prompts)])
        except Exception as error:
            if len(prompts) > 1:
                return [self._answer([ids])[0] for ids in prompts]
            sentence = " ".join(str(error).split())
            return [
                Reply(
                    problem=sentence
                    if isinstance(error, ValueError)
                    else f"{type(error).__name__}: {sentence}"
                )
            ]
        return [self._reply(answer) for answer in answers]

    def _request(self, number: int, ids: tuple[int, ...]) -> Request:
        room = self.max_length - len(ids)
        if room < 1:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, and the judge was made for {self.max_length}"
            )
        return Request(
            id=str(number),
            segments=(ids,),
            max_new_tokens=min(self.max_tokens or room, room),
            stop_ids=self.tokenizer.stop_ids,
        )

    def _reply(self, answer: Answer) -> Reply:
        if answer.error is not None:
            return Reply(problem=answer.error)
        return Reply(
            text=answer.text,
            cut=answer.finish == "length",
            prompt_tokens=answer.prompt_tokens,
            new_tokens=len(answer.token_ids),
        )

    def _encode(self, item: Item) -> tuple[int, ...]:
        """Token ids with exactly one start token, if the model has one that its tokenizer would add."""
        bos = self.tokenizer.bos_id
        ids = self.tokenizer.encode(self._rendered(item))
        if bos is not None and ids[:1] != [bos] and self.tokenizer.encode("", special=True)[:1] == [bos]:
            ids = [bos, *ids]
        return tuple(ids)

    def _rendered(self, item: Item) -> str:
        """By the chat template; one that knows no system message, and a model without one, get it before the prompt."""
        together = f"{item.system.strip()}\n\n{item.prompt}"
        try:
            return self.tokenizer.chat(messages(item)) or together
        except Exception:
            return self.tokenizer.chat([{"role": "user", "content": together}]) or together


def messages(item: Item) -> list[dict[str, str]]:
    return [{"role": "system", "content": item.system}, {"role": "user", "content": item.prompt}]
