"""Reading weights and tokenizers, once it is decided where from and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyramid.silence import first_line, quiet
from pyramid.tokenizer import ModelTokenizer
from pyramid.types import Tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

RANDOM_SEED = 0


def pretrained_model(
    folder: Path, *, dtype: str, attention: str, device: str, device_map: str | Mapping[str, Any] | None
) -> PreTrainedModel:
    """The model saved in `folder`. Errors: ValueError if its weights are damaged, foreign or incomplete."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                attn_implementation=attention,
                device_map=device_map
                if device_map is None or isinstance(device_map, str)
                else dict(device_map),
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as problem:
        raise ValueError(f"the weights in {folder} cannot be loaded: {first_line(problem)}") from problem
    model, loading = loaded
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ValueError(
            f"the weights in {folder} lack {len(missing)} tensors of the model, such as {missing[0]}"
        )
    return model if device_map is not None else model.to(device)


def random_model(config: PretrainedConfig, *, dtype: str, attention: str, device: str) -> PreTrainedModel:
    """The architecture with weights from a fixed seed, made on the device itself."""
    import torch
    from transformers import AutoModelForCausalLM

    with quiet(), torch.random.fork_rng(range(torch.cuda.device_count())), torch.device(device):
        torch.manual_seed(RANDOM_SEED)
        return AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        )


def store_by_input(model: PreTrainedModel) -> None:
    """Lay the weights of linear layers on CPUs out in memory one input after the other. Matrix libraries then multiply
    four to sixty rows, which is what decoding sequences together does, in about half the time, and other numbers of
    rows about as fast as before. Shapes and values stay; measured for float32 alone: docs/log.md."""
    import torch

    for layer in model.modules():
        weight = layer.weight if type(layer) is torch.nn.Linear else None
        if weight is not None and weight.device.type == "cpu" and weight.dtype == torch.float32:
            weight.data = weight.data.t().contiguous().t()


def model_tokenizer(folder: Path, model: PreTrainedModel, chat_options: Mapping[str, Any]) -> ModelTokenizer:
    """The folder's tokenizer. It stops at its own end token and at all of the generation config's."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            inner = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as problem:
        raise ValueError(f"the tokenizer in {folder} cannot be loaded: {first_line(problem)}") from problem
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = [inner.eos_token_id, *(ends if isinstance(ends, list) else [ends])]
    stop_ids = tuple(dict.fromkeys(int(end) for end in ends if end is not None))
    return ModelTokenizer(inner=inner, stop_ids=stop_ids, chat_options=dict(chat_options))


def make_greedy(model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    """Keep sampling, temperature and penalties that a checkpoint brings along out of greedy answers."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=list(tokenizer.stop_ids) or None,
        pad_token_id=tokenizer.stop_ids[0] if tokenizer.stop_ids else 0,
    )
