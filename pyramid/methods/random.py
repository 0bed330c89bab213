"""Random eviction: the baseline that any score has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyramid.method import EvictingMethod, Observation, protect


@dataclass(frozen=True, kw_only=True)
class Random(EvictingMethod):
    """Keeps the newest `window` entries, as the window-based methods do, and a random choice of the others.

    The choice depends on seed, layer and prompt length only, so batches and repetitions do not change it.
    """

    window: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1")
        super().__post_init__()

    @property
    def protected(self) -> tuple[int, str]:
        return self.window, "the window"

    def score(self, seen: Observation) -> Tensor:
        return protect(seen.once(("random", self.seed), lambda: self._draw(seen)), seen, newest=self.window)

    def _draw(self, seen: Observation) -> Tensor:
        scores = torch.zeros(len(seen.lengths), seen.store.heads, seen.entries)
        for row, length in enumerate(seen.lengths):
            generator = torch.Generator().manual_seed(self.seed * 100_003 + seen.layer)
            scores[row, :, seen.entries - length :] = torch.rand(
                length, scores.shape[1], generator=generator
            ).T
        return scores.to(seen.device)


METHOD = Random
