"""lm-evaluation-harness's tasks by name: from its own collection or a folder, with data from the hub or a file."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """tasks: lm_eval's own objects by name. group: the group that they form, if the name was one's."""

    tasks: Mapping[str, Any]
    group: Any | None


def load(
    name: str, *, include_path: str | Path | None, metadata: Mapping[str, Any], data: str | Path | None
) -> Loaded:
    """The task or group of that name.

    Args: include_path: a folder with further tasks, which come before lm_eval's own; metadata: what some tasks need
    to make their data; data: a file to be read instead of the data set on the hub, or a folder with a file a split.
    Errors: ValueError with one sentence."""
    if find_spec("lm_eval") is None:
        raise ValueError("suite=lm_eval takes a package: pip install -e '.[lm-eval]' -c constraints.txt")
    if include_path is not None and not Path(include_path).is_dir():
        raise ValueError(f"lm_eval: include_path={str(include_path)!r} is no folder")
    with quiet():
        manager = _manager_with(name, include_path, metadata)
        spec: Any = name if data is None else _with_data(manager, name, Path(data).expanduser())
        try:
            found = manager.load([spec])
        except Exception as error:
            raise ValueError(_sentence(name, error)) from error
    groups = found["groups"]
    if name not in groups:
        return Loaded(tasks=found["tasks"], group=None)
    if not groups[name].has_aggregation:
        raise ValueError(
            f"lm_eval's group {name!r} has no score of its own; name its tasks: {_some(found['tasks'])}"
        )
    return Loaded(tasks=found["tasks"], group=groups[name])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within it, lm_eval and datasets write neither progress bars nor remarks."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "datasets")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _manager_with(name: str, include_path: str | Path | None, metadata: Mapping[str, Any]) -> Any:
    """An index that has the name: that of the folder alone if it does, for lm_eval's own takes seconds to make."""
    places = [True] if include_path is None else [False, True]
    for own in places:
        manager = _index(None if include_path is None else str(include_path), own, json.dumps(dict(metadata)))
        entry = manager.task_index.get(name)
        if entry is not None:
            break
    else:
        near = get_close_matches(name, manager.all_tasks, 3, 0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "lm_eval ls tasks lists those it has."
        raise ValueError(f"lm_eval has no task {name!r}: {hint}")
    if entry.kind.name == "TAG":
        tagged = sorted(task for task, each in manager.task_index.items() if name in each.tags)
        raise ValueError(
            f"{name!r} is only a label of several lm_eval tasks; name them: {_some(tagged or entry.tags)}"
        )
    return manager


@cache
def _index(include_path: str | None, own: bool, metadata: str) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=include_path, include_defaults=own, metadata=json.loads(metadata))


def _with_data(manager: Any, name: str, data: Path) -> dict[str, Any]:
    """The task's configuration, with its data set replaced by files."""
    from lm_eval.tasks._yaml_loader import load_yaml

    entry = manager.task_index[name]
    if entry.kind.name != "TASK":
        raise ValueError(f"data.path goes with one lm_eval task at a time, and {name!r} is none")
    config = load_yaml(entry.yaml_path, resolve_func=True)
    names = [config[key] for key in ("test_split", "validation_split", "training_split") if config.get(key)]
    files = {names[0]: data} if data.is_file() and names else _files(data, names)
    reader = READERS.get(next(iter(files.values())).suffix)
    if reader is None:
        raise ValueError(f"{next(iter(files.values()))} is not one of {', '.join(READERS)}")
    return config | {
        "dataset_path": reader,
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(file) for split, file in files.items()}},
    }


def _files(folder: Path, splits: Sequence[str]) -> dict[str, Path]:
    """The files of a folder that are named by splits."""
    places = [(split, folder / f"{split}{ending}") for split in splits for ending in READERS]
    found = {split: file for split, file in places if file.is_file()}
    if not found:
        tried = ", ".join(f"{split}.jsonl" for split in splits)
        raise ValueError(f"there is none of {tried} in {folder}, nor one that ends in {', '.join(READERS)}")
    return found


def _sentence(name: str, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return (
        f"lm_eval's task {name!r} cannot be loaded ({type(error).__name__}: {reason}); where its data set is not in "
        "reach, data.path=FILE reads a file instead"
    )


def _some(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
