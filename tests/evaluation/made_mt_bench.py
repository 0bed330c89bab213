"""MT-Bench runs with chosen answers, and what FastChat would have a judge asked: for tests of judging."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.judge import Item, Reply
from evaluation.mt_bench import MTBench
from evaluation.mt_bench_rows import Grading, Template, fields, template_name
from evaluation.results import Run, RunSpec, load_runs
from evaluation.summary import summarize
from tests.evaluation.made_runs import PROTOCOL
from tests.evaluation.made_runs import record as made_record

SLOTS = [("writing", 1), ("writing", 2), ("math", 1), ("math", 2)]


def grading(references: Mapping[int | str, tuple[str, ...]] | None = None, sha256: str = "0" * 64) -> Grading:
    """Prompts that show what they are filled with."""
    templates = [
        Template(
            name=template_name(category, turn),
            system=f"Judge turn {turn}.",
            prompt=" | ".join(f"{field}={{{field}}}" for field in fields(category, turn)),
        )
        for category, turn in SLOTS
    ]
    return Grading(
        templates={each.name: each for each in templates}, references=references or {}, sha256=sha256
    )


def record(number: int, first: str, second: str, category: str = "writing", kept: int = 40) -> dict[str, Any]:
    """One line of predictions.jsonl."""
    made = made_record(number, 1.0, kept, first)
    turn = {name: made[name] for name in ("new_tokens", "finish", "kept_tokens", "bytes_after_prompt")}
    turn |= {name: made[name] for name in ("kept_tokens_at_end", "bytes_at_end")}
    meta = {"question_id": number, "category": category, "turns": [f"Ask {number}?", f"And {number}?"]}
    answered = float(bool(first.strip() and second.strip()))
    return made | {
        "id": str(number),
        "scores": {"answered": answered},
        "references": [],
        "follow_ups": [{**turn, "text": second, "prompt_tokens": 7}],
        "meta": {**meta, "temperature": 0.7},
    }


def failed(number: int) -> dict[str, Any]:
    made = made_record(number, None, 40)
    meta = {"question_id": number, "category": "writing", "turns": [f"Ask {number}?", f"And {number}?"]}
    return made | {"id": str(number), "references": [], "meta": {**meta, "temperature": 0.7}}


def make(
    root: Path, records: Sequence[dict[str, Any]], method: str = "fullkv", budget: int | None = None
) -> Run:
    """Write a finished run under `root`."""
    spec = RunSpec(
        model={"id": "org/tiny"},
        method={"name": method, "version": 1},
        budget=budget,
        protocol=PROTOCOL,
        task={"name": "mt_bench", "version": 1},
        subset={"limit": None, "ids": None},
        seed=0,
        engine="1",
    )
    folder = root / "runs" / spec.key
    folder.mkdir(parents=True, exist_ok=True)
    task: Any = MTBench()
    summary = summarize(records, spec=spec, task=task, environments=[])
    (folder / "spec.json").write_text(json.dumps(json.loads(spec.canonical())))
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    (folder / "summary.json").write_text(json.dumps(summary))
    return next(run for run in load_runs(root) if run.key == spec.key)


class ScriptedJudge:
    """Says what it is given for an item's id, else `Rating: [[7]]`; remembers what it was asked."""

    def __init__(
        self, replies: Mapping[str, str | Reply | BaseException] | None = None, name: str = "scripted"
    ) -> None:
        self.script = dict(replies or {})
        self.name = name
        self.asked: list[str] = []

    def identity(self) -> dict[str, Any]:
        return {"kind": "made", "model": self.name}

    def check(self) -> None:
        pass

    def replies(self, items: Iterable[Item]) -> Iterator[tuple[Item, Reply]]:
        for item in items:
            self.asked.append(item.id)
            said = self.script.get(item.id, "Rating: [[7]]")
            if isinstance(said, BaseException):
                raise said
            yield item, Reply(text=said, prompt_tokens=100, new_tokens=10) if isinstance(said, str) else said
