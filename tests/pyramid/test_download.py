"""Wheels are fetched once, checked, and unpacked whole or not at all; a failure is one helpful sentence."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyramid.download import DownloadError, cache_folder, make_folder, wheel_folder

MARKER = "parcel/text.txt"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel_sha256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The hash of a wheel that pip finds in a local folder, and nothing else anywhere."""
    wheel = tmp_path / "wheels" / "parcel-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    about = "parcel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MARKER, "hello")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_OFFLINE", "1")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYRAMID_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "pyramid-bench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "pyramid-bench"
    monkeypatch.setenv("PYRAMID_CACHE", "~/mine")
    assert cache_folder() == Path.home() / "mine"


def test_a_wheel_is_unpacked_and_later_used_without_asking_again(
    cache: Path, wheel_sha256: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = wheel_folder("parcel", "1.0", wheel_sha256, MARKER)
    assert (folder / MARKER).read_text() == "hello"
    assert sorted(path.name for path in folder.iterdir()) == ["parcel", "parcel-1.0.dist-info"]
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "parcel 1.0" in said.err

    monkeypatch.delenv("PIP_FIND_LINKS")
    assert wheel_folder("parcel", "1.0", wheel_sha256, MARKER) == folder
    assert capfd.readouterr().err == ""


def test_a_damaged_copy_is_fetched_again(cache: Path, wheel_sha256: str) -> None:
    folder = wheel_folder("parcel", "1.0", wheel_sha256, MARKER)
    (folder / MARKER).unlink()
    assert (wheel_folder("parcel", "1.0", wheel_sha256, MARKER) / MARKER).read_text() == "hello"


def test_a_wheel_with_another_hash_is_refused(cache: Path, wheel_sha256: str) -> None:
    other = wheel_sha256[:-1] + ("0" if wheel_sha256[-1] != "0" else "1")
    with pytest.raises(DownloadError, match="HASHES"):
        wheel_folder("parcel", "1.0", other, MARKER)
    assert not any(path.is_dir() for path in (cache / "wheels").iterdir())


def test_a_wheel_without_the_marker_is_refused(cache: Path, wheel_sha256: str) -> None:
    with pytest.raises(DownloadError, match="has no parcel/other.txt"):
        wheel_folder("parcel", "1.0", wheel_sha256, "parcel/other.txt")


def test_what_cannot_be_fetched_is_named_with_the_way_out(cache: Path, wheel_sha256: str) -> None:
    with pytest.raises(DownloadError) as caught:
        wheel_folder("parcel", "2.0", wheel_sha256, MARKER)
    message = str(caught.value)
    assert "parcel 2.0" in message and "PIP_FIND_LINKS" in message and str(cache) in message
    assert "://" not in message and "\n" not in message


def test_no_space_and_no_permission_are_told_before_anything_is_fetched(
    cache: Path, wheel_sha256: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DownloadError, match=r"MB free .* are needed: .* PYRAMID_CACHE"):
        wheel_folder("parcel", "1.0", wheel_sha256, MARKER, needed_bytes=1 << 60)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="cannot write to the cache folder .* PYRAMID_CACHE"):
        wheel_folder("parcel", "1.0", wheel_sha256, MARKER)


def test_an_interrupted_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    target = tmp_path / "made"

    def interrupted(folder: Path) -> None:
        (folder / "done").write_text("half")
        raise KeyboardInterrupt

    def whole(folder: Path) -> None:
        (folder / "done").write_text("whole")

    with pytest.raises(KeyboardInterrupt):
        make_folder(target, "done", interrupted, needed_bytes=1)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert (make_folder(target, "done", whole, needed_bytes=1) / "done").read_text() == "whole"


def test_what_a_killed_process_left_is_not_taken_for_done(tmp_path: Path) -> None:
    (tmp_path / "made.part").mkdir()
    (tmp_path / "made.part" / "stale").write_text("")

    def build(folder: Path) -> None:
        (folder / "done").write_text("")

    made = make_folder(tmp_path / "made", "done", build, needed_bytes=1)
    assert [path.name for path in made.iterdir()] == ["done"]


def test_processes_that_want_the_same_folder_make_it_once(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from pyramid.download import make_folder

def build(folder):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    time.sleep(0.5)
    (folder / "done").write_text("")

make_folder(Path(sys.argv[1]), "done", build, needed_bytes=1)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "made"), str(tmp_path / "log")]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "built\n"
