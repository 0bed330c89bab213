"""What computes a sweep: worker processes, ranks of torchrun, and what is said where that cannot be."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evaluation import bench, slurm, workers
from tests.sweeps import ENVIRON, ROOT, command, files_of, jobs, save_tiny, settings, start

SWEEP = ("-m", "method=fullkv,snapkv", "budget=16,32", "seed=0,1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def unbroken(tiny, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("unbroken")
    asked = jobs(tiny, root, method=("fullkv", "snapkv"), budget=(16, 32), seed=(0, 1))
    assert bench.run(asked, progress=False).exit_code == 0
    return root


def test_two_workers_leave_what_one_process_leaves(tmp_path, tiny, unbroken):
    launcher = ("hydra/launcher=local_processes", "hydra.launcher.workers=2")
    done = command(*SWEEP, *launcher, *settings(tiny, "r"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout.splitlines()[-1])["cells"]) == 6
    assert files_of(tmp_path / "r") == files_of(unbroken)


def test_workers_end_with_the_process_that_started_them(tmp_path, tiny):
    lengths = f"suite.tasks.needle.lengths={[*range(300, 500)]}".replace(" ", "")
    launcher = ("hydra/launcher=local_processes", "hydra.launcher.workers=2")
    arguments = (*SWEEP, *launcher, *settings(tiny, "r"), lengths, "batch_size=1")
    with start(*arguments, cwd=tmp_path) as process:
        while process.poll() is None and not list(tmp_path.glob("r/runs/*/predictions.jsonl")):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 30
        while any(tmp_path.name in cwd for cwd in working_folders()) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert not any(tmp_path.name in cwd for cwd in working_folders())
    assert list(tmp_path.glob("r/runs/*/predictions.jsonl")) and not list(
        tmp_path.glob("r/runs/*/summary.json")
    )


def working_folders() -> list[str]:
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            found.append(os.readlink(link))
        except OSError:
            continue
    return found


def test_workers_take_the_gpus_that_they_may(monkeypatch):
    for visible, wanted in (("", []), ("-1", []), ("0,3", ["0", "3"]), ("GPU-8f2c", ["GPU-8f2c"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert workers.gpus() == wanted


def torchrun(ranks: int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    tool = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    tool += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    environ = ENVIRON | {"GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*tool, str(ROOT / "run.py"), *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=400,
    )


def test_two_ranks_share_the_samples_and_one_process_goes_on(tmp_path, tiny, unbroken):
    """One folder whatever the number of ranks: two begin, one ends, the files are those of one process."""
    done = torchrun(2, *SWEEP, *settings(tiny, "r"), "limit=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["cells"]) == 6, "one rank prints"
    asked = jobs(tiny, tmp_path / "one", "limit=3", method=("fullkv", "snapkv"), budget=(16, 32), seed=(0, 1))
    assert bench.run(asked, progress=False).exit_code == 0
    assert files_of(tmp_path / "r") == files_of(tmp_path / "one")

    for file in (tmp_path / "r").glob("runs/*/summary.json"):
        file.unlink()
        lines = file.with_name("predictions.jsonl")
        lines.write_text(lines.read_text().splitlines(keepends=True)[0])
    planned = jobs(tiny, tmp_path / "r", "limit=3", method=("fullkv", "snapkv"), budget=(16, 32), seed=(0, 1))
    assert bench.run(planned, progress=False).exit_code == 0
    assert files_of(tmp_path / "r") == files_of(tmp_path / "one")


def test_the_second_task_of_a_slurm_step_does_nothing(tmp_path, tiny):
    environ = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    done = command("method=snapkv", "budget=16", *settings(tiny, "r"), cwd=tmp_path, environ=environ)
    assert (done.returncode, done.stdout) == (0, "") and "use --ntasks=1, or torchrun" in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("hydra/launcher=slrm",), "unknown hydra/launcher 'slrm': did you mean slurm?"),
        (("hydra/launcher=slurm", "hydra.launcher.cpus=0"), "hydra.launcher.cpus=0 must be above 0"),
        (
            ("hydra/launcher=local_processes", "hydra.launcher.workers=0"),
            "hydra.launcher.workers=0 is no number",
        ),
        (("hydra.launcher.part=9/8",), "hydra.launcher.part='9/8' is no part"),
    ],
)
def test_a_launcher_that_cannot_do_it_says_so(tmp_path, arguments, sentence):
    done = command("-m", *arguments, "method=snapkv", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
    assert sentence in done.stderr


def test_slurm_without_sbatch_or_submitit(tmp_path, tiny, monkeypatch):
    asked = jobs(tiny, tmp_path, method=("snapkv",), budget=(16,))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs sbatch, which is not here"):
        slurm.run(asked, slurm.Settings())
    monkeypatch.setattr(slurm, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install -e '.[slurm]'")):
        slurm.run(asked, slurm.Settings())
