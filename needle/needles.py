"""What is hidden in the haystack, what is asked for it, and how an answer is scored.

Every kind gives the same three scores, so that one table holds them all:

word_recall  how much of the needle came back, with partial credit; what the papers plot and call accuracy.
strict_hit   1 if everything came back, else 0; blind to case and punctuation.
key_facts    share of the facts that make an answer right however it is worded.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

METRICS = ("word_recall", "strict_hit", "key_facts")
HEADLINE = METRICS[0]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """The needles of one prompt: sentences to hide, the question, and what the answer must hold."""

    sentences: tuple[str, ...]
    question: str
    references: tuple[str, ...]


class Needle(Protocol):
    """A kind of needle.

    answer_tokens: how many new tokens its answer may take, unless the user says otherwise.
    """

    @property
    def answer_tokens(self) -> int: ...

    def plant(self, draw: random.Random) -> Planted:
        """The needles of one prompt; whatever is random in them comes from `draw`."""
        ...

    def score(self, references: Sequence[str], text: str) -> dict[str, float]: ...


@dataclass(frozen=True)
class SanFrancisco:
    """The needle of the PyramidKV paper (arXiv 2406.02069), which the question begins to quote.

    word_recall is the published score: the share of the needle's eleven distinct words that the answer holds,
    lower-cased, cut at blanks, punctuation included (`day.` is not `day`). strict_hit asks for all eleven,
    blind to punctuation. key_facts are the sandwich and Dolores Park.
    """

    answer_tokens: int = 30

    def plant(self, draw: random.Random) -> Planted:
        fact = "eat a sandwich and sit in Dolores Park on a sunny day."
        return Planted(
            sentences=(f"\nThe best thing to do in San Francisco is {fact}\n",),
            question="The best thing to do in San Francisco is: ",
            references=(fact,),
        )

    def score(self, references: Sequence[str], text: str) -> dict[str, float]:
        wanted = set(references[0].lower().split())
        words = _words(text)
        spoken = f" {' '.join(words)} "
        return {
            "word_recall": len(wanted & set(text.lower().split())) / len(wanted),
            "strict_hit": float(set(_words(references[0])) <= set(words)),
            "key_facts": (float(" sandwich " in spoken) + float(" dolores park " in spoken)) / 2,
        }


@dataclass(frozen=True)
class Number:
    """A number nobody can guess: every lost digit shows.

    word_recall is the share of its digits, from the first one on, that the best number in the answer repeats.
    strict_hit and key_facts both ask for the whole number, however its digits are grouped.
    """

    digits: int
    answer_tokens: int

    def plant(self, draw: random.Random) -> Planted:
        number = _draw_number(draw, self.digits)
        return Planted(
            sentences=(f"\nThe secret number of the lighthouse keeper is {number}.\n",),
            question="The secret number of the lighthouse keeper is: ",
            references=(number,),
        )

    def score(self, references: Sequence[str], text: str) -> dict[str, float]:
        number, spoken = references[0], _numbers(text)
        found = float(number in spoken)
        right = max((_common_start(number, other) for other in spoken), default=0)
        return {
            "word_recall": right / len(number),
            "strict_hit": found,
            "key_facts": found,
        }


@dataclass(frozen=True)
class Several:
    """Three needles in one prompt, asked for together: each city's own number.

    word_recall and key_facts are the share of the numbers that the answer holds, strict_hit asks for all.
    """

    cities: tuple[str, ...] = ("Lisbon", "Nairobi", "Oslo")
    digits: int = 4
    answer_tokens: int = 60

    def plant(self, draw: random.Random) -> Planted:
        numbers: dict[str, None] = {}  # distinct, in the order drawn
        while len(numbers) < len(self.cities):
            numbers[_draw_number(draw, self.digits)] = None
        asked = f"{', '.join(self.cities[:-1])} and {self.cities[-1]}"
        return Planted(
            sentences=tuple(
                f"\nThe secret number of {city} is {number}.\n"
                for city, number in zip(self.cities, numbers, strict=True)
            ),
            question=f"What are the secret numbers of {asked}?",
            references=tuple(numbers),
        )

    def score(self, references: Sequence[str], text: str) -> dict[str, float]:
        spoken = _numbers(text)
        found = sum(number in spoken for number in references) / len(references)
        return {"word_recall": found, "strict_hit": float(found == 1), "key_facts": found}


NEEDLES: dict[str, Needle] = {
    "san_francisco": SanFrancisco(),
    "number_7": Number(digits=7, answer_tokens=30),
    "number_64": Number(digits=64, answer_tokens=100),
    "several": Several(),
}


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _numbers(text: str) -> set[str]:
    """Every number in a text, as it stands and with the blanks and commas between its digits left out."""
    joined = re.sub(r"(?<=\d)[\s,._'-]+(?=\d)", "", text)
    return {*re.findall(r"\d+", text), *re.findall(r"\d+", joined)}


def _draw_number(draw: random.Random, digits: int) -> str:
    return str(draw.randrange(10 ** (digits - 1), 10**digits))


def _common_start(one: str, other: str) -> int:
    """How many characters two texts share from the first on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
