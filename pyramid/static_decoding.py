"""Decoding with fixed shapes: one step as a captured CUDA graph, replayed for every further token.

Once a prompt is read, a cache whose method acts no more has a known length at the end of the answer. Its entries
are copied once into buffers of that length, and a step then is the same operations on the same memory each time:
write the new entry at a place that a counter on the device names, attend over the whole buffer under a mask that
grows by the counter, take the likeliest token, count on. The host neither chooses nor waits, so a step costs what the
device needs for it.

Without CUDA the same step is called directly, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import repeat_kv

from pyramid.cache import CompressedCache, Group, Phase
from pyramid.engine import attached, cache_argument
from pyramid.method import Method
from pyramid.selection import Lengths, valid
from pyramid.store import LayerStore

KEYWORD = "pyramid_static"  # how a layer's hook hands the buffers to the attention function
IMPLEMENTATION = "pyramid_static"
WARM_UP = 3  # steps before the capture, which libraries use to choose and load their kernels


@dataclass
class Buffer:
    """One layer's entries with room for the whole answer: keys, values (rows, heads, capacity, size)."""

    keys: Tensor
    values: Tensor
    start: int  # where the first new entry goes
    lengths: Lengths  # of each row before that

    @property
    def layout(self) -> tuple[int, Lengths]:
        """What layers have in common whose masks are the same."""
        return self.start, self.lengths


class StaticCache(Cache):
    """What transformers sees as the cache of a step; the attention function does the work."""

    def __init__(self, decoder: StaticDecoder) -> None:
        super().__init__(layers=[])
        self.decoder = decoder

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.decoder.buffers[layer_idx].start

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return self.decoder.buffers[layer_idx].keys.shape[2], 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def __len__(self) -> int:
        return len(self.decoder.buffers)


