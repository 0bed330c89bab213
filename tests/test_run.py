"""The command line as a user meets it: real commands in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sweeps import ROOT, command, files_of, save_tiny, settings, start

IMPORTS = "import sys, run; sys.argv = ['run.py', '--help']; run.main(); print(sorted(sys.modules))"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def test_help_names_every_choice_and_imports_nothing_dear():
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True)
    text, modules = done.stdout.rstrip().rsplit("\n", 1)
    for word in ("pyramidkv", "needle", "smollm2_135m_q4_1", "pyramidkv_table1", "wandb", "slurm", "budget"):
        assert word in text
    assert not {"'torch'", "'transformers'", "'pandas'", "'hydra'"} & set(modules.strip("[]").split(", "))


MISTAKES = [
    ("methd=snapkv", "unknown setting 'methd': did you mean method?"),
    ("method=snapk", "unknown method 'snapk': did you mean snapkv?"),
    ("method.windw=8", "unknown setting 'method.windw': did you mean method.window?"),
    ("budget=4", "budget=4 must be above"),
    ("budget=1,2", "budget=1,2 has several values: add -m"),
    ("limit=???", "limit has no value yet (???)"),
    ("limit=0.5", "limit=0.5 is not a whole number"),
    ("limit=${oc.env:NOPE}", "Environment variable 'NOPE' not found"),
    ("note=x=y", """'note="x=y"'"""),
    ("--method=snapkv", "write method=snapkv"),
    ("snapkv", "settings are written name=value"),
    ("~method", "method is missing"),
    ("+foo=1", "unknown setting 'foo'"),
    ("+model.foo=1", "unknown setting 'model.foo'"),
    ("results_dir=/proc/nowhere", "results cannot be written to /proc/nowhere"),
    ("suite.tasks.needle.lengths=abc", "write lengths=[abc]"),
]


@pytest.mark.parametrize(("argument", "sentence"), MISTAKES)
def test_a_mistake_gets_one_sentence_and_exit_code_2(tmp_path, argument, sentence):
    done = command(argument, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results" / "runs").exists() or not any((tmp_path / "results" / "runs").iterdir())


def test_one_cell_then_a_sweep_from_another_folder(tmp_path, tiny):
    """The last line is JSON, results_dir starts where the user stands, what is there is not computed."""
    one = command("method=fullkv", *settings(tiny, "mine"), cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    cell = json.loads(one.stdout.splitlines()[-1])
    assert (
        cell["status"] == "done" and cell["n"] == 4 and Path(cell["folder"]).parent == tmp_path / "mine/runs"
    )
    before = (Path(cell["folder"]) / "predictions.jsonl").stat()

    # -m may stand anywhere; fullkv is named for two budgets and is one cell
    sweep = (*settings(tiny, "mine"), "method=fullkv,snapkv", "-m", "budget=16,32")
    done = command(*sweep, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert "snapkv      32" in done.stdout and "against" in done.stdout
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert [(c["method"], c["budget"]) for c in outcome["cells"]] == [
        ("fullkv", None),
        ("snapkv", 16),
        ("snapkv", 32),
    ]
    after = (Path(cell["folder"]) / "predictions.jsonl").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == [
        "mine"
    ]  # nothing else is left where the user stands


def answered(folder: Path) -> bool:
    """Whether the run in `folder` has written a first line; its file is there before."""
    return any(b"\n" in file.read_bytes() for file in folder.glob("r/runs/*/predictions.jsonl"))


def test_a_signal_ends_with_130_and_a_line_that_says_how_to_go_on(tmp_path, tiny):
    lengths = f"suite.tasks.needle.lengths={[*range(300, 500)]}".replace(" ", "")
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    arguments = ("method=snapkv", "budget=16", *settings(tiny, "r"), lengths, "batch_size=1")
    folders = [tmp_path / number.name for number in numbers]
    for folder in folders:
        folder.mkdir()
    processes = [start(*arguments, cwd=folder) for folder in folders]
    try:
        waiting = list(zip(numbers, folders, processes, strict=True))
        while waiting:
            begun = [each for each in waiting if answered(each[1])]
            for number, _, process in begun:
                process.send_signal(number)
            waiting = [each for each in waiting if each not in begun and each[2].poll() is None]
            time.sleep(0.02)
        for folder, process in zip(folders, processes, strict=True):
            out, err = process.communicate(timeout=200)
            assert (process.returncode, out) == (130, "")
            assert err.strip() == "interrupted: what is answered is kept; the same command goes on from there"
            (lines,) = (part for name, part in files_of(folder / "r").items() if name.endswith(".jsonl"))
            assert 0 < len(lines) < 400
    finally:
        for process in processes:
            process.kill()
