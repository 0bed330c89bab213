"""What a method should hold, worked out on paper: integers from a model's shape, a prompt's length and the
method's own settings, to be set beside what was counted from tensors.

A method that remembers more than keys and values needs a line in `_side_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyramid.budget import budget_tokens
from pyramid.methods.h2o import H2O
from pyramid.methods.streamingllm import StreamingLLM

FLOAT32 = 4  # bytes


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the size of a cache: layers, heads that are stored, their size, and bytes a number."""

    layers: int
    heads: int
    head_size: int
    number_bytes: int

    @classmethod
    def of(cls, config: Any, *, cache_heads: str, number_bytes: int) -> Shape:
        """The shape of a model's configuration. Args: cache_heads: `kv` or `query`, see `CompressedCache`."""
        heads = config.num_attention_heads
        stored = getattr(config, "num_key_value_heads", None) or heads
        return cls(
            layers=config.num_hidden_layers,
            heads=heads if cache_heads == "query" else stored,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            number_bytes=number_bytes,
        )

    @property
    def entry_bytes(self) -> int:
        """One token's key and value in one layer."""
        return 2 * self.heads * self.head_size * self.number_bytes


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Bytes that one sequence holds after its prompt, and at the end of its answer; None: not worked out."""

    after_prompt: int
    at_end: int | None


def expected(method: Any, shape: Shape, *, prompt: int, new: int) -> Expected:
    """What `method` holds of a prompt, and once `new` tokens were chosen, of which the last is never fed."""
    fed = new - 1
    after = _tokens_after_prompt(method, shape.layers, prompt)
    evicting = after < shape.layers * prompt
    match getattr(method, "decode_eviction", False):
        case "always":
            at_end = shape.layers * min(prompt + fed, budget_tokens(method.budget, prompt))
        case True if evicting:
            at_end = after
        case _:
            at_end = after + shape.layers * fed
    side = _side_bytes(method, shape)
    return Expected(
        after_prompt=after * shape.entry_bytes + side(after, evicting),
        at_end=None
        if getattr(method, "answer_compression", False)
        else at_end * shape.entry_bytes + side(at_end, at_end < shape.layers * (prompt + fed)),
    )


def _tokens_after_prompt(method: Any, layers: int, prompt: int) -> int:
    """Tokens over all layers."""
    if getattr(method, "decay", None) is not None:
        return sum(method.lengths(prompt, layers))
    budget = getattr(method, "budget", None)
    if budget is None:
        return layers * prompt
    tokens = budget_tokens(budget, prompt)
    if getattr(method, "schedule", None) == "published" and tokens < prompt:
        window = method.protected[0]
        return sum(method.policy.allocate(budget=tokens, window=window, num_layers=layers, length=prompt))
    return layers * min(tokens, prompt)


def _side_bytes(method: Any, shape: Shape) -> Callable[[int, bool], int]:
    """Bytes beside keys and values, from the tokens held in all layers and whether others went."""
    match method:
        case H2O():  # one sum of attention for each entry
            return lambda tokens, evicted: tokens * shape.heads * FLOAT32
        case StreamingLLM(positions="cache"):  # the sinks' keys as they first were
            sinks = shape.layers * method.sinks * shape.heads * shape.head_size * shape.number_bytes
            return lambda tokens, evicted: sinks if evicted else 0
        case _:
            return lambda tokens, evicted: 0


def theory(
    model: Any, method: Any, *, prompt: int, new: int, batch: int, cache_heads: str, bandwidth: float | None
) -> dict[str, Any]:
    """What can be worked out: bytes that the batch should hold, and the least time a decoding step could take
    if it did nothing but read weights and cache once at the speed at which this memory copies."""
    config = model.config.get_text_config(decoder=True)
    shape = Shape.of(config, cache_heads=cache_heads, number_bytes=model.dtype.itemsize)
    paper = expected(method, shape, prompt=prompt, new=new)
    after, at_end = (None if size is None else size * batch for size in (paper.after_prompt, paper.at_end))
    read = read_weights(model)
    floor = None
    if None not in (read, at_end, bandwidth):
        floor = (read + (after + at_end) / 2) / bandwidth  # type: ignore[operator]
    return {
        "bytes_after_prompt": after,
        "bytes_at_end": at_end,
        "weight_bytes": sum(_storages(model.parameters()).values()),
        "weight_bytes_read": read,
        "copy_bytes_per_second": bandwidth,
        "step_seconds": floor,
    }


def read_weights(model: Any) -> int | None:
    """Bytes of weights that a decoding step reads: all, but for an embedding of which it takes a few rows.
    None for a mixture of experts, of which it reads some."""
    config = model.config.get_text_config(decoder=True)
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return None
    weights = _storages(model.parameters())
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if embedding.data_ptr() != output.data_ptr():
        weights.pop(embedding.data_ptr())
    return sum(weights.values())


def _storages(tensors: Any) -> dict[int, int]:
    return {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}
