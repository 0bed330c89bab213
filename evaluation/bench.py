"""From configurations to results: checks every job, loads each model once, runs in company what it can.

This is where the harness and the library are put together; nothing else in `evaluation` builds what `pyramid`
offers.
Whatever goes wrong concerns as few cells as possible, and leaves its traceback in their folders.
"""

from __future__ import annotations

import errno
import gc
import os
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from evaluation import files, followup, loggers, tasks
from evaluation.efficiency import Efficiency, Points
from evaluation.progress import Bars, Progress, shown
from evaluation.prompts import Prompter
from evaluation.results import Run, RunBusy, RunFolder, RunSpec
from evaluation.runner import Cell, run_cells
from evaluation.task import Task
from evaluation.types import Protocol


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command's wish, as its configuration says it: plain values, which any process can be given.

    sweep: the name that all jobs of one command share. max_batch_tokens: None is as many as batch_size prompts have."""

    model: Mapping[str, Any]
    method: Mapping[str, Any]
    suite: Mapping[str, Any]
    protocol: Protocol
    budget: Any
    limit: int | None
    batch_size: int
    seed: int
    results_dir: Path
    logger: Mapping[str, Any] = field(default_factory=lambda: {"name": "none"})
    sweep: str = ""
    max_batch_tokens: int | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], directory: Path) -> Job:
        """Args: config: the resolved configuration as plain values; directory: where relative paths start.

        Errors: ValueError naming the setting."""
        names = ("model", "method", "suite", "budget", "limit", "batch_size", "seed")
        for name in (*names, "protocol", "logger", "results_dir"):
            if name not in config:
                raise ValueError(f"{name} is missing: give it a value, {name}=...")
        given: dict[str, Any] = {name: config[name] for name in names}
        given["max_batch_tokens"] = config.get("max_batch_tokens")
        suite = tasks.by_name(config["suite"], config.get("tasks"))
        if not suite.get("tasks"):
            raise ValueError("suite.tasks is empty: name a suite that has tasks, suite=...")
        for name in ("batch_size", "seed", "limit", "max_batch_tokens"):
            optional = name in ("limit", "max_batch_tokens") and given[name] is None
            if not optional and type(given[name]) is not int:
                raise ValueError(f"{name}={given[name]!r} is not a whole number")
        logger = {
            name: str(directory / value) if name in ("dir", "file") else value
            for name, value in config["logger"].items()
        }
        loggers.build(logger)
        return cls(
            logger=logger,
            protocol=_filled(Protocol, config["protocol"], "protocol"),
            results_dir=directory / str(config["results_dir"]),
            **{**given, "suite": suite},
        )

    def only(self, label: str) -> Job:
        """This job with that task of its suite alone."""
        return replace(self, suite={**self.suite, "tasks": {label: self.suite["tasks"][label]}})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One cell of one task, checked but not yet begun."""

    job: Job
    label: str
    task: Task
    method: Any
    spec: RunSpec

    @property
    def run(self) -> Run:
        return RunFolder(self.job.results_dir, self.spec).run

    @property
    def setting(self) -> Hashable:
        """What cells in company share."""
        job = self.job
        return repr(job.model), self.spec.setting, job.results_dir, job.batch_size, job.max_batch_tokens

    def __str__(self) -> str:
        budget = "" if self.spec.budget is None else f" {self.spec.budget}"
        return f"{self.label} {self.spec.method['name']}{budget}"


@dataclass
class Report:
    """What became of a sweep.

    runs: of every cell that could be planned, finished or not. refused, failed, busy: a sentence for whatever
    was bad input, went wrong, or is being computed by another process. notes: what else the user should know.
    """

    runs: list[Run] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0: every sample of every cell has its score; 2: nothing but bad input; 1: anything between."""
        done = any(run.summary is not None for run in self.runs)
        if self.refused and not (done or self.failed or self.busy):
            return 2
        complete = all(run.complete for run in self.runs)
        return 0 if complete and not (self.refused or self.failed or self.busy) else 1


def plan(jobs: Sequence[Job]) -> tuple[list[Plan], list[str]]:
    """Every cell that the jobs ask for, each once, and a sentence for each that can be known to fail before
    any model is loaded."""
    from pyramid import methods, models

    once = _Once()
    found: dict[Hashable, Plan] = {}
    refused: dict[str, None] = {}
    for job, label in [(each, label) for each in jobs for label in each.suite["tasks"]]:
        values, parameters = job.suite["tasks"][label], dict(job.method)
        spec_of_model = partial(_filled, models.ModelSpec, job.model, "model")
        try:
            task = once(partial(tasks.build, label, values), label, repr(values))
            method = methods.build(parameters.pop("name"), budget=job.budget, **parameters)
            facts = once(lambda spec_of_model=spec_of_model: models.check(spec_of_model()), repr(job.model))
            identity = once(task.identity, "identity", label, repr(values))
        except ValueError as error:
            refused[_sentence(error)] = None
            continue
        spec = _spec(job, method, facts.identity, {"name": task.name, **identity})
        planned = Plan(job=job, label=label, task=task, method=method, spec=spec)
        found.setdefault((job.results_dir, spec.key), planned)
    return list(found.values()), list(refused)


def companies(planned: Sequence[Plan]) -> list[list[Plan]]:
    """The cells that share model, task, data and protocol, and so their prompts' prefill; model by model."""
    groups: dict[str, dict[Hashable, list[Plan]]] = {}
    for cell in planned:
        groups.setdefault(repr(cell.job.model), {}).setdefault(cell.setting, []).append(cell)
    return [company for group in groups.values() for company in group.values()]


