"""How fast one model answers one batch with one method, and how much memory that takes, measured in a process
that does nothing else: `python -m pyramid.measuring`, which reads a pickled `Order` from its standard input
and writes one JSON object to its standard output.

The engine and transformers' own `generate()` are timed by the same clock: a hook on the model that notes when
the first new token's logits are there. Where both are asked for they take turns, so that whatever disturbs
the machine disturbs both.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig

from pyramid import models
from pyramid.arithmetic import theory
from pyramid.clock import EXHAUSTED, Clock, SplitBatch, Trial, sizes_of
from pyramid.generation import Generator
from pyramid.machine import copy_bandwidth, describe, gauge_of, is_exhausted, limited_memory
from pyramid.method import Method
from pyramid.static_decoding import StaticDecoder, read_prompts
from pyramid.types import Request

ENGINE, STOCK = "engine", "stock"
SHORT_PROMPT, SHORT_ANSWER = 256, 3  # of the very first, unmeasured call, which loads code and starts threads


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be measured.

    prompt, batch, new: tokens of each prompt, prompts in one forward pass, tokens of each answer.
    subjects: `engine`, which runs `method`, and `stock`, transformers' own generate().
    repeats, warmups: measured and unmeasured calls of each subject; a short unmeasured one always comes first.
    decode: `plain`, as the generator decodes; `graph`, see `pyramid.static_decoding`.
    memory_gib: see `limited_memory`. The rest as for `Generator`.
    """

    model: models.ModelSpec
    method: Method
    prompt: int
    batch: int
    new: int
    seed: int = 0
    subjects: tuple[str, ...] = (ENGINE,)
    repeats: int = 1
    warmups: int = 0
    decode: str = "plain"
    memory_gib: float | None = None
    first_token: str = "full"
    cache_heads: str = "kv"


def prompts_of(order: Order, vocabulary: int) -> list[tuple[int, ...]]:
    """Random token ids, the same for every method and subject."""
    draw = random.Random(f"{order.seed}/{order.prompt}/{order.batch}")
    return [tuple(draw.randrange(vocabulary) for _ in range(order.prompt)) for _ in range(order.batch)]


@dataclass
class Subject:
    """One of the two that answer.

    call: prompts and tokens wanted -> seconds of compression; what it found beside its times goes to `found`."""

    name: str
    call: Callable[[Sequence[tuple[int, ...]], int], float]
    passes: int
    found: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    error: str | None = None


