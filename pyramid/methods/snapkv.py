"""SnapKV: the entries that the end of the prompt attends to (arXiv 2404.14469, section 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from pyramid.method import EvictingMethod, Observation
from pyramid.scoring import pool


@dataclass(frozen=True, kw_only=True)
class SnapKV(EvictingMethod):
    """Scores each entry by the attention of the last `window` tokens, smoothed along the text, and always
    keeps the window.

    window: tokens at the end of the prompt that vote and stay; kernel: odd width of the smoothing; pooling:
        `max` or `avg`.
    Deviation: scores are averaged over the query heads of a key/value head, since that is what the cache
    stores; the authors' code selects per query head on a cache that is larger by the group size
    (`protocol.cache_heads=query` does as they did).
    """

    window: int = 8
    kernel: int = 7
    pooling: str = "max"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel} must be odd, so that pooling keeps the length")
        if self.pooling not in ("max", "avg"):
            raise ValueError(f"pooling={self.pooling!r} is neither max nor avg")
        super().__post_init__()

    @property
    def protected(self) -> tuple[int, str]:
        return self.window, "the window"

    def score(self, seen: Observation) -> Tensor:
        return seen.once(("snapkv", self.window, self.kernel, self.pooling), lambda: self._score(seen))

    def _score(self, seen: Observation) -> Tensor:
        votes = seen.window_attention(self.window).mean((2, 3))
        past = max(seen.entries - self.window, 0)
        smooth = pool(votes[..., :past], self.kernel, self.pooling)
        return F.pad(smooth, (0, seen.entries - past), value=math.inf)


METHOD = SnapKV