class StaticDecoder:
    """Answers of one length for batches of one shape. What was captured for a shape serves every later batch of it.

    heads: as for `CompressedCache`."""

    def __init__(self, model: PreTrainedModel, heads: str = "kv") -> None:
        self.model, self.heads = model, heads
        self.name = cache_argument(model.get_decoder())
        self.cache = StaticCache(self)
        self.shape: Any = None
        self.buffers: list[Buffer] = []
        self.alive: dict[Any, Tensor] = {}
        self.replay: Callable[[], None] = self._step

    @torch.inference_mode()
    def decode(self, group: Group, logits: Tensor, new: int) -> Tensor:
        """(rows, new) the likeliest tokens after the prompts that `group` holds, whose stores then hold what was fed.

        Args: logits: (rows, vocabulary) of the first new token. Errors: ValueError for a method that acts on steps."""
        check(group.method)
        first = logits.argmax(-1)
        if new == 1:
            return first[:, None]
        self._take(group, first, new)
        with self._attached():
            if self.replay == self._step and self.model.device.type == "cuda":
                self._capture()
                self._take(group, first, new)  # what the warm-up did is undone
            for _ in range(new - 1):
                self.replay()
        group.stores = [self._store(layer, store, new - 1) for layer, store in enumerate(group.stores)]
        group.tokens = tuple(tokens + new - 1 for tokens in group.tokens)
        return self.chosen.clone()

    def _take(self, group: Group, first: Tensor, new: int) -> None:
        """Copy a prompt's entries and everything that changes with the steps into the memory that steps work on."""
        shape = new, tuple((store.keys.shape, store.lengths) for store in group.stores)
        if shape != self.shape:
            self.shape, self.replay = shape, self._step
            self._allocate(group, new)
        for buffer, store in zip(self.buffers, group.stores, strict=True):
            buffer.keys[:, :, : buffer.start] = store.keys
            buffer.values[:, :, : buffer.start] = store.values
        self.ids.copy_(first[:, None])
        self.positions.copy_(torch.tensor(group.tokens)[:, None])
        self.fed.zero_()
        self.chosen[:, 0] = first

    def _allocate(self, group: Group, new: int) -> None:
        device, rows, room = self.model.device, len(group.tokens), (0, 0, 0, new - 1)
        self.buffers = [
            Buffer(F.pad(store.keys, room), F.pad(store.values, room), store.entries, store.lengths)
            for store in group.stores
        ]
        self.alive = {
            buffer.layout: F.pad(valid(buffer.lengths, buffer.start, device), (0, new - 1), value=True)
            for buffer in self.buffers
        }
        self.ids = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.positions = torch.zeros_like(self.ids)
        self.fed = torch.zeros(1, dtype=torch.long, device=device)  # steps done
        self.chosen = torch.zeros(rows, new, dtype=torch.long, device=device)
        self.columns = torch.arange(max(alive.shape[1] for alive in self.alive.values()), device=device)

    def _step(self) -> None:
        """One more token for every row. Nothing here waits for the device or depends on a value on it."""
        self.masks = {
            layout: (alive & (self.columns[: alive.shape[1]] <= layout[0] + self.fed))[:, None, None, :]
            for layout, alive in self.alive.items()
        }
        output = self.model(
            input_ids=self.ids,
            position_ids=self.positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.name: self.cache},
        )
        token = output.logits[:, -1].argmax(-1, keepdim=True)
        self.fed.add_(1)
        self.chosen.index_copy_(1, self.fed, token)
        self.ids.copy_(token)
        self.positions.add_(1)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """(rows, 1, query heads, size). The query heads of a stored head are taken as so many queries to it, so that
        its entries are read once and never repeated."""
        buffer = self.buffers[layer]
        rows, heads, _, size = query.shape
        if self.heads == "query":
            key, value = repeat_kv(key, heads // key.shape[1]), repeat_kv(value, heads // value.shape[1])
        place = buffer.start + self.fed
        buffer.keys.index_copy_(2, place, key)
        buffer.values.index_copy_(2, place, value)
        grouped = query.reshape(rows, key.shape[1], -1, size)
        output = F.scaled_dot_product_attention(
            grouped, buffer.keys, buffer.values, attn_mask=self.masks[buffer.layout], scale=scaling
        )
        return output.reshape(rows, 1, heads, -1)

    def _capture(self) -> None:
        """Record one step, to be replayed with whatever its memory then holds."""
        stream = torch.cuda.Stream(self.model.device)
        stream.wait_stream(torch.cuda.current_stream(self.model.device))
        with torch.cuda.stream(stream):
            for _ in range(min(WARM_UP, self.chosen.shape[1] - 1)):
                self._step()
        torch.cuda.current_stream(self.model.device).wait_stream(stream)
        self.fed.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()
        self.replay = self.graph.replay

    def _store(self, layer: int, before: LayerStore, fed: int) -> LayerStore:
        """What a layer holds at the end, in the buffers' own memory."""
        buffer = self.buffers[layer]
        store = LayerStore(buffer.keys, buffer.values, [length + fed for length in before.lengths])
        store.columns = {name: F.pad(column, (0, fed)) for name, column in before.columns.items()}
        store.fixed, store.marks = before.fixed, before.marks
        return store

    @contextmanager
    def _attached(self) -> Iterator[None]:
        """Let the model's steps go through this decoder."""

        def enter(
            layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return args, {**kwargs, KEYWORD: self}

        decoder: Any = self.model.get_decoder()
        before = self.model.config._attn_implementation or "sdpa"
        hooks = [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in decoder.layers]
        self.model.set_attn_implementation(IMPLEMENTATION)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)
            for hook in hooks:
                hook.remove()


def check(method: Method, first_token: str = "full") -> None:
    """Errors: ValueError for a method that acts on steps, whose cache has no fixed shape, and for a first token that
    is read again."""
    if first_token != "full":
        raise ValueError(f"decode=graph takes protocol.first_token=full, and not {first_token}")
    if Phase.STEP & method.phases:
        raise ValueError(
            f"decode=graph is for methods that do not act on steps, and {type(method).__name__} does: take "
            "decode=plain, or where the method has it decode_eviction=false"
        )


@torch.inference_mode()
def read_prompts(
    model: PreTrainedModel,
    method: Method,
    prompts: Sequence[Sequence[int]],
    *,
    heads: str = "kv",
    kernel: str = "sdpa",
) -> tuple[CompressedCache, Tensor]:
    """The compressed cache of these prompts, and (rows, vocabulary) logits of their first new tokens."""
    shortened = [method.shorten(tuple(prompt)) for prompt in prompts]
    longest = max(map(len, shortened))
    padding = [longest - len(prompt) for prompt in shortened]
    decoder: Any = model.get_decoder()
    for prompt in shortened:
        method.check(length=len(prompt), num_layers=len(decoder.layers))
    ids = torch.tensor([[0] * pad + list(prompt) for pad, prompt in zip(padding, shortened, strict=True)])
    places = torch.arange(longest) - torch.tensor(padding)[:, None]
    mask = (places >= 0).long().to(model.device) if any(padding) else None
    cache = CompressedCache([method], len(decoder.layers), heads=heads)
    with attached(model, kernel):
        output = model(
            input_ids=ids.to(model.device),
            attention_mask=mask,
            position_ids=places.clamp(min=0).to(model.device),
            use_cache=True,
            logits_to_keep=1,
            **{cache_argument(decoder): cache},
        )
    return cache, output.logits[:, -1].float()


def _function(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    decoder: StaticDecoder = kwargs[KEYWORD]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return decoder.attend(module.layer_idx, query, key, value, scale), None


def _mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    return attention_mask


AttentionInterface.register(IMPLEMENTATION, _function)
AttentionMaskInterface.register(IMPLEMENTATION, _mask)
