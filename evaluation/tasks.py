"""Where each kind of task lives. Modules are named, not imported, so that only what is used is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from evaluation.task import Task

KINDS = {
    "needle": "needle.task",
    "longbench": "evaluation.longbench",
    "gsm8k": "evaluation.gsm8k",
    "mt_bench": "evaluation.mt_bench",
    "perplexity": "evaluation.perplexity",
    "efficiency": "evaluation.efficiency",
    "lm_eval": "evaluation.lm_eval_task",
}


def by_name(suite: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """The suite with a task for each of `names`, all as its `each` describes them; a suite without `each` as it is.

    Errors: ValueError if the suite and the names do not go together."""
    if "each" not in suite:
        if names:
            raise ValueError(f"tasks={names} names tasks of lm-evaluation-harness: add suite=lm_eval")
        return dict(suite)
    listed = [names] if isinstance(names, str) else list(names or ())
    if not listed:
        raise ValueError(f"suite={suite.get('name')} runs tasks by their names: add 'tasks=[gsm8k_cot]'")
    rest = {name: value for name, value in suite.items() if name != "each"}
    return {**rest, "tasks": {str(name): {**suite["each"], "task": str(name)} for name in listed}}


def build(label: str, parameters: Mapping[str, Any]) -> Task:
    """The task that a suite's entry describes. Args: parameters: `kind`, and the fields of that kind's class.

    Errors: ValueError naming the entry, for an unknown kind or parameter and for values the task refuses."""
    values = dict(parameters)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"task {label}: kind={kind!r} is unknown: known are {', '.join(KINDS)}")
    cls: Any = import_module(KINDS[kind]).TASK
    known = [field.name for field in fields(cls) if field.init]
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.5) or known
            raise ValueError(f"task {label} has no parameter {name!r}: did you mean {', '.join(near)}?")
    return cls(**values)
