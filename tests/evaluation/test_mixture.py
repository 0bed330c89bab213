"""Tables hold only what may be compared; what is mixed on permission is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluation import mixture
from tests.evaluation.made_runs import PROTOCOL, make

OTHERS: dict[str, dict[str, Any]] = {
    "protocol": {"protocol": {**PROTOCOL, "template": "none"}},
    "model": {"model": {"id": "org/other", "dtype": "float32"}},
    "task": {"task_version": 2},
    "version": {"engine": "2"},
    "samples": {"subset": {"limit": 2, "ids": None}},
}


@pytest.mark.parametrize("factor", OTHERS)
def test_runs_that_differ_in_it_are_refused_until_told_otherwise_and_then_it_is_said(
    tmp_path: Path, factor: str
) -> None:
    results = [
        make(tmp_path, "fullkv", None, [1.0, 0.0]),
        make(tmp_path, "snapkv", 64, [1.0, 0.0], **OTHERS[factor]),
    ]
    with pytest.raises(ValueError, match=f"mix={factor}") as refusal:
        mixture.check(results)
    assert "\n" not in str(refusal.value)
    (note,) = mixture.check(results, [factor])
    assert note.startswith(f"mixed {mixture.FACTORS[factor]}")
    assert len(mixture.split(results)) == 2


def test_the_differing_field_is_named_with_its_values(tmp_path: Path) -> None:
    results = [
        make(tmp_path, "fullkv", None, [1.0]),
        make(tmp_path, "snapkv", 64, [1.0], **OTHERS["protocol"]),
    ]
    with pytest.raises(ValueError, match=r"template is chat \(1 run\), none \(1\)"):
        mixture.check(results)


def test_other_samples_of_the_same_task_are_another_sample_set(tmp_path: Path) -> None:
    results = [make(tmp_path, "fullkv", None, [1.0, 0.0]), make(tmp_path, "snapkv", 64, [1.0])]
    assert mixture.differences(*results) == {"samples"}


def test_another_version_of_the_same_method_is_another_version_of_the_code(tmp_path: Path) -> None:
    first = make(tmp_path, "snapkv", 64, [1.0])
    second = make(tmp_path, "snapkv", 64, [1.0], parameters={"version": 2})
    assert mixture.differences(first, second) == {"version"}


def test_methods_budgets_and_tasks_may_differ(tmp_path: Path) -> None:
    results = [
        make(tmp_path, "fullkv", None, [1.0, 0.0]),
        make(tmp_path, "snapkv", 64, [1.0, 0.0]),
        make(tmp_path, "snapkv", 64, [1.0], task="longbench/trec"),
    ]
    assert mixture.check(results) == [] and len(mixture.split(results)) == 1


def test_an_unknown_factor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of model, protocol, task, samples, version"):
        mixture.check([make(tmp_path, "fullkv", None, [1.0])], ["weather"])
