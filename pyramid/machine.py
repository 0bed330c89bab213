"""The machine that something is measured on: its state, its memory and how fast that can be copied.

What cannot be found out is None, never 0.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

GIB = 1024**3
COPIED = {"cuda": GIB, "cpu": GIB // 4}  # bytes, several times what a processor's own caches hold
COPIES = 9
EXHAUSTED = ("can't allocate memory", "not enough memory", "out of memory", "std::bad_alloc")
GPU_STATE = {
    "power_draw_watts": "power.draw",
    "power_limit_watts": "power.limit",
    "clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "temperature_celsius": "temperature.gpu",
}
PACKAGES = ("torch", "transformers", "flash-attn")


class Gauge(Protocol):
    """Measures the highest use of memory since `reset`, above what was used when the gauge was made.

    kind: what it counts, by name."""

    kind: str

    def reset(self) -> None: ...

    def peak(self) -> int | None: ...


class CudaGauge:
    """Bytes that live tensors take on one GPU, as torch's allocator counts them."""

    kind = "bytes of tensors, counted by torch's CUDA allocator"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        torch.cuda.synchronize(device)
        self.base = torch.cuda.memory_allocated(device)

    def reset(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - self.base


class ResidentGauge:
    """Bytes of this process that lie in main memory, as Linux counts them: Python and free memory that was not
    given back included, so a coarse measure."""

    kind = "resident set of the process (RSS)"

    def __init__(self) -> None:
        self.base = _resident("VmRSS")

    def reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the highest value becomes the present one

    def peak(self) -> int | None:
        return _resident("VmHWM") - self.base


class NoGauge:
    """Stands where memory cannot be measured."""

    kind = "not measured on this system"

    def reset(self) -> None:
        return

    def peak(self) -> int | None:
        return None


def gauge_of(device: torch.device) -> Gauge:
    if device.type == "cuda":
        return CudaGauge(device)
    try:
        gauge = ResidentGauge()
        gauge.reset()
    except OSError:
        return NoGauge()
    return gauge


def _resident(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/self/status has no {name}")
    return int(found[1]) * 1024


@contextmanager
def limited_memory(device: torch.device, gibibytes: float | None, weights: int) -> Iterator[None]:
    """Within it, no more than this is to be had, as on a smaller device.

    gibibytes: of which a loaded model's `weights`, in bytes, are a part; None is all there is: of a GPU its
        memory, on a CPU what is free now, lest the system end this process, or others.
    Errors: ValueError for more than the machine has."""
    free = _free_memory(device)
    size = free if gibibytes is None else int(gibibytes * GIB) - weights
    if size > free:
        raise ValueError(
            f"memory_gib={gibibytes:g} is more than the {(free + weights) / GIB:.1f} GiB that are to be had here: "
            "give less, or null for all"
        )
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(max(0.0, (size + weights) / whole), device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
    elif sys.platform == "linux":
        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (_resident("VmData") + max(0, size), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
    else:
        yield


def _free_memory(device: torch.device) -> int:
    """Bytes that this process can still get."""
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        return whole - torch.cuda.memory_allocated(device)
    return psutil.virtual_memory().available


def is_exhausted(error: BaseException) -> bool:
    """Whether memory ran out; torch says so on a CPU by the words of a RuntimeError alone."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in EXHAUSTED)


def synchronized_time(device: torch.device) -> float:
    """Seconds on a clock, once the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def copy_bandwidth(device: torch.device) -> float | None:
    """Bytes a second that the memory reads and writes while a large tensor is copied: the median of several
    copies. None if there is no room to try."""
    numbers = COPIED["cuda" if device.type == "cuda" else "cpu"] // 4
    try:
        source = torch.ones(numbers, dtype=torch.float32, device=device)
        target = torch.zeros_like(source)
    except RuntimeError as error:
        if is_exhausted(error):
            return None
        raise
    seconds = []
    for _ in range(COPIES + 1):
        started = synchronized_time(device)
        target.copy_(source)
        seconds.append(synchronized_time(device) - started)
    del source, target
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return 2 * 4 * numbers / statistics.median(seconds[1:])


def describe(device: torch.device) -> dict[str, Any]:
    """What the machine is and in which state, as JSON values."""
    return {
        "device": _device_name(device),
        "versions": {package: _version(package) for package in PACKAGES} | {"cuda": torch.version.cuda},
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_governor": _governor(),
        "gpu": _gpu_state(device),
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    found = None
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"CPU {found[1] if found else platform.processor() or platform.machine()}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _governor() -> str | None:
    file = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return file.read_text().strip() if file.exists() else None


def _gpu_state(device: torch.device) -> dict[str, Any] | None:
    """Power, clocks and driver by nvidia-smi; None without a GPU or without that program."""
    if device.type != "cuda" or shutil.which("nvidia-smi") is None:
        return None
    fields = ["driver_version", *GPU_STATE.values()]
    chosen = f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", chosen, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode:
        return None
    driver, *values = [text.strip() for text in listed.stdout.strip().split(",")]
    return {"driver": driver} | {name: _number(text) for name, text in zip(GPU_STATE, values, strict=True)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
