"""From configurations to results: checks every job, loads each model once, runs what can share its work in company.

This is where the harness and the library are put together; nothing else in `evaluation` builds what `pyramid` offers.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evaluation import tasks
from evaluation.prompts import Prompter
from evaluation.results import Run, RunFolder, RunSpec
from evaluation.runner import Cell, run_cells
from evaluation.task import Task
from evaluation.types import Protocol


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command's wish, as its configuration says it."""

    model: Mapping[str, Any]
    method: Mapping[str, Any]
    suite: Mapping[str, Any]
    protocol: Protocol
    budget: Any
    limit: int | None
    batch_size: int
    seed: int
    results_dir: Path

    @classmethod
    def of(cls, config: Mapping[str, Any], directory: Path) -> Job:
        """Args: config: the resolved configuration as plain values; directory: what a relative results_dir starts from.

        Errors: ValueError naming the setting."""
        for name in ("batch_size", "seed", "limit"):
            value = config[name]
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                and not (name == "limit" and value is None)
            ):
                raise ValueError(f"{name}={value!r} is not a whole number")
        values = {
            key: config[key] for key in ("model", "method", "suite", "budget", "limit", "batch_size", "seed")
        }
        return cls(
            protocol=Protocol(**config["protocol"]),
            results_dir=directory / str(config["results_dir"]),
            **values,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One cell of one task, checked but not yet begun."""

    job: Job
    method: Any
    label: str
    task: Task


@dataclass
class Report:
    """What became of a sweep. failures: a sentence for each plan that has no run."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.failures and all(run.complete for run in self.runs)


def plans(jobs: Sequence[Job]) -> list[Plan]:
    """Every cell that the jobs ask for, each once.

    Errors: ValueError for whatever can be known to fail before a model is loaded."""
    from pyramid import methods, models

    found: dict[Any, Plan] = {}
    for job in jobs:
        models.check(models.ModelSpec(**job.model))
        parameters = dict(job.method)
        method = methods.build(parameters.pop("name"), budget=job.budget, **parameters)
        for label, values in job.suite["tasks"].items():
            plan = Plan(job=job, method=method, label=label, task=tasks.build(label, values))
            found.setdefault((_setting(plan), repr(method)), plan)
    return list(found.values())


def run(jobs: Sequence[Job], *, progress: bool = True) -> Report:
    """Compute all cells of the jobs, each model loaded once, each task's cells in company.

    What fails stops nothing else. Errors: ValueError for bad input, before anything expensive."""
    report = Report()
    everything = plans(jobs)
    for model_values in _distinct(plan.job.model for plan in everything):
        mine = [plan for plan in everything if plan.job.model == model_values]
        _run_model(mine, report, progress, alone=len(everything) == 1)
    return report


def _run_model(mine: list[Plan], report: Report, progress: bool, alone: bool) -> None:
    from pyramid import models

    loaded = models.load(models.ModelSpec(**mine[0].job.model))
    for setting in _distinct(map(_setting, mine)):
        company = [plan for plan in mine if _setting(plan) == setting]
        try:
            report.runs += _run_company(loaded, company, progress)
        except Exception as error:
            if alone and isinstance(error, ValueError):
                raise
            names = ", ".join(f"{plan.label} {plan.method}" for plan in company)
            report.failures.append(f"{names}: {' '.join(str(error).split()) or type(error).__name__}")
            if not isinstance(error, ValueError):
                traceback.print_exc(file=sys.stderr)


def _run_company(loaded: Any, company: list[Plan], progress: bool) -> list[Run]:
    from pyramid.generation import Generator

    job, task = company[0].job, company[0].task
    generator = Generator(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        first_token=job.protocol.first_token,
        cache_heads=job.protocol.cache_heads,
        kernel=loaded.model.config._attn_implementation,
    )
    prompter = Prompter(tokenizer=loaded.tokenizer, protocol=job.protocol, model_max_length=loaded.max_length)
    cells = [
        Cell(method=plan.method, folder=RunFolder(plan.job.results_dir, _spec(plan, loaded.identity)))
        for plan in company
    ]
    runs = run_cells(
        cells,
        task,
        prompter,
        generator,
        batch_size=job.batch_size,
        progress=progress,
        device=str(loaded.model.device),
    )
    for run in runs:
        task.draw([record for record in run.records if record["error"] is None], run.folder)
    return runs


def _spec(plan: Plan, model_identity: Mapping[str, Any]) -> RunSpec:
    from pyramid import ENGINE_VERSION

    parameters = plan.method.parameters()
    budget = parameters.pop("budget", None)
    job = plan.job
    return RunSpec(
        model=dict(model_identity),
        method={"name": job.method["name"], "version": plan.method.version, **parameters},
        budget=budget,
        protocol=asdict(job.protocol),
        task={"name": plan.task.name, **plan.task.identity()},
        subset={"limit": job.limit, "ids": None},
        seed=job.seed,
        engine=ENGINE_VERSION,
    )


def _setting(plan: Plan) -> tuple[Any, ...]:
    """What cells in company share."""
    job = plan.job
    task = repr(sorted(job.suite["tasks"][plan.label].items()))
    return (
        repr(job.model),
        plan.label,
        task,
        job.protocol,
        job.limit,
        job.seed,
        job.results_dir,
        job.batch_size,
    )


def _distinct(values: Iterator[Any] | map[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
