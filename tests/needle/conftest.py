"""A haystack and tokenizers of every common build, made on the spot."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evaluation.prompts import Prompter
from evaluation.types import Protocol
from pyramid.tokenizer import ByteTokenizer, ModelTokenizer
from pyramid.types import Tokenizer

VOCABULARY = (
    "the quiet harbour café naïve keeper wrote letters — about ropes, tides and old maps; nobody knew 3.5 of "
    "them because it's late in “October” and the gulls’ cries 日本 drowned 1,200 bells in sys.path or Łódź"
)
WORDS = VOCABULARY.split()
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def prose(sentences: int, seed: int = 0) -> str:
    """Sentences that end in a full stop, with decimal points, dotted names and accents inside."""
    draw = random.Random(seed)
    made = (" ".join(draw.choices(WORDS, k=draw.randint(4, 16))) for _ in range(sentences))
    return "".join(f"{text[:1].upper()}{text[1:]}.{draw.choice(('', ' ', ' ', chr(10)))}" for text in made)


@pytest.fixture(scope="session")
def haystack_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("haystack")
    for number in range(3):
        (folder / f"{number}.txt").write_text(prose(120, seed=number), encoding="utf-8")
    return folder


def _with_bytes(text: Sequence[str], special: Sequence[str]) -> Any:
    """Merges learned from `text`, where words keep the blank before them, and a token for every byte."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    learned = Backend(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*special], show_progress=False)
    learned.train_from_iterator([part.replace(" ", "▁") for part in text], trainer)
    model = json.loads(learned.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    merges = [tuple(merge) for merge in model["merges"]]
    return models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True)


@cache
def build_tokenizer(kind: str) -> Tokenizer:
    """A tokenizer with start token and chat template, but for the last two kinds.

    characters: byte-level without merges. gpt: byte-level BPE, as Llama 3 has it. sentencepiece: byte
    fallback, blanks as part of words and one in front of the text, as Llama 2 and Mistral have it.
    no_start: as gpt. random: the harness's own bytes.
    """
    if kind == "random":
        return ByteTokenizer()
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>", "<|eot|>"]
    text = [prose(400), "This is a very long story book (so they said). Based on it, Question: Answer:" * 50]
    if kind == "characters":
        vocabulary = {t: i for i, t in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
        backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    elif kind == "sentencepiece":
        backend = Backend(_with_bytes(text, special))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=1200, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        backend.train_from_iterator(text, trainer)
    if kind != "no_start":
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    inner = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=["<|eot|>"],
    )
    if kind != "no_start":
        inner.chat_template = TEMPLATE
    return ModelTokenizer(inner=inner, stop_ids=(2, 3))


@cache
def build_default_tokenizer() -> Tokenizer | None:
    """The default model's own tokenizer, if the model was fetched before."""
    from pyramid.checkpoints import find_checkpoint
    from pyramid.conversion import converted
    from pyramid.models import ModelSpec

    folder = converted(find_checkpoint(ModelSpec().id).identity()["weights_sha256"])
    if folder is None:
        return None
    from transformers import AutoTokenizer

    return ModelTokenizer(inner=AutoTokenizer.from_pretrained(folder, local_files_only=True), stop_ids=(2,))


@pytest.fixture(params=["characters", "gpt", "sentencepiece", "no_start", "random", "default_model"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param != "default_model":
        return build_tokenizer(request.param)
    built = build_default_tokenizer()
    if built is None:
        pytest.skip("the default model is not in the cache")
    return built


@pytest.fixture
def prompter_of() -> Callable[..., Prompter]:
    """A prompter for a tokenizer, with any of the protocol's fields."""

    def make(tokenizer: Tokenizer, *, model_max_length: int = 8192, **protocol: Any) -> Prompter:
        return Prompter(
            tokenizer=tokenizer,
            protocol=Protocol(name=protocol.pop("name", "fair"), **protocol),
            model_max_length=model_max_length,
        )

    return make


@pytest.fixture
def fetching_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache and a package index that cannot be reached."""
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    yield
