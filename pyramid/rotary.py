"""Moving keys that are already rotated to other positions, with the model's own rotary embedding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

Rotation = Callable[[Tensor, Sequence[int]], Tensor]


def rotation(decoder: nn.Module) -> Rotation | None:
    """A function that moves keys forward: (rows, heads, entries, size) and one distance a row to moved keys
    of the same shape.

    Rotations add up, so a key at position p turned by d is the key at p + d. Returns None for a model without
    rotary embedding.
    """
    embedding = getattr(decoder, "rotary_emb", None)
    apply = getattr(sys.modules[type(decoder).__module__], "apply_rotary_pos_emb", None)
    if embedding is None or apply is None:
        return None

    @lru_cache(maxsize=8)  # the layers of one forward pass ask for the same distances
    def matrices(distances: tuple[int, ...], size: int, device: torch.device) -> Tensor:
        """(rows, size, size): the model's function of a basis, so that one product turns any number of keys."""
        positions = torch.tensor(distances, device=device)[:, None]
        cos, sin = embedding(torch.empty(0, device=device), positions)
        scale = getattr(embedding, "attention_scaling", 1.0)
        basis = torch.eye(size, device=device).expand(len(distances), 1, size, size)
        none = basis[:, :0]  # what the function turns along, as it wants queries and keys
        return apply(none, basis, cos / scale, sin / scale)[1][:, 0]

    def rotate(keys: Tensor, distances: Sequence[int]) -> Tensor:
        turning = matrices(tuple(distances), keys.shape[3], keys.device)
        return torch.bmm(keys.float().flatten(1, 2), turning).view(keys.shape).to(keys.dtype)

    return rotate
