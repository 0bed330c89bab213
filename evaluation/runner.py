"""Runs the cells of a table: several methods and budgets on the same samples, in company.

The samples are cut into batches once, from the full list, whatever is already done. A run that was stopped
therefore computes whole batches again and writes only the lines that are missing: its files end up equal to
those of a run that was never stopped.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

from evaluation import interruption
from evaluation.progress import Progress
from evaluation.prompts import Prompter
from evaluation.results import Run, RunFolder, RunSpec, environment
from evaluation.summary import summarize
from evaluation.task import Task
from evaluation.types import Prompt, Sample
from pyramid.types import Answer, Held, Request


class Generator(Protocol):
    """What the runner needs of a model."""

    def generate(self, requests: Sequence[Request], methods: Sequence[Any]) -> Sequence[Sequence[Answer]]:
        """One list of answers for each method, in order, and in it one answer for each request, in order.

        The requests of one call have equally many segments and follow-ups, and all or none have continuations.
        What cannot be answered gets an answer with `error`; an exception concerns the whole call."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of a table: a method with its budget, and the folder of its results."""

    method: Any
    folder: RunFolder

    @property
    def spec(self) -> RunSpec:
        return self.folder.spec


def choose(
    samples: Sequence[Sample], *, limit: int | None = None, ids: Sequence[str] | None = None, seed: int = 0
) -> list[Sample]:
    """A part of a task's samples, in their own order: those named by `ids`, and at most `limit` of them.

    `limit` takes the samples whose ids come first when ordered by a hash of seed and id. The choice thus is
    spread over the task, the same on every machine, and contained in the choice for any higher limit.
    Errors: ValueError if nothing is left, or for an unknown id or a limit below 1."""
    known = [sample.id for sample in samples]
    if len(set(known)) < len(known):
        twice = next(id for id in known if known.count(id) > 1)
        raise ValueError(f"the task has two samples named {twice!r}; samples need names of their own")
    wanted = {ids} if isinstance(ids, str) else set(known if ids is None else ids)
    for unknown in sorted(wanted - set(known)):
        near = difflib.get_close_matches(unknown, known, n=3, cutoff=0) or ["none"]
        raise ValueError(f"the task has no sample {unknown!r}; the nearest are {', '.join(near)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, which leaves no samples; give a number from 1 on")
    if not wanted:
        raise ValueError("there are no samples to run; check the task's parameters and ids")
    ranked = sorted(wanted, key=lambda id: hashlib.sha256(f"{seed}:{id}".encode()).digest())
    chosen = set(ranked[:limit])
    return [sample for sample in samples if sample.id in chosen]


def run_cells(
    cells: Sequence[Cell],
    task: Task,
    prompter: Prompter,
    generator: Generator,
    *,
    batch_size: int,
    max_batch_tokens: int | None = None,
    together: bool = True,
    progress: Progress | None = None,
    device: str = "not stated",
) -> list[Run]:
    """Compute what is missing of `cells`, which differ in method and budget only; return a run for each.

    Samples are answered longest prompt first, so that memory is tried at the start. A sample that fails is
    recorded with its error and stops nothing else. However this ends, every folder is closed.
    max_batch_tokens: as many tokens, padding included, have the prompts of a batch at most; a longer prompt is
    read by itself. together: False asks for each cell's answers by themselves, and records them before the next one's.
    Errors: ValueError for user mistakes and a full disk; RunBusy if another process computes one of the
    cells; KeyboardInterrupt passes through, and leaves runs that go on where they stopped."""
    assert len({cell.spec.setting for cell in cells}) == 1, "cells in company share all but method and budget"
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; give a number from 1 on")
    if max_batch_tokens is not None and max_batch_tokens < 1:
        raise ValueError(f"max_batch_tokens is {max_batch_tokens}; give a number from 1 on, or null")
    unique = {cell.spec.key: cell for cell in cells}
    with ExitStack() as folders:
        for cell in unique.values():
            folders.enter_context(cell.folder)
        pending = [cell for cell in unique.values() if not cell.folder.run.complete]
        if pending:
            spec = pending[0].spec
            limit, ids = spec.subset.get("limit"), spec.subset.get("ids")
            samples = choose(task.samples(prompter), limit=limit, ids=ids, seed=spec.seed)
            prompts = {part.id: prompter.render(part) for sample in samples for part in _parts(sample)}
            room = _Room(batch_size, math.inf if max_batch_tokens is None else max_batch_tokens)
            work = _Work(task, samples, prompts, generator, spec.seed, together)
            work.run(pending, room, progress or Progress(), environment(device))
        runs = {key: cell.folder.run for key, cell in unique.items()}
        return [runs[cell.spec.key] for cell in cells]


