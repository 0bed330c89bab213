"""A sweep on one machine in several processes, one a GPU.

Every worker is given the whole sweep and takes the companies that are free: the locks of the runs' folders
share out the work, and a worker that dies holds up nobody. As a script, this file is one worker; it reads its
jobs from its standard input, and ends when that is closed because the process that started it is gone.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from evaluation import bench

ROOT = Path(__file__).resolve().parent.parent


def run(jobs: list[bench.Job], workers: int | None = None) -> bench.Report:
    """Compute the sweep in `workers` processes; None is one a GPU. Errors: ValueError for bad input."""
    devices = gpus()
    count = len(devices) or 1 if workers is None else workers
    if type(count) is not int or count < 1:
        raise ValueError(f"hydra.launcher.workers={count!r} is no number of workers: give 1 or more")
    planned, refused = bench.plan(jobs)
    report = bench.Report(refused=refused)
    count = min(count, len(bench.companies([cell for cell in planned if not cell.run.complete])))
    processes = [_start(jobs, number, count, devices) for number in range(count)]
    try:
        for number, process in enumerate(processes, 1):
            code = process.wait()
            if code not in (0, 1, 2):
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                report.failed.append(f"worker {number} of {count} {how}; the same command goes on")
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    return bench.gather(planned, report)


def gpus() -> list[str]:
    """The GPUs that a process started here may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(number) for number, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]


def _start(jobs: list[bench.Job], number: int, count: int, devices: Sequence[str]) -> subprocess.Popen[bytes]:
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
    }
    if devices:
        environ["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
    process = subprocess.Popen(
        [sys.executable, "-m", "evaluation.workers"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    pickle.dump((jobs, number / count), process.stdin)
    process.stdin.flush()
    return process


def work() -> int:
    """What a worker does: its exit code is of interest only if it did not come this far."""
    from evaluation.interruption import interruptible

    jobs, start = pickle.load(sys.stdin.buffer)

    def end_with_parent() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        while True:  # once is not enough: an exception that is raised inside a destructor or callback is lost
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        with interruptible():
            return bench.run(jobs, progress=False, start=start).exit_code
    except KeyboardInterrupt:
        return 1


if __name__ == "__main__":
    sys.exit(work())
