"""Generation for many prompts and many methods at once: prefill each different prompt once, compress it many
times, decode all rows together.

Methods that only evict share one prefill, because what they keep is decided after each layer's full
attention. Every pair of method and prompt then is a row of one decoding batch. Methods that change the
prompt's own computation get a prefill of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pyramid.cache import CompressedCache, Group, Phase
from pyramid.engine import attached, cache_argument
from pyramid.method import Method
from pyramid.row import Row, Turn
from pyramid.types import Answer, Request, Tokenizer

SCORED_TOGETHER = 32  # tokens of a continuation in one forward pass, where no method acts between them


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

        Requests have equally many segments and follow-ups, and all or none a continuation. One that fails,
        for lack of memory or because a method refuses its prompt, gets an answer with an error.
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


class _Batch:
    """Requests times methods, from prompt to answer. Rows lie method after method, as the cache's groups do."""

    def __init__(self, generator: Generator, requests: list[Request], methods: list[Method]) -> None:
        shapes = {(len(r.segments), len(r.follow_ups), bool(r.continuation)) for r in requests}
        assert len(shapes) == 1, "segments, follow-ups or continuations differ within a batch"
        self.generator, self.requests, self.methods = generator, requests, methods
        self.model = generator.model
        decoder: Any = self.model.get_decoder()
        self.cache = CompressedCache(methods, len(decoder.layers), heads=generator.cache_heads)
        self.cache_argument = cache_argument(decoder)
        self.seconds = {"prefill": 0.0, "compression": 0.0, "decode": 0.0}

    def run(self) -> list[list[Answer]]:
        logits, work = self._prefill()
        if self.requests[0].continuation:
            self._score(logits)
        else:
            self._decode(logits)
            for number in range(len(self.requests[0].follow_ups)):
                self._decode(self._next_turn(number))
        answers = [self._answer(number, row, work) for number, row in enumerate(self.rows)]
        return [
            answers[start : start + len(self.requests)]
            for start in range(0, len(answers), len(self.requests))
        ]

    # Reading.

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
        logits, work = self._read_once(prompts)
        self.rows = [
            Row(request, number, self.generator.tokenizer, fed=len(prompt), last=prompt[-1])
            for number in range(len(self.methods))
            for request, prompt in zip(self.requests, prompts, strict=True)
        ]
        for number in range(1, len(self.requests[0].segments)):
            logits = self._continue(self.rows, [row.request.segments[number] for row in self.rows])
        for row in self.rows:
            row.turns.append(Turn(row.request.prompt_tokens))
            row.compressed = row.fed < row.request.prompt_tokens
        return self._ready(logits, started), work

    def _read_once(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, list[int]]:
        """Read each different prompt once, and give every request a row of its own. Returns as `_prefill`."""
        different = list(dict.fromkeys(prompts))
        logits = self._feed(different, [0] * len(different), Phase.PROMPT)[:, -1]
        work, groups = list(self.cache.stream.work), self.cache.groups
        if len(different) < len(prompts):
            places = [different.index(prompt) for prompt in prompts]
            logits, work = logits[places], [work[place] for place in places]
            for number, group in enumerate(groups):
                groups[number] = group.select_rows(places)
        return logits.repeat(len(self.methods), 1), work

    def _next_turn(self, number: int) -> Tensor:
        """Read each row's next message into the cache that its answer before has left. Returns logits as `_prefill`."""
        started, count = self._now(), len(self.requests)
        self.cache.groups = [
            Group.joined(method, self.parked[start : start + count])
            for method, start in zip(self.methods, range(0, len(self.rows), count), strict=True)
        ]
        texts = [(*row.unfed, *row.request.follow_ups[number]) for row in self.rows]
        logits = self._continue(self.rows, texts, Phase.TURN)
        for row in self.rows:
            row.turns.append(Turn(len(row.request.follow_ups[number])))
        return self._ready(logits, started)

    def _ready(self, logits: Tensor, started: float) -> Tensor:
        """What comes between a turn's text and its answer: where the protocol says so the last token is read again, now
        on the compressed cache; then what is held is written down."""
        if self.generator.first_token == "compressed":
            self.cache.drop_last()
            for row in self.rows:
                row.fed -= 1
            logits = self._continue(self.rows, [(row.last,) for row in self.rows])
        for row, group, place in self._places(self.rows):
            row.turn.after = group.held(place)
            row.compressed = row.compressed or group.compressed(place)
        compression, self.cache.compression_seconds = self.cache.compression_seconds, 0.0
        self.seconds["compression"] += compression
        self.seconds["prefill"] += self._now() - started - compression
        return logits

    # Answering.

    def _decode(self, logits: Tensor) -> None:
        """Choose tokens until every row has its answer. Rows that are done leave the batch, and are put aside where a
        further turn needs them."""
        started = self._now()
        live, logits = self._merged(self.rows, logits)
        turns = 1 + len(self.requests[0].follow_ups)
        aside: dict[int, Group] = {}
        while live:
            for row, token in zip(live, self._chosen(logits, live), strict=True):
                row.accept(token)
            for row, group, place in self._places(live):
                if row.turn.finish:
                    self._close(row, group, place)
                    if len(row.turns) < turns:
                        aside[id(row)] = group.select_rows([place])
            live = self._staying(live)
            if live:
                logits = self._continue(live, [(row.last,) for row in live])
        self.parked = [aside[id(row)] for row in self.rows if id(row) in aside]
        self.seconds["decode"] += self._now() - started

    def _score(self, logits: Tensor) -> None:
        """Feed the continuations and note how likely each of their tokens was. A token is treated as a generated one
        would be: rows whose method acts at steps read one at a time."""
        started = self._now()
        groups, rows = self.cache.groups, list(zip(self.rows, logits, strict=True))
        for acting in (False, True):
            chosen = [bool(Phase.STEP & method.phases) is acting for method in self.methods]
            self.cache.groups = [group for group, mine in zip(groups, chosen, strict=True) if mine]
            mine = [(row, first) for row, first in rows if chosen[row.method]]
            if mine:
                live, first = self._merged(
                    [row for row, _ in mine], torch.stack([first for _, first in mine])
                )
                self._read_continuations(live, first, 1 if acting else SCORED_TOGETHER)
        self.seconds["decode"] += self._now() - started

    def _read_continuations(self, live: list[Row], logits: Tensor, together: int) -> None:
        """Args: logits: (rows, vocabulary) of each continuation's first token; together: tokens read at once."""
        self._note(live, logits[:, None], [row.request.continuation[:1] for row in live])
        start = 0
        while True:
            left = [len(row.request.continuation) - 1 - start for row in live]
            for (row, group, place), tokens in zip(self._places(live), left, strict=True):
                if tokens <= 0:
                    row.turn.finish = "scored"
                    self._close(row, group, place)
            live = self._staying(live)
            if not live:
                return
            stop = start + together
            blocks = [
                row.request.continuation[start : min(stop, len(row.request.continuation) - 1)] for row in live
            ]
            logits = self._feed(blocks, [row.fed for row in live], Phase.STEP, outputs=together)
            for row, block in zip(live, blocks, strict=True):
                row.read(block)
            self._note(live, logits, [row.request.continuation[start + 1 : stop + 1] for row in live])
            start = stop

    def _note(self, rows: list[Row], logits: Tensor, tokens: list[tuple[int, ...]]) -> None:
        """Note how likely these tokens are. Args: logits: (rows, places, vocabulary), each row's own ones last."""
        for row, places, wanted in zip(rows, logits, tokens, strict=True):
            own, ids = places[-len(wanted) :], torch.tensor(wanted, device=places.device)
            likelihood = own.gather(1, ids[:, None])[:, 0] - own.logsumexp(-1)
            row.turn.token_ids += wanted
            row.log_likelihoods += likelihood.tolist()
            row.greedy += (own.argmax(-1) == ids).tolist()

    # What both are made of.

    def _close(self, row: Row, group: Group, place: int) -> None:
        row.turn.at_end = group.held(place)
        row.compressed = row.compressed or group.compressed(place)

    def _staying(self, live: list[Row]) -> list[Row]:
        """The rows that are not finished; the cache lets the others go."""
        staying = [number for number, row in enumerate(live) if not row.turn.finish]
        if len(staying) < len(live):
            self.cache.keep_rows(staying)
        return [live[number] for number in staying]

    def _merged(self, rows: list[Row], logits: Tensor) -> tuple[list[Row], Tensor]:
        """The rows and their logits in the order in which the cache has put those together that decode alike."""
        order = self.cache.merge()
        return [rows[place] for place in order], logits[order]

    def _continue(
        self, rows: list[Row], tokens: Sequence[tuple[int, ...]], phase: Phase = Phase.STEP
    ) -> Tensor:
        """Feed further tokens to rows that have been read before. Returns the next token's logits."""
        logits = self._feed(tokens, [row.fed for row in rows], phase)
        for row, fresh in zip(rows, tokens, strict=True):
            row.read(fresh)
        return logits[:, -1]

    def _feed(
        self, tokens: Sequence[tuple[int, ...]], positions: Sequence[int], phase: Phase, outputs: int = 1
    ) -> Tensor:
        """One forward pass.

        Args: tokens of each row; positions: of each row's first one; outputs: for how many of the last places logits
        are wanted. Returns (rows, at most outputs, vocabulary) float32.
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
            logits_to_keep=outputs,
            **{self.cache_argument: self.cache},
        )
        return output.logits[:, -outputs:].float()

    def _chosen(self, logits: Tensor, rows: list[Row]) -> list[int]:
        """Each row's next token: the likeliest one, or one drawn by its temperature."""
        for number, row in enumerate(rows):
            if len(row.turn.token_ids) < row.request.min_new_tokens:
                logits[number, list(row.request.stop_ids)] = -torch.inf
        tokens = logits.argmax(-1)
        drawing = [number for number, row in enumerate(rows) if row.request.temperature]
        if drawing:
            temperatures = logits.new_tensor([rows[number].request.temperature for number in drawing])
            chances = (logits[drawing].double() / temperatures[:, None]).softmax(-1).cumsum(-1)
            draws = chances.new_tensor([[rows[number].draw()] for number in drawing]) * chances[:, -1:]
            tokens[drawing] = torch.searchsorted(chances, draws, right=True)[:, 0].clamp(
                max=chances.shape[1] - 1
            )
        return tokens.tolist()

    def _places(self, rows: list[Row]) -> Iterator[tuple[Row, Group, int]]:
        """Each row with its group and its place in it."""
        places = ((group, number) for group in self.cache.groups for number in range(len(group.tokens)))
        for row, (group, number) in zip(rows, places, strict=True):
            yield row, group, number

    def _answer(self, number: int, row: Row, work: list[int]) -> Answer:
        request, layers = row.request, self.cache.num_layers
        first, *others = row.turns
        computed = work[number % len(self.requests)] / (layers * len(request.segments[0]))
        return replace(
            self._turn_answer(row, first),
            compressed=row.compressed,
            full_bytes_after_prompt=request.prompt_tokens * self.cache.full_entry_bytes,
            prefill_work=computed,
            seconds={phase: seconds / len(self.rows) for phase, seconds in self.seconds.items()},
            follow_ups=tuple(self._turn_answer(row, turn) for turn in others),
            log_likelihoods=tuple(row.log_likelihoods),
            greedy=tuple(row.greedy),
        )

    def _turn_answer(self, row: Row, turn: Turn) -> Answer:
        return Answer(
            id=row.request.id,
            text=row.text(turn),
            token_ids=tuple(turn.token_ids),
            finish=turn.finish,
            prompt_tokens=turn.read,
            held_after_prompt=turn.after,
            held_at_end=turn.at_end,
        )

    def _now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()
