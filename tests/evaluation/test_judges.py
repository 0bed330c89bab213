"""A judge on this machine reads what its chat template makes of the prompt, and answers greedily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from evaluation.judge import Item, Reply
from evaluation.judges import LocalJudge
from pyramid.types import Answer, Request


def item(number: int, prompt: str, system: str = "Be fair.") -> Item:
    return Item(
        id=f"{number}/1",
        question_id=number,
        category="stem",
        turn=1,
        template="single-v1",
        system=system,
        prompt=prompt,
    )


def local(tokenizer: Any, answer: Any, **settings: Any) -> LocalJudge:
    settings = {"max_length": 200, "max_tokens": 9, "batch_size": 2, **settings}
    return LocalJudge(name="tiny", answer=answer, tokenizer=tokenizer, model={"id": "tiny"}, **settings)


class Chat:
    """One token a character; a template that marks the roles, or knows no system message."""

    stop_ids = (0,)

    def __init__(self, system: bool, bos_id: int | None = None) -> None:
        self.system, self.bos_id = system, bos_id

    def encode(self, text: str, special: bool = False) -> list[int]:
        start = [self.bos_id] if special and self.bos_id is not None else []
        return start + [ord(character) for character in text]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(map(chr, ids))

    def chat(self, messages: Sequence[dict[str, str]]) -> str | None:
        if not self.system and messages[0]["role"] == "system":
            raise RuntimeError("System role not supported")
        return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<assistant>"


def remembering(asked: list[Request]) -> Any:
    def answer(requests: Sequence[Request]) -> list[Answer]:
        asked.extend(requests)
        return [
            Answer(
                id=each.id, text="[[6]]", token_ids=(1, 2), finish="stop", prompt_tokens=each.prompt_tokens
            )
            for each in requests
        ]

    return answer


@pytest.mark.parametrize(
    ("tokenizer", "prompt"),
    [
        (Chat(system=True), "<system>Be fair.<user>Grade.<assistant>"),
        (Chat(system=False), "<user>Be fair.\n\nGrade.<assistant>"),
        (Chat(system=True, bos_id=7), "\x07<system>Be fair.<user>Grade.<assistant>"),
    ],
)
def test_the_prompt_is_the_templates_with_one_start_token(tokenizer: Chat, prompt: str) -> None:
    asked: list[Request] = []
    ((_, reply),) = local(tokenizer, remembering(asked)).replies([item(1, "Grade.")])
    (request,) = asked
    assert tokenizer.decode(request.segments[0]) == prompt
    assert (request.temperature, request.max_new_tokens, request.stop_ids) == (0.0, 9, (0,))
    assert reply == Reply(text="[[6]]", prompt_tokens=len(prompt), new_tokens=2)


def test_without_a_template_the_text_is_read_as_it_is(byte_tokenizer: Any) -> None:
    asked: list[Request] = []
    list(local(byte_tokenizer, remembering(asked)).replies([item(1, "Grade.")]))
    assert byte_tokenizer.decode(asked[0].segments[0]) == "Be fair.\n\nGrade."


def test_an_answer_has_the_room_that_the_prompt_leaves_and_a_prompt_without_room_is_a_reason() -> None:
    asked: list[Request] = []
    tokenizer = Chat(system=True)
    empty = len(tokenizer.chat([{"role": "system", "content": ""}, {"role": "user", "content": ""}]) or "")
    sizes = {1: 50, 2: 200 - empty - 4, 3: 200 - empty, 4: 500}
    items = [item(number, "x" * size, system="") for number, size in sizes.items()]
    replies = {each.id: reply for each, reply in local(tokenizer, remembering(asked)).replies(items)}
    assert {request.prompt_tokens: request.max_new_tokens for request in asked} == {50 + empty: 9, 196: 4}
    assert [replies[f"{n}/1"].problem for n in (1, 2)] == ["", ""]
    assert replies["3/1"].problem == "the prompt has 200 tokens, and the judge was made for 200"
    assert replies["4/1"].problem == f"the prompt has {500 + empty} tokens, and the judge was made for 200"


def test_what_fails_in_a_batch_fails_alone() -> None:
    def answer(requests: Sequence[Request]) -> list[Answer]:
        if any(request.prompt_tokens > 50 for request in requests):
            raise RuntimeError("out of\nmemory")
        return [
            Answer(id=each.id, error="it broke" if each.prompt_tokens < 45 else None) for each in requests
        ]

    items = [item(1, "x" * 3), item(2, "x" * 60), item(3, "x" * 12)]
    found = {
        each.id: reply.problem
        for each, reply in local(Chat(system=True), answer, batch_size=3).replies(items)
    }
    assert found == {"1/1": "it broke", "2/1": "RuntimeError: out of memory", "3/1": ""}


def test_a_real_model_judges_as_it_would_alone(tiny_model: Any, byte_tokenizer: Any) -> None:
    """The replies are the greedy continuations that transformers itself gives, whatever the batches."""
    import torch

    from pyramid.generation import Generator
    from pyramid.methods import build

    model = tiny_model()
    generator = Generator(model=model, tokenizer=byte_tokenizer)
    judge = local(
        byte_tokenizer, lambda requests: generator.generate(requests, [build("fullkv")])[0], max_length=2048
    )
    items = [item(number, "Grade this answer, please. " * number) for number in (1, 3, 2)]
    replies = {each.id: reply for each, reply in judge.replies(items)}
    for each in items:
        ids = torch.tensor([byte_tokenizer.encode(f"{each.system}\n\n{each.prompt}")])
        whole = model.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=None)
        assert replies[each.id].text == byte_tokenizer.decode(whole[0, ids.shape[1] :].tolist())
        assert (replies[each.id].cut, replies[each.id].new_tokens) == (True, 9)


@pytest.mark.parametrize("name", ["max_tokens", "batch_size"])
def test_numbers_that_cannot_be_are_refused(name: str, byte_tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=f"judge.{name} is 0; give a number from 1 on"):
        local(byte_tokenizer, None, **{name: 0})
