"""PyramidKV: SnapKV's scores, more entries in lower layers and fewer in higher ones (arXiv 2406.02069,
section 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyramid.budget import BudgetPolicy, PublishedPyramid, Pyramid
from pyramid.methods.snapkv import SnapKV


@dataclass(frozen=True, kw_only=True)
class PyramidKV(SnapKV):
    """beta: how steep the pyramid is; the top layer selects 1 / beta of the mean. schedule: `exact` spends
    the budget to the token, at any prompt length; `published` is the authors' integer schedule, which
    overspends it and turns uniform below twice the budget.
    """

    beta: float = 20.0
    schedule: str = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise ValueError(f"beta={self.beta} must be at least 1, where the pyramid is flat")
        if self.schedule not in ("exact", "published"):
            raise ValueError(f"schedule={self.schedule!r} is neither exact nor published")

    @property
    def policy(self) -> BudgetPolicy:
        return Pyramid(self.beta) if self.schedule == "exact" else PublishedPyramid(int(self.beta))


METHOD = PyramidKV
