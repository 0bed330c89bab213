"""From a GGUF file to a folder that transformers loads: dequantised once, and kept in the cache folder.

transformers reads GGUF files itself, but takes half a minute each time; a folder made of one takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyramid.download import cache_folder, make_folder, say
from pyramid.silence import first_line, quiet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LAYOUT = 1  # of the folders written here: counted up when it changes, so that older ones are not used
CONTROL = 3  # gguf.TokenType.CONTROL


def _target(sha256: str) -> Path:
    return cache_folder() / "models" / f"gguf-{LAYOUT}-{sha256}"


def converted(sha256: str) -> Path | None:
    """The folder made of the GGUF file with this hash, if it was made before."""
    folder = _target(sha256)
    return folder if (folder / "model.safetensors").exists() else None


def convert_once(path: Path, sha256: str) -> Path:
    """The folder made of the GGUF file at `path`, whose hash is `sha256`.

    Errors: DownloadError without space or permission; ValueError if the file cannot be converted."""

    if find_spec("gguf") is None:
        raise ValueError(f"reading {path.name} takes the gguf package: pip install gguf")

    def build(folder: Path) -> None:
        say(f"converting {path.name} (about half a minute, once)")
        try:
            _convert(path, folder)
        except Exception as problem:
            raise ValueError(f"{path.name} cannot be converted: {first_line(problem)}") from problem

    needed_bytes = 50_000_000 + 6 * path.stat().st_size  # four bits become thirty-two, less the scales
    return make_folder(_target(sha256), "model.safetensors", build, needed_bytes=needed_bytes)


def _convert(path: Path, folder: Path) -> None:
    """Write the model and the tokenizer of the GGUF file at `path` into `folder`, weights as float32."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM

    with quiet(bars=False):
        fields = {name: field.contents() for name, field in GGUFReader(path).fields.items()}
        _tokenizer(fields).save_pretrained(folder)
        quantized = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        values = quantized.config.to_dict()
        values.pop("quantization_config", None)
        model = AutoModelForCausalLM.from_config(
            type(quantized.config).from_dict(values), dtype=torch.float32
        )
        model.load_state_dict(quantized.state_dict())
        model.generation_config = quantized.generation_config
        model.save_pretrained(folder)


def _tokenizer(fields: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The tokenizer that the file describes: byte pairs, of text whose numbers are cut into digits first.

    It is put together here since what transformers makes of such a file differs from version to version."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")) != ("gpt2", "smollm"):
        raise ValueError(
            f"its tokenizer {fields.get('tokenizer.ggml.pre')!r} is not SmolLM's: "
            f"give the model that it was made from, as a folder or from the hub"
        )
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == CONTROL]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        chat_template=fields.get("tokenizer.chat_template"),
    )
