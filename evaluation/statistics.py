"""How sure a number is: bootstrap intervals, and differences between two runs on the same samples.

Scores of a few hundred samples carry several points of chance. A table that shows a mean without its
interval, or compares two means without pairing the samples, invites conclusions that the next hundred
samples would undo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np


def bootstrap_interval(
    values: Sequence[float], confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` (Efron 1979).

    The same values in any order and the same seed give the same interval. One value, or equal values, give an
    interval of no width, which says nothing about the uncertainty.
    Errors: ValueError without values, or if one is not finite.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if sample.size == 0:
        raise ValueError("an interval needs at least one value, and there is none")
    if not np.isfinite(sample).all():
        raise ValueError("an interval needs finite values, and one of these is infinite or not a number")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1; 0.95 is customary")
    draw = np.random.default_rng(seed)
    means = [sample[draw.integers(sample.size, size=sample.size)].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """How much one run scores above another on the samples that both answered.

    difference, low, high: mean of (first - second) over the pairs, and its interval.
    gained, lost: samples on which the first is better, or worse; together they are the flips.
    left_out: samples that only one of the two answered.
    distinguishable: the interval excludes zero, and enough samples differ for chance to be an unlikely
        reason: that k samples all differ in one direction happens by chance with probability 2 ** (1 - k).
    """

    pairs: int
    left_out: int
    difference: float
    low: float
    high: float
    gained: int
    lost: int
    distinguishable: bool

    @property
    def flips(self) -> int:
        return self.gained + self.lost


def paired_difference(
    first: Mapping[str, float],
    second: Mapping[str, float],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> PairedDifference:
    """Compare two runs by sample id. Errors: ValueError if they have no sample in common."""
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise ValueError("the two runs have no answered sample in common, so they cannot be compared")
    differences = np.array([first[id] - second[id] for id in shared], dtype=np.float64)
    low, high = bootstrap_interval(differences.tolist(), confidence, resamples, seed)
    gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
    enough = 2.0 ** (1 - gained - lost) <= 1 - confidence
    return PairedDifference(
        pairs=len(shared),
        left_out=len(first.keys() ^ second.keys()),
        difference=float(differences.mean()),
        low=low,
        high=high,
        gained=gained,
        lost=lost,
        distinguishable=enough and (low > 0 or high < 0),
    )


def paired_ratio(
    first: Mapping[str, float],
    second: Mapping[str, float],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> PairedDifference:
    """As `paired_difference`, for positive scores without a fixed scale, of which the lower is the better one.

    Differences are those of natural logarithms, so exp(difference) says how many times the second's scores the first's
    are, as a geometric mean over the pairs. Errors: ValueError also for a score that is not positive."""
    for score in (*first.values(), *second.values()):
        if not score > 0:
            raise ValueError(f"scores are compared by their ratio, and {score} is not above 0")
    logarithms = [{id: math.log(score) for id, score in scores.items()} for scores in (first, second)]
    found = paired_difference(*logarithms, confidence=confidence, resamples=resamples, seed=seed)
    return replace(found, gained=found.lost, lost=found.gained)
