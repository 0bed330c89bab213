"""Files that a process may be killed over.

Lines are whole or absent, files are replaced in one step, locks die with their holder, and what the
operating system refuses becomes one sentence for the user.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROBE_BYTES = 1 << 20  # a folder without room for this is refused before any work
PATIENCE_SECONDS = 0.5  # whoever asks whether a lock is held holds it for an instant


class RunBusy(ValueError):
    """Another process is computing this run at this moment."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns the operating system's refusals into a ValueError of one sentence."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"results cannot be written to {folder}: {error.strerror or error}; make room there or choose "
            "another place with results_dir=FOLDER, and issue the command again"
        ) from error


def probe(folder: Path) -> None:
    """Clear away what a killed process left half written, and prove that there is room. Errors: OSError."""
    for leftover in folder.glob(".*.partial"):
        leftover.unlink()
    file = folder / ".probe.partial"
    try:
        file.write_bytes(bytes(PROBE_BYTES))
    finally:
        with suppress(OSError):
            file.unlink()


def replace(file: Path, text: str) -> None:
    """Write `file` in one step: a reader, or a kill, sees the old content or the new. Errors: OSError."""
    partial = file.with_name(f".{file.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        _write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    os.replace(partial, file)


def append_line(file: Path, value: Mapping[str, Any]) -> None:
    """Add one JSON line; when this returns it is on the disk. Errors: OSError, and then nothing was added."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    size = os.fstat(descriptor).st_size
    try:
        _write(descriptor, json_line(value).encode())
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)


def json_line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"


def json_page(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def read_json(file: Path) -> Any:
    """Errors: ValueError naming the file."""
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is no valid JSON ({error}); move its folder away and run again") from error


def read_records(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a file of JSON lines, and the bytes they fill: what follows is a line that was not
    finished.

    Errors: ValueError if a line before the last is unreadable, or an id stands there twice."""
    lines = file.read_bytes().split(b"\n") if file.exists() else [b""]
    records: dict[str, dict[str, Any]] = {}
    size = 0
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines) - 1:
                break
            raise ValueError(f"line {number} of {file} is no valid JSON ({error}); delete it") from error
        if record["id"] in records:
            raise ValueError(f"{file} holds sample {record['id']!r} twice; delete one of the two lines")
        records[record["id"]] = record
        size += len(line) + 1
    return list(records.values()), size


def acquire(file: Path, key: str) -> int:
    """Lock `file` for this process, say in it who holds it, and return the descriptor that `release` takes.

    Errors: RunBusy, naming the holder of run `key` if it is known; OSError if the file system has no
    locks."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while not _lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
                raise RunBusy(
                    f"run {key} is being computed by {holder}; wait until it ends and issue the command again"
                )
            time.sleep(PATIENCE_SECONDS / 20)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def release(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.close(descriptor)


def is_locked(file: Path) -> bool:
    """Whether a living process holds `file`; a file that does not exist is held by nobody."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)
