"""Where results live: one folder a run, named by exactly what was run.

A run is a pure function of its `RunSpec`; the same command finds its folder again and goes on where it
stopped. In `<results_dir>/runs/<key>/` lie

    spec.json              what is run; written first
    predictions.jsonl      one line a sample, on the disk as soon as the sample is answered
    failures/<sample>.txt  why a sample has no score
    failure.txt            why the run as a whole stopped, if an error stopped it
    environment.json       the software and hardware that took part; not part of the identity
    summary.json           written last, when every sample was tried
    .lock                  held by the process that writes; a dead process holds nothing

Files grow by whole lines or are replaced in one step, so a process may die at any moment and leave a valid
folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evaluation import files
from evaluation.files import RunBusy

__all__ = ["Run", "RunBusy", "RunFolder", "RunSpec", "environment", "load_runs"]

PACKAGES = ("pyramid-bench", "torch", "transformers", "numpy")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """All that determines a run's results, as plain JSON values. Two equal specs are one run.

    method: its name, version and parameters. task: its name and identity. subset: limit and ids.
    budget: tokens (int) or share of the prompt (float); None for a method that has no budget.
    engine: version of the code that computes attention and generates.
    Errors: ValueError naming the field that JSON cannot hold exactly.
    """

    model: Mapping[str, Any]
    method: Mapping[str, Any]
    budget: int | float | None
    protocol: Mapping[str, Any]
    task: Mapping[str, Any]
    subset: Mapping[str, Any]
    seed: int
    engine: str

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name), field.name))
        assert "name" in self.task and "name" in self.method, "task and method are told apart by their names"

    def canonical(self) -> str:
        """The one JSON text of this spec; numbers are written in full, so 0.12 and 0.123 differ."""
        return _canonical(asdict(self))

    @property
    def setting(self) -> str:
        """Canonical text of everything but method and budget: runs that share it may stand in one table."""
        parts = asdict(self)
        del parts["method"], parts["budget"]
        return _canonical(parts)

    @property
    def key(self) -> str:
        """The folder's name: words for people, then the hash that is the identity."""
        words = [self.task["name"], self.method["name"], *([] if self.budget is None else [self.budget])]
        slugs = [re.sub(r"[^a-z0-9._]+", "-", str(word).lower()).strip("-._")[:40] for word in words]
        digest = hashlib.sha256(self.canonical().encode()).hexdigest()[:12]
        return "-".join([*filter(None, slugs), digest])


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as its files tell it. `summary` is None until every sample was tried."""

    spec: RunSpec
    folder: Path
    summary: Mapping[str, Any] | None

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def complete(self) -> bool:
        """Whether every sample has its score."""
        return self.summary is not None and self.summary["complete"]

    @property
    def status(self) -> str:
        """`running`, `done`, `failed` (samples, or the run itself), else `interrupted`."""
        if files.is_locked(self.folder / ".lock"):
            return "running"
        if self.complete:
            return "done"
        broken = self.summary is not None or (self.folder / "failure.txt").exists()
        return "failed" if broken else "interrupted"

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The finished lines of predictions.jsonl, read when first asked for."""
        return files.read_records(self.folder / "predictions.jsonl")[0]

    def scores(self, metric: str) -> dict[str, float]:
        """Sample id to `metric`, over the samples that have it."""
        return {line["id"]: line["scores"][metric] for line in self.records if metric in line["scores"]}


def load_runs(root: Path | str) -> list[Run]:
    """Every run under `root`, in the order of their keys; folders without a spec are no runs.

    Errors: ValueError naming a file that cannot be read."""
    return [_load(file.parent) for file in sorted((Path(root) / "runs").glob("*/spec.json"))]


