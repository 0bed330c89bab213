"""What runs say, as values and as tidy frames: recomputed from the predictions, named by the specifications.

Nothing here is read out of a folder's name, and no mean is taken over from a summary that the predictions
can give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from evaluation.palette import look, place
from evaluation.results import Run
from evaluation.statistics import PairedDifference, paired_difference, paired_ratio
from evaluation.summary import MEANS, summarize

if TYPE_CHECKING:
    import pandas

BASELINE = "fullkv"
STALE = "its summary does not agree with its predictions, which are what is shown"


@dataclass(frozen=True)
class Result:
    """One run's numbers. Scores are in [0, 1] here, and times 100 in whatever is shown; those of which the lower is the
    better one have no such scale, and are shown as they are."""

    run: Run

    @property
    def method(self) -> str:
        return self.run.spec.method["name"]

    @property
    def budget(self) -> int | float | None:
        return self.run.spec.budget

    @property
    def task(self) -> str:
        return self.run.spec.task["name"]

    @property
    def family(self) -> str:
        """What its task belongs to: `longbench` for `longbench/qasper`."""
        return self.task.split("/")[0]

    @property
    def is_baseline(self) -> bool:
        return self.method == BASELINE

    @property
    def label(self) -> str:
        """The method's name and its budget, for people."""
        return f"{look(self.method).label} {budget_text(self.budget)}".strip()

    @cached_property
    def answered(self) -> list[dict[str, Any]]:
        return [record for record in self.run.records if record["error"] is None]

    @cached_property
    def metric(self) -> str:
        """The headline metric, which comes first in every record's scores; empty if nothing was answered."""
        return next((metric for record in self.answered for metric in record["scores"]), "")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """As `evaluation.summary.summarize` gives it from the predictions. A score that is no mean over
        samples, which only the task can compute, is the one that the run's own summary has."""
        stored = self.run.summary or {}
        means: Any = _Means(self.task, self.answered, stored)
        environments = stored.get("environments", [])
        found = summarize(self.run.records, spec=self.run.spec, task=means, environments=environments)
        for metric, score in stored.get("scores", {}).items():
            if metric not in stored.get("intervals", {}):
                found["scores"][metric] = score
                found["intervals"].pop(metric, None)
            elif abs(score - found["scores"].get(metric, score)) > 1e-9 and STALE not in found["warnings"]:
                found["warnings"].append(STALE)
        return found

    @property
    def score(self) -> float | None:
        return self.summary["scores"].get(self.metric)

    @property
    def lower_is_better(self) -> bool:
        return self.metric in self.summary["lower_is_better"]

    @property
    def scale(self) -> int:
        """What a score is multiplied by where it is shown: 100 makes points."""
        return 1 if self.lower_is_better else 100

    @property
    def shown(self) -> float | None:
        """The headline score as it is shown."""
        return None if self.score is None else self.scale * self.score

    @property
    def shown_interval(self) -> tuple[float, float] | None:
        return self.interval and (self.scale * self.interval[0], self.scale * self.interval[1])

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the headline score; None if it is no mean over samples, or a mean over fewer than two."""
        if len(self.scores) < 2:
            return None
        found = self.summary["intervals"].get(self.metric)
        return None if found is None else (found[0], found[1])

    @cached_property
    def scores(self) -> dict[str, float]:
        """Sample id to headline score."""
        return self.run.scores(self.metric)

    @cached_property
    def answer_lengths(self) -> dict[str, float]:
        return {record["id"]: float(record["new_tokens"]) for record in self.answered}

    def against(self, other: Result) -> PairedDifference | None:
        """How much higher this run scores than `other`; None if no sample was answered in both. Where the lower score
        is the better one the difference is of logarithms, as `paired_ratio` explains."""
        if not self.scores.keys() & other.scores.keys():
            return None
        if other.run.key not in self._compared:
            compare = paired_ratio if self.lower_is_better else paired_difference
            self._compared[other.run.key] = compare(self.scores, other.scores)
        return self._compared[other.run.key]

    @cached_property
    def _compared(self) -> dict[str, PairedDifference]:
        return {}

    @property
    def prompt(self) -> str:
        """The name of the prompt that its samples were put in, as far as they tell."""
        names = {str(record["meta"].get("prompt", self.task)) for record in self.run.records}
        return " and ".join(sorted(names)) or self.task


class _Means:
    """Stands for a task whose scores are means over samples, as far as `summarize` asks. stored: the run's own summary,
    which says what kind of mean each is."""

    def __init__(self, name: str, answered: Sequence[Mapping[str, Any]], stored: Mapping[str, Any]) -> None:
        self.name = name
        self.lower_is_better = tuple(stored.get("lower_is_better", ()))
        self.kinds = stored.get("means", {})
        self.metrics = tuple(dict.fromkeys(metric for record in answered for metric in record["scores"]))

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        values = {m: [r["scores"][m] for r in records if m in r["scores"]] for m in self.metrics}
        return {m: MEANS[self.kinds.get(m, "arithmetic")](found) for m, found in values.items() if found}


def results_of(runs: Sequence[Run]) -> list[Result]:
    """The runs that have tried all their samples, by task, method and budget, each once."""
    unique = {run.key: Result(run) for run in runs if run.summary is not None}
    return sorted(unique.values(), key=lambda r: (r.task, place(r.method), budget_place(r.budget), r.run.key))


def budget_text(budget: int | float | None) -> str:
    """A budget for people: `128`, `10 %`, or nothing."""
    if budget is None:
        return ""
    return str(budget) if isinstance(budget, int) else f"{100 * budget:g} %"


def budget_place(budget: int | float | None) -> tuple[int, float]:
    """What to sort budgets by: none, then tokens, then shares."""
    return (0, 0.0) if budget is None else (1 if isinstance(budget, int) else 2, float(budget))


def run_frame(results: Sequence[Result]) -> pandas.DataFrame:
    """One row a run: who answered what under which rules, the headline score in [0, 1] (or from 0 on, where
    `lower_is_better`) with its interval, what was held and what it cost."""
    import pandas

    return pandas.DataFrame([_run_row(result) for result in results]).convert_dtypes()


def sample_frame(results: Sequence[Result]) -> pandas.DataFrame:
    """One row a sample of a run, failed ones included. `kept_tokens` are means over layers; a score is in
    [0, 1]."""
    import pandas

    rows = [_sample_row(result, record) for result in results for record in result.run.records]
    return pandas.DataFrame(rows).convert_dtypes()


def write_frames(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write `runs.csv` and `samples.csv`, and both as parquet where pyarrow is installed; return the
    files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, frame in (("runs", run_frame(results)), ("samples", sample_frame(results))):
        files.append(folder / f"{name}.csv")
        frame.to_csv(files[-1], index=False, lineterminator="\n")
        if find_spec("pyarrow") is not None:
            files.append(folder / f"{name}.parquet")
            frame.to_parquet(files[-1], index=False)
    return files


def _identity(result: Result) -> dict[str, Any]:
    spec = result.run.spec
    return {
        "key": result.run.key,
        "task": result.task,
        "metric": result.metric,
        "prompt": result.prompt,
        "template": spec.protocol.get("template"),
        "protocol": spec.protocol.get("name"),
        "model": spec.model.get("id"),
        "method": result.method,
        "parameters": json.dumps({k: v for k, v in spec.method.items() if k != "name"}, sort_keys=True),
        "budget": None if spec.budget is None else str(spec.budget),
    }


def _run_row(result: Result) -> dict[str, Any]:
    summary = result.summary
    low, high = result.interval or (None, None)
    held = {name: value for name, value in summary["held"].items() if not isinstance(value, list)}
    counts = ("n", "failed", "compressed", "truncated", "prompt_tokens", "new_tokens", "prefill_work")
    return {
        **_identity(result),
        "score": result.score,
        "low": low,
        "high": high,
        "lower_is_better": result.lower_is_better,
        **{name: summary[name] for name in counts},
        **{f"held_{name}": value for name, value in held.items()},
        **{f"{phase}_seconds": value for phase, value in summary["seconds"].items()},
    }


def _sample_row(result: Result, record: Mapping[str, Any]) -> dict[str, Any]:
    whole = ("prompt_tokens", "new_tokens", "finish", "truncated", "compressed", "bytes_after_prompt")
    whole += ("bytes_at_end", "full_bytes_after_prompt", "prefill_work", "error")
    means = {name: record[name] and fmean(record[name]) for name in ("kept_tokens", "kept_tokens_at_end")}
    return {
        **_identity(result),
        "id": record["id"],
        "score": record["scores"].get(result.metric),
        **{name: record[name] for name in whole},
        **means,
        **{f"{phase}_seconds": value for phase, value in record["seconds"].items()},
    }
