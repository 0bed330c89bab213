"""StreamingLLM: attention sinks and the most recent tokens (arXiv 2309.17453, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pyramid.method import CappedMethod, Decision, Evict, Observation, protect


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

    def score(self, seen: Observation) -> Tensor:
        recency = -seen.age()[0].float()
        heads = seen.store.keys.shape[1]
        return protect(recency.expand(len(seen.lengths), heads, -1), seen, oldest=self.sinks)

    def observe(self, seen: Observation) -> Decision:
        decision = super().observe(seen)
        if isinstance(decision, Evict) and self.positions == "cache":
            return replace(decision, rejoin=self.sinks)
        return decision


METHOD = StreamingLLM
