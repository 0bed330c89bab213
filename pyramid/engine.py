"""The only place that touches a model: one attention function, one mask function, one decoder-layer hook.

`attached(model)` swaps them in for any model that transformers' attention registry serves; `compress(model,
method)` does so for anyone's own `generate()` call. Nothing is left on the model afterwards, whatever happens
in between.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.integrations import sdpa_attention
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from pyramid.cache import CompressedCache, Group, Phase
from pyramid.method import Decision, Evict, Keep, Method, Narrow, Observation
from pyramid.rotary import Rotation, rotation
from pyramid.scoring import attention_with_mass
from pyramid.selection import Lengths, is_full, take_tokens, valid
from pyramid.store import LayerStore

CACHE_KEYWORD = "pyramid_cache"  # how a layer's hook hands the cache to the attention function
KERNELS = ("sdpa", "eager", "flash_attention_2")
# Newer versions of transformers, too, hand a stored head's queries to torch's kernel as if they were so many tokens.
QUERIES_TOGETHER = hasattr(sdpa_attention, "pack_gqa")


def cache_argument(decoder: nn.Module) -> str:
    """What this version of transformers calls the cache: `cache` since 5.24, `past_key_values` before."""
    return "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"


@contextmanager
def attached(model: PreTrainedModel, kernel: str = "sdpa") -> Iterator[None]:
    """Let every forward pass of `model` that carries a `CompressedCache` go through the engine.

    Args: kernel: `sdpa`, `eager` or `flash_attention_2`."""
    assert kernel in KERNELS, kernel
    before = model.config._attn_implementation or "sdpa"
    decoder: Any = model.get_decoder()
    turn, hooks = rotation(decoder), []

    def enter(
        layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _enter_layer(layer, args, kwargs, turn)

    try:
        hooks += [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in decoder.layers]
        model.set_attn_implementation(f"pyramid_{kernel}")
        yield
    finally:
        model.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()


class Compression:
    """What `compress` yields. cache: the cache of the latest call, to read what it holds."""

    def __init__(self) -> None:
        self.cache: CompressedCache | None = None


@contextmanager
def compress(
    model: PreTrainedModel, method: Method, *, cache_heads: str = "kv", kernel: str = "sdpa"
) -> Iterator[Compression]:
    """Compress every call of `model` inside the block, `model.generate(...)` included.

    A call without a cache, or with an empty one, starts a new compressed cache; to go on with a compressed
    conversation, pass the cache of `outputs.past_key_values` back. Errors: ValueError for a cache filled
    elsewhere, for right padding, for beam search.
    """
    if type(method).shorten is not Method.shorten:
        raise ValueError(
            f"{type(method).__name__} shortens the prompt itself, which generate() cannot do: cut your prompt"
        )
    decoder: Any = model.get_decoder()
    name, compression = cache_argument(decoder), Compression()

    def start(
        module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = next((value for value in kwargs.values() if isinstance(value, Cache)), None)
        if isinstance(given, CompressedCache):
            compression.cache = given
            return args, kwargs
        if given is not None and given.get_seq_length():
            raise ValueError(
                "this cache was filled without compression: pass the whole text again, or a compressed cache"
            )
        compression.cache = CompressedCache([method], len(decoder.layers), heads=cache_heads)
        others = {key: value for key, value in kwargs.items() if not isinstance(value, Cache)}
        return args, {**others, name: compression.cache, "use_cache": True}

    hook = decoder.register_forward_pre_hook(start, with_kwargs=True)
    try:
        with attached(model, kernel):
            yield compression
    finally:
        hook.remove()


def _enter_layer(
    layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], turn: Rotation | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Begin a forward pass at the first layer, narrow the stream if the layer below asked for it, and pass
    the cache on.
    """
    cache = next((value for value in kwargs.values() if isinstance(value, CompressedCache)), None)
    if cache is None:
        raise ValueError(
            "the model was called without a compressed cache inside attached(): pass one, with use_cache=True"
        )
    hidden, rest = (args[0], args[1:]) if args else (kwargs.pop("hidden_states"), ())
    if layer.self_attn.layer_idx == 0:
        new = hidden.shape[1]
        default = Phase.PROMPT if cache.shared else Phase.TURN if new > 1 else Phase.STEP
        cache.begin(new, kwargs.get("attention_mask"), hidden.shape[0], cache.next_phase or default)
        cache.next_phase, cache.rotation = None, turn
    stream = cache.stream
    if stream.narrowed is not None:
        index, lengths = stream.narrowed
        hidden = take_tokens(hidden, index.to(hidden.device))
        stream.index = index if stream.index is None else take_tokens(stream.index, index)
        stream.narrowed, stream.lengths = None, lengths
    if stream.index is not None:
        kwargs = {**kwargs, **_narrowed_arguments(kwargs, stream.index)}
    stream.work = [done + length for done, length in zip(stream.work, stream.lengths, strict=True)]
    return (hidden, *rest), {**kwargs, CACHE_KEYWORD: cache}


