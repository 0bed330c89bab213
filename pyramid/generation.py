"""Greedy generation for many prompts and many methods at once: prefill each prompt once, compress it many
times, decode all rows together.

Methods that only evict share one prefill, because what they keep is decided after each layer's full
attention. Every pair of method and prompt then is a row of one decoding batch. Methods that change the
prompt's own computation get a prefill of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pyramid.cache import CompressedCache, Phase
from pyramid.engine import attached, cache_argument
from pyramid.method import Method
from pyramid.types import Answer, Held, Request, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Answers requests with one model.

    first_token: `full` takes the first new token from the prompt's full attention, as published code does;
        `compressed` runs the last prompt token again on the compressed cache.
    cache_heads: `kv` or `query`, see `CompressedCache`. kernel: `sdpa`, `eager` or `flash_attention_2`.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    first_token: str = "full"
    cache_heads: str = "kv"
    kernel: str = "sdpa"

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], methods: Sequence[Method]) -> list[list[Answer]]:
        """One answer for every method and request, as `answers[method][request]`.

        Requests have equally many segments. One that fails, for lack of memory or because a method refuses
        its prompt, gets an answer with an error.
        """
        together = [i for i, method in enumerate(methods) if not method.own_prefill]
        companies = [together] if together else []
        companies += [[i] for i, method in enumerate(methods) if method.own_prefill]
        answers: dict[int, list[Answer]] = {}
        with attached(self.model, self.kernel):
            for company in companies:
                found = self._answer(list(requests), [methods[i] for i in company])
                answers.update(zip(company, found, strict=True))
        return [answers[i] for i in range(len(methods))]

    def _answer(self, requests: list[Request], methods: list[Method]) -> list[list[Answer]]:
        """As `generate`, for methods that share a prefill.

        What fails together is tried in halves, then alone.
        """
        try:
            return _Batch(self, requests, methods).run()
        except (torch.OutOfMemoryError, ValueError) as error:
            reason = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error)
        if len(requests) > 1:
            middle = len(requests) // 2
            halves = (self._answer(requests[:middle], methods), self._answer(requests[middle:], methods))
            return [first + second for first, second in zip(*halves, strict=True)]
        if len(methods) > 1:
            return [self._answer(requests, [method])[0] for method in methods]
        return [[Answer(id=requests[0].id, prompt_tokens=requests[0].prompt_tokens, error=reason)]]


@dataclass
class _Row:
    """One sequence that is being answered.

    fed: tokens the model has read, which is the next token's position.
    """

    request: Request
    fed: int
    last: int  # the newest token fed
    token_ids: list[int] = field(default_factory=list)
    finish: str = ""
    after_prompt: Held | None = None
    at_end: Held | None = None
    compressed: bool = False

    def accept(self, token: int) -> None:
        if token in self.request.stop_ids and len(self.token_ids) >= self.request.min_new_tokens:
            self.finish = "stop"
            return
        self.token_ids.append(token)
        if len(self.token_ids) >= self.request.max_new_tokens:
            self.finish = "length"


class _Batch:
    """Requests times methods, from prompt to answer. Rows lie method after method, as the cache's groups do."""

    def __init__(self, generator: Generator, requests: list[Request], methods: list[Method]) -> None:
        assert len({len(request.segments) for request in requests}) == 1, "segments differ within a batch"
        self.generator, self.requests, self.methods = generator, requests, methods
        self.model = generator.model
        decoder: Any = self.model.get_decoder()
        self.cache = CompressedCache(methods, len(decoder.layers), heads=generator.cache_heads)
        self.cache_argument = cache_argument(decoder)
        self.seconds: dict[str, float] = {}

    def run(self) -> list[list[Answer]]:
        logits, work = self._prefill()
        for row, held, compressed in self._holdings(self.rows):
            row.after_prompt, row.compressed = held, compressed or row.fed < row.request.prompt_tokens
        self._decode(logits)
        answers = [self._answer(number, row, work) for number, row in enumerate(self.rows)]
        return [
            answers[start : start + len(self.requests)]
            for start in range(0, len(answers), len(self.requests))
        ]

    def _prefill(self) -> tuple[Tensor, list[int]]:
        """Read the prompts.

        Returns: (rows, vocabulary) logits of the first new token, and the token-layers computed per request.
        """
        started = self._now()
        prompts = [request.segments[0] for request in self.requests]
        if len(self.methods) == 1:
            prompts = [self.methods[0].shorten(prompt) for prompt in prompts]
        if not all(prompts):
            raise ValueError("an empty prompt cannot be answered: it needs at least one token")
        for method in self.methods:
            for prompt in prompts:
                method.check(length=len(prompt), num_layers=self.cache.num_layers)
        logits = self._feed(prompts, [0] * len(prompts), Phase.PROMPT).repeat(len(self.methods), 1)
        work = list(self.cache.stream.work)
        self.rows = [
            _Row(request, fed=len(prompt), last=prompt[-1])
            for _ in self.methods
            for request, prompt in zip(self.requests, prompts, strict=True)
        ]
        for number in range(1, len(self.requests[0].segments)):
            logits = self._continue(self.rows, [row.request.segments[number] for row in self.rows])
        if self.generator.first_token == "compressed":
            self.cache.drop_last()
            for row in self.rows:
                row.fed -= 1
            logits = self._continue(self.rows, [(row.last,) for row in self.rows])
        self.seconds["compression"] = self.cache.compression_seconds
        self.seconds["prefill"] = self._now() - started - self.cache.compression_seconds
        return logits, work

    def _decode(self, logits: Tensor) -> None:
        """Choose the likeliest token until every row has its answer. Rows that are done leave the batch."""
        started = self._now()
        order = self.cache.merge()
        live = [self.rows[place] for place in order]
        logits = logits[order]
        while True:
            for row, token in zip(live, self._likeliest(logits, live), strict=True):
                row.accept(token)
                row.last = token
            if any(row.finish for row in live):
                for row, held, compressed in self._holdings(live):
                    if row.finish:
                        row.at_end, row.compressed = held, row.compressed or compressed
            staying = [number for number, row in enumerate(live) if not row.finish]
            if not staying:
                break
            if len(staying) < len(live):
                self.cache.keep_rows(staying)
                live = [live[number] for number in staying]
            logits = self._continue(live, [(row.last,) for row in live])
        self.seconds["decode"] = self._now() - started

    def _continue(self, rows: list[_Row], tokens: Sequence[tuple[int, ...]]) -> Tensor:
        """Feed further tokens to rows that have been read before; they count as steps. Returns the next
        token's logits.
        """
        logits = self._feed(tokens, [row.fed for row in rows], Phase.STEP)
        for row, fresh in zip(rows, tokens, strict=True):
            row.fed += len(fresh)
            row.last = fresh[-1]
        return logits

    def _feed(self, tokens: Sequence[tuple[int, ...]], positions: Sequence[int], phase: Phase) -> Tensor:
        """One forward pass.

        Args: tokens of each row; positions: of each row's first one. Returns (rows, vocabulary) float32.
        """
        new = max(map(len, tokens))
        padding = [new - len(fresh) for fresh in tokens]
        ids = torch.tensor([[0] * pad + list(fresh) for pad, fresh in zip(padding, tokens, strict=True)])
        steps = torch.arange(new) - torch.tensor(padding)[:, None]
        mask = (steps >= 0).long() if any(padding) else None
        places = steps.clamp(min=0) + torch.tensor(positions)[:, None]
        device = self.model.device
        self.cache.next_phase = phase
        output = self.model(
            input_ids=ids.to(device),
            attention_mask=None if mask is None else mask.to(device),
            position_ids=places.to(device),
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: self.cache},
        )
        return output.logits[:, -1].float()

    def _likeliest(self, logits: Tensor, rows: list[_Row]) -> list[int]:
        for number, row in enumerate(rows):
            if len(row.token_ids) < row.request.min_new_tokens:
                logits[number, list(row.request.stop_ids)] = -torch.inf
        return logits.argmax(-1).tolist()

    def _holdings(self, rows: list[_Row]) -> Iterator[tuple[_Row, Held, bool]]:
        """Each row with what it holds now and whether anything of it was evicted."""
        places = ((group, number) for group in self.cache.groups for number in range(len(group.tokens)))
        for row, (group, number) in zip(rows, places, strict=True):
            yield row, group.held(number), group.compressed(number)

    def _answer(self, number: int, row: _Row, work: list[int]) -> Answer:
        request, layers = row.request, self.cache.num_layers
        return Answer(
            id=request.id,
            text=self.generator.tokenizer.decode(row.token_ids),
            token_ids=tuple(row.token_ids),
            finish=row.finish,
            prompt_tokens=request.prompt_tokens,
            held_after_prompt=row.after_prompt,
            held_at_end=row.at_end,
            compressed=row.compressed,
            full_bytes_after_prompt=request.prompt_tokens * self.cache.full_entry_bytes,
            prefill_work=work[number % len(self.requests)] / (layers * len(request.segments[0])),
            seconds={phase: seconds / len(self.rows) for phase, seconds in self.seconds.items()},
        )

    def _now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()
