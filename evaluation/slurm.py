"""A sweep as one Slurm job array, through submitit: each element computes one company of cells, or several.

An element that is preempted or reaches its time limit goes back into the queue, and goes on from its runs'
files. What came of it is read from these files as well, so that nothing depends on Slurm's accounting.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evaluation import bench

ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The fields are those of conf/hydra/launcher/slurm.yaml."""

    partition: str | None = None
    account: str | None = None
    gpus: int = 1
    cpus: int = 4
    memory_gb: float = 32
    hours: float = 4
    requeues: int = 10
    companies_per_element: int = 1
    at_once: int = 64
    warning_seconds: int = 120
    sbatch: Mapping[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    wait: bool = True

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        known = [each.name for each in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(
                    f"hydra.launcher.{name} is no setting of Slurm: there are {', '.join(known)}"
                )
        settings = cls(**values)
        for name in ("cpus", "companies_per_element", "at_once", "memory_gb", "hours"):
            if not getattr(settings, name) > 0:
                raise ValueError(f"hydra.launcher.{name}={getattr(settings, name)} must be above 0")
        return settings

    def parameters(self) -> dict[str, Any]:
        """What submitit is to write into the batch script."""
        options = {"partition": self.partition, "account": self.account}
        return {
            **{name: value for name, value in options.items() if value is not None},
            **({"gpus_per_node": self.gpus} if self.gpus else {}),
            "cpus_per_task": self.cpus,
            "mem": f"{round(self.memory_gb * 1024)}M",
            "time": max(1, round(self.hours * 60)),
            "job_name": "pyramid-bench",
            "array_parallelism": self.at_once,
            "signal_delay_s": self.warning_seconds,
            "setup": [f"export PYTHONPATH={shlex.quote(str(ROOT))}:$PYTHONPATH", *self.setup],
            "additional_parameters": {"requeue": True, **self.sbatch},
        }


class Element:
    """What one array element does; submitit asks `checkpoint` what is to be done when it comes back."""

    def __call__(self, companies: list[list[bench.Job]]) -> int:
        return max(bench.run(jobs, progress=False).exit_code for jobs in companies)

    def checkpoint(self, companies: list[list[bench.Job]]) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, companies)


def run(jobs: list[bench.Job], settings: Settings) -> bench.Report:
    """Submit what is missing of the sweep, wait for it if so wished, report what lies in the runs' folders.

    Errors: ValueError for bad input, without submitit or sbatch, and if sbatch refuses the array."""
    _check_installed()
    planned, refused = bench.plan(jobs)
    report = bench.Report(refused=refused)
    missing = bench.companies([cell for cell in planned if not cell.run.complete])
    if missing:
        step = settings.companies_per_element
        parts = [_jobs(company) for company in missing]
        elements = [parts[i : i + step] for i in range(0, len(parts), step)]
        folder = jobs[0].results_dir / ".slurm"
        array = _submit(elements, folder, settings)
        note = (
            f"Slurm array {array} of {len(elements)} elements computes {sum(map(len, missing))} cells and "
            f"logs to {folder}; the same command says what came of it"
        )
        if not settings.wait:
            return bench.Report(runs=[cell.run for cell in planned], refused=refused, notes=[note])
        print(note, file=sys.stderr, flush=True)
        _wait(array)
    return bench.gather(planned, report)


def _check_installed() -> None:
    if find_spec("submitit") is None:
        raise ValueError(
            "hydra/launcher=slurm needs submitit: pip install -e '.[slurm]' -c constraints.txt, or submit "
            "scripts/slurm/sweep.sbatch"
        )
    if shutil.which("sbatch") is None:
        raise ValueError(
            "hydra/launcher=slurm needs sbatch, which is not here: run this on a node of the cluster"
        )


def _jobs(company: list[bench.Plan]) -> list[bench.Job]:
    """The company as jobs of its own, each with the one task."""
    return [cell.job.only(cell.label) for cell in company]


def _submit(elements: list[list[list[bench.Job]]], folder: Path, settings: Settings) -> str:
    import submitit
    from submitit.core.utils import FailedJobError

    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=settings.requeues)
    executor.update_parameters(**settings.parameters())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            submitted = executor.map_array(Element(), elements)
    except (FailedJobError, subprocess.CalledProcessError, OSError) as error:
        lines = re.findall(r"sbatch: error: (.*)", str(error)) or [str(error)]
        raise ValueError(f"sbatch refused the array: {'; '.join(lines)}") from error
    return submitted[0].job_id.split("_")[0]


def _wait(array: str) -> None:
    """Until Slurm lists no element that has yet to end, twice: what is requeued is away for a moment."""
    quiet = 0
    while quiet < 2:
        time.sleep(POLL_SECONDS)
        listed = subprocess.run(
            ["squeue", "--noheader", "--jobs", array, "--format", "%T"], capture_output=True, text=True
        )
        gone = listed.returncode != 0 and "Invalid job id" in listed.stderr
        ended = gone or (listed.returncode == 0 and not listed.stdout.strip())
        quiet = quiet + 1 if ended else 0
