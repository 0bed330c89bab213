"""Sweeps that take a second: a tiny model, four needle prompts; as a command, or as jobs."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation import bench
from tests.pyramid.tiny_checkpoint import save_tiny

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = (
    "suite=needle_smoke",
    "suite.tasks.needle.haystack=python_reference",
    "suite.tasks.needle.lengths=[300,400]",
    "suite.tasks.needle.max_new_tokens=8",
)
# a folder of the checkout stands in nobody's way, and no variable of a scheduler or tracker leaks in
ENVIRON = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("SLURM_", "WANDB_")) and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
} | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def settings(model: Path, results: Path | str) -> list[str]:
    return [f"model.id={model}", *SETTINGS, f"results_dir={results}"]


def start(*arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """The command, begun; its standard input is empty."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *arguments],
        cwd=cwd,
        env=ENVIRON | (environ or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(*arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> Any:
    """The finished command: `returncode`, `stdout`, `stderr`."""
    with start(*arguments, cwd=cwd, environ=environ) as process:
        out, err = process.communicate(timeout=400)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def jobs(model: Path, results: Path, *overrides: str, **sweep: Sequence[Any]) -> list[bench.Job]:
    """The jobs that `run.py -m` would hand to the bench: `overrides` for all, every choice from `sweep`."""
    from hydra import compose, initialize_config_dir

    from evaluation import launcher

    configs = []
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for values in itertools.product(*sweep.values()):
            chosen = [f"{name}={value}" for name, value in zip(sweep, values, strict=True)]
            configs.append(compose("config", [*settings(model, results), *chosen, *overrides]))
    return launcher.jobs_of(configs)


def files_of(root: Path) -> dict[str, Any]:
    """Every file of every run without the seconds; what runs note for themselves is left out."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: timeless(part) for name, part in value.items() if name != "seconds"}
        return value

    found = {}
    for file in sorted((root / "runs").rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            name = str(file.relative_to(root))
            if file.suffix == ".json":
                found[name] = timeless(json.loads(file.read_text()))
            elif file.suffix == ".jsonl":
                found[name] = [timeless(json.loads(line)) for line in file.read_text().splitlines()]
            else:
                found[name] = file.read_bytes()
    return found


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


__all__ = ["command", "files_of", "jobs", "rows_of", "save_tiny", "settings", "start"]