def _narrowed_arguments(kwargs: dict[str, Any], index: Tensor) -> dict[str, Any]:
    """The model hands every layer the whole prompt's positions; a narrowed stream needs its own tokens' ones."""
    narrowed: dict[str, Any] = {}
    if kwargs.get("position_ids") is not None:
        narrowed["position_ids"] = take_tokens(
            kwargs["position_ids"], index.to(kwargs["position_ids"].device)
        )
    if kwargs.get("position_embeddings") is not None:
        narrowed["position_embeddings"] = tuple(
            take_tokens(t, index.to(t.device)) for t in kwargs["position_embeddings"]
        )
    return narrowed


def attend(
    kernel: str,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    cache: CompressedCache,
) -> Tensor:
    """Store what arrives, attend over what is held, let the methods look and act.

    Args: query: (rows, query heads, new, size); key, value: (rows, kv heads, new, size). Returns: (rows, new,
    query heads, size).
    """
    arriving = cache.stream.lengths
    if cache.shared:
        cache.full_entry_bytes += sum(t.shape[1] * t.shape[3] * t.element_size() for t in (key, value))
    if cache.heads == "query":
        groups = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    if cache.shared:
        store = LayerStore(key, value, arriving)
        output, mass = _attention(kernel, module, query, store, arriving, scaling, cache, cache.groups)
        _admit(
            cache,
            _observation(cache, cache.groups[0], module.layer_idx, query, store, arriving, scaling, mass),
        )
        return output
    sizes = [len(group.tokens) for group in cache.groups]
    outputs, start = [], 0
    for group, own, fresh, content in zip(
        cache.groups, query.split(sizes), key.split(sizes), value.split(sizes), strict=True
    ):
        store, mine = group.stores[module.layer_idx], arriving[start : start + len(group.tokens)]
        start += len(mine)
        store.append(fresh, content, mine)
        output, mass = _attention(kernel, module, own, store, mine, scaling, cache, [group])
        outputs.append(output)
        if group.acting:
            seen = _observation(cache, group, module.layer_idx, own, store, mine, scaling, mass)
            decision = group.method.observe(seen)
            group.stores[module.layer_idx] = _carried_out(decision, seen, cache)
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _observation(
    cache: CompressedCache,
    group: Group,
    layer: int,
    query: Tensor,
    store: LayerStore,
    arriving: Lengths,
    scaling: float,
    mass: Tensor | None,
) -> Observation:
    return Observation(
        layer=layer,
        num_layers=cache.num_layers,
        phase=cache.phase,
        query=query,
        store=store,
        query_lengths=arriving,
        tokens=group.tokens,
        prompt=group.prompt,
        bottom=group.bottom,
        budgets=group.budgets,
        scaling=scaling,
        mass=mass,
    )


def _admit(cache: CompressedCache, seen: Observation) -> None:
    """Show the prompt's layer to every method and give each group what it keeps of it."""
    _synchronize(seen.query)
    started = time.perf_counter()
    taken = False
    for group in cache.groups:
        decision = group.method.observe(seen) if group.acting else Keep()
        if taken and not isinstance(decision, Evict):  # two groups must not append to the same tensors
            group.stores.append(_carried_out(decision, seen, cache).copy())
            continue
        taken = taken or not isinstance(decision, Evict)
        group.stores.append(_carried_out(decision, seen, cache))
    _synchronize(seen.query)
    cache.compression_seconds += time.perf_counter() - started


def _carried_out(decision: Decision, seen: Observation, cache: CompressedCache) -> LayerStore:
    """The store that a decision leaves of the observed one, which itself stays as it is."""
    store = seen.store.remembering(decision.columns, decision.fixed, decision.marks)
    match decision:
        case Evict(index=index, lengths=lengths, oldest=oldest, rejoin=rejoin):
            step = seen.phase is Phase.STEP
            gone = {held - kept for held, kept in zip(store.lengths, lengths, strict=True)}
            if step and oldest is not None and gone == {1}:
                store.drop_after(oldest, keys=not (oldest == rejoin and _rejoined(store)))
            else:
                store = store.kept(index, lengths, room=1 if step else 0)
            if rejoin:
                _rejoin(store, seen, rejoin, cache.rotation)
        case Narrow(index=index, lengths=lengths):
            cache.stream.narrowed = (index, lengths)
    return store