def run(
    jobs: Sequence[Job], *, progress: bool = True, part: tuple[int, int] = (1, 1), start: float = 0.0
) -> Report:
    """Compute what is missing of all cells of the jobs, each model loaded once, each task's cells in company.

    What fails, or is being computed by another process, stops nothing else.
    part: (i, n) computes every n-th company from the i-th, so that n processes compute them all.
    start: the share of the companies that are put off to the end, so that several processes begin apart.
    Errors: ValueError if results cannot be written; all else stands in the report."""
    for folder in {job.results_dir for job in jobs}:
        _check_writable(folder)
    planned, refused = plan(jobs)
    whole = companies(planned)
    first = int(start * len(whole))
    mine = [*whole[first:], *whole[:first]][part[0] - 1 :: part[1]]
    bars = Bars() if progress and shown() else Progress()
    bench = _Bench(Report(refused=refused), bars)
    pending = [sum(not cell.run.complete for cell in company) for company in mine]
    with _leading(), bars.sweep(pending):
        for company, missing in zip(mine, pending, strict=True):
            if missing:
                bars.company(company[0].label, missing)
            bench.compute(company)
    chosen = {id(cell) for company in mine for cell in company}
    bench.report.runs = [cell.run for cell in planned if id(cell) in chosen]
    return bench.report


