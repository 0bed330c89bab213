"""Choosing and gathering entries. Pure tensor functions.

Rows of unlike length lie right-aligned in one tensor: row b's entries are the last `lengths[b]` of the entry
axis, older ones first, and what stands before them is padding. Lengths are host integers, so nothing here
waits for a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

Lengths = tuple[int, ...]
Steps = tuple[int, int, int]


def is_full(lengths: Sequence[int], entries: int) -> bool:
    """Whether no row has padding."""
    return all(length == entries for length in lengths)


def valid(lengths: Sequence[int], entries: int, device: torch.device) -> Tensor:
    """(rows, entries) bool: the entries that belong to their row. Not to be changed: layers of one pass share it."""
    return _valid(tuple(lengths), entries, device)


@lru_cache(maxsize=64)
def _valid(lengths: Lengths, entries: int, device: torch.device) -> Tensor:
    starts = torch.tensor([entries - length for length in lengths], device=device)
    return torch.arange(entries, device=device) >= starts[:, None]


def padding(lengths: Sequence[int], entries: int, device: torch.device) -> Tensor:
    """(rows, entries) bool: the opposite of `valid`. Not to be changed: layers of one pass share it."""
    return _padding(tuple(lengths), entries, device)


@lru_cache(maxsize=64)
def _padding(lengths: Lengths, entries: int, device: torch.device) -> Tensor:
    return ~_valid(lengths, entries, device)


def age(lengths: Sequence[int], entries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Distance of each entry from its row's ends. Not to be changed: layers of one pass share it.

    Returns: (entries,) 0 for the newest entry, and (rows, entries) 0 for the oldest, negative for padding."""
    return _age(tuple(lengths), entries, device)


