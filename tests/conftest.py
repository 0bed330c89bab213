"""What several test files need: the benchmark data where it is at hand, and tiny models that need no
download.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the tests were started in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real benchmark files that developers keep beside the checkout."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real benchmark files (../shared/data) are not on this machine")
    return folder


class ByteTokenizer:
    """One token a character, for tests that need exact prompt lengths; satisfies pyramid.types.Tokenizer."""

    bos_id = None
    stop_ids: tuple[int, ...] = ()

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [ord(character) % 128 for character in text]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(chr(number) for number in ids)

    def chat(self, messages: Sequence[dict[str, str]]) -> str | None:
        return None


FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": None},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Phi3": {},
    "Olmo2": {},
    "Granite": {},
    "SmolLM3": {},
    "Cohere": {},
    "Glm4": {"head_dim": 8},
    "Mixtral": {"num_local_experts": 4, "sliding_window": None},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


@cache
def build_tiny_model(family: str = "Llama", layers: int = 6) -> Any:
    """A random model of a real family with grouped queries (8 query, 2 key/value heads), always the same."""
    import torch
    import transformers

    shape = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **FAMILIES[family],
    }
    with torch.inference_mode(False):  # whoever asks first may be inside inference mode
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**shape)
        return getattr(transformers, f"{family}ForCausalLM")(config).eval().float()


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Any]:
    return build_tiny_model


@pytest.fixture(scope="session")
def byte_tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture(scope="session")
def prompt_of() -> Callable[..., tuple[int, ...]]:
    """Random token ids: prompt_of(length, seed)."""

    def make(length: int, seed: int = 0) -> tuple[int, ...]:
        generator = random.Random(seed * 7919 + length)
        return tuple(generator.randrange(3, 128) for _ in range(length))

    return make
