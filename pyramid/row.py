"""One sequence that is being answered: what was read, what was chosen, and when its answer ends."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cached_property

from pyramid.types import Held, Request, Tokenizer


@dataclass
class Turn:
    """One answer. read: tokens of the turn's own text.

    after, at_end: what was held when the text was read, and when the answer was complete."""

    read: int
    token_ids: list[int] = field(default_factory=list)
    finish: str = ""
    after: Held | None = None
    at_end: Held | None = None


@dataclass
class Row:
    """A request under one method.

    method: its number; fed: tokens the model has read, which is the next token's position; last: the newest of them.
    unfed: chosen tokens that a further turn's text has to be preceded by.
    """

    request: Request
    method: int
    tokenizer: Tokenizer
    fed: int
    last: int
    turns: list[Turn] = field(default_factory=list)
    unfed: tuple[int, ...] = ()
    compressed: bool = False
    log_likelihoods: list[float] = field(default_factory=list)
    greedy: list[bool] = field(default_factory=list)

    @property
    def turn(self) -> Turn:
        return self.turns[-1]

    @cached_property
    def _random(self) -> random.Random:
        return random.Random(f"{self.request.seed}/{self.request.id}")

    def draw(self) -> float:
        """The next random number in [0, 1), the same one whatever the method and the batch."""
        return self._random.random()

    def read(self, tokens: tuple[int, ...]) -> None:
        """These tokens were fed."""
        self.fed += len(tokens)
        self.last = tokens[-1]

    def accept(self, token: int) -> None:
        """This token was chosen to follow. It ends the answer, or is to be fed next."""
        turn, request = self.turn, self.request
        if token in request.stop_ids and len(turn.token_ids) >= request.min_new_tokens:
            turn.finish, self.unfed = "stop", ()
            return
        turn.token_ids.append(token)
        self.last, self.unfed = token, (token,)
        if self._says_stop():
            turn.finish = "stop"
        elif len(turn.token_ids) >= request.max_new_tokens:
            turn.finish = "length"

    def text(self, turn: Turn) -> str:
        """The answer's text, cut before the first stop text."""
        text = self.tokenizer.decode(turn.token_ids)
        starts = [text.find(stop) for stop in self.request.stop_texts if stop in text]
        return text[: min(starts, default=len(text))]

    def _says_stop(self) -> bool:
        """A token has at least one character, so what it completed stands within the last tokens, as many as the
        longest stop text has bytes."""
        stops = self.request.stop_texts
        if not stops:
            return False
        ids = self.turn.token_ids
        latest = self.tokenizer.decode(ids[-1 - max(len(stop.encode()) for stop in stops) :])
        if not any(stop in latest for stop in stops):
            return False
        text = self.tokenizer.decode(ids)
        return any(stop in text for stop in stops)
