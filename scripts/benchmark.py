"""What a sweep costs: `make bench` prints ratios, measured in one process on this machine.

Timings on a shared machine are noisy, so nothing but ratios of interleaved runs is reported: the median over the
rounds, and the smallest and largest. Prompts are random tokens, answers have a fixed length, so that every cell
does the same work.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from pyramid.types import Answer, Request

METHODS = ("streamingllm", "h2o", "snapkv", "pyramidkv")
BUDGETS = (64, 128, 256)


class Bench:
    """One model, and the seconds that generations with it take."""

    def __init__(self, threads: int | None) -> None:
        import torch

        from pyramid import models
        from pyramid.generation import Generator

        if threads:
            torch.set_num_threads(threads)
        loaded = models.load(models.ModelSpec())
        self.generator = Generator(model=loaded.model, tokenizer=loaded.tokenizer)
        self.vocabulary = loaded.model.config.vocab_size
        self.layers = loaded.model.config.num_hidden_layers

    def tokens(self, prompt: int) -> tuple[int, ...]:
        """The prompt of that length."""
        draw = random.Random(prompt)
        return tuple(draw.randrange(self.vocabulary) for _ in range(prompt))

    def seconds(self, methods: Sequence[Any], prompt: int, new: int) -> float:
        return self.answer(methods, prompt, new)[0]

    def answer(self, methods: Sequence[Any], prompt: int, new: int) -> tuple[float, list[Answer]]:
        """The seconds that all methods' answers to the prompt took together, and the answers."""
        tokens = self.tokens(prompt)
        started = time.perf_counter()
        answers = self.generator.generate([Request(id="", segments=(tokens,), max_new_tokens=new)], methods)
        took = time.perf_counter() - started
        assert all(answer.error is None for cell in answers for answer in cell)
        return took, [answer for cell in answers for answer in cell]

    def company(self, prompt: int, new: int) -> dict[str, float]:
        """One round of 13 cells together against FullKV alone, and one by one against together."""
        from pyramid.methods import build

        fullkv = build("fullkv")
        cells = [fullkv, *(build(name, budget=budget) for name in METHODS for budget in BUDGETS)]
        before = self.seconds([fullkv], prompt, new)
        together = self.seconds(cells, prompt, new)
        apart = [self.seconds([cell], prompt, new) for cell in cells]
        alone = (before + apart[0]) / 2  # FullKV's times on both sides of the company's
        return {
            "company_over_fullkv": together / alone,
            "one_by_one_over_company": sum(apart) / together,
        }

    def prefill(self, prompt: int) -> dict[str, float]:
        """One round of reading a prompt and compressing it, against reading it."""
        from pyramid.methods import build

        narrowed = build("pyramidinfer", budget=0.6)
        methods = {
            "pyramidkv": build("pyramidkv", budget=128),
            "h2o": build("h2o", budget=128),
            "pyramidinfer": narrowed,
        }
        alone = self.seconds([build("fullkv")], prompt, 1)
        found = {
            f"{name}_prefill_over_fullkv": self.seconds([m], prompt, 1) / alone for name, m in methods.items()
        }
        found["pyramidinfer_token_layers"] = sum(narrowed.lengths(prompt, self.layers)) / self.layers / prompt
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.benchmark", description="What a sweep costs.")
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=[2000, 4000], help="prompt lengths in tokens"
    )
    parser.add_argument("--new", type=int, default=32, help="new tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved repetitions")
    parser.add_argument(
        "--part", choices=("company", "prefill", "all"), default="all", help="what to measure"
    )
    parser.add_argument(
        "--threads", type=int, default=None, help="threads of torch; default: torch's own choice"
    )
    options = parser.parse_args(arguments)
    bench = Bench(options.threads)
    bench.prefill(200)  # warm-up
    bench.company(200, 2)
    medians: dict[str, float] = {}
    cells = f"fullkv, and {', '.join(METHODS)} at {', '.join(map(str, BUDGETS))}"
    print(f"13 cells in company: {cells}; {options.new} new tokens")
    for prompt in options.prompts:
        rounds = []
        for _ in range(options.rounds):
            company = bench.company(prompt, options.new) if options.part != "prefill" else {}
            rounds.append(company | (bench.prefill(prompt) if options.part != "company" else {}))
        print(f"\nprompt of {prompt} tokens, {options.rounds} rounds    median   least    most")
        for name in rounds[0]:
            values = [found[name] for found in rounds]
            middle = statistics.median(values)
            print(f"  {name:<34}{middle:>8.2f}{min(values):>8.2f}{max(values):>8.2f}", flush=True)
            medians[name if prompt == options.prompts[0] else f"{name}_{prompt}"] = round(middle, 4)
    print()
    print(json.dumps(medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