class Session:
    """The model, loaded, and everything that is measured with it."""

    def __init__(self, order: Order, loaded: models.LoadedModel) -> None:
        self.order, self.model, self.tokenizer = order, loaded.model, loaded.tokenizer
        self.device = torch.device(loaded.model.device)
        self.gauge = gauge_of(self.device)
        self.decoder = StaticDecoder(self.model, order.cache_heads)
        embedding: Any = self.model.get_input_embeddings()
        self.prompts = prompts_of(order, int(embedding.weight.shape[0]))
        known = {
            ENGINE: Subject(
                ENGINE,
                self._graph if order.decode == "graph" else self._engine,
                1 + (order.first_token == "compressed"),
            ),
            STOCK: Subject(STOCK, self._stock, 1),
        }
        self.subjects = [known[name] for name in order.subjects]

    def run(self) -> dict[str, Any]:
        """Warm up, then let the subjects take turns. A subject that runs out of memory drops out."""
        short = [prompt[:SHORT_PROMPT] for prompt in self.prompts]
        for subject in self.subjects:
            with suppress(
                ValueError
            ):  # a share of so short a prompt may be less than the method always keeps
                self._attempt(subject, short, SHORT_ANSWER)
        for number in range(self.order.warmups + self.order.repeats):
            for subject in self.subjects[:: -1 if number % 2 else 1]:
                trial = self._attempt(subject, self.prompts, self.order.new)
                if trial is not None and number >= self.order.warmups:
                    subject.trials.append(trial)
        reports = {subject.name: self._report(subject) for subject in self.subjects}
        return reports | {"agree": self._agreement()}

    def _attempt(self, subject: Subject, prompts: Sequence[tuple[int, ...]], new: int) -> Trial | None:
        """A trial, or None if there is no room for the batch, which is the subject's outcome from then on."""
        if subject.error is not None:
            return None
        try:
            return self._trial(subject, prompts, new)
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, SplitBatch) or is_exhausted(error)):
                raise
        subject.error = EXHAUSTED  # outside of the handler, where nothing holds on to the failed call
        self.decoder = StaticDecoder(self.model, self.order.cache_heads)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _trial(self, subject: Subject, prompts: Sequence[tuple[int, ...]], new: int) -> Trial:
        gc.collect()
        clock = Clock(self.model, self.gauge, rows=len(prompts), passes=subject.passes)
        with clock:
            compression = subject.call(prompts, new)
        subject.found |= clock.sizes | sizes_of(clock.holders, "at_end")
        return clock.trial(compression)

    def _engine(self, prompts: Sequence[tuple[int, ...]], new: int) -> float:
        generator = Generator(
            model=self.model,
            tokenizer=self.tokenizer,
            first_token=self.order.first_token,
            cache_heads=self.order.cache_heads,
            kernel=str(self.model.config._attn_implementation),
        )
        requests = [
            Request(id=str(number), segments=(prompt,), max_new_tokens=new, min_new_tokens=new)
            for number, prompt in enumerate(prompts)
        ]
        (answers,) = generator.generate(requests, [self.order.method])
        first = answers[0]
        if first.error is not None:
            raise SplitBatch(EXHAUSTED) if "out of memory" in first.error else ValueError(first.error)
        assert all(answer.held_at_end == first.held_at_end for answer in answers), "equal prompts, equal room"
        assert first.held_after_prompt is not None and first.held_at_end is not None
        sequence = {
            "held_after_prompt": asdict(first.held_after_prompt),
            "held_at_end": asdict(first.held_at_end),
            "compressed": first.compressed,
            "full_bytes_after_prompt": first.full_bytes_after_prompt,
            "prefill_work": first.prefill_work,
            "token_ids": first.token_ids,
        }
        self._accept(ENGINE, [answer.token_ids for answer in answers], sequence)
        return first.seconds["compression"] * len(answers)

    def _graph(self, prompts: Sequence[tuple[int, ...]], new: int) -> float:
        kernel, heads = str(self.model.config._attn_implementation), self.order.cache_heads
        cache, logits = read_prompts(self.model, self.order.method, prompts, heads=heads, kernel=kernel)
        (group,) = cache.groups
        after, read = group.held(0), group.tokens[0]
        tokens = [tuple(row) for row in self.decoder.decode(group, logits, new).tolist()]
        sequence = {
            "held_after_prompt": asdict(after),
            "held_at_end": asdict(group.held(0)),
            "compressed": group.compressed(0) or read < len(prompts[0]),
            "full_bytes_after_prompt": len(prompts[0]) * cache.full_entry_bytes,
            "prefill_work": cache.stream.work[0] / (cache.num_layers * len(prompts[0])),
            "token_ids": tokens[0],
        }
        self._accept(ENGINE, tokens, sequence)
        return cache.compression_seconds

    def _stock(self, prompts: Sequence[tuple[int, ...]], new: int) -> float:
        ids = torch.tensor(prompts, device=self.device)
        before = self.model.generation_config
        self.model.generation_config = GenerationConfig(
            do_sample=False, pad_token_id=0
        )  # without a stop token
        try:
            with torch.inference_mode():
                given: Any = self.model.generate(  # type: ignore[operator]
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=new,
                    return_dict_in_generate=True,
                )
        finally:
            self.model.generation_config = before
        self._accept(STOCK, [tuple(row) for row in given.sequences[:, ids.shape[1] :].tolist()], {})
        return 0.0

    def _accept(self, name: str, tokens: list[tuple[int, ...]], sequence: dict[str, Any]) -> None:
        """Keep what a call answered, and what its first sequence held."""
        subject = next(each for each in self.subjects if each.name == name)
        subject.tokens = tokens
        subject.found |= {"sequence": sequence}

    def _report(self, subject: Subject) -> dict[str, Any]:
        """What a subject did, as JSON values."""
        if subject.error is not None:
            return {"error": subject.error}
        return {
            "error": None,
            "trials": [asdict(trial) for trial in subject.trials],
            **subject.found,
        }

    def _agreement(self) -> float | None:
        """The share of answers that both subjects gave alike, to the last token; None if there is one only."""
        texts = [subject.tokens for subject in self.subjects if subject.error is None]
        if len(texts) < 2:
            return None
        return statistics.fmean(a == b for a, b in zip(*texts, strict=True))


def measure(order: Order) -> dict[str, Any]:
    """Everything that is found of an order, as JSON values."""
    load = os.getloadavg()[0]
    loaded = models.load(order.model)
    device = torch.device(loaded.model.device)
    bandwidth = copy_bandwidth(device)
    found = theory(
        loaded.model,
        order.method,
        prompt=order.prompt,
        new=order.new,
        batch=order.batch,
        cache_heads=order.cache_heads,
        bandwidth=bandwidth,
    )
    with limited_memory(device, order.memory_gib, found["weight_bytes"]):
        report = Session(order, loaded).run()
    return report | {
        "theory": found,
        "machine": describe(device) | {"load_before": load, "peaks_are": gauge_of(device).kind},
        "kernel": str(loaded.model.config._attn_implementation),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }


def _end_with_parent() -> None:
    """Our standard input is a pipe that closes when whoever ordered this is gone."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> int:
    """Exit code 0: a report was written, be it of an error."""
    given = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not the report
    order = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    started = time.perf_counter()
    try:
        report = measure(order)
    except Exception as error:
        traceback.print_exc()
        words = " ".join(str(error).split())
        sentence = words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"
        report = {"error": EXHAUSTED if is_exhausted(error) else sentence}
    with given:
        json.dump(report | {"seconds": time.perf_counter() - started}, given, allow_nan=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
