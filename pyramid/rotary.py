"""Moving keys that are already rotated to other positions, with the model's own rotary embedding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

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

    def rotate(keys: Tensor, distances: Sequence[int]) -> Tensor:
        positions = torch.tensor(list(distances), device=keys.device)[:, None]
        exact = keys.float()
        cos, sin = embedding(exact, positions)
        scale = getattr(embedding, "attention_scaling", 1.0)
        moved = apply(exact, exact, cos / scale, sin / scale)[1]
        return moved.to(keys.dtype)

    return rotate
