"""The launchers that `hydra/launcher=` names; Hydra takes them from this package only.

All jobs of a sweep are composed and handed on at once: to this process, to one worker a GPU, or to Slurm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from evaluation import bench, launcher


class _Together(Launcher):
    """Composes every job of a sweep and computes them all at once; nothing comes back to Hydra."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        loader = self.context.config_loader
        configs = [loader.load_sweep_config(self.config, list(overrides)) for overrides in job_overrides]
        raise SystemExit(launcher.execute(configs, self.compute))

    def compute(self, jobs: list[bench.Job]) -> bench.Report:
        raise NotImplementedError


class CompanyLauncher(_Together):
    """Runs a sweep in this process; `part` is `i/n` for one of n such processes."""

    def __init__(self, part: str | None = None) -> None:
        self.part = part

    def compute(self, jobs: list[bench.Job]) -> bench.Report:
        return bench.run(jobs, part=launcher.part(self.part))


class LocalProcessesLauncher(_Together):
    """One worker process a GPU of this machine, or as many as `workers` says."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers

    def compute(self, jobs: list[bench.Job]) -> bench.Report:
        from evaluation import workers

        launcher.alone("local_processes")
        return workers.run(jobs, self.workers)


class SlurmLauncher(_Together):
    """One job array, of which each element computes one company, or several."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def compute(self, jobs: list[bench.Job]) -> bench.Report:
        from evaluation import slurm

        launcher.alone("slurm")
        return slurm.run(jobs, slurm.Settings.of(self.settings))
