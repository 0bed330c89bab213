"""The script for CUDA devices, tried with tiny sizes on a CPU, and the papers' points that it measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from evaluation import tasks
from evaluation.efficiency import Points
from evaluation.frame import results_of
from evaluation.results import load_runs
from tests.sweeps import ENVIRON, ROOT

SCRIPT = ROOT / "scripts" / "bench_cuda.sh"


def started(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    settings = ENVIRON | {"PYTHON": sys.executable, "OUT": str(folder)} | environ
    return subprocess.run(
        ["bash", str(SCRIPT)], env=settings, capture_output=True, text=True, cwd=folder.parent
    )


def test_its_commands_work_with_tiny_sizes(tmp_path: Path) -> None:
    """Two batches of two methods, plainly and with fixed shapes; the paper's three; tables and figures."""
    done = started(tmp_path / "out", SMALL="1")
    assert done.returncode == 0, done.stderr
    results = results_of(load_runs(tmp_path / "out"))
    assert len(results) == 2 + 2 + 3 and all(result.run.complete for result in results)
    assert {"pyramidinfer", "h2o", "pyramidkv", "snapkv", "fullkv"} == {result.method for result in results}
    written = {file.name for file in (tmp_path / "out").rglob("*") if file.suffix in (".md", ".png")}
    assert {"speed.md", "memory.md", "engine_overhead.md", "tokens_by_batch.png"} <= written
    again = started(tmp_path / "out", SMALL="1")
    assert again.returncode == 0, "the same command goes on, here with nothing left to do"


def test_without_a_device_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    done = started(tmp_path / "out", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and "torch sees no CUDA device" in done.stderr
    assert not (tmp_path / "out").exists()


def task_of(experiment: str) -> tuple[Any, dict[str, Any]]:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", [f"experiment={experiment}"], return_hydra_config=True)
    values: Any = OmegaConf.to_container(config.suite, resolve=True)
    model: Any = OmegaConf.to_container(config.model, resolve=True)
    return tasks.build("efficiency", values["tasks"]["efficiency"]), {
        "model": model,
        "methods": config.hydra.sweeper.params.method.split(","),
        "budget": config.budget,
    }


@pytest.mark.parametrize("experiment", ["pyramidinfer_table", "pyramidkv_latency"])
def test_the_papers_points_are_the_papers(experiment: str) -> None:
    task, rest = task_of(experiment)
    found = [
        tuple(sample.meta.values())
        for sample in task.samples(Points(model_max_length=rest["model"]["checkpoint"]["max_length"]))
    ]
    assert rest["model"]["weights"] == "random"
    if experiment == "pyramidinfer_table":
        assert found == [(512, 32, 256), (512, "largest", 256)] and task.memory_gib == 79
        assert rest["methods"] == ["fullkv", "h2o", "pyramidinfer"] and rest["budget"] == 0.455
    else:
        sizes = (512, 1024, 2048, 4096)
        assert sorted(found) == sorted((length, 1, new) for length in sizes for new in sizes)
        assert rest["methods"] == ["fullkv", "h2o", "snapkv", "streamingllm", "pyramidkv"]


def test_pyramidinfer_holds_what_its_paper_says_as_nearly_as_it_can() -> None:
    """45.4 % of 512 tokens are 232, and narrowing over 40 layers reaches 233."""
    from pyramid.methods import build

    assert sum(build("pyramidinfer", budget=0.455).lengths(512, 40)) == 40 * 233
    with pytest.raises(ValueError, match="out of reach"):
        build("pyramidinfer", budget=0.454).lengths(512, 40)