@dataclass(frozen=True)
class _Room:
    """What a batch has room for."""

    prompts: int
    tokens: float

    def holds(self, lengths: Sequence[int]) -> bool:
        """Args: lengths: of the prompts; shorter ones are padded to the longest."""
        return len(lengths) <= self.prompts and len(lengths) * max(lengths) <= self.tokens


class _Work:
    """What is computed for the cells in company."""

    def __init__(
        self,
        task: Task,
        samples: Sequence[Sample],
        prompts: Mapping[str, Prompt],
        generator: Generator,
        seed: int,
        together: bool,
    ) -> None:
        self.task = task
        self.prompts = prompts
        self.generator = generator
        self.seed = seed
        self.together = together
        self.order = sorted(samples, key=self._size, reverse=True)

    def run(
        self, cells: Sequence[Cell], room: _Room, progress: Progress, environment: Mapping[str, str]
    ) -> None:
        order = [sample.id for sample in self.order]
        try:
            for cell in cells:
                _check(cell.folder, order)
                cell.folder.begin(environment)
            work = [(batch, _lacking(cells, batch)) for batch in self._batches(room)]
            progress.samples(sum(len(batch) for batch, lacking in work if lacking))
            for batch, lacking in work:
                interruption.check()
                for company in self._companies(lacking):
                    self._answer(batch, company)
                if lacking:
                    progress.advance(len(batch))
            for cell in cells:
                records = [cell.folder.records[id] for id in order]
                environments = cell.folder.environments
                summary = summarize(records, spec=cell.spec, task=self.task, environments=environments)
                cell.folder.finish(summary, order)
        except Exception:
            for cell in cells:
                if cell.folder.run.summary is None:
                    cell.folder.abort(traceback.format_exc())
            raise

    def _companies(self, cells: list[Cell]) -> list[list[Cell]]:
        """The cells that are asked for in one call."""
        if self.together and cells:
            return [cells]
        return [[cell] for cell in cells]

    def _shape(self, sample: Sample) -> tuple[int, int, bool]:
        """What is equal for all requests of one call."""
        prompt = self.prompts[sample.id]
        return len(prompt.segments), len(prompt.follow_ups), bool(sample.continuation)

    def _size(self, sample: Sample) -> tuple[tuple[int, int, bool], int]:
        return self._shape(sample), self.prompts[sample.id].tokens

    def _batches(self, room: _Room) -> Iterator[list[Sample]]:
        """All samples in order, those of a batch of one shape. A sample of several prompts stays whole."""
        for _, alike in groupby(self.order, key=self._shape):
            batch: list[Sample] = []
            for sample in alike:
                parts = [part for each in (*batch, sample) for part in _parts(each)]
                if batch and not room.holds([self.prompts[part.id].tokens for part in parts]):
                    yield batch
                    batch = []
                batch.append(sample)
            yield batch

    def _answer(self, batch: Sequence[Sample], cells: Sequence[Cell]) -> None:
        """Answer `batch` for `cells`, and record what each of them lacks."""
        parts = [part for sample in batch for part in _parts(sample)]
        requests = [_request(part, self.prompts[part.id], self.seed) for part in parts]
        table = _generate(self.generator, requests, [cell.method for cell in cells])
        for cell, answers in zip(cells, table, strict=True):
            left = iter(answers)
            for sample in batch:
                answer, trace = _joined([next(left) for _ in _parts(sample)])
                assert answer.id == sample.id, f"the answer to {sample.id!r} bears the id {answer.id!r}"
                if sample.id not in cell.folder.records:
                    record, trace = self._judge(sample, answer, trace)
                    if record["error"] is not None:
                        cell.folder.write_failure(sample.id, trace)
                    cell.folder.append(record)

    def _judge(self, sample: Sample, answer: Answer, trace: str) -> tuple[dict[str, Any], str]:
        """The record of one sample, and why it failed if it did. What cannot be judged has failed."""
        scores: dict[str, float] = {}
        error = answer.error
        if error is None:
            try:
                scores = _checked(self.task.score(sample, answer), self.task.lower_is_better)
            except Exception as problem:
                error, trace = f"the answer could not be scored: {_sentence(problem)}", traceback.format_exc()
        return _record(sample, self.prompts[sample.id], answer, scores, error), trace


def _check(folder: RunFolder, order: Sequence[str]) -> None:
    strangers = sorted(folder.records.keys() - set(order))
    if strangers:
        raise ValueError(
            f"{folder.path} holds sample {strangers[0]!r}, which the task lacks; move that folder away"
        )


def _lacking(cells: Sequence[Cell], batch: Sequence[Sample]) -> list[Cell]:
    """The cells that have not answered all of the batch."""
    return [cell for cell in cells if any(sample.id not in cell.folder.records for sample in batch)]


