"""From haystack, needle, length and depth to a prompt: the fair layout and the published one.

Both cut and insert in token space, as the published test does, and hand on text, which is rendered later.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Protocol

from evaluation.prompts import Prompter
from evaluation.types import Sample
from needle.needles import Planted
from pyramid.types import Tokenizer

FULL_STOPS = (".", "。")
BROKEN = "\ufffd"  # what decoding gives for a character that a cut has split
TRIES = 64  # sentence starts at which a haystack is begun before a length is given up as out of reach
CHARACTERS_A_TOKEN = 8  # first guess; more text is taken where a tokenizer packs more into a token

STORY = "This is a very long story book: <book> {book} </book>.\n"
QUESTION = " Based on the content of the book, Question: {question}\nAnswer:"


@dataclass(frozen=True)
class Cell:
    """One square of the grid: tokens of the prompt, percent of the haystack before the (first) needle."""

    length: int
    depth: float


@dataclass(frozen=True)
class Stack:
    """A haystack as one tokenizer reads it, repeated until it is long enough."""

    tokenizer: Tokenizer
    ids: tuple[int, ...]

    @classmethod
    def read(cls, text: str, tokenizer: Tokenizer, tokens: int) -> Stack:
        """The first `tokens` or more tokens of `text`, encoded without special tokens."""
        characters = CHARACTERS_A_TOKEN * tokens
        while True:
            repeated = text * math.ceil(characters / len(text))
            ids = tokenizer.encode(repeated[:characters])
            if len(ids) >= tokens:
                return cls(tokenizer, tuple(ids))
            if not ids:
                raise ValueError(
                    "the model's tokenizer makes no tokens of the haystack; take another haystack"
                )
            characters *= 2

    @cached_property
    def texts(self) -> dict[int, str]:
        """What each token that occurs stands for."""
        return {token: self.tokenizer.decode([token]) for token in sorted(set(self.ids))}

    @cached_property
    def sentence_ends(self) -> tuple[int, ...]:
        """Positions just after a token that ends in a full stop, decimal points and dotted names left out."""
        ends = []
        for position in range(1, len(self.ids)):
            following = self.texts[self.ids[position]][:1]
            inside = following.isdigit() or following.islower()
            if self.texts[self.ids[position - 1]].endswith(FULL_STOPS) and not inside:
                ends.append(position)
        return tuple(ends)

    @cached_property
    def bare_full_stops(self) -> tuple[int, ...]:
        """Positions just after a token that is a full stop and nothing else: the published rule."""
        return tuple(i + 1 for i, token in enumerate(self.ids) if self.texts[token].strip() == ".")

    def text(self, start: int, stop: int) -> str:
        return self.tokenizer.decode(self.ids[start:stop]).strip(BROKEN)


class Layout(Protocol):
    """A way to lay out a prompt."""

    def samples(self, planted: Sequence[tuple[Cell, Planted]], blank: Sample) -> Iterator[Sample]:
        """One sample a cell: `blank` with id, prompt, references and meta filled in.

        Errors: ValueError in one sentence if a cell's length cannot be reached."""
        ...


