"""Trackers that runs are copied to; the files in the runs' folders stay the truth.

A run is logged as a whole once it has an outcome: one entry is opened, filled and closed, so that no job can
write into another's entry. Its id is the hash in the run's key: a run that goes on after a stop goes on under
the same id. This is the only file that imports wandb or trackio. No environment variable and no command line
is ever logged.
"""

from __future__ import annotations

import csv
import io
import netrc
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

from filelock import FileLock

from evaluation.results import Run
from evaluation.summary import turns

NETWORK_SECONDS = 2.0
COLUMNS = ("id", "text", "references", "prompt_tokens", "new_tokens", "finish", "compressed", "error")


class Logger(Protocol):
    """Errors are the caller's to turn into warnings: a tracker that fails costs no evaluation."""

    def log(self, run: Run, sweep: str) -> None:
        """Copy one finished or failed run; `sweep` names what was run together."""
        ...


def build(settings: Mapping[str, Any]) -> Logger:
    """The logger that a file of conf/logger describes.

    Errors: ValueError for an unknown name or setting."""
    values = dict(settings)
    name = values.pop("name")
    if name not in LOGGERS:
        raise ValueError(f"logger {name!r} is unknown: take one of {', '.join(LOGGERS)}")
    known = [field.name for field in fields(LOGGERS[name])]
    for value in values:
        if value not in known:
            raise ValueError(f"logger={name} has no setting {value!r}: it has {', '.join(known) or 'none'}")
    return LOGGERS[name](**values)


@dataclass(frozen=True)
class Nowhere:
    """Leaves a run where it is."""

    def log(self, run: Run, sweep: str) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Csv:
    """One row a run in `file`: what it was, scored, held and cost."""

    file: str | Path

    def log(self, run: Run, sweep: str) -> None:
        file = Path(self.file)
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(f".{file.name}.lock")):
            rows = {}
            if file.exists():
                with file.open(newline="", encoding="utf-8") as lines:
                    rows = {row["key"]: row for row in csv.DictReader(lines)}
            rows[run.key] = {"sweep": sweep, "key": run.key} | _names(run) | _numbers(run)
            columns = dict.fromkeys(name for row in rows.values() for name in row)
            partial = file.with_name(f".{file.name}.partial")
            with partial.open("w", newline="", encoding="utf-8") as lines:
                writer = csv.DictWriter(lines, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows.values())
            partial.replace(file)


@dataclass(frozen=True, kw_only=True)
class Wandb:
    """Weights & Biases.

    mode: `online`, `offline`, or `auto`: online if there is a key and the server answers, else offline.
    group: what runs are grouped by; None is the sweep. dir: where W&B keeps its files."""

    project: str
    entity: str | None
    group: str | None
    mode: str
    dir: str | Path

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "online", "offline"):
            raise ValueError(f"logger.mode={self.mode!r} is none of auto, online, offline")

    def log(self, run: Run, sweep: str) -> None:
        _check_installed("wandb")
        import wandb

        Path(self.dir).mkdir(parents=True, exist_ok=True)
        entry = wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.group or sweep,
            id=run_id(run),
            name=_title(run),
            job_type=run.spec.task["name"],
            config=asdict(run.spec) | {"key": run.key},
            dir=str(self.dir),
            mode=self._mode(),
            resume="allow" if self._mode() == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
                init_timeout=15,
            ),
        )
        try:
            entry.summary.update(_numbers(run))
            names, rows = _predictions(run)
            if rows:
                entry.log({"predictions": wandb.Table(columns=names, data=rows)})
        finally:
            entry.finish(exit_code=0 if run.complete else 1)

    def _mode(self) -> Any:
        import wandb

        wish = os.environ.get("WANDB_MODE") or self.mode
        if wish != "auto":
            return wish
        address = str(wandb.setup().settings.base_url)
        return "online" if _has_key(address) and _answers(address) else "offline"


