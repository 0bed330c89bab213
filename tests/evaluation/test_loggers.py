"""Runs copied to trackers: what is written, what may fail, and that one entry never mixes with another.

W&B is the real package, offline; what it wrote is read back by its own viewer.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evaluation import bench, followup, loggers
from pyramid.methods.snapkv import SnapKV
from tests.sweeps import command, jobs, rows_of, save_tiny, settings

SECRET = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    """Neither a key nor a mode from this machine, and a home of its own."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    followup._warn.cache_clear()
    loggers._answers.cache_clear()


def sweep(tiny: Path, root: Path, logger: str, *overrides: str) -> bench.Report:
    asked = jobs(tiny, root, f"logger={logger}", *overrides, method=("fullkv", "snapkv"), budget=(16,))
    return bench.run(asked, progress=False)


def entries(root: Path) -> dict[str, dict[str, Any]]:
    """W&B's offline entries by their id, as `wandb leet inspect` shows them, with their predictions."""
    found = {}
    for folder in sorted((root / "wandb").glob("offline-run-*")):
        command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", "--summary"]
        shown = subprocess.run([*command, str(folder)], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        tables = list(folder.glob("files/media/table/*.json"))
        found[folder.name.rpartition("-")[2]] = {
            "shown": json.loads(shown.stdout),
            "predictions": json.loads(tables[0].read_text()) if tables else None,
        }
    return found


def test_csv_has_one_row_a_run_and_updates_it(tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SnapKV, "score", lambda *_: 1 / 0)
        assert sweep(tiny, tmp_path, "csv").exit_code == 1
    good, bad = rows_of(tmp_path / "runs.csv")
    assert (good["method"], good["status"], bad["status"], bad["failed"]) == ("fullkv", "done", "failed", "4")
    report = sweep(tiny, tmp_path, "csv")
    rows = rows_of(tmp_path / "runs.csv")
    assert [(row["key"], row["status"]) for row in rows] == [(run.key, "done") for run in report.runs]
    assert float(rows[1]["held/tokens_after_prompt"]) == 16
    assert float(rows[1]["throughput/new_tokens_per_second"]) > 0
    assert rows[0]["sweep"] == rows[1]["sweep"] != ""


def test_wandb_offline_one_entry_a_cell_grouped_by_sweep_without_secrets(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    report = sweep(tiny, tmp_path, "wandb")
    assert report.exit_code == 0 and capsys.readouterr().err == ""
    found = entries(tmp_path)
    assert set(found) == {loggers.run_id(run) for run in report.runs} and len(found) == 2
    for run in report.runs:
        entry = found[loggers.run_id(run)]
        text = json.dumps(entry["shown"])
        assert run.spec.method["name"] in text and "held/tokens_after_prompt" in text
        assert "throughput/new_tokens_per_second" in text
        assert len(entry["predictions"]["data"]) == 4 and "text" in entry["predictions"]["columns"]
    everything = b"".join(file.read_bytes() for file in (tmp_path / "wandb").rglob("*") if file.is_file())
    assert SECRET.encode() not in everything
    groups = {
        job.sweep for job in jobs(tiny, tmp_path, "logger=wandb", method=("fullkv", "snapkv"), budget=(16,))
    }
    assert len(groups) == 1 and groups.pop().encode() in everything

    sweep(tiny, tmp_path, "wandb")
    assert set(entries(tmp_path)) == set(found), "what was logged is not logged again"
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2


def test_wandb_after_a_failure_goes_on_under_the_same_id(tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SnapKV, "score", lambda *_: 1 / 0)
        report = sweep(tiny, tmp_path, "wandb")
    bad = loggers.run_id(report.runs[1])
    assert set(entries(tmp_path)) == {loggers.run_id(run) for run in report.runs}
    time.sleep(1.1)  # W&B names offline folders by the second
    assert sweep(tiny, tmp_path, "wandb").exit_code == 0
    folders = sorted(folder.name.rpartition("-")[2] for folder in (tmp_path / "wandb").glob("offline-run-*"))
    assert folders.count(bad) == 2 and len(folders) == 3, "one folder for each outcome, one id"


def test_a_key_without_a_network_goes_offline_at_once(tiny, tmp_path, monkeypatch):
    with socket.socket() as silent:  # accepts connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("WANDB_API_KEY", SECRET)
        began = time.monotonic()
        assert loggers._has_key(address) and not loggers._answers(address)
        assert time.monotonic() - began < 10


def test_without_the_package_the_evaluation_goes_on(tiny, tmp_path, monkeypatch, capsys):
    real = loggers.find_spec
    monkeypatch.setattr(loggers, "find_spec", lambda name: None if name == "wandb" else real(name))
    report = sweep(tiny, tmp_path, "wandb")
    assert report.exit_code == 0 and all(run.complete for run in report.runs)
    (warning,) = capsys.readouterr().err.splitlines()
    assert "logger=wandb did not log: it is not installed: pip install" in warning
    monkeypatch.undo()
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    sweep(tiny, tmp_path, "wandb")
    assert len(entries(tmp_path)) == 2, "made up for"


def test_trackio_has_one_entry_a_cell_and_prints_nothing(tiny, tmp_path):
    """In a process of its own, where it finds its folder; it is an extra that may be absent."""
    pytest.importorskip("trackio")
    arguments = ("-m", "method=fullkv,snapkv", "budget=16", "logger=trackio", *settings(tiny, "r"))
    done = command(*arguments, cwd=tmp_path, environ={"TRACKIO_DIR": str(tmp_path / "trackio")})
    assert (done.returncode, done.stderr) == (0, "")
    cells = json.loads(done.stdout.splitlines()[-1])["cells"]
    with closing(sqlite3.connect(tmp_path / "trackio" / "pyramid-bench.db")) as database:
        entries = dict(database.execute("select run_name, metrics from metrics"))
    assert set(entries) == {cell["key"] for cell in cells}
    for cell in cells:
        logged = json.loads(entries[cell["key"]])
        assert (
            logged["held/tokens_after_prompt"] == cell["held_tokens"]
            and len(logged["predictions"]["_value"]) == 4
        )


def test_a_wrong_setting_is_refused_before_anything_runs(tiny, tmp_path):
    for override, sentence in (
        ("logger.mode=of", "logger.mode='of' is none of"),
        ("+logger.x=1", "no setting 'x'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            jobs(tiny, tmp_path, "logger=wandb", override, method=("fullkv",))
