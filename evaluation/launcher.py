"""From Hydra's configurations to the bench, and from its report to what the user reads and the exit code."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from evaluation import bench, command_line, table

Compute = Callable[[list[bench.Job]], bench.Report]


def execute(configs: Sequence[DictConfig], compute: Compute = bench.run) -> int:
    """Run the configured jobs, print what came of them, and return the exit code: 0, 1 if anything failed, 2
    for bad input, which is refused before anything expensive."""
    if (number := bench.rank()[0]) > 0:
        return _follow(number)
    if os.environ.get("SLURM_PROCID", "0") != "0" and "RANK" not in os.environ:
        print(
            "all but the first task of a Slurm step do nothing: use --ntasks=1, or torchrun", file=sys.stderr
        )
        return 0
    try:
        report = compute(jobs_of(configs))
    except (ValueError, OmegaConfBaseException) as error:
        print(f"error: {command_line.explain(error)}", file=sys.stderr)
        return 2
    code = report.exit_code
    if code != 2:
        table.print_table(report.runs, sys.stdout)
    for head, sentences in (("busy", report.busy), ("error", report.refused), ("failed", report.failed)):
        for sentence in dict.fromkeys(sentences):
            print(f"{head}: {sentence}", file=sys.stderr)
    for sentence in report.notes:
        print(sentence)
    if code != 2:
        print(table.json_line(report.runs), flush=True)
    return code


def alone(name: str) -> None:
    """Errors: ValueError under torchrun, with which the launcher `name` does not go together."""
    if bench.rank()[1] > 1:
        raise ValueError(f"torchrun and hydra/launcher={name} exclude each other: leave out one of them")


def _follow(number: int) -> int:
    try:
        bench.follow()
    except RuntimeError as error:
        print(f"rank {number} ends, for rank 0 is gone: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def jobs_of(configs: Sequence[DictConfig]) -> list[bench.Job]:
    """The configurations as jobs of one sweep. Errors: ValueError naming the setting, or OmegaConf's own."""
    jobs = [_job(config) for config in configs]
    name = hashlib.sha256(repr(jobs).encode()).hexdigest()[:8]
    return [replace(job, sweep=f"sweep-{name}") for job in jobs]


def _job(config: DictConfig) -> bench.Job:
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        config.pop("hydra", None)
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    known = {setting.split(".")[0] for setting in (*command_line.GROUPS, *command_line.SETTINGS)}
    for name in values:
        if name not in known:
            raise ValueError(command_line.unknown_setting(name))
    return bench.Job.of(values, Path(to_absolute_path(".")))


def part(text: str | None) -> tuple[int, int]:
    """`3/8` as numbers; None is everything. Errors: ValueError if it is no part."""
    number, _, total = (text or "1/1").partition("/")
    if not (number.isdigit() and total.isdigit() and 1 <= int(number) <= int(total)):
        raise ValueError(f"hydra.launcher.part={text!r} is no part: 3/8 is the third of eight")
    return int(number), int(total)
