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
    def angles(distances: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        positions = torch.tensor(distances, device=device)[:, None]
        cos, sin = embedding(torch.empty(0, device=device), positions)
        scale = getattr(embedding, "attention_scaling", 1.0)
        return cos / scale, sin / scale

    def rotate(keys: Tensor, distances: Sequence[int]) -> Tensor:
        exact = keys.float()
        none = exact[:, :0]  # what the model's function turns along, as it wants queries and keys
        return apply(none, exact, *angles(tuple(distances), keys.device))[1].to(keys.dtype)

    return rotate
