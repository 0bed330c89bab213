"""Finished runs as one small file, for keeping and publishing: a zip of their folders, the same bytes for the same
runs.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from evaluation.results import Run

PICTURES = (".png", ".pdf")
EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip's first date; dates of its own would make every copy another file


def pack(runs: Sequence[Run], target: Path) -> None:
    """Write the finished ones of `runs`, in the order of their keys: every file of their folders but locks and
    pictures, which can be drawn again.

    Errors: ValueError if none is finished."""
    finished = sorted((run for run in runs if run.summary is not None), key=lambda run: run.key)
    if not finished:
        raise ValueError(f"there are no finished runs to write into {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
        for run in finished:
            for file in sorted(run.folder.rglob("*")):
                inner = file.relative_to(run.folder)
                hidden = any(part.startswith(".") for part in inner.parts)
                if file.is_file() and not hidden and file.suffix not in PICTURES:
                    entry = zipfile.ZipInfo(str(Path("runs") / run.key / inner), EARLIEST)
                    archive.writestr(entry, file.read_bytes(), zipfile.ZIP_LZMA)


def folder_of(source: Path) -> Path:
    """The results folder that an archive holds, until this process ends; `source` itself where it is a folder.

    Errors: ValueError for a file that is no archive."""
    if not source.is_file():
        return source
    if not zipfile.is_zipfile(source):
        raise ValueError(f"{source} is neither a folder with runs nor an archive that scripts.report packed")
    return _unpacked(source.resolve())


@cache
def _unpacked(archive: Path) -> Path:
    folder = tempfile.mkdtemp(prefix="pyramid-runs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    return Path(folder)
