"""The token ids a model reads for LongBench are those of the official pipeline, restated without our code.

The pipeline: fill the published template; if its ids with the start token are more than the limit, keep the
text of the first and the last half of them; wrap that in the chat template except for six sets; encode with
one start token. The tokenizers are byte-level BPE as LLaMA-3 has it, trained here on the rows themselves,
with and without a chat template.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.longbench import LongBench
from evaluation.longbench_table import SETS
from evaluation.prompts import Prompter
from evaluation.types import Protocol, Sample

NAMES = tuple(name for name, row in SETS.items() if not row.extended)
RAW = ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")
LIMITS = (700, 701)
ROOMY = 1_000_000

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


class Wrapped:
    """A transformers tokenizer as pyramid.types.Tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        self.bos_id = tokenizer.bos_token_id
        self.stop_ids = tuple(
            tokenizer.convert_tokens_to_ids(token) for token in ("<|end_of_text|>", "<|eot_id|>")
        )

    def encode(self, text: str, special: bool = False) -> list[int]:
        return self.inner.encode(text, add_special_tokens=special)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self.inner.decode(ids, skip_special_tokens=skip_special)

    def chat(self, messages: Sequence[dict[str, str]]) -> str | None:
        if self.inner.chat_template is None:
            return None
        return self.inner.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> dict[str, dict[str, Any]]:
    """The shortest published row of each set that is at hand."""
    folder = shared_data / "longbench" / "mini"
    found = {}
    for name in NAMES:
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
        found[name] = min(map(json.loads, lines), key=lambda row: row["length"])
    return found


@pytest.fixture(scope="module", params=["llama3_chat", "no_template"])
def tokenizer(request: pytest.FixtureRequest, rows: dict[str, dict[str, Any]]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    whole_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), whole_bytes]
    )
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator((row["context"][:20_000] for row in rows.values()), trainer)
    bare.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)]
    )
    full = PreTrainedTokenizerFast(tokenizer_object=bare, bos_token=SPECIAL[0], eos_token=SPECIAL[1])
    if request.param == "llama3_chat":
        full.chat_template = CHAT
    return full


@pytest.fixture(scope="module")
def templates(shared_data: Path) -> dict[str, str]:
    return json.loads(
        (shared_data / "longbench" / "config" / "dataset2prompt.json").read_text(encoding="utf-8")
    )


def official_ids(tokenizer: Any, template: str, row: dict[str, Any], limit: int, wrap: bool) -> list[int]:
    """What the official script feeds, for a prompt of at most `limit` tokens before the chat template."""
    prompt = template.format(**row)
    ids = tokenizer(prompt).input_ids
    if len(ids) > limit:
        half = int(limit / 2)
        prompt = tokenizer.decode(ids[:half], skip_special_tokens=True)
        prompt += tokenizer.decode(ids[-half:], skip_special_tokens=True)
    if not wrap:
        return tokenizer(prompt).input_ids
    message = [{"role": "user", "content": prompt}]
    chat = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return tokenizer(chat, add_special_tokens=False).input_ids


def digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()


def prompter(tokenizer: Any, limit: int | None = None, **protocol: Any) -> Prompter:
    rules = Protocol(name="test", max_prompt_tokens=limit, **protocol)
    return Prompter(tokenizer=Wrapped(tokenizer), protocol=rules, model_max_length=ROOMY)


def sample_of(folder: Path, name: str, row: dict[str, Any], reader: Prompter) -> Sample:
    (folder / f"{name}.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (sample,) = LongBench(set=name, data=folder).samples(reader)
    return sample


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_prompt_is_the_official_one(
    tmp_path: Path, rows: Any, templates: dict[str, str], tokenizer: Any, name: str
) -> None:
    wrap = tokenizer.chat_template is not None and name not in RAW
    reader = prompter(tokenizer)
    prompt = reader.render(sample_of(tmp_path, name, rows[name], reader))
    official = official_ids(tokenizer, templates[name], rows[name], ROOMY, wrap)
    assert digest(prompt.segments[0]) == digest(official)
    assert prompt.segments[0].count(tokenizer.bos_token_id) == 1 and not prompt.truncated


@pytest.mark.parametrize("limit", LIMITS)
def test_a_cut_prompt_is_the_official_one(
    tmp_path: Path, rows: Any, templates: dict[str, str], tokenizer: Any, limit: int
) -> None:
    reader = prompter(tokenizer, limit)
    cut = 0
    for name in NAMES:
        wrap = tokenizer.chat_template is not None and name not in RAW
        prompt = reader.render(sample_of(tmp_path, name, rows[name], reader))
        official = official_ids(tokenizer, templates[name], rows[name], limit, wrap)
        assert digest(prompt.segments[0]) == digest(official), name
        cut += prompt.truncated
    assert cut > 15


@pytest.mark.parametrize("own", [None, 650])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_prompt_never_exceeds_the_model_and_keeps_both_ends(
    tmp_path: Path, rows: Any, templates: dict[str, str], tokenizer: Any, limit: int, own: int | None
) -> None:
    reader = prompter(tokenizer, own)
    for name in NAMES:
        sample = sample_of(tmp_path, name, rows[name], reader)
        narrow = replace(reader, model_max_length=limit + sample.max_new_tokens)
        prompt = narrow.render(sample)
        assert prompt.tokens <= limit and prompt.segments[0].count(tokenizer.bos_token_id) == 1
        text, whole = tokenizer.decode(prompt.segments[0]), templates[name].format(**rows[name])
        assert whole[:60] in text and whole.rstrip()[-60:] in text


def test_a_question_after_compression_keeps_the_prompt(tmp_path: Path, rows: Any, tokenizer: Any) -> None:
    later, at_once = prompter(tokenizer, 700, question="after_compression"), prompter(tokenizer, 700)
    for name in NAMES:
        sample = sample_of(tmp_path, name, rows[name], later)
        first, second = later.render(sample).segments
        whole = at_once.render(sample).segments[0]
        assert later.render(sample).truncated == at_once.render(sample).truncated
        if len(first) + len(second) == len(whole):
            assert tokenizer.decode([*first, *second]) == tokenizer.decode(whole)
