"""A summary's numbers are means over answered samples, and what a reader must know stands in its warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from evaluation.results import RunSpec
from evaluation.summary import summarize

FAILED = {"error": "out of memory", "scores": {}, "truncated": False}


class Recall:
    """Scores by the mean of `recall`, as most tasks do."""

    name = "needle"
    metrics = ("recall",)
    lower_is_better = ()

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {"recall": sum(record["scores"]["recall"] for record in records) / len(records)}


class Best(Recall):
    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {"recall": max(record["scores"]["recall"] for record in records)}


def record(recall: float = 1.0, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "error": None,
        "scores": {"recall": recall},
        "prompt_tokens": 1000,
        "new_tokens": 10,
        "truncated": False,
        "compressed": True,
        "kept_tokens": [160, 96],
        "kept_tokens_at_end": [170, 106],
        "bytes_after_prompt": 256,
        "bytes_at_end": 276,
        "full_bytes_after_prompt": 2000,
        "prefill_work": 1.0,
        "seconds": {"prefill": 2.0, "decode": 1.0},
    }
    return values | changes


def summary(
    *records: dict[str, Any], task: Any = None, environments: int = 1, **changes: Any
) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "model": {"id": "tiny"},
        "method": {"name": "pyramidkv"},
        "budget": 128,
        "protocol": {"name": "fair", "question": "in_prompt"},
        "task": {"name": "needle"},
        "subset": {"limit": None, "ids": None},
        "seed": 0,
        "engine": "1",
    }
    machines = [{"device": f"cuda:{number}"} for number in range(environments)]
    chosen: Any = task or Recall()
    return summarize(records, spec=RunSpec(**parts | changes), task=chosen, environments=machines)


def test_numbers_are_means_over_samples_and_seconds_are_sums():
    longer = record(
        0.5, prompt_tokens=3000, kept_tokens=[180, 76], full_bytes_after_prompt=6000, new_tokens=30
    )
    found = summary(record(1.0), longer)
    assert found["scores"] == {"recall": 0.75}
    assert found["held"] == {
        "tokens_after_prompt": 128.0,
        "tokens_at_end": 138.0,
        "tokens_after_prompt_per_layer": [170.0, 86.0],
        "tokens_at_end_per_layer": [170.0, 106.0],
        "bytes_after_prompt": 256.0,
        "bytes_at_end": 276.0,
        "full_bytes_after_prompt": 4000.0,
        "share_of_full_bytes": 512 / 8000,
    }
    assert (found["new_tokens"], found["prompt_tokens"], found["prefill_work"]) == (20.0, 2000.0, 1.0)
    assert found["seconds"] == {"prefill": 4.0, "decode": 2.0}
    assert (found["n"], found["failed"], found["complete"], found["compressed"]) == (2, 0, True, 2)
    assert found["warnings"] == []


def test_the_headline_metric_comes_first():
    class Both(Recall):
        metrics = ("recall", "hits")

        def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
            return {"by depth": 1.0, "hits": 0.0, **super().summarize(records)}

    assert list(summary(record(), task=Both())["scores"]) == ["recall", "hits", "by depth"]


def test_failed_samples_are_counted_and_enter_no_mean():
    found = summary(record(1.0), FAILED)
    assert (found["n"], found["failed"], found["complete"]) == (2, 1, False)
    assert found["scores"] == {"recall": 1.0} and found["held"]["tokens_after_prompt"] == 128.0
    assert found["warnings"] == [
        "1 of 2 samples failed and are in no mean; the same command tries them again"
    ]


def test_a_run_in_which_all_failed_has_no_numbers_rather_than_zeros():
    found = summary(FAILED, FAILED)
    assert found["scores"] == found["intervals"] == {} and found["held"]["tokens_after_prompt"] is None
    assert found["new_tokens"] is None and found["failed"] == 2


def test_interval_surrounds_the_score_and_is_left_out_where_the_score_is_no_mean():
    records = [record(recall) for recall in (0.0, 1.0, 1.0, 0.5)]
    low, high = summary(*records)["intervals"]["recall"]
    assert 0.0 <= low < 0.625 < high <= 1.0
    assert summary(*records, task=Best())["intervals"] == {}


def test_phases_that_only_some_samples_have_are_summed():
    assert summary(record(), record(seconds={"compression": 0.25}))["seconds"] == {
        "prefill": 2.0,
        "decode": 1.0,
        "compression": 0.25,
    }


def test_a_run_that_never_compressed_says_so():
    short = record(compressed=False, kept_tokens=[90, 90], prompt_tokens=90)
    (warning,) = summary(*[short] * 20)["warnings"]
    assert warning.startswith("0 of 20 samples were compressed")
    assert summary(*[short] * 19, record())["warnings"] == []
    assert summary(short, budget=None)["warnings"] == [], "a method without a budget compresses nothing"


@pytest.mark.parametrize(
    ("budget", "kept", "warned"),
    [
        (128, [130, 127], False),
        (128, [140, 127], True),
        (0.128, [129, 129], False),
        (0.128, [131, 131], True),
    ],
)
def test_holding_more_than_the_budget_is_said(budget, kept, warned):
    warnings = summary(record(kept_tokens=kept), record(kept_tokens=kept), budget=budget)["warnings"]
    assert bool(warnings) is warned
    assert not warned or "over the budget of 128.0" in warnings[0]


def test_a_question_fed_after_compression_is_not_called_overspending():
    protocol = {"name": "fair", "question": "after_compression"}
    assert summary(record(kept_tokens=[150, 150]), protocol=protocol)["warnings"] == []


def test_cut_prompts_and_mixed_machines_are_said():
    found = summary(record(truncated=True), record(), environments=2)
    assert found["truncated"] == 1 and len(found["environments"]) == 2
    assert found["warnings"] == [
        "1 of 2 prompts were cut in the middle to fit",
        "computed in 2 different environments, which environment.json lists",
    ]
