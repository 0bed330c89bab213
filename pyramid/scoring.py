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

from pyramid.selection import is_full, valid

BLOCK_ELEMENTS = (
    1 << 20
)  # attention weights held at once while masses are summed: on CPUs, as many as a cache takes
DEVICE_BLOCK_ELEMENTS = 1 << 25  # the same elsewhere, where many small products would wait for each other
BLOCK_QUERIES = 64


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
        logits.masked_fill_(~valid(lengths, entries, key.device)[:, None, None, None, :], -math.inf)
    weights = logits.softmax(-1)
    if min(query_lengths) < last:
        weights = weights * valid(query_lengths, last, key.device)[:, None, None, :, None]
    return weights.nan_to_num()


def attention_mass(
    query: Tensor,
    key: Tensor,
    scaling: float,
    *,
    lengths: Sequence[int],
    query_lengths: Sequence[int],
    normalizer: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """The attention each entry receives, summed over all new tokens and the query heads of its group.

    Works row by row through blocks of queries, so memory grows with k and never with q * k. An attention weight
    is exp(scaling * q.k - normaliser), so one matrix product with one more column gives its exponent.
    Args:
        query: (r, h * g, q, d); key: (r, h, k, d).
        normalizer: (r, h * g, q) log of each query's softmax denominator, where the attention kernel gave it;
            saves a pass.
        weights: (r, q) how much each query counts; 1 if not given.
    Returns: (r, h, k) float32, summing to q * g over the entries of a sequence of q new tokens.
    """
    rows, query_heads, new, size = query.shape
    heads, entries = key.shape[1:3]
    if new == 1 and weights is None:
        one = window_attention(query, key, scaling, last=1, lengths=lengths, query_lengths=query_lengths)
        return one.sum((2, 3))
    if rows > 1 and rows * query_heads * new * entries > _block_elements(key.device):
        alone = [
            attention_mass(
                query[row, None, :, new - fresh :],
                key[row, None, :, entries - length :],
                scaling,
                lengths=(length,),
                query_lengths=(fresh,),
                normalizer=None if normalizer is None else normalizer[row, None, :, new - fresh :],
                weights=None if weights is None else weights[row, None, new - fresh :],
            )
            for row, (length, fresh) in enumerate(zip(lengths, query_lengths, strict=True))
        ]
        return torch.cat([F.pad(mass, (entries - mass.shape[2], 0)) for mass in alone])
    full = is_full(lengths, entries)
    if normalizer is None:
        normalizer = _normalizer(query, key, scaling, lengths)
    shift = -normalizer
    if weights is not None:
        shift = shift + weights.log()[:, None]
    if not is_full(query_lengths, new):
        shift = shift.masked_fill(~valid(query_lengths, new, key.device)[:, None], -math.inf)
    grouped = torch.cat([query.float() * scaling, shift[..., None]], -1)
    extended_key = F.pad(key.float(), (0, 1), value=1.0).transpose(2, 3)
    mass = _summed(grouped.view(rows * heads, -1, new, size + 1), extended_key.flatten(0, 1))
    mass = mass.view(rows, heads, entries)
    return mass if full else mass * valid(lengths, entries, key.device)[:, None]


def _summed(query: Tensor, key: Tensor) -> Tensor:
    """exp(query . key) summed over the queries that see the key, from blocks of queries and heads. All blocks share one
    piece of memory: a fresh one for each would take half as long again.

    Args: query: (heads, group, q, d); key: (heads, d, k). Returns: (heads, k)."""
    heads, group, new, size = query.shape
    entries, device = key.shape[2], key.device
    elements = _block_elements(device)
    step = max(1, min(new, elements // (group * entries), BLOCK_QUERIES))
    together = max(1, min(heads, elements // (group * step * entries)))
    buffer = torch.empty(together * group * step * entries, device=device)
    mass = torch.zeros(heads, entries, device=device)
    for some in (slice(first, min(first + together, heads)) for first in range(0, heads, together)):
        for start in range(0, new, step):
            stop = min(start + step, new)
            end = entries - new + stop  # behind the last entry that any query of the block sees
            block = query[some, :, start:stop].reshape(some.stop - some.start, -1, size)
            weights = buffer[: block.shape[0] * block.shape[1] * end].view(*block.shape[:2], end)
            torch.bmm(block, key[some, :, :end], out=weights)
            newest = weights.view(-1, stop - start, end)[..., end - (stop - start) :]
            newest.masked_fill_(_future(stop - start, device), -math.inf)
            mass[some, :end] += weights.exp_().sum(1)
    return mass


def _block_elements(device: torch.device) -> int:
    return BLOCK_ELEMENTS if device.type == "cpu" else DEVICE_BLOCK_ELEMENTS


def _normalizer(query: Tensor, key: Tensor, scaling: float, lengths: Sequence[int]) -> Tensor:
    """(r, h * g, q) log of each query's softmax denominator; infinite for queries that see nothing."""
    rows, query_heads, new, _ = query.shape
    entries = key.shape[2]
    hidden = (
        None if is_full(lengths, entries) else ~valid(lengths, entries, key.device)[:, None, None, None, :]
    )
    found = torch.empty(rows, query_heads, new, device=query.device)
    step = max(1, min(256, _block_elements(key.device) // (rows * query_heads * entries)))
    for start in range(0, new, step):
        stop = min(start + step, new)
        end = entries - new + stop
        logits = _logits(query[:, :, start:stop], key[:, :, :end], scaling)
        logits[..., end - (stop - start) :].masked_fill_(_future(stop - start, key.device), -math.inf)
        if hidden is not None:
            logits.masked_fill_(hidden[..., :end], -math.inf)
        found[:, :, start:stop] = logits.logsumexp(-1).flatten(1, 2)
    return found.masked_fill_(found == -math.inf, math.inf)


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
    grouped = query.reshape(rows, heads, -1, size)
    return (
        torch.matmul(grouped, key.transpose(2, 3))
        .float()
        .mul_(scaling)
        .view(rows, heads, query_heads // heads, new, entries)
    )
