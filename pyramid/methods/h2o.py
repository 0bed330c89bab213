"""H2O: heavy hitters, the entries that received most attention so far, and the most recent ones (arXiv
2306.14048, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from pyramid.method import CappedMethod, Decision, Evict, Keep, Observation, protect


@dataclass(frozen=True, kw_only=True)
class H2O(CappedMethod):
    """Keeps the newest entries and, among the others, those with the largest sum of attention over all
    queries so far, prompt and answer.

    recent: the newest entries' part of the budget: a share of it in [0, 1], or a number of tokens. The
    paper's is one half. The sums live in the store's column `mass` (float32) and go with their entries; they
    are raw sums, as the authors', not normalised.
    Deviation: the paper has no grouped queries; sums run over the query heads of a key/value head.
    """

    needs_mass: ClassVar[bool] = True

    recent: int | float = 0.5

    def __post_init__(self) -> None:
        if (
            isinstance(self.recent, bool)
            or self.recent < 0
            or (isinstance(self.recent, float) and self.recent > 1)
        ):
            raise ValueError(
                f"recent={self.recent!r} is neither a share of the budget in [0, 1] nor a number of tokens"
            )
        super().__post_init__()

    @property
    def protected(self) -> tuple[int, str]:
        return (self.recent, "the recent tokens") if isinstance(self.recent, int) else (1, "the newest token")

    def score(self, seen: Observation) -> Tensor:
        newest = tuple(max(1, self._recent(kept)) for kept in self.keep(seen))
        return protect(self._mass(seen), seen, newest=newest)

    def observe(self, seen: Observation) -> Decision:
        decision = super().observe(seen)
        assert isinstance(decision, Keep | Evict)
        return replace(decision, columns={"mass": self._mass(seen)})

    def _recent(self, kept: int) -> int:
        return self.recent if isinstance(self.recent, int) else int(self.recent * kept)

    def _mass(self, seen: Observation) -> Tensor:
        before = seen.store.columns.get("mass")
        if before is None:
            return seen.attention_mass()
        return seen.once("mass so far", lambda: seen.attention_mass() + before)


METHOD = H2O