@dataclass(frozen=True)
class Fair:
    """The rendered prompt is exactly `length` tokens, start token, chat template and question included.

    The haystack begins at its start or, where no cut there gives the exact length, at one of its next
    sentences. A needle goes just after the nearest sentence end at or left of its depth; at depth 0 to the
    start, at depth 100 to the end. In a haystack without any sentence end it goes exactly to its depth.
    """

    haystack: str
    prompter: Prompter

    def samples(self, planted: Sequence[tuple[Cell, Planted]], blank: Sample) -> Iterator[Sample]:
        longest = max(cell.length for cell, _ in planted)
        stack = Stack.read(self.haystack, self.prompter.tokenizer, 2 * longest)
        for cell, needles in planted:
            yield self._fit(stack, cell, needles, blank)

    def _fit(self, stack: Stack, cell: Cell, planted: Planted, blank: Sample) -> Sample:
        room = cell.length - self._tokens(self._fill(stack, 0, 0, cell, planted, blank))
        if room < 0:
            raise ValueError(
                f"needle length {cell.length} is too short: needle, question and template alone take "
                f"{cell.length - room} tokens with this model"
            )
        for start in self._starts(stack, len(stack.ids) - cell.length):
            taken, tried = room, set[int]()
            while 0 <= taken <= cell.length and taken not in tried:
                tried.add(taken)
                sample = self._fill(stack, start, start + taken, cell, planted, blank)
                missing = cell.length - self._tokens(sample)
                if not missing:
                    return sample
                taken += missing
        raise ValueError(
            f"no cut of the haystack gives a prompt of exactly {cell.length} tokens with this model; "
            f"take a length nearby"
        )

    def _tokens(self, sample: Sample) -> int:
        """Tokens of the rendered prompt, were there no limit to them."""
        unlimited = replace(self.prompter.protocol, max_prompt_tokens=None)
        ruler = replace(self.prompter, protocol=unlimited, model_max_length=1 << 40)
        return ruler.render(sample).tokens

    @staticmethod
    def _starts(stack: Stack, last: int) -> Iterator[int]:
        starts = (0, *stack.sentence_ends) if stack.sentence_ends else range(len(stack.ids))
        return islice((start for start in starts if start <= last), TRIES)

    @staticmethod
    def _fill(stack: Stack, start: int, stop: int, cell: Cell, planted: Planted, blank: Sample) -> Sample:
        ends: Sequence[int] = [end - start for end in stack.sentence_ends if start < end <= stop]
        if not stack.sentence_ends:
            ends = range(stop - start + 1)
        places = [place(stop - start, depth, ends) for depth in depths(cell.depth, planted)]
        hay = stack.text(start, stop)
        borders = [len(stack.text(start, start + position)) for position in places]
        pieces = [hay[left:right] for left, right in zip([0, *borders], [*borders, len(hay)], strict=True)]
        book = "".join(piece + needle for piece, needle in zip(pieces, [*planted.sentences, ""], strict=True))
        return _finished(blank, cell, planted, context=STORY.format(book=book), places=places)


@dataclass(frozen=True)
class Published:
    """The prompt of the PyramidKV authors' needle runner, with its quirks.

    The haystack and needles together take `length` less a buffer of 200 tokens; no chat template, but a
    literal `<|im_start|>`; the answer ends at a newline. A needle goes just after the nearest token that is a
    full stop and nothing else, at or left of its depth; to the start if there is none.
    Source: run_needle_in_haystack.py of github.com/Zefan-Cai/KVCache-Factory at c97f9d7.
    """

    haystack: str
    prompter: Prompter
    buffer: int = 200

    def samples(self, planted: Sequence[tuple[Cell, Planted]], blank: Sample) -> Iterator[Sample]:
        longest = max(cell.length for cell, _ in planted)
        stack = Stack.read(self.haystack, self.prompter.tokenizer, longest)
        blank = replace(blank, template=False, stop_at_newline=True)
        for cell, needles in planted:
            yield self._fill(stack, cell, needles, blank)

    def _fill(self, stack: Stack, cell: Cell, planted: Planted, blank: Sample) -> Sample:
        needles = [stack.tokenizer.encode(sentence) for sentence in planted.sentences]
        room = cell.length - self.buffer - sum(map(len, needles))
        if room <= 0:
            raise ValueError(
                f"needle length {cell.length} is too short: the published layout leaves {self.buffer} tokens "
                f"unused, and the needle takes {cell.length - self.buffer - room}"
            )
        places = [place(room, depth, stack.bare_full_stops) for depth in depths(cell.depth, planted)]
        ids: list[int] = []
        for left, right, needle in zip([0, *places], [*places, room], [*needles, []], strict=True):
            ids += [*stack.ids[left:right], *needle]
        context = f"<|im_start|> {STORY.format(book=stack.tokenizer.decode(ids))}"
        return _finished(blank, cell, planted, context=context, places=places)


LAYOUTS: dict[str, type[Fair] | type[Published]] = {"fair": Fair, "paper": Published}


def depths(first: float, planted: Planted) -> list[float]:
    """Depth of each needle: the first where it is asked for, the others at equal steps towards the end."""
    count = len(planted.sentences)
    return [first + number * (100 - first) / count for number in range(count)]


def place(length: int, depth: float, ends: Sequence[int]) -> int:
    """Where a needle goes in a haystack of `length` tokens: to the nearest of the ascending `ends` at or left
    of its depth, or to the start; depth 100 is the end itself."""
    if depth == 100:
        return length
    before = bisect_right(ends, int(length * (depth / 100)))
    return ends[before - 1] if before else 0


def _finished(blank: Sample, cell: Cell, planted: Planted, *, context: str, places: list[int]) -> Sample:
    return replace(
        blank,
        id=f"length{cell.length}_depth{cell.depth:g}",
        context=context,
        question=QUESTION.format(question=planted.question),
        references=planted.references,
        meta={**blank.meta, "length": cell.length, "depth": cell.depth, "haystack_tokens_before": places},
    )