class RunFolder:
    """The writing side of a run's folder. Opening takes its lock, closing gives it back; nothing else stays
    open.

    records: sample id to record, in the order of the file; filled by `open`.
    environments: each distinct environment that took part; filled by `begin`.
    """

    def __init__(self, root: Path | str, spec: RunSpec) -> None:
        self.spec = spec
        self.path = Path(root).absolute() / "runs" / spec.key
        self.records: dict[str, dict[str, Any]] = {}
        self.environments: list[dict[str, str]] = []
        self._lock: int | None = None

    def open(self) -> RunFolder:
        """Take the run and read it, changing nothing but a torn last line. Does nothing if it is open.

        Errors: RunBusy if another process has it; ValueError if it is unreadable, another spec's, or cannot
        be written."""
        if self._lock is None:
            with files.writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = files.acquire(self.path / ".lock", self.spec.key)
                try:
                    files.probe(self.path)
                    self._claim()
                    self._mend()
                except BaseException:
                    self.close()
                    raise
        return self

    def close(self) -> None:
        """Give the run back; whatever was recorded stays."""
        if self._lock is not None:
            files.release(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def run(self) -> Run:
        """The run as its files tell it now."""
        return Run(spec=self.spec, folder=self.path, summary=_summary(self.path))

    def begin(self, environment: Mapping[str, str]) -> None:
        """Make ready to compute what is missing. Samples that failed are forgotten, to be tried again."""
        assert self._lock is not None
        with files.writing(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)
            (self.path / "failure.txt").unlink(missing_ok=True)
            answered = [record for record in self.records.values() if record["error"] is None]
            if len(answered) < len(self.records):
                self._rewrite(answered)
            with suppress(FileNotFoundError):
                shutil.rmtree(self.path / "failures")
            history = self.path / "environment.json"
            self.environments = files.read_json(history) if history.exists() else []
            if dict(environment) not in self.environments:
                self.environments.append(dict(environment))
                files.replace(history, files.json_page(self.environments))

    def append(self, record: Mapping[str, Any]) -> None:
        """Record one sample; when this returns, its line is on the disk."""
        assert self._lock is not None and record["id"] not in self.records
        with files.writing(self.path):
            files.append_line(self.path / "predictions.jsonl", record)
        self.records[record["id"]] = dict(record)

    def write_failure(self, sample_id: str, text: str) -> None:
        """Keep the traceback of one sample."""
        name = quote(sample_id, safe=" ")
        if len(name) > 100:
            name = f"{name[:80]}-{hashlib.sha256(sample_id.encode()).hexdigest()[:12]}"
        with files.writing(self.path):
            (self.path / "failures").mkdir(exist_ok=True)
            files.replace(self.path / "failures" / f"{name}.txt", text)

    def abort(self, text: str) -> None:
        """Keep the traceback of what stopped the whole run, as far as the disk lets us."""
        with suppress(OSError):
            files.replace(self.path / "failure.txt", text)

    def finish(self, summary: Mapping[str, Any], order: Sequence[str]) -> None:
        """Put the lines into the fixed `order` of sample ids, and write the summary as the last act."""
        assert self._lock is not None and set(order) == self.records.keys()
        with files.writing(self.path):
            if list(self.records) != list(order):
                self._rewrite([self.records[id] for id in order])
            files.replace(self.path / "summary.json", files.json_page(summary))

    def _claim(self) -> None:
        file = self.path / "spec.json"
        if not file.exists():
            files.replace(file, files.json_page(asdict(self.spec)))
        elif _canonical(files.read_json(file)) != self.spec.canonical():
            raise ValueError(
                f"{file} describes another run than this one, so nothing was written; move that folder "
                "away, or choose another place with results_dir=FOLDER"
            )

    def _mend(self) -> None:
        """Read the records, and cut off a last line that a dying process did not finish."""
        file = self.path / "predictions.jsonl"
        records, size = files.read_records(file)
        if file.exists() and file.stat().st_size > size:
            os.truncate(file, size)
        self.records = {record["id"]: record for record in records}

    def _rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        kept = {record["id"]: record for record in records}
        files.replace(self.path / "predictions.jsonl", "".join(map(files.json_line, kept.values())))
        self.records = kept


def environment(device: str) -> dict[str, str]:
    """What a run is computed with: recorded beside the results, never part of their identity."""
    versions = {package: _version(package) for package in PACKAGES}
    return versions | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _plain(value: Any, where: str) -> Any:
    """`value` as JSON would give it back."""
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"{where} has the name {name!r}, which is no text; write it in quotes")
        return {name: _plain(part, f"{where}.{name}") for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(part, f"{where}[{position}]") for position, part in enumerate(value)]
    if isinstance(value, bool | int | str | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(
        f"{where} is {value!r}, which JSON cannot hold; give a text, a finite number, a list or a mapping"
    )


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _summary(folder: Path) -> Mapping[str, Any] | None:
    file = folder / "summary.json"
    return files.read_json(file) if file.exists() else None


def _load(folder: Path) -> Run:
    values = files.read_json(folder / "spec.json")
    try:
        spec = RunSpec(**values)
    except TypeError as error:
        raise ValueError(
            f"{folder / 'spec.json'} was not written by this version of the harness; move its folder away"
        ) from error
    return Run(spec=spec, folder=folder, summary=_summary(folder))
