"""How Hydra's sweeps become companies: all jobs of a sweep are handed to the bench at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evaluation import bench, command_line, table


class CompanyLauncher(Launcher):
    """Runs every job of a sweep in this process, sharing whatever they can share."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        loader = self.context.config_loader
        configs = [loader.load_sweep_config(self.config, list(overrides)) for overrides in job_overrides]
        raise SystemExit(execute(configs))


def register() -> None:
    """Let Hydra accept the launcher that conf/hydra/launcher/company.yaml names."""
    Plugins.instance().register(CompanyLauncher)


def execute(configs: Sequence[DictConfig]) -> int:
    """Run the configured jobs, print what came of them, and return the exit code: 0, 1 if anything failed, 2 for
    bad input, which is refused before anything expensive."""
    try:
        report = bench.run([_job(config) for config in configs])
    except (ValueError, OmegaConfBaseException) as error:
        print(f"error: {command_line.explain(error)}", file=sys.stderr)
        return 2
    table.print_table(report.runs, sys.stdout)
    for failure in report.failures:
        print(f"failed: {failure}", file=sys.stderr)
    print(table.json_line(report.runs), flush=True)
    return 0 if report.complete else 1


def _job(config: DictConfig) -> bench.Job:
    OmegaConf.set_readonly(config, False)
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    values.pop("hydra", None)
    known = {setting.split(".")[0] for setting in (*command_line.GROUPS, *command_line.SETTINGS)}
    for name in values:
        if name not in known:
            raise ValueError(command_line.unknown_setting(name))
    return bench.Job.of(values, Path(to_absolute_path(".")))
