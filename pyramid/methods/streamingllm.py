"""StreamingLLM: attention sinks and the most recent tokens (arXiv 2309.17453, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from pyramid.method import CappedMethod, Decision, Evict, Keep, Observation
from pyramid.selection import Lengths


@dataclass(frozen=True, kw_only=True)
class StreamingLLM(CappedMethod):
    """Keeps the first `sinks` tokens and the newest ones, in every layer and head alike, and holds that at
    each decoded token.

    positions: `cache` counts positions inside the cache, as the paper does: the sinks move up to the recent
        tokens. `true` leaves them where they stood in the text.
    Deviation: the prompt itself is read with full attention, as in the authors' chat use, not token by token
        through the small cache.
    """

    sinks: int = 4
    positions: str = "cache"

    def __post_init__(self) -> None:
        if self.sinks < 0:
            raise ValueError(f"sinks={self.sinks} cannot be negative")
        if self.positions not in ("cache", "true"):
            raise ValueError(f"positions={self.positions!r} is neither cache nor true")
        super().__post_init__()

    @property
    def protected(self) -> tuple[int, str]:
        return self.sinks, "the sinks"

    def observe(self, seen: Observation) -> Decision:
        keep = self.keep(seen)
        if keep == seen.lengths:
            return Keep()
        index = _sinks_and_recents(seen.lengths, keep, seen.entries, self.sinks, seen.device)
        heads = index[:, None].expand(-1, seen.store.heads, -1)
        return Evict(
            index=heads,
            lengths=keep,
            oldest=self.sinks,
            rejoin=self.sinks if self.positions == "cache" else 0,
        )


@lru_cache(maxsize=64)
def _sinks_and_recents(
    lengths: Lengths, keep: Lengths, entries: int, sinks: int, device: torch.device
) -> Tensor:
    """(rows, max(keep)) the same choice as by score, written down: every layer of a step makes it."""
    index = torch.zeros(len(lengths), max(keep), dtype=torch.long)
    for row, (length, kept) in enumerate(zip(lengths, keep, strict=True)):
        oldest = min(sinks, kept)
        start = entries - length
        slots = [*range(start, start + oldest), *range(entries - kept + oldest, entries)]
        index[row, index.shape[1] - kept :] = torch.tensor(slots)
    return index.to(device)


METHOD = StreamingLLM
