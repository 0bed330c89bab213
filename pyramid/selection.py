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
        mask = valid(lengths, entries, scores.device).view(len(lengths), *[1] * (scores.dim() - 2), entries)
        scores = scores.masked_fill(~mask, math.inf)
    worst = entries - 1 - scores.flip(-1).argmin(-1, keepdim=True)
    slots = _slots(entries - max(lengths) + 1, entries, scores.device)
    return slots - (slots <= worst).long()


@lru_cache(maxsize=64)
def _slots(first: int, end: int, device: torch.device) -> Tensor:
    return torch.arange(first, end, device=device)


@lru_cache(maxsize=64)
def ends(lengths: Lengths, entries: int, oldest: int, newest: Lengths, device: torch.device) -> Tensor:
    """(rows, entries) bool: each row's `oldest` first entries and its own number of `newest` ones. Not to be changed:
    layers of one pass share it."""
    from_newest, from_oldest = age(lengths, entries, device)
    limits = torch.tensor(newest, device=device)[:, None]
    return (from_newest < limits) | ((from_oldest >= 0) & (from_oldest < oldest))


@lru_cache(maxsize=64)
def oldest(lengths: Lengths, entries: int, count: int, device: torch.device) -> Tensor:
    """(rows, count) indices of each row's oldest entries; where it has fewer, the newest again. Not to be changed."""
    starts = torch.tensor([entries - length for length in lengths], device=device)
    return (starts[:, None] + torch.arange(count, device=device)).clamp(max=entries - 1)


def take(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather entries.

    Args: tensor: (rows, heads, entries, ...), index: (rows, heads, kept). Returns: (rows, heads, kept, ...).
    """
    tail = tensor.shape[3:]
    if len(tail) == 1 and tensor.stride(3) == 1 and not any(step % tail[0] for step in tensor.stride()[:3]):
        return _take_whole(tensor, index)
    return tensor.gather(2, index.reshape(*index.shape, *[1] * len(tail)).expand(*index.shape, *tail))


def _take_whole(tensor: Tensor, index: Tensor) -> Tensor:
    """As `take`, for entries that lie in memory in one piece each: they are copied as such, which takes a fifth of the
    time of gathering their numbers."""
    rows, heads, entries, size = tensor.shape
    row, head, entry = (step // size for step in tensor.stride()[:3])
    pieces = row * (rows - 1) + head * (heads - 1) + entry * (entries - 1) + 1
    places = (index if entry == 1 else index * entry) + _starts(rows, heads, row, head, index.device)
    whole = tensor.as_strided((pieces, size), (size, 1)).index_select(0, places.reshape(-1))
    return whole.view(rows, heads, -1, size)


@lru_cache(maxsize=256)
def _starts(rows: int, heads: int, row: int, head: int, device: torch.device) -> Tensor:
    """(rows, heads, 1) where each head's entries start, given the distances between rows and between heads."""
    starts = torch.arange(rows)[:, None] * row + torch.arange(heads) * head
    return starts[..., None].to(device)


def take_tokens(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather along a stream.

    Args: tensor: (rows or 1, tokens, ...), index: (rows, kept). Returns: (rows, kept, ...).
    """
    tail = tensor.shape[2:]
    tensor = tensor.expand(index.shape[0], *tensor.shape[1:])
    return tensor.gather(1, index.reshape(*index.shape, *[1] * len(tail)).expand(*index.shape, *tail))
