"""A sweep on a real Slurm of this one machine: as an array, refused, and put back into the queue halfway."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluation import bench
from tests.sweeps import ENVIRON, ROOT, command, files_of, jobs, save_tiny, settings, start

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd")
SMALL = ("hydra.launcher.gpus=0", "hydra.launcher.cpus=1", "hydra.launcher.memory_gb=2")
SWEEP = ("method=fullkv,snapkv", "budget=16,32", "seed=0,1")
LONG = f"suite.tasks.needle.lengths={[*range(300, 500)]}".replace(" ", "")

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="starting Slurm's daemons takes root"),
    pytest.mark.skipif(
        shutil.which("slurmctld") is None and shutil.which("apt-get") is None,
        reason="Slurm is not installed, and there is no apt-get to install it",
    ),
]


def shell(*arguments: str, **options: object) -> str:
    environ = ENVIRON | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=400, env=environ, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def running(names: tuple[str, ...]) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/comm"):
        try:
            name, state = file.read_text().strip(), (file.parent / "stat").read_text().split(") ")[1][0]
        except (OSError, IndexError):
            continue
        if name in names and state != "Z":
            found.append(f"{name} {file.parent.name}")
    return found


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[None]:
    """A cluster of this machine, which is gone afterwards."""
    if any(shutil.which(tool) is None for tool in ("slurmctld", "slurmd", "sbatch", "munged")):
        listed = subprocess.run(["apt-cache", "policy", PACKAGES[0]], capture_output=True, text=True).stdout
        if "Candidate: (none)" in listed or not listed:
            subprocess.run(["apt-get", "update", "-qq"], timeout=400, check=False)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        if subprocess.run(install, capture_output=True, timeout=300).returncode:
            pytest.skip("apt-get cannot install Slurm's packages here")
    if running(DAEMONS):
        pytest.skip("this machine runs daemons of Slurm already")
    folder = tmp_path_factory.mktemp("cluster")
    scripts = ROOT / "tests" / "slurm"
    try:
        log = folder / "start.log"
        with log.open("w") as output:
            code = subprocess.run([scripts / "start.sh", folder], stdout=output, stderr=output, timeout=60)
        assert code.returncode == 0, log.read_text()
        os.environ["SLURM_CONF"] = ENVIRON["SLURM_CONF"] = str(folder / "slurm.conf")
        yield
    finally:
        subprocess.run([scripts / "stop.sh", folder], capture_output=True, timeout=60)
        os.environ.pop("SLURM_CONF", None)
        ENVIRON.pop("SLURM_CONF", None)
        assert running(DAEMONS) == []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def wait_for(condition: Callable[[], object], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"in vain:\n{shell('squeue')}"
        time.sleep(0.1)


def test_a_sweep_as_an_array_and_again(tmp_path, slurm, tiny):
    arguments = ("-m", "hydra/launcher=slurm", *SMALL, *SWEEP, *settings(tiny, "r"))
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"Slurm array \d+ of 2 elements computes 6 cells", done.stderr)
    assert len(json.loads(done.stdout.splitlines()[-1])["cells"]) == 6
    asked = jobs(tiny, tmp_path / "unbroken", method=("fullkv", "snapkv"), budget=(16, 32), seed=(0, 1))
    assert bench.run(asked, progress=False).exit_code == 0
    assert files_of(tmp_path / "r") == files_of(tmp_path / "unbroken")
    again = command(*arguments, cwd=tmp_path)
    assert again.returncode == 0 and "Slurm array" not in again.stderr


def test_a_partition_that_is_not_there(tmp_path, slurm, tiny):
    arguments = ("-m", "hydra/launcher=slurm", "hydra.launcher.partition=gold", *SMALL, *settings(tiny, "r"))
    done = command("method=snapkv", "budget=16", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "sbatch refused the array: " in done.stderr and "invalid partition" in done.stderr


def unbroken(tiny: Path, root: Path) -> dict[str, object]:
    asked = jobs(tiny, root, LONG, "batch_size=1", method=("snapkv",), budget=(16,))
    assert bench.run(asked, progress=False).exit_code == 0
    return files_of(root)


def hurry(job: str) -> None:
    """Slurm holds back for two minutes what was put back into its queue."""
    wait_for(lambda: "PENDING" in shell("squeue", "-h", "-o", "%T", "-j", job))
    wait_for(
        lambda: not running(("slurmstepd",))
    )  # what is still being ended would take the new start with it
    time.sleep(2)  # started in the second of its requeue, a job is taken for the one that was ended
    shell("scontrol", "update", f"JobId={job}", "StartTime=now")


def lines_in(root: Path) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in root.glob("runs/*/predictions.jsonl"))


def test_out_of_time_it_goes_back_into_the_queue_and_on_where_it_stopped(tmp_path, slurm, tiny):
    """With submitit, which is warned by USR2, and with the plain script, which is warned by USR1."""
    expected = unbroken(tiny, tmp_path / "unbroken")
    whole = lines_in(tmp_path / "unbroken")
    arguments = (*settings(tiny, "a"), "method=snapkv", "budget=16", LONG, "batch_size=1")
    with start("-m", "hydra/launcher=slurm", *SMALL, *arguments, cwd=tmp_path) as process:
        wait_for(lambda: lines_in(tmp_path / "a") > 1)
        (job,) = shell("squeue", "-h", "-o", "%A").split()
        shell("scancel", "--signal=USR2", job)
        hurry(job)
        assert lines_in(tmp_path / "a") < whole
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert files_of(tmp_path / "a") == expected

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    small = ("--gpus=0", "--mem=2G", "--cpus-per-task=1", "--array=3-3", f"--output={tmp_path}/%A.log")
    script = ("sbatch", "--parsable", *small, "scripts/slurm/sweep.sbatch", *arguments)
    job = shell("env", f"PATH={path}", *script, f"results_dir={tmp_path / 'b'}", cwd=ROOT).strip()
    wait_for(lambda: lines_in(tmp_path / "b") > 1)
    shell("scancel", "--batch", "--signal=USR1", job)
    hurry(job)
    assert lines_in(tmp_path / "b") < whole
    wait_for(
        lambda: list(tmp_path.glob("b/runs/*/heatmap.png")) and not shell("squeue", "-h", "-j", job).strip()
    )
    assert files_of(tmp_path / "b") == expected, (tmp_path / f"{job}.log").read_text()
