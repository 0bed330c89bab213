"""How a LongBench answer is scored, and the averages people quote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from statistics import fmean

from evaluation import metrics
from evaluation.longbench_table import CATEGORIES, CHINESE, ENGLISH, SETS, LongBenchSet
from evaluation.metrics import ScorerError

SCORERS: Mapping[str, Callable[..., float]] = {
    "f1": metrics.f1,
    "f1_zh": metrics.f1_zh,
    "rouge_l": metrics.rouge_l,
    "rouge_l_zh": metrics.rouge_l_zh,
    "classification": metrics.classification,
    "retrieval": metrics.retrieval,
    "retrieval_zh": metrics.retrieval_zh,
    "count": metrics.count,
    "code_similarity": metrics.code_similarity,
}


def check_scorer(row: LongBenchSet, code_similarity: str) -> None:
    """Errors: ValueError for an unknown code similarity, or if the metric needs a missing package."""
    if code_similarity not in metrics.CODE_SIMILARITIES:
        raise ValueError(
            f"code_similarity is {code_similarity!r}; take one of {', '.join(metrics.CODE_SIMILARITIES)}"
        )
    missing = metrics.missing_packages(*_packages(row, code_similarity))
    if missing:
        raise ValueError(
            f"longbench/{row.name} is scored with {missing[0]}, which is not installed; "
            "install it with: pip install 'pyramid-bench[longbench]'"
        )


def metric_name(row: LongBenchSet, code_similarity: str) -> str:
    """The metric, with the backend where there is a choice."""
    return f"{row.metric}_{code_similarity}" if row.metric == "code_similarity" else row.metric


def scorer_name(row: LongBenchSet, code_similarity: str) -> str:
    """The metric with the backend and its version, for the record of each answer."""
    parts = [metric_name(row, code_similarity)]
    if row.metric.startswith("rouge_l"):
        parts.append("as rouge 1.0.1")
    parts += [f"{package} {metadata.version(package)}" for package in _packages(row, code_similarity)]
    return ", ".join(parts)


def _packages(row: LongBenchSet, code_similarity: str) -> tuple[str, ...]:
    if row.metric in ("f1_zh", "rouge_l_zh"):
        return ("jieba",)
    return ("rapidfuzz",) if row.metric == "code_similarity" and code_similarity == "indel" else ()


def scored_text(row: LongBenchSet, text: str) -> str:
    return metrics.first_line(text) if row.first_line else text


def score_answer(
    row: LongBenchSet, text: str, references: Sequence[str], classes: Sequence[str], code_similarity: str
) -> tuple[float, bool]:
    """The best score in [0, 1] over the references, and whether it is a zero that an exception in the
    official scorer has a part in."""
    score = SCORERS[row.metric]
    if row.metric == "classification":
        score = partial(score, classes=classes)
    elif row.metric == "code_similarity":
        score = partial(score, backend=code_similarity)
    text, best, failed = scored_text(row, text), 0.0, False
    for reference in references:
        try:
            best = max(best, score(text, reference))
        except ScorerError:
            failed = True
    return best, failed and best == 0


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mean over sets, and what it lacks: `need` sets belong to it, `have` are in it, `in_part` of these are
    scored on a part of their rows only. `value` is None where no set is there."""

    name: str
    value: float | None
    have: int
    need: int
    in_part: int = 0

    @property
    def note(self) -> str:
        """What must stand beside the number; empty for a mean over everything that belongs to it."""
        notes = [f"{self.have} of {self.need}"] if self.have < self.need else []
        if self.in_part:
            notes.append(
                f"{self.in_part} on a part of their rows" if self.in_part > 1 else "1 on a part of its rows"
            )
        return f"partial ({', '.join(notes)})" if notes else ""


def averages(scores: Mapping[str, float], in_part: Collection[str] = ()) -> list[Average]:
    """The quoted averages of a score per set, in the scores' own unit.

    english_16: plain mean of the 16 English sets, as the KV-compression papers print it.
    categories, categories_zh: mean of the six category means over the English, or the Chinese, sets, as
        LongBench's own leaderboard prints it; the code sets count in both.
    in_part: sets that were scored on a part of their rows.
    """
    return [
        plain_average("english_16", ENGLISH, scores, in_part),
        _category_average("categories", ENGLISH, scores, in_part),
        _category_average("categories_zh", CHINESE, scores, in_part),
    ]


def plain_average(
    name: str, names: Sequence[str], scores: Mapping[str, float], in_part: Collection[str] = ()
) -> Average:
    """The mean over those of `names` that have a score."""
    return _average(name, names, scores, in_part, [scores[each] for each in names if each in scores])


def _category_average(
    name: str, names: Sequence[str], scores: Mapping[str, float], in_part: Collection[str]
) -> Average:
    groups = [
        [scores[each] for each in names if each in scores and SETS[each].category == category]
        for category in CATEGORIES
    ]
    return _average(name, names, scores, in_part, [fmean(group) for group in groups if group])


def _average(
    name: str,
    names: Sequence[str],
    scores: Mapping[str, float],
    in_part: Iterable[str],
    values: Sequence[float],
) -> Average:
    have = [each for each in names if each in scores]
    return Average(
        name=name,
        value=fmean(values) if values else None,
        have=len(have),
        need=len(names),
        in_part=len(set(have) & set(in_part)),
    )
