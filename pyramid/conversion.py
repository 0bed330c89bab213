"""From a GGUF file to a folder that transformers loads: dequantised once, and kept in the cache folder.

transformers reads GGUF files itself, but takes half a minute each time; a folder made of one takes a second.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyramid.download import cache_folder, make_folder, say
from pyramid.silence import first_line, quiet


def _target(sha256: str) -> Path:
    return cache_folder() / "models" / f"gguf-{sha256}"


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
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet(bars=False):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        _split_digits(tokenizer, path)
        tokenizer.save_pretrained(folder)
        quantized = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        values = quantized.config.to_dict()
        values.pop("quantization_config")
        model = AutoModelForCausalLM.from_config(
            type(quantized.config).from_dict(values), dtype=torch.float32
        )
        model.load_state_dict(quantized.state_dict())
        model.generation_config = quantized.generation_config
        model.save_pretrained(folder)


def _split_digits(tokenizer: Any, path: Path) -> None:
    """SmolLM cuts numbers into digits before all else, which transformers does not read from the file."""
    from gguf import GGUFReader
    from tokenizers.pre_tokenizers import Digits, Sequence

    field = GGUFReader(path).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
