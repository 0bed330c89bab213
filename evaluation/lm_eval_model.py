"""This harness's generator as a model of lm-evaluation-harness: whatever that asks, one method answers.

scripts/lm_eval.py registers it by name. lm_eval's own loop then does all else, so that there are neither run folders
nor several methods in company: `python run.py suite=lm_eval` has both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import LM

from evaluation.lm_eval_encoding import Encoder, chat_template
from evaluation.runner import Generator
from evaluation.types import Sample
from pyramid.types import Answer, Request, Tokenizer


class PyramidLM(LM):
    """One model under one method.

    max_length: positions for prompt and answer. max_gen_toks: tokens of an answer where a task says nothing.
    batch_size: prompts read together. seed: of tasks that draw tokens.
    """

    def __init__(
        self,
        *,
        generator: Generator,
        method: Any,
        tokenizer: Tokenizer,
        max_length: int,
        max_gen_toks: int = 256,
        batch_size: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; give a number from 1 on")
        self.generator, self.method, self.batch_size, self.seed = generator, method, batch_size, seed
        self.encoder = Encoder(tokenizer=tokenizer, max_length=max_length, max_gen_toks=max_gen_toks)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        answers = self._answered("generate_until", requests)
        return [self._told("generate_until", request, answer.text) for request, (answer,) in answers]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        answers = self._answered("loglikelihood", requests)
        return [
            self._told("loglikelihood", request, (math.fsum(answer.log_likelihoods), all(answer.greedy)))
            for request, (answer,) in answers
        ]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        answers = self._answered("loglikelihood_rolling", requests)
        return [
            self._told(
                "loglikelihood_rolling",
                request,
                math.fsum(likelihood for answer in windows for likelihood in answer.log_likelihoods),
            )
            for request, windows in answers
        ]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return chat_template(self.encoder.tokenizer)(chat_history, add_generation_prompt)

    @property
    def tokenizer_name(self) -> str:
        """Prompts are cached by this name where lm_eval is asked to; they depend on the template alone."""
        example = self.encoder.tokenizer.chat([{"role": "user", "content": "."}])
        return f"pyramid-{example!r}"

    def _answered(self, kind: str, requests: Sequence[Any]) -> list[tuple[Any, list[Answer]]]:
        """Each request with the answers to its prompts. The longest prompts are read first, so that a lack of memory
        shows at once. Errors: RuntimeError for what cannot be answered; lm_eval knows no missing answers."""
        prompts = [
            self.encoder.prompts(str(number), kind, request.args) for number, request in enumerate(requests)
        ]
        order = sorted((sample for each in prompts for sample in each), key=_tokens, reverse=True)
        found: dict[str, Answer] = {}
        for start in range(0, len(order), self.batch_size):
            batch = [
                _request(sample, self.encoder.tokenizer, self.seed)
                for sample in order[start : start + self.batch_size]
            ]
            for answer in self.generator.generate(batch, [self.method])[0]:
                if answer.error is not None:
                    raise RuntimeError(f"request {answer.id} of {kind} could not be answered: {answer.error}")
                found[answer.id] = answer
        return [
            (request, [found[sample.id] for sample in each])
            for request, each in zip(requests, prompts, strict=True)
        ]

    def _told(self, kind: str, request: Any, response: Any) -> Any:
        """The response, which lm_eval's cache of responses is told of."""
        self.cache_hook.add_partial(kind, request.args, response)
        return response


def _tokens(sample: Sample) -> int:
    return len(sample.ids) + len(sample.continuation)


def _request(sample: Sample, tokenizer: Tokenizer, seed: int) -> Request:
    return Request(
        id=sample.id,
        segments=(sample.ids,),
        max_new_tokens=sample.max_new_tokens,
        stop_ids=tokenizer.stop_ids,
        stop_texts=sample.stop_texts,
        temperature=sample.temperature,
        seed=seed,
        continuation=sample.continuation,
    )