@lru_cache(maxsize=64)
def _age(lengths: Lengths, entries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    slots = torch.arange(entries, device=device)
    starts = torch.tensor([entries - length for length in lengths], device=device)
    return entries - 1 - slots, slots - starts[:, None]


def rank(scores: Tensor, lengths: Sequence[int]) -> Tensor:
    """Entries from best to worst; ties go to the older entry, padding comes last.

    Args: scores: (rows, ..., entries). Returns: int64 indices of the same shape.
    A stable sort rather than topk, whose ties fall differently under padding and on other devices."""
    entries = scores.shape[-1]
    if not is_full(lengths, entries):
        mask = valid(lengths, entries, scores.device).view(len(lengths), *[1] * (scores.dim() - 2), entries)
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.sort(dim=-1, descending=True, stable=True).indices


def best(ranking: Tensor, keep: Sequence[int]) -> Tensor:
    """The `keep[b]` best entries of each row, oldest first, right-aligned.

    Args: ranking: from `rank`. Returns: (rows, ..., max(keep)) indices; where a row keeps fewer, its first
    slots hold 0.
    """
    kept = max(keep)
    index = ranking[..., :kept]
    if not is_full(keep, kept):
        limits = torch.tensor(list(keep), device=ranking.device).view(len(keep), *[1] * (ranking.dim() - 1))
        index = index.masked_fill(torch.arange(kept, device=ranking.device) >= limits, -1)
    return index.sort(dim=-1).values.clamp_(min=0)


def all_but_worst(scores: Tensor, lengths: Sequence[int]) -> Tensor:
    """What `best` gives for one entry less than each row has, without sorting: the step of a method that holds its
    budget while decoding.

    Args: scores: (rows, ..., entries). Returns: (rows, ..., max(lengths) - 1) indices; where a row keeps fewer, its
    first slots hold indices of padding."""
    entries = scores.shape[-1]
    if not is_full(lengths, entries):
        outside = padding(lengths, entries, scores.device)
        scores = scores.masked_fill(outside.view(len(lengths), *[1] * (scores.dim() - 2), entries), math.inf)
    worst_from_newest = scores.flip(-1).argmin(-1, keepdim=True)
    slots, before, from_newest = _slots(entries - max(lengths) + 1, entries, scores.device)
    return torch.where(from_newest < worst_from_newest, slots, before)


@lru_cache(maxsize=64)
def _slots(first: int, end: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    slots = torch.arange(first, end, device=device)
    return slots, slots - 1, end - 1 - slots


@lru_cache(maxsize=64)
def ends(lengths: Lengths, entries: int, oldest: int, newest: Lengths, device: torch.device) -> Tensor:
    """(rows, entries) bool: each row's `oldest` first entries and its own number of `newest` ones. Not to be changed:
    layers of one pass share it."""
    from_newest, from_oldest = age(lengths, entries, device)
    limits = torch.tensor(newest, device=device)[:, None]
    return (from_newest < limits) | ((from_oldest >= 0) & (from_oldest < oldest))


def take(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather entries.

    Args: tensor: (rows, heads, entries, ...), index: (rows, heads, kept). Returns: (rows, heads, kept, ...).
    """
    return take_each((tensor,), index)[0]


def take_each(tensors: Sequence[Tensor], index: Tensor) -> list[Tensor]:
    """As `take`, of several tensors. Where an entry's numbers lie in memory in one piece, the piece is copied as such,
    which takes a fifth of the time of gathering them; tensors that lie alike share the search for the pieces."""
    places: dict[Steps, Tensor] = {}
    return [_take(tensor, index, places) for tensor in tensors]


def _take(tensor: Tensor, index: Tensor, places: dict[Steps, Tensor]) -> Tensor:
    """Args: places: of the pieces, for tensors that lie in memory with these steps."""
    found = pieces(tensor)
    if found is None:
        tail = tensor.shape[3:]
        return tensor.gather(2, index.reshape(*index.shape, *[1] * len(tail)).expand(*index.shape, *tail))
    whole, steps = found
    if steps not in places:
        rows, heads = tensor.shape[:2]
        scaled = index if steps[2] == 1 else index * steps[2]
        places[steps] = (scaled + _starts(rows, heads, steps, index.device)).view(-1)
    return whole.index_select(0, places[steps]).view(*tensor.shape[:2], -1, tensor.shape[3])


def pieces(tensor: Tensor) -> tuple[Tensor, Steps] | None:
    """A view in which each entry is a row of a matrix, and how many such rows lie between one row, head and entry and
    the next. None where an entry's numbers do not lie in memory in one piece.

    Args: tensor: (rows, heads, entries, size)."""
    rows, heads, entries, *tail = tensor.shape
    *strides, last = tensor.stride()
    if len(tail) != 1 or last != 1 or any(stride % tail[0] for stride in strides):
        return None
    row, head, entry = (stride // tail[0] for stride in strides)
    count = row * (rows - 1) + head * (heads - 1) + entry * (entries - 1) + 1
    return tensor.as_strided((count, tail[0]), (tail[0], 1)), (row, head, entry)


@lru_cache(maxsize=256)
def _starts(rows: int, heads: int, steps: Steps, device: torch.device) -> Tensor:
    """(rows, heads, 1) where each head's entries start."""
    starts = torch.arange(rows)[:, None] * steps[0] + torch.arange(heads) * steps[1]
    return starts[..., None].to(device)


@lru_cache(maxsize=64)
def oldest_places(
    lengths: Lengths, entries: int, count: int, heads: int, steps: Steps, device: torch.device
) -> Tensor:
    """(rows * heads * count,) where in the matrix of `pieces` each head's oldest entries are; where it has fewer, the
    newest again. Not to be changed: layers of one pass share it."""
    starts = torch.tensor([entries - length for length in lengths], device=device)
    slots = (starts[:, None] + torch.arange(count, device=device)).clamp(max=entries - 1)
    return (slots[:, None] * steps[2] + _starts(len(lengths), heads, steps, device)).view(-1)


def take_tokens(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather along a stream.

    Args: tensor: (rows or 1, tokens, ...), index: (rows, kept). Returns: (rows, kept, ...).
    """
    tail = tensor.shape[2:]
    tensor = tensor.expand(index.shape[0], *tensor.shape[1:])
    return tensor.gather(1, index.reshape(*index.shape, *[1] * len(tail)).expand(*index.shape, *tail))
