"""kvpress's side of `make bench-peers`: a method at a budget on a prompt, by kvpress's own pipeline.

It runs in an environment of its own, started by scripts/bench_peers.py, and knows nothing of this project. It says
what it is in one line of JSON, then answers each line that asks for a cell with another one, until its input ends:

    {"method": "snapkv", "budget": 64, "prompt": [ids], "new": 32}
    {"seconds": 1.2, "held": [64, 64, ...], "text": "..."}

The pipeline compresses a context and then feeds a question. Here the question is the prompt's last token, so that all
work is that of an ordinary prompt; `held` counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

SEPARATE = 1  # the last token of a prompt is fed after the compression


def removed_share(budget: int, prompt: int) -> float:
    """The `compression_ratio` that leaves `budget` tokens of a prompt of `prompt` tokens.

    kvpress cuts what is left to a whole number, PyramidKV's fallback rounds it: a quarter more suits both."""
    return 1 - (budget - SEPARATE + 0.25) / (prompt - SEPARATE)


class Peer:
    """One model under kvpress. settings: the command line's."""

    def __init__(self, settings: argparse.Namespace) -> None:
        import kvpress  # pyright: ignore[reportMissingImports]
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(settings.threads)
        self.kvpress, self.torch = kvpress, torch
        self.model: Any = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None  # every answer has all of its tokens
        tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self.pipeline = kvpress.KVPressTextGenerationPipeline(model=self.model, tokenizer=tokenizer)
        self.window = {"window_size": settings.window, "kernel_size": settings.kernel}

    def press(self, method: str, budget: int, prompt: int) -> Any:
        if method == "fullkv":
            return None
        share = removed_share(budget, prompt)
        if method == "streamingllm":
            return self.kvpress.StreamingLLMPress(share, n_sink=4)
        if method == "snapkv":
            return self.kvpress.SnapKVPress(share, **self.window)
        if method == "pyramidkv":
            return self.kvpress.PyramidKVPress(share, **self.window, beta=20)
        assert method == "h2o", method
        return self.kvpress.ObservedAttentionPress(share)

    def answer(self, method: str, budget: int, prompt: list[int], new: int) -> dict[str, Any]:
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        # ObservedAttentionPress takes its sums from attention weights, which only this kernel returns
        self.model.set_attn_implementation("eager" if method == "h2o" else "sdpa")
        press = self.press(method, budget, len(prompt))
        ids = self.torch.tensor([prompt])
        parts = {"context_ids": ids[:, :-SEPARATE], "questions_ids": [ids[:, -SEPARATE:]]}
        started = time.perf_counter()
        (text,) = self.pipeline.forward(parts, press=press, cache=cache, max_new_tokens=new)
        seconds = time.perf_counter() - started
        # the pipeline has taken question and answer out of the cache again
        held = [SEPARATE + layer.keys.shape[2] for layer in cache.layers]
        return {"seconds": seconds, "held": held, "text": text}


def main() -> int:
    parser = argparse.ArgumentParser(description="kvpress's side of make bench-peers.")
    parser.add_argument("--model", required=True, help="a folder that transformers loads")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--window", type=int, required=True, help="SnapKV's and PyramidKV's window")
    parser.add_argument("--kernel", type=int, required=True, help="their pooling kernel")
    settings = parser.parse_args()
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no reply
    peer = Peer(settings)
    versions = {name: version(name) for name in ("kvpress", "transformers", "torch")}
    print(json.dumps({**versions, "threads": peer.torch.get_num_threads()}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(peer.answer(**json.loads(line))), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
