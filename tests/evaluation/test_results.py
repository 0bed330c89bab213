"""Run folders: identity, one writer, lines that survive, clear refusals. Real files and real processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.results import RunBusy, RunFolder, RunSpec, environment, load_runs

SPEC = RunSpec(
    model={"id": "tiny", "revision": "abc", "dtype": "float32"},
    method={"name": "pyramidkv", "version": 1, "parameters": {"window": 8, "beta": 20}},
    budget=128,
    protocol={"name": "fair", "question": "in_prompt"},
    task={"name": "needle", "version": 1, "data": "0f3a"},
    subset={"limit": None, "ids": None},
    seed=0,
    engine="1",
)
HERE = {"python": "3", "device": "cpu"}
ENVIRON = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def line(id: str, error: str | None = None) -> dict:
    scores = {} if error else {"recall": 1.0}
    return {"id": id, "text": f"answer to {id} äöü 你好\u2028", "scores": scores, "error": error}


def write(folder: RunFolder, *ids: str) -> None:
    for id in ids:
        folder.append(line(id))


@contextmanager
def no_file_larger_than(size: int):
    """No file may grow past `size` bytes, says the kernel: as near to a full disk as a test can come."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# identity


def test_key_is_readable_words_and_the_hash_of_the_whole_spec():
    words, digest = SPEC.key.rsplit("-", 1)
    assert words == "needle-pyramidkv-128"
    assert len(digest) == 12 and set(digest) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, model={**SPEC.model, "revision": "abd"}),
        replace(SPEC, method={**SPEC.method, "version": 2}),
        replace(SPEC, method={**SPEC.method, "parameters": {"window": 32, "beta": 20}}),
        replace(SPEC, budget=129),
        replace(SPEC, budget=128.0),
        replace(SPEC, budget=None),
        replace(SPEC, protocol={**SPEC.protocol, "question": "after_compression"}),
        replace(SPEC, task={**SPEC.task, "data": "0f3b"}),
        replace(SPEC, subset={"limit": 5, "ids": None}),
        replace(SPEC, seed=1),
        replace(SPEC, engine="2"),
    ],
    ids=lambda spec: spec.key,
)
def test_every_part_of_the_spec_changes_the_run(other):
    assert other.key.rsplit("-", 1)[1] != SPEC.key.rsplit("-", 1)[1]


def test_close_numbers_are_different_runs():
    budgets = [0.12, 0.123, 0.1 + 0.2, 0.3, 1, 1.0]
    assert len({replace(SPEC, budget=budget).key for budget in budgets}) == len(budgets)


def test_order_of_keys_and_kind_of_sequence_are_no_difference():
    shuffled = replace(
        SPEC, method={"parameters": {"beta": 20, "window": 8}, "version": 1, "name": "pyramidkv"}
    )
    assert shuffled.key == SPEC.key
    assert replace(SPEC, subset={"ids": ("a", "b")}).key == replace(SPEC, subset={"ids": ["a", "b"]}).key


def test_spec_is_a_copy_that_later_changes_do_not_reach():
    parameters = {"window": 8}
    spec = replace(SPEC, method={"name": "snapkv", "parameters": parameters})
    before = spec.key
    parameters["window"] = 32
    assert spec.key == before


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ({"name": "x", "dtype": object()}, "method.dtype"),
        ({"name": "x", "layers": {1: "a"}}, "method.layers has the name 1"),
        ({"name": "x", "list": [0.1, float("nan")]}, r"method.list\[1\] is nan"),
    ],
)
def test_what_json_cannot_hold_exactly_is_refused_by_its_name(part, word):
    with pytest.raises(ValueError, match=word):
        replace(SPEC, method=part)


def test_names_cannot_leave_the_results_folder(tmp_path):
    spec = replace(SPEC, task={"name": "../../etc/passwd " + "x" * 300}, method={"name": "/"})
    with RunFolder(tmp_path, spec) as folder:
        assert folder.path.parent == tmp_path / "runs"


# one writer, whole lines


def test_a_run_is_interrupted_until_its_summary_stands(tmp_path):
    folder = RunFolder(tmp_path, SPEC)
    with folder:
        assert folder.run.status == "running"
        folder.begin(HERE)
        write(folder, "a", "b")
    assert folder.run.status == "interrupted"
    with folder:
        folder.begin(HERE)
        folder.finish({"complete": True}, ["a", "b"])
    assert folder.run.status == "done"


