"""Judging as a step of its own: over answers that are stored, one line a judgment, on the disk as soon as it is made.

In a run's folder, `judgments/<label>.jsonl` holds the judgments and `<label>.json` says what made them. The label ends
in a hash of all that determines them, so that the judgments of two judges, or of one under two rules, lie side by
side. The same command asks only for what is missing: what was never asked or failed, or was asked about another answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation import files
from evaluation.judge import FAILED, SCORED, Item, Reply, items, line
from evaluation.judges import Judge
from evaluation.mt_bench_rows import Grading
from evaluation.results import Run

FOLDER = "judgments"
VERSION = 1  # raised whenever the same replies give other scores
FAILURES_IN_A_ROW = 12  # that stop asking: more of them only cost time


@dataclass
class Tally:
    """What became of the judgments of one run.

    kept: those that were there already. outcomes, reasons: of the new ones. prompt_tokens, new_tokens: what asking for
    them took, as far as the judge tells; untold: replies of which it does not. stopped: why no more was asked."""

    kept: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    new_tokens: int = 0
    untold: int = 0
    stopped: str = ""

    def count(self, judgment: Mapping[str, Any], reply: Reply | None) -> None:
        self.outcomes[judgment["outcome"]] += 1
        if judgment["outcome"] != SCORED:
            self.reasons[judgment["reason"]] += 1
        if reply is not None and not reply.problem:
            self.untold += reply.prompt_tokens is None or reply.new_tokens is None
            self.prompt_tokens += reply.prompt_tokens or 0
            self.new_tokens += reply.new_tokens or 0


def label(judge: Judge, grading: Grading) -> str:
    """The name of a judge's files: its kind, the last word of its model's name, and a hash of all that determines its
    judgments."""
    identity = identify(judge, grading)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    name = judge.name.rstrip("/").rsplit("/", 1)[-1].lower()
    return f"{identity['kind']}-{re.sub(r'[^a-z0-9._]+', '-', name).strip('-._')[:40]}-{digest}"


def identify(judge: Judge, grading: Grading) -> dict[str, Any]:
    """All that determines judgments, but for the answers."""
    return {**judge.identity(), "rules": VERSION, "prompts_and_references_sha256": grading.sha256}


def judge_run(run: Run, judge: Judge, grading: Grading, advance: Callable[[], None] = lambda: None) -> Tally:
    """Ask for the judgments that `run` lacks, and store them. Args: advance: called once for each of them.

    However this ends, what was judged stays. Errors: ValueError if the folder cannot be written; RunBusy if another
    process judges this run by this judge."""
    answered = [record for record in run.records if record["error"] is None]
    wanted = {item.id: item for record in answered for item in items(record, grading)}
    with _opened(run, judge, grading) as file:
        known = _keep(file, wanted)
        tally = Tally(kept=len(known))
        missing = [item for item in wanted.values() if item.id not in known]

        def store(item: Item, reply: Reply | None) -> None:
            judgment = line(item, reply, model=run.key, judge=judge.name, now=time.time())
            files.append_line(file, judgment)
            tally.count(judgment, reply)
            advance()

        for item in missing:
            if item.problem:
                store(item, None)
        _ask(judge, [item for item in missing if not item.problem], store, tally)
    return tally


def stored(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Label to judgments, for every judge of a run. Errors: ValueError naming a file that cannot be read."""
    return {file.stem: files.read_records(file)[0] for file in sorted((run.folder / FOLDER).glob("*.jsonl"))}


def judge_of(run: Run, name: str) -> dict[str, Any]:
    """What made the judgments of a label; empty if that file is gone."""
    file = run.folder / FOLDER / f"{name}.json"
    return files.read_json(file) if file.exists() else {}


def _ask(judge: Judge, asked: list[Item], store: Callable[[Item, Reply | None], None], tally: Tally) -> None:
    """Store replies as they come, until all are there or too many failed one after another."""
    failures = 0
    replies: Any = judge.replies(asked)
    with closing(replies):
        for item, reply in replies:
            store(item, reply)
            failures = failures + 1 if reply.problem else 0
            if failures >= FAILURES_IN_A_ROW:
                tally.stopped = (
                    f"{failures} judgments failed one after another, the last because {reply.problem}"
                )
                return


@contextmanager
def _opened(run: Run, judge: Judge, grading: Grading) -> Iterator[Path]:
    """The file of a judge's judgments, held by this process alone."""
    name = label(judge, grading)
    folder = run.folder / FOLDER
    with files.writing(folder):
        folder.mkdir(exist_ok=True)
        lock = files.acquire(folder / f".{name}.lock", f"{run.key} for {name}")
        try:
            files.replace(folder / f"{name}.json", files.json_page(identify(judge, grading)))
            yield folder / f"{name}.jsonl"
        finally:
            files.release(lock)


def _keep(file: Path, wanted: Mapping[str, Item]) -> dict[str, dict[str, Any]]:
    """The judgments that stay: those that were made, and about what is to be judged now. The others leave the file."""
    records, size = files.read_records(file)
    kept = [record for record in records if _stands(record, wanted.get(record["id"]))]
    if len(kept) < len(records):
        files.replace(file, "".join(map(files.json_line, kept)))
    elif file.exists() and file.stat().st_size > size:
        os.truncate(file, size)
    return {record["id"]: record for record in kept}


def _stands(record: Mapping[str, Any], item: Item | None) -> bool:
    if item is None or record["outcome"] == FAILED or record["user_prompt"] != item.prompt:
        return False
    return not item.problem or record["reason"] == item.problem
