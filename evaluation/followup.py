"""What is done with a run once it has an outcome: its task's figures, and an entry in a tracker.

Both can fail without harm to the evaluation, and both are made up for when the same command is issued again:
a file in the run's folder says which outcome was drawn and logged.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from evaluation import files, loggers
from evaluation.results import Run, RunBusy, RunFolder
from evaluation.task import Task

NOTE = ".followed_up.json"


def follow_up(run: Run, task: Task, logger: Mapping[str, Any], sweep: str) -> None:
    """Draw and log `run` where that was not done yet; what fails is warned of, once for each reason."""
    outcome = _outcome(run)
    wanted = ["figures", *([] if logger["name"] == "none" else [logger["name"]])]
    if outcome is None or all(_noted(run.folder).get(name) == outcome for name in wanted):
        return
    with suppress(RunBusy, ValueError), RunFolder(run.folder.parent.parent, run.spec):
        for name in wanted:
            if _noted(run.folder).get(name) == outcome:
                continue
            act = _draw if name == "figures" else _log
            if _attempt(lambda act=act: act(run, task, logger, sweep), name):
                note = _noted(run.folder) | {name: outcome}
                files.replace(run.folder / NOTE, files.json_page(note))


def _draw(run: Run, task: Task, logger: Mapping[str, Any], sweep: str) -> None:
    if run.summary is not None:
        task.draw([record for record in run.records if record["error"] is None], run.folder)


def _log(run: Run, task: Task, logger: Mapping[str, Any], sweep: str) -> None:
    loggers.build(logger).log(run, sweep)


def _outcome(run: Run) -> str | None:
    """A word that changes with the run's outcome; None as long as it has none."""
    for name in ("summary.json", "failure.txt"):
        with suppress(FileNotFoundError):
            return hashlib.sha256((run.folder / name).read_bytes()).hexdigest()[:12]
    return None


def _noted(folder: Path) -> dict[str, str]:
    with suppress(FileNotFoundError):
        return files.read_json(folder / NOTE)
    return {}


def _attempt(act: Callable[[], None], name: str) -> bool:
    try:
        act()
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        what = "its figures were not drawn" if name == "figures" else f"logger={name} did not log"
        _warn(f"{what}: {text}")
        return False
    return True


@cache
def _warn(text: str) -> None:
    """Each sentence once in a process."""
    print(f"warning: {text}; the evaluation goes on, and the same command makes up for it", file=sys.stderr)
