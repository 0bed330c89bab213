"""LongBench as a task: one of its 21 sets, or of LongBench-E's 13, is read, made into samples and scored.

The sets are rows of `evaluation.longbench_table`; docs/longbench.md says what is official and what is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from evaluation import metrics
from evaluation.longbench_rows import Item, read_items
from evaluation.longbench_scoring import check_scorer, metric_name, score_answer, scored_text, scorer_name
from evaluation.longbench_table import BUCKETS, LongBenchSet, bucket, find_set
from evaluation.prompts import Prompter
from evaluation.types import Sample
from pyramid.types import Answer

VERSION = 1  # raised whenever the same parameters give other samples or scores

# Metrics beside the headline of ROUGE sets: the share of answers whose zero comes from an exception in the
# official scorer, and ROUGE-L by the package that newer papers use.
SCORER_ERROR, MODERN = "scorer_error", "rouge_score_l"

TEMPLATES = ("by_set", "always", "never")


@dataclass(frozen=True, kw_only=True)
class LongBench:
    """The fields are those of conf/task/longbench.yaml.

    set: its name, with the suffix `_e` for the LongBench-E form.
    data: a folder, zip archive or file with the published rows; None looks into the user's cache.
    code_similarity: what compares code: `difflib`, which gives the official numbers, or `indel`.
    skip_longer_than: leave out rows whose whole prompt has more tokens.
    shortest: of what is left, only so many rows, those of least published length.
    template: `by_set` lets a chat template wrap the prompt where LongBench does; or `always`, or `never`.
    max_new_tokens: None takes the set's own.

    Errors: ValueError with the offending value and the mend.
    """

    lower_is_better: ClassVar[tuple[str, ...]] = ()

    set: str
    data: str | Path | None = None
    code_similarity: str = "difflib"
    skip_longer_than: int | None = None
    shortest: int | None = None
    template: str = "by_set"
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        check_scorer(self.row, self.code_similarity)
        for field in ("skip_longer_than", "shortest", "max_new_tokens"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{self.name}: {field} is {value}; give a number from 1 on, or null")
        if self.template not in TEMPLATES:
            raise ValueError(
                f"{self.name}: template is {self.template!r}; take one of {', '.join(TEMPLATES)}"
            )

    @property
    def name(self) -> str:
        return f"longbench/{self.set}"

    @property
    def row(self) -> LongBenchSet:
        return find_set(self.set)

    @property
    def metrics(self) -> tuple[str, ...]:
        return (metric_name(self.row, self.code_similarity), *self._extra_metrics)

    def identity(self) -> dict[str, Any]:
        return {
            "task": "longbench",
            "version": VERSION,
            "set": self.set,
            "metric": self.metrics[0],
            "data_sha256": read_items(self.row, self.data).sha256,
            "skip_longer_than": self.skip_longer_than,
            "shortest": self.shortest,
            "template": self.template,
            "max_new_tokens": self._answer_tokens,
        }

    def samples(self, prompter: Prompter) -> Sequence[Sample]:
        samples = [self._sample(item, prompter) for item in read_items(self.row, self.data).items]
        if self.skip_longer_than is not None:
            samples = [sample for sample in samples if self._is_short(sample, prompter)]
            if not samples:
                raise ValueError(
                    f"{self.name}: no row has a prompt of at most {self.skip_longer_than} tokens"
                )
        by_length = sorted(samples, key=lambda sample: sample.meta["length"])
        chosen = {sample.id for sample in by_length[: self.shortest]}
        return tuple(sample for sample in samples if sample.id in chosen)

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        text = answer.text
        classes = sample.meta["all_classes"] or ()
        value, failed = score_answer(self.row, text, sample.references, classes, self.code_similarity)
        scores = {self.metrics[0]: value}
        if SCORER_ERROR in self._extra_metrics:
            scores[SCORER_ERROR] = float(failed)
        if MODERN in self._extra_metrics:
            scores[MODERN] = max(
                metrics.rouge_score_l(scored_text(self.row, text), each) for each in sample.references
            )
        return scores

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Means over samples; for LongBench-E the headline also by length, where there are samples."""
        common = [name for name in self.metrics if all(name in record["scores"] for record in records)]
        summary = {name: fmean(record["scores"][name] for record in records) for name in common if records}
        if self.row.extended:
            for name in BUCKETS:
                part = [
                    each["scores"][self.metrics[0]]
                    for each in records
                    if bucket(each["meta"]["length"]) == name
                ]
                if part:
                    summary[f"{self.metrics[0]} {name}"] = fmean(part)
        return summary

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        return []

    @property
    def _answer_tokens(self) -> int:
        return self.max_new_tokens or self.row.answer_tokens

    @cached_property
    def _extra_metrics(self) -> tuple[str, ...]:
        if not self.row.metric.startswith("rouge_l"):
            return ()
        modern = self.row.metric == "rouge_l" and not metrics.missing_packages("rouge_score")
        return (MODERN, SCORER_ERROR) if modern else (SCORER_ERROR,)

    def _sample(self, item: Item, prompter: Prompter) -> Sample:
        """Under the paper's layout every answer has at least one token, as its authors' code forces."""
        row = self.row
        context, question = row.split(item.context, item.input)
        return Sample(
            id=item.id,
            context=context,
            question=question,
            references=item.answers,
            max_new_tokens=self._answer_tokens,
            min_new_tokens=1 if row.newline_stop or prompter.protocol.layout == "paper" else 0,
            template=row.chat if self.template == "by_set" else self.template == "always",
            stop_at_newline=row.newline_stop,
            meta={
                "set": row.name,
                "prompt": f"longbench/{row.dataset}",
                "scorer": scorer_name(row, self.code_similarity),
                "length": item.length,
                "all_classes": list(item.classes) or None,
            },
        )

    def _is_short(self, sample: Sample, prompter: Prompter) -> bool:
        assert self.skip_longer_than is not None
        prompt = prompter.render(sample)
        return not prompt.truncated and prompt.tokens <= self.skip_longer_than


TASK = LongBench