def _parts(sample: Sample) -> tuple[Sample, ...]:
    """All that is asked for one sample, itself first."""
    return (sample, *sample.parts)


def _joined(answers: Sequence[tuple[Answer, str]]) -> tuple[Answer, str]:
    """The answers to a sample's prompts as one; the first that failed, if one did."""
    (first, trace), *others = answers
    if not others:
        return first, trace
    for answer, trace in answers:
        if answer.error is not None:
            return replace(answer, id=first.id), trace
    every = [first, *(answer for answer, _ in others)]
    seconds = {phase: math.fsum(each.seconds[phase] for each in every) for phase in first.seconds}
    compressed = any(answer.compressed for answer in every)
    return replace(first, compressed=compressed, seconds=seconds, follow_ups=tuple(every[1:])), ""


def _request(sample: Sample, prompt: Prompt, seed: int) -> Request:
    return Request(
        id=sample.id,
        segments=prompt.segments,
        max_new_tokens=sample.max_new_tokens,
        min_new_tokens=sample.min_new_tokens,
        stop_ids=prompt.stop_ids,
        stop_texts=sample.stop_texts,
        temperature=sample.temperature,
        seed=seed,
        follow_ups=prompt.follow_ups,
        continuation=sample.continuation,
    )


def _generate(
    generator: Generator, requests: Sequence[Request], methods: Sequence[Any]
) -> list[list[tuple[Answer, str]]]:
    """Answers by method, each with the reason in full if it failed.

    If a call raises, each method is tried by itself, and then each request by itself, so that only those
    fail that cannot be answered. The retries stand outside the handler: the exception holds on to the
    memory of the failed call.
    """
    try:
        table = generator.generate(requests, methods)
        return [[(answer, answer.error or "") for answer in answers] for answers in table]
    except Exception as error:
        sentence, trace = _sentence(error), traceback.format_exc()
    if len(methods) > 1:
        return [_generate(generator, requests, [method])[0] for method in methods]
    if len(requests) > 1:
        return [[_generate(generator, [request], methods)[0][0] for request in requests]]
    return [[(Answer(id=requests[0].id, error=sentence), trace)]]


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _checked(scores: Mapping[str, float], lower_is_better: Collection[str]) -> dict[str, float]:
    for metric, value in scores.items():
        highest = math.inf if metric in lower_is_better else 1
        if not 0 <= value <= highest:
            raise ValueError(f"{metric} is {value}, outside of [0, {highest}]")
    return {metric: float(value) for metric, value in scores.items()}


def _record(
    sample: Sample, prompt: Prompt, answer: Answer, scores: Mapping[str, float], error: str | None
) -> dict[str, Any]:
    answered = answer.error is None
    assert not answered or (answer.held_after_prompt and answer.held_at_end), "an answer says what it held"
    return {
        "id": sample.id,
        "text": answer.text,
        "scores": scores,
        "references": list(sample.references),
        "prompt_tokens": prompt.tokens,
        "new_tokens": len(answer.token_ids) if answered else None,
        "finish": answer.finish,
        "truncated": prompt.truncated,
        "compressed": answer.compressed if answered else None,
        **_held("kept_tokens", "bytes_after_prompt", answer.held_after_prompt),
        **_held("kept_tokens_at_end", "bytes_at_end", answer.held_at_end),
        "full_bytes_after_prompt": answer.full_bytes_after_prompt if answered else None,
        "prefill_work": answer.prefill_work if answered else None,
        "seconds": answer.seconds,
        **_likelihood(answer),
        "prompt_head": prompt.head,
        "prompt_tail": prompt.tail,
        **({"follow_ups": [_turn(each) for each in answer.follow_ups]} if answer.follow_ups else {}),
        **({"measured": dict(answer.measured)} if answer.measured else {}),
        "meta": dict(sample.meta),
        "error": error,
    }


def _turn(answer: Answer) -> dict[str, Any]:
    """The record of a further turn, or of a further prompt of the same sample."""
    return {
        "text": answer.text,
        "prompt_tokens": answer.prompt_tokens,
        "new_tokens": len(answer.token_ids),
        "finish": answer.finish,
        **_likelihood(answer),
        **_held("kept_tokens", "bytes_after_prompt", answer.held_after_prompt),
        **_held("kept_tokens_at_end", "bytes_at_end", answer.held_at_end),
    }


def _likelihood(answer: Answer) -> dict[str, Any]:
    """Of a continuation: how likely it was, and whether each of its tokens was the likeliest."""
    if not answer.log_likelihoods:
        return {}
    return {"log_likelihood": math.fsum(answer.log_likelihoods), "greedy": all(answer.greedy)}


def _held(tokens: str, size: str, held: Held | None) -> dict[str, Any]:
    return {tokens: None if held is None else list(held.tokens), size: None if held is None else held.bytes}