def _rejoin(store: LayerStore, seen: Observation, count: int, turn: Rotation | None) -> None:
    """Move the oldest `count` keys of each row to directly precede the others.

    The keys are kept aside as they first were and always turned from there, so that rounding does not add up
    over steps.
    """
    if turn is None:
        raise ValueError("this model has no rotary embedding: use method.positions=true")
    keys, places, _ = store.oldest(store.keys, count)
    if _rejoined(store):
        first = store.fixed["rejoined"]
    else:
        first = keys.index_select(0, places).view(len(store.lengths), store.heads, count, -1)
        moved = [bool(size) for size in store.marks.get("bytes", ())]
        if any(moved):
            before = torch.tensor(moved, device=first.device)[:, None, None, None]
            first = torch.where(before, store.fixed["rejoined"], first)
    gaps = [tokens - length for tokens, length in zip(seen.tokens, store.lengths, strict=True)]
    store.fixed["rejoined"] = first
    store.marks["bytes"] = tuple(first[0].numel() * first.element_size() if gap else 0 for gap in gaps)
    keys.index_copy_(0, places, turn(first, gaps).flatten(0, 2))


def _rejoined(store: LayerStore) -> bool:
    """Whether the first keys of all rows have been moved before."""
    return all(store.marks.get("bytes", (0,)))


def _attention(
    kernel: str,
    module: Any,
    query: Tensor,
    store: LayerStore,
    arriving: Lengths,
    scaling: float,
    cache: CompressedCache,
    groups: Sequence[Group],
) -> tuple[Tensor, Tensor | None]:
    """(rows, new, query heads, size) attention over a store, by the kernel asked for; and where that is no detour, the
    mass that a method wants: on CPUs both take little longer than torch's kernel takes for the first."""
    new, entries, keys, values = query.shape[2], store.entries, store.keys, store.values
    needs_mass = any(group.acting and group.method.needs_mass for group in groups)
    if kernel == "sdpa" and query.device.type == "cpu" and needs_mass:
        output, mass = attention_with_mass(
            query, keys, values, scaling, lengths=store.lengths, query_lengths=arriving
        )
        return output.transpose(1, 2).contiguous(), mass
    if QUERIES_TOGETHER and kernel == "sdpa" and new == 1 and not is_full(store.lengths, entries):
        rows, query_heads, _, size = query.shape
        alike = query.view(rows, store.heads, -1, size)  # a stored head's queries all see the same
        padding = cache.hidden_padding(store.lengths, entries, query)
        output = F.scaled_dot_product_attention(alike, keys, values, attn_mask=padding, scale=scaling)
        return output.view(rows, 1, query_heads, -1), None
    mask = cache.attention_mask(store.lengths, entries, new, query.device)
    if kernel == "flash_attention_2":
        from transformers.integrations.flash_attention import flash_attention_forward

        padding = None if mask is None else valid(store.lengths, entries, query.device).long()
        return flash_attention_forward(module, query, keys, values, padding, scaling=scaling)[0], None
    function, kernel_mask = sdpa_attention_forward, mask
    if kernel == "eager":
        function = sys.modules[type(module).__module__].eager_attention_forward
        kernel_mask = None if mask is None and new == 1 else _additive(mask, new, entries, query)
    if (
        cache.heads == "query"
    ):  # kernels read off the module how many query heads share a stored one: here none
        module = SimpleNamespace(num_key_value_groups=1, is_causal=True, training=False)
    return function(module, query, keys, values, kernel_mask, scaling=scaling, dropout=0.0)[0], None


def _additive(mask: Tensor | None, new: int, entries: int, query: Tensor) -> Tensor:
    """The mask as numbers to add to logits: 0 where a token sees, the type's least number where not."""
    if mask is None:
        mask = torch.ones(new, entries, dtype=torch.bool, device=query.device).tril(entries - new)[None, None]
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _registered(kernel: str) -> None:
    def function(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        scale = scaling if scaling is not None else query.shape[-1] ** -0.5
        return attend(kernel, module, query, key, value, scale, kwargs[CACHE_KEYWORD]), None

    def mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        return attention_mask

    AttentionInterface.register(f"pyramid_{kernel}", function)
    AttentionMaskInterface.register(f"pyramid_{kernel}", mask)


for _kernel in KERNELS:
    _registered(_kernel)