def test_a_summary_with_failed_samples_is_not_done(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        folder.begin(HERE)
        folder.append(line("a", "broken"))
        folder.finish({"complete": False}, ["a"])
    assert folder.run.status == "failed" and not folder.run.complete


def test_what_stopped_a_run_is_kept_until_the_next_try(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        folder.begin(HERE)
        folder.abort("Traceback ...")
    assert folder.run.status == "failed"
    with folder:
        folder.begin(HERE)
    assert folder.run.status == "interrupted"


def test_a_sample_cannot_be_recorded_twice(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        folder.begin(HERE)
        write(folder, "a")
        with pytest.raises(AssertionError):
            write(folder, "a")
    assert [record["id"] for record in folder.run.records] == ["a"]


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        folder.begin(HERE)
        write(folder, "a", "b", "c")
    file = folder.path / "predictions.jsonl"
    whole = file.read_bytes()
    for size in [*range(0, len(whole), 5), len(whole) - 1, len(whole)]:
        file.write_bytes(whole[:size])
        with RunFolder(tmp_path, SPEC) as again:
            finished = whole[:size].count(b"\n")
            assert list(again.records) == ["a", "b", "c"][:finished]
            write(again, *["a", "b", "c"][finished:])
        assert file.read_bytes() == whole


def test_a_reader_skips_the_line_that_is_being_written_and_changes_nothing(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        folder.begin(HERE)
        write(folder, "a")
        file = folder.path / "predictions.jsonl"
        file.write_bytes(file.read_bytes() + b'{"id": "b", "te')
        before = file.read_bytes()
        (run,) = load_runs(tmp_path)
        assert [record["id"] for record in run.records] == ["a"]
        assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "word"),
    [(b'{"id": "a"\n{"id": "b"}\n', "line 1 of"), (b'{"id": "a"}\n{"id": "a"}\n', "'a' twice")],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path, content, word):
    with RunFolder(tmp_path, SPEC) as folder:
        pass
    (folder.path / "predictions.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=word):
        folder.open()
    assert (folder.path / "predictions.jsonl").read_bytes() == content
    assert folder.run.status == "interrupted", "the lock is given back"


def test_failed_samples_are_forgotten_when_a_run_begins_again(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        folder.begin(HERE)
        write(folder, "a")
        folder.append(line("b/ä", "broken"))
        folder.write_failure("b/ä", "Traceback ...")
        write(folder, "c")
        folder.finish({"complete": False}, ["a", "b/ä", "c"])
        assert [file.read_text() for file in (folder.path / "failures").iterdir()] == ["Traceback ..."]
    with folder:
        assert list(folder.records) == ["a", "b/ä", "c"], "opening alone forgets nothing"
        folder.begin(HERE)
        assert list(folder.records) == ["a", "c"]
        assert not (folder.path / "summary.json").exists() and not (folder.path / "failures").exists()
        write(folder, "b/ä")
        folder.finish({"complete": True}, ["a", "b/ä", "c"])
    assert [record["id"] for record in folder.run.records] == ["a", "b/ä", "c"]


def test_long_sample_names_have_failure_files_of_their_own(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        for end in "12":
            folder.write_failure("x" * 300 + end, end)
    assert sorted(file.read_text() for file in (folder.path / "failures").iterdir()) == ["1", "2"]


def test_another_spec_in_the_folder_is_refused_and_kept(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        pass
    file = folder.path / "spec.json"
    foreign = file.read_text().replace('"window": 8', '"window": 32')
    file.write_text(foreign)
    with pytest.raises(ValueError, match="another run"):
        folder.open()
    assert file.read_text() == foreign
    file.write_text("{")
    with pytest.raises(ValueError, match=r"spec\.json is no valid JSON"):
        folder.open()


def test_opening_twice_is_opening_once_and_paths_do_not_follow_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder("results", SPEC)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with folder, folder.open():
        write(folder, "a")
    assert folder.path == tmp_path / "results" / "runs" / SPEC.key


# two processes

HOLDER = f"""
import sys, time
from evaluation.results import RunFolder, RunSpec
with RunFolder(sys.argv[1], {SPEC!r}):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the run."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRON) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_who_has_the_run(tmp_path, holder):
    with pytest.raises(RunBusy, match=f"process {holder.pid} on "):
        RunFolder(tmp_path, SPEC).open()
    (run,) = load_runs(tmp_path)
    assert run.status == "running"
    other = replace(SPEC, budget=64)
    with RunFolder(tmp_path, other) as folder:
        assert folder.records == {}, "other runs are free"


def test_a_dead_process_holds_nothing(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (run,) = load_runs(tmp_path)
    assert run.status == "interrupted"
    with RunFolder(tmp_path, SPEC) as folder:
        write(folder, "a")


def test_the_same_process_cannot_take_a_run_twice(tmp_path):
    with RunFolder(tmp_path, SPEC), pytest.raises(RunBusy, match=str(os.getpid())):
        RunFolder(tmp_path, SPEC).open()


# a disk that refuses


def test_a_place_that_cannot_be_a_folder_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"cannot be written to .*results_dir=") as caught:
        RunFolder(tmp_path / "file", SPEC).open()
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_place_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=r"Permission denied.*results_dir="):
        RunFolder(tmp_path, SPEC).open()


def test_a_disk_without_room_is_refused_before_any_work(tmp_path):
    folder = RunFolder(tmp_path, SPEC)
    with no_file_larger_than(1 << 19), pytest.raises(ValueError, match="make room there"):
        folder.open()
    assert [file.name for file in folder.path.iterdir()] == [".lock"], "nothing half written stays"
    with folder:
        write(folder, "a")


def test_a_line_that_no_longer_fits_leaves_the_finished_lines_whole(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        folder.begin(HERE)
        write(folder, "a")
        file = folder.path / "predictions.jsonl"
        before = file.read_bytes()
        with no_file_larger_than(len(before) + 10), pytest.raises(ValueError, match="make room there"):
            write(folder, "b")
        assert file.read_bytes() == before
        write(folder, "b")
    assert [record["id"] for record in folder.run.records] == ["a", "b"]


def test_a_replacement_that_does_not_fit_leaves_the_old_file(tmp_path):
    with RunFolder(tmp_path, SPEC) as folder:
        folder.begin(HERE)
        folder.append(line("a", "broken"))
        write(folder, "b")
        before = (folder.path / "predictions.jsonl").read_bytes()
        with no_file_larger_than(20), pytest.raises(ValueError, match="make room there"):
            folder.begin(HERE)
        assert (folder.path / "predictions.jsonl").read_bytes() == before


# reading, and what took part


def test_runs_are_read_back_as_they_were_written(tmp_path):
    specs = [SPEC, replace(SPEC, budget=0.1), replace(SPEC, budget=None)]
    for spec in specs:
        with RunFolder(tmp_path, spec) as folder:
            folder.begin(HERE)
            write(folder, "a")
            folder.finish({"complete": True, "scores": {"recall": 1.0}}, ["a"])
    (tmp_path / "runs" / "left-empty").mkdir()
    runs = load_runs(tmp_path)
    assert {run.key: run.spec for run in runs} == {spec.key: spec for spec in specs}
    assert [run.records for run in runs] == [[line("a")]] * 3
    assert [run.scores("recall") for run in runs] == [{"a": 1.0}] * 3


def test_a_spec_of_another_version_is_named(tmp_path):
    folder = tmp_path / "runs" / "old"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"modell": {}}))
    with pytest.raises(ValueError, match=r"old/spec\.json was not written by this version"):
        load_runs(tmp_path)


def test_environment_names_versions_without_loading_the_packages():
    source = "import sys, evaluation.results as r; r.environment('cpu'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True, env=ENVIRON)
    found = environment("cuda:0")
    assert found["device"] == "cuda:0" and found["numpy"][0].isdigit()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


def test_each_environment_that_took_part_is_recorded_once_and_is_no_identity(tmp_path):
    for device in ("cpu", "cuda", "cpu"):
        with RunFolder(tmp_path, SPEC) as folder:
            folder.begin({"device": device})
    assert folder.environments == [{"device": "cpu"}, {"device": "cuda"}]
    assert len(load_runs(tmp_path)) == 1
