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
}


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
