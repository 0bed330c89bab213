"""What the methods measure on a layer's attention. Pure tensor functions, in float32 whatever the model's
type.

Shapes: rows r, query heads, key/value heads h, queries per key/value head g, new tokens q, stored entries k,
head size d. New tokens are the last q of the k entries. Queries and entries are right-aligned per row, see
`pyramid.selection`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pyramid.selection import is_full, padding, valid

BLOCK_ELEMENTS = 1 << 20  # attention weights of a block: on CPUs, what a cache takes
DEVICE_BLOCK_ELEMENTS = 1 << 25  # the same elsewhere, where many small products would wait for each other
BLOCK_QUERIES = 64  # at most, of a block


def window_attention(
    query: Tensor,
    key: Tensor,
    scaling: float,
    *,
    last: int,
    lengths: Sequence[int],
    query_lengths: Sequence[int],
) -> Tensor:
    """The attention of the last tokens over all entries, causal and blind to padding.

    Args: query: (r, h * g, q, d); key: (r, h, k, d); last: tokens of the window, at most q are used.
    Returns: (r, h, g, window, k) float32; rows of the window that a sequence does not have are zero."""
    last = min(last, query.shape[2])
    logits = _logits(query[:, :, query.shape[2] - last :], key, scaling)
    entries = key.shape[2]
    if last > 1:
        logits[..., entries - last :].masked_fill_(_future(last, key.device), -math.inf)
    if not is_full(lengths, entries):
        outside = padding(lengths, entries, key.device)
        logits.masked_fill_(outside.view(len(lengths), 1, 1, 1, entries), -math.inf)
    weights = logits.softmax(-1)
    if min(query_lengths) < last:
        weights = (weights * valid(query_lengths, last, key.device)[:, None, None, :, None]).nan_to_num()
    return weights


def attention_mass(
    query: Tensor,
    key: Tensor,
    scaling: float,
    *,
    lengths: Sequence[int],
    query_lengths: Sequence[int],
    weights: Tensor | None = None,
) -> Tensor:
    """The attention each entry receives, summed over all new tokens and the query heads of its group.

    Works through blocks of queries, so memory grows with k and never with q * k.
    Args:
        query: (r, h * g, q, d); key: (r, h, k, d).
        weights: (r, q) how much each query counts; 1 if not given.
    Returns: (r, h, k) float32, summing to q * g over the entries of a sequence of q new tokens.
    """
    return _summed(query, key, None, scaling, lengths, query_lengths, weights)[0]


def attention_with_mass(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    *,
    lengths: Sequence[int],
    query_lengths: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """The attention itself and `attention_mass`, from the same weights.

    Args: as there; value: (r, h, k, d).
    Returns: output (r, h * g, q, d), 0 for new tokens that a sequence does not have, and mass (r, h, k) float32."""
    mass, output = _summed(query, key, value, scaling, lengths, query_lengths, None)
    assert output is not None
    return output, mass


def _summed(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    scaling: float,
    lengths: Sequence[int],
    query_lengths: Sequence[int],
    weights: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Mass and, with values, output."""
    rows, query_heads, new, _ = query.shape
    heads, entries = key.shape[1:3]
    if new == 1:
        attention = window_attention(
            query, key, scaling, last=1, lengths=lengths, query_lengths=query_lengths
        ).flatten(2, 3)
        mass = attention.sum(2) if weights is None else attention.sum(2) * weights[:, None]
        if value is None:
            return mass, None
        mixed = torch.bmm(attention.to(value.dtype).flatten(0, 1), value.flatten(0, 1))
        return mass, mixed.view(rows, query_heads, 1, -1)
    mass = torch.zeros(rows, heads, entries, device=key.device)
    parts, create = [(slice(None), entries, new)], torch.empty
    if not (is_full(lengths, entries) and is_full(query_lengths, new)):
        parts = [(slice(r, r + 1), *both) for r, both in enumerate(zip(lengths, query_lengths, strict=True))]
        create = torch.zeros
    output = None
    if value is not None:
        output = create(rows, new, query_heads, value.shape[3], dtype=value.dtype, device=value.device)
    for some, length, fresh in parts:
        if not fresh:
            continue
        scaled = query[some, :, new - fresh :].float().mul(scaling)
        found, mixed = _by_blocks(
            scaled.unflatten(1, (heads, -1)).transpose(2, 3).flatten(0, 1),
            key[some, :, entries - length :].float().flatten(0, 1),
            None if value is None else value[some, :, entries - length :].float().flatten(0, 1),
            None
            if weights is None
            else weights[some, None, new - fresh :].expand(-1, heads, -1).flatten(0, 1),
        )
        mass[some, :, entries - length :] = found.view(-1, heads, length)
        if output is not None and mixed is not None:
            own = output[some, new - fresh :].unflatten(2, (heads, -1))
            own.copy_(mixed.unflatten(0, (-1, heads)).transpose(1, 2))
    return mass, None if output is None else output.transpose(1, 2)


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Mass and, with values, output, from blocks of queries and heads that each see all their entries. The blocks share
    their memory: fresh memory for each takes half as long again.

    Args: query: (heads, q, group, d), scaled; key, value: (heads, k, d); weights: (heads, q). Returns: (heads, k) and
    (heads, q, group, d)."""
    heads, new, group, _ = query.shape
    entries, device = key.shape[1], key.device
    elements = BLOCK_ELEMENTS if device.type == "cpu" else DEVICE_BLOCK_ELEMENTS
    step = max(1, min(new, elements // (group * entries), BLOCK_QUERIES))
    together = max(1, min(heads, elements // (group * step * entries)))
    copies = 1 if device.type == "cpu" else 2  # a softmax onto itself is known to be right on CPUs
    memory = torch.empty(copies, together * group * step * entries, device=device)
    hidden = torch.zeros(step, 1, step, device=device).masked_fill_(_future(step, device)[:, None], -math.inf)
    hidden = hidden.expand(step, group, step).flatten(0, 1)
    mass = torch.zeros(heads, entries, device=device)
    output = None if value is None else value.new_empty(heads, new * group, value.shape[2])
    rows, turned = query.flatten(1, 2), key.transpose(1, 2)
    for some in (slice(first, min(first + together, heads)) for first in range(0, heads, together)):
        for start in range(0, new, step):
            stop = min(start + step, new)
            seen, place = entries - new + stop, slice(start * group, stop * group)  # `seen` by the last query
            block = rows[some, place]
            shape = (*block.shape[:2], seen)
            logits, attention = (memory[part, : math.prod(shape)].view(shape) for part in (0, -1))
            torch.bmm(block, turned[some, :, :seen], out=logits)
            logits[:, :, seen - (stop - start) :].add_(hidden[: shape[1], : stop - start])
            torch.softmax(logits, -1, out=attention)
            if output is not None and value is not None:
                torch.bmm(attention, value[some, :seen], out=output[some, place])
            if weights is not None:
                attention.view(-1, stop - start, group, seen).mul_(weights[some, start:stop, None, None])
            mass[some, :seen].add_(attention.sum(1))
    return mass, None if output is None else output.view(heads, new, group, -1)


def _future(tokens: int, device: torch.device) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)


def pool(scores: Tensor, kernel: int, kind: str) -> Tensor:
    """Smooth scores along the entries, length preserved.

    Args: scores: (r, h, k); kernel: odd; kind: `max`, or `avg` where padding counts in the divisor, as
    torch's default.
    """
    if kernel == 1:
        return scores
    if kind == "max":
        return F.max_pool1d(scores, kernel, stride=1, padding=kernel // 2)
    return F.avg_pool1d(scores, kernel, stride=1, padding=kernel // 2)


def _logits(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """(r, h, g, q, k) scaled dot products in float32."""
    rows, query_heads, new, size = query.shape
    heads, entries = key.shape[1:3]
    logits = torch.bmm(query.reshape(rows * heads, -1, size), key.flatten(0, 1).transpose(1, 2))
    return logits.float().mul_(scaling).view(rows, heads, query_heads // heads, new, entries)