def rank() -> tuple[int, int]:
    """This process's number and how many torchrun started: (0, 1) without it."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def follow() -> None:
    """What all ranks but 0 do instead of `run`. Errors: RuntimeError if rank 0 is gone."""
    from pyramid import parallel

    parallel.connect()
    parallel.follow()


@contextmanager
def _leading() -> Iterator[None]:
    """Within it the other ranks are at hand, if there are any; an error ends them with this one."""
    if rank()[1] == 1:
        yield
        return
    from pyramid import parallel

    parallel.connect()
    yield
    parallel.dismiss()


def gather(planned: Sequence[Plan], report: Report) -> Report:
    """Complete the report of cells that other processes computed from what lies in their folders."""
    report.runs = [cell.run for cell in planned]
    for cell, found in zip(planned, report.runs, strict=True):
        if found.status == "running":
            report.busy.append(f"{cell} is being computed by another process")
        elif found.summary is None:
            file = found.folder / "failure.txt"
            reason = file.read_text().strip().splitlines()[-1] if file.exists() else "it was not finished"
            report.failed.append(f"{cell}: {reason}")
    return report


class _Bench:
    """Holds one model at a time."""

    def __init__(self, report: Report, progress: Progress) -> None:
        self.report = report
        self.progress = progress
        self.loaded: tuple[str, Any] = ("", None)

    def compute(self, company: list[Plan]) -> None:
        """Compute, draw and log one company; say in the report what was not possible."""
        with ExitStack() as stack:
            pending = [cell for cell in company if not cell.run.complete]
            ready = [(cell, folder) for cell in pending if (folder := self._open(cell, stack)) is not None]
            if ready:
                self._attempt(ready)
        for cell in company:
            followup.follow_up(cell.run, cell.task, cell.job.logger, cell.job.sweep)

    def _open(self, cell: Plan, stack: ExitStack) -> RunFolder | None:
        try:
            return stack.enter_context(RunFolder(cell.job.results_dir, cell.spec))
        except RunBusy as error:
            self.report.busy.append(f"{cell}: {_sentence(error)}")
        except ValueError as error:
            self.report.refused.append(_sentence(error))
        return None

    def _attempt(self, cells: list[tuple[Plan, RunFolder]]) -> None:
        """Run the cells together, and if that cannot be done each of them alone."""
        try:
            self._run(cells)
        except Exception as error:
            began = any(folder.environments for _, folder in cells)
            reason, bad_input = _sentence(error), isinstance(error, ValueError) and not began
            trace = "".join(traceback.format_exception(error))
        else:
            return
        left = [(cell, folder) for cell, folder in cells if not folder.run.complete]
        if len(left) > 1 and not isinstance(self.loaded[1], Exception):
            for pair in left:
                self._attempt([pair])
            return
        for cell, folder in left:
            folder.abort(trace)
            if bad_input:
                self.report.refused.append(f"{cell}: {reason}")
            else:
                self.report.failed.append(f"{cell}: {reason} ({folder.path / 'failure.txt'})")

    def _run(self, cells: list[tuple[Plan, RunFolder]]) -> None:
        from pyramid import parallel
        from pyramid.generation import Generator

        job, task = cells[0][0].job, cells[0][0].task
        if isinstance(task, Efficiency):
            self._measure(cells, task)
            return
        loaded = self._model(job.model)
        ranks = parallel.size()
        generator: Any = Generator(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            first_token=job.protocol.first_token,
            cache_heads=job.protocol.cache_heads,
            kernel=loaded.model.config._attn_implementation,
        )
        if ranks > 1:
            generator = parallel.TeamGenerator(generator, ranks)
        run_cells(
            [Cell(method=cell.method, folder=folder) for cell, folder in cells],
            task,
            Prompter(tokenizer=loaded.tokenizer, protocol=job.protocol, model_max_length=loaded.max_length),
            generator,
            batch_size=job.batch_size * ranks,
            max_batch_tokens=None if job.max_batch_tokens is None else job.max_batch_tokens * ranks,
            progress=self.progress,
            device=str(loaded.model.device),
        )

    def _measure(self, cells: list[tuple[Plan, RunFolder]], task: Efficiency) -> None:
        """As `_run`, for points that are measured in processes of their own."""
        from pyramid import models, static_decoding
        from pyramid.measurer import Measurer

        job = cells[0][0].job
        spec = _filled(models.ModelSpec, job.model, "model")
        if rank()[1] > 1 or spec.device_map is not None:
            raise ValueError("suite=efficiency measures one device: leave out torchrun and model.device_map")
        if task.decode == "graph":
            for cell, _ in cells:
                static_decoding.check(cell.method, job.protocol.first_token)
        self._unload()
        measurer = Measurer(
            model=spec,
            batches=task.batch_of,
            stock=task.stock,
            repeats=task.repeats,
            warmups=task.warmups,
            decode=task.decode,
            memory_gib=task.memory_gib,
            first_token=job.protocol.first_token,
            cache_heads=job.protocol.cache_heads,
        )
        points: Any = Points(model_max_length=models.check(spec).max_length)
        run_cells(
            [Cell(method=cell.method, folder=folder) for cell, folder in cells],
            cells[0][0].task,
            points,
            measurer,
            batch_size=1,
            together=False,
            progress=self.progress,
            device="that of each point, in its record",
        )

    def _unload(self) -> None:
        self.loaded = ("", None)
        gc.collect()  # the last model's memory is free before the next one needs it

    def _model(self, values: Mapping[str, Any]) -> Any:
        from pyramid import models, parallel

        if self.loaded[0] != repr(values):
            self._unload()
            try:
                load = models.load if parallel.size() == 1 else parallel.load_everywhere
                model = load(_filled(models.ModelSpec, values, "model"))
            except Exception as error:
                model = error
            self.loaded = (repr(values), model)
        if isinstance(self.loaded[1], Exception):
            raise self.loaded[1]
        return self.loaded[1]


class _Once:
    """Computes each thing once: a value is remembered, and so is an error."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[Any, Exception | None]] = {}

    def __call__(self, compute: Callable[[], Any], *key: Hashable) -> Any:
        if key not in self.known:
            try:
                self.known[key] = compute(), None
            except Exception as error:
                self.known[key] = None, error
        value, error = self.known[key]
        if error is not None:
            raise error
        return value


def _check_writable(folder: Path) -> None:
    with files.writing(folder):
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        if not os.access(folder / "runs", os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _spec(job: Job, method: Any, model: Mapping[str, Any], task: Mapping[str, Any]) -> RunSpec:
    from pyramid import ENGINE_VERSION

    parameters = method.parameters()
    budget = parameters.pop("budget", None)
    return RunSpec(
        model=dict(model),
        method={"name": job.method["name"], "version": method.version, **parameters},
        budget=budget,
        protocol=asdict(job.protocol),
        task=task,
        subset={"limit": job.limit, "ids": None},
        seed=job.seed,
        engine=ENGINE_VERSION,
    )


def _filled(cls: Any, values: Mapping[str, Any], group: str) -> Any:
    """An instance of a dataclass. Errors: ValueError naming a value that has no place in it."""
    known = [each.name for each in fields(cls)]
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.5) or known
            raise ValueError(f"unknown setting '{group}.{name}': did you mean {group}.{near[0]}?")
    return cls(**values)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text and isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