@dataclass(frozen=True, kw_only=True)
class Trackio:
    """Trackio keeps its runs in a local database: `trackio show` draws them, and no account is needed."""

    project: str
    group: str | None

    def log(self, run: Run, sweep: str) -> None:
        _check_installed("trackio")
        import trackio  # pyright: ignore[reportMissingImports]

        values = {name: value for name, value in _numbers(run).items() if value is not None}
        names, rows = _predictions(run)
        if rows:
            values["predictions"] = trackio.Table(columns=names, data=rows)
        # it advertises its dashboard, and standard output is for results
        with redirect_stdout(io.StringIO()):
            trackio.init(
                project=self.project,
                group=self.group or sweep,
                name=run.key,
                config=asdict(run.spec),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            try:
                trackio.log(values)
            finally:
                trackio.finish()


LOGGERS: dict[str, Any] = {"none": Nowhere, "csv": Csv, "wandb": Wandb, "trackio": Trackio}


def _check_installed(package: str) -> None:
    if find_spec(package) is None:
        raise ValueError(f"it is not installed: pip install -e '.[{package}]' -c constraints.txt")


def run_id(run: Run) -> str:
    """The same for the same run on every machine."""
    return run.key.rpartition("-")[2]


def _title(run: Run) -> str:
    budget = "" if run.spec.budget is None else f" {run.spec.budget}"
    return f"{run.spec.task['name']} {run.spec.method['name']}{budget}"


def _names(run: Run) -> dict[str, Any]:
    spec = run.spec
    return {
        "task": spec.task["name"],
        "model": spec.model.get("id"),
        "method": spec.method["name"],
        "budget": spec.budget,
        "protocol": spec.protocol.get("name"),
        "seed": spec.seed,
    }


def _numbers(run: Run) -> dict[str, Any]:
    """The outcome as flat values; a throughput is over all samples that were answered."""
    summary = run.summary
    if summary is None:
        return {"status": run.status}
    answered = [record for record in run.records if record["error"] is None]
    seconds = summary["seconds"]
    values = {"status": "done" if run.complete else "failed", "n": summary["n"], "failed": summary["failed"]}
    values |= {f"score/{metric}": value for metric, value in summary["scores"].items()}
    values |= {
        f"held/{name}": value for name, value in summary["held"].items() if not isinstance(value, list)
    }
    values |= {name: summary[name] for name in ("compressed", "truncated", "prompt_tokens", "new_tokens")}
    values |= {f"seconds/{phase}": value for phase, value in seconds.items()}
    for name, tokens, phase in (("prompt", "prompt_tokens", "prefill"), ("new", "new_tokens", "decode")):
        if answered and seconds.get(phase):
            total = sum(turn[tokens] for record in answered for turn in turns(record))
            values[f"throughput/{name}_tokens_per_second"] = total / seconds[phase]
    return values


def _predictions(run: Run) -> tuple[list[Any], list[Any]]:
    """Column names and one row a sample."""
    records = run.records
    metrics = list(dict.fromkeys(metric for record in records for metric in record["scores"]))
    rows = []
    for record in records:
        values = {**record, "references": " | ".join(record["references"])}
        rows.append([values[name] for name in COLUMNS] + [record["scores"].get(name) for name in metrics])
    return [*COLUMNS, *metrics], rows


def _has_key(address: str) -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = os.environ.get("NETRC") or Path("~/.netrc").expanduser()
    with suppress(OSError, netrc.NetrcParseError):
        return urlparse(address).hostname in netrc.netrc(str(file)).hosts
    return False


@cache
def _answers(address: str) -> bool:
    """Whether a server is there, found out in two seconds at most, name service included."""
    found: list[bool] = []

    def ask() -> None:
        with suppress(OSError, ValueError):
            with suppress(urllib.error.HTTPError):  # a server that refuses is a server
                urllib.request.urlopen(address, timeout=NETWORK_SECONDS).close()
            found.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(NETWORK_SECONDS)
    return bool(found)
