"""A sweep in this process: what is shared, what is skipped, what fails alone, and what twenty kills leave."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from evaluation import bench
from evaluation.results import RunFolder
from pyramid import models
from pyramid.methods.snapkv import SnapKV
from tests.sweeps import files_of, jobs, save_tiny

SWEEP = {"method": ("fullkv", "snapkv", "pyramidkv"), "budget": (16, 32)}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def unbroken(tiny, tmp_path_factory) -> Path:
    """The results of a sweep that nothing disturbed."""
    root = tmp_path_factory.mktemp("unbroken")
    report = bench.run(jobs(tiny, root, **SWEEP), progress=False)
    assert (report.exit_code, len(report.runs)) == (0, 5), report
    return root


def test_a_finished_sweep_is_known_without_loading_the_model(tiny, unbroken, monkeypatch):
    monkeypatch.setattr(models, "load", lambda spec: 1 / 0)
    before = files_of(unbroken)
    report = bench.run(jobs(tiny, unbroken, **SWEEP), progress=False)
    assert report.exit_code == 0 and files_of(unbroken) == before


def test_a_sweep_that_grew_computes_only_what_is_new(tiny, unbroken, tmp_path, monkeypatch):
    bench.run(jobs(tiny, tmp_path, method=("fullkv", "snapkv"), budget=(16,)), progress=False)
    scored: set[Any] = set()
    real = SnapKV.score

    def score(self: SnapKV, seen: Any) -> Any:
        scored.add((type(self).__name__, self.budget))
        return real(self, seen)

    monkeypatch.setattr(SnapKV, "score", score)
    report = bench.run(jobs(tiny, tmp_path, **SWEEP), progress=False)
    assert report.exit_code == 0 and scored == {("SnapKV", 32), ("PyramidKV", 16), ("PyramidKV", 32)}
    assert files_of(tmp_path) == files_of(unbroken)


def test_cells_are_grouped_by_what_they_share_and_each_is_there_once(tiny, tmp_path):
    asked = jobs(tiny, tmp_path, **SWEEP, seed=(0, 1))
    planned, refused = bench.plan(asked)
    assert [len(company) for company in bench.companies(planned)] == [5, 5] and not refused
    first = bench.run(asked, part=(1, 2), progress=False)
    assert {run.spec.seed for run in first.runs} == {0} and len(first.runs) == 5
    assert len(list((tmp_path / "runs").iterdir())) == 5
    rest = bench.run(asked, part=(2, 2), progress=False)
    assert {run.spec.seed for run in rest.runs} == {1} and rest.exit_code == 0


def test_bad_jobs_are_named_and_the_good_ones_run(tiny, unbroken, tmp_path):
    asked = jobs(tiny, tmp_path, method=("snapkv",), budget=(4, 16, -1))
    report = bench.run(asked, progress=False)
    assert report.exit_code == 1 and [run.spec.budget for run in report.runs if run.complete] == [16]
    assert [sentence.split()[0] for sentence in report.refused] == ["budget=4", "budget=-1"]
    (done,) = (tmp_path / "runs").iterdir()
    mine = {
        name: value for name, value in files_of(unbroken).items() if name.startswith(f"runs/{done.name}/")
    }
    assert files_of(tmp_path) == mine


def test_nothing_but_bad_input_is_exit_code_2(tiny, tmp_path):
    assert bench.run(jobs(tiny, tmp_path, method=("snapkv",), budget=(4, -1)), progress=False).exit_code == 2
    late = jobs(
        tiny, tmp_path, "suite.tasks.needle.lengths=[5000]", method=("snapkv", "fullkv"), budget=(16,)
    )
    report = bench.run(late, progress=False)
    assert report.exit_code == 2 and "length 5000 does not fit" in report.refused[0]


def test_a_method_that_raises_leaves_the_others_whole(tiny, unbroken, tmp_path, monkeypatch):
    def broken(self: SnapKV, seen: object) -> None:
        raise RuntimeError("a bug in layer 1")

    monkeypatch.setattr(SnapKV, "score", broken)
    report = bench.run(jobs(tiny, tmp_path, method=("snapkv", "fullkv"), budget=(16,)), progress=False)
    bad, good = report.runs
    assert report.exit_code == 1 and (bad.status, good.status) == ("failed", "done")
    texts = [file.read_text() for file in bad.folder.glob("failures/*.txt")]
    assert len(texts) == 4 and all("a bug in layer 1" in text for text in texts)


def test_damaged_weights_leave_a_traceback_in_every_cell_and_other_models_run(tiny, unbroken, tmp_path):
    damaged = save_tiny(tmp_path / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    results = tmp_path / "results"
    asked = jobs(damaged, results, **SWEEP) + jobs(tiny, results, method=("fullkv",))
    report = bench.run(asked, progress=False)
    assert report.exit_code == 1 and [run.status for run in report.runs] == ["failed"] * 5 + ["done"]
    for run in report.runs[:5]:
        assert "Traceback" in (run.folder / "failure.txt").read_text()


def test_an_unreadable_folder_concerns_its_own_cell_only(tiny, tmp_path):
    asked = jobs(tiny, tmp_path, method=("fullkv", "snapkv"), budget=(16,))
    planned, _ = bench.plan(asked)
    planned[1].run.folder.mkdir(parents=True)
    (planned[1].run.folder / "spec.json").write_text("{}")
    report = bench.run(asked, progress=False)
    assert report.exit_code == 1 and [run.complete for run in report.runs] == [True, False]
    assert "describes another run" in report.refused[0]


def test_a_stranger_in_one_cell_concerns_that_cell_only(tiny, unbroken, tmp_path):
    """What fails in company is tried alone."""
    asked = jobs(tiny, tmp_path, **SWEEP)
    bench.run(asked, progress=False)
    planned, _ = bench.plan(asked)
    (planned[2].run.folder / "summary.json").unlink()
    (planned[3].run.folder / "summary.json").unlink()
    lines = planned[2].run.folder / "predictions.jsonl"
    first = json.loads(lines.read_text().splitlines()[0]) | {"id": "stranger"}
    lines.write_text(lines.read_text() + json.dumps(first) + "\n")
    report = bench.run(asked, progress=False)
    assert [run.complete for run in report.runs] == [True, True, False, True, True]
    assert "stranger" in " ".join([*report.refused, *report.failed]) and report.exit_code == 1


def test_a_cell_that_another_process_computes_is_skipped_and_named(tiny, unbroken, tmp_path):
    asked = jobs(tiny, tmp_path, method=("fullkv", "snapkv"), budget=(16,))
    planned, _ = bench.plan(asked)
    with RunFolder(tmp_path, planned[0].spec):
        report = bench.run(asked, progress=False)
        assert report.exit_code == 1 and [run.status for run in report.runs] == ["running", "done"]
        assert (
            f"needle fullkv: run {planned[0].run.key} is being computed by process {os.getpid()}"
            in report.busy[0]
        )
    assert bench.run(asked, progress=False).exit_code == 0


def test_figures_that_fail_cost_no_result_and_are_made_up_for(tiny, unbroken, tmp_path, monkeypatch, capsys):
    from needle.task import NeedleTask

    asked = jobs(tiny, tmp_path, method=("fullkv",))
    with monkeypatch.context() as patch:
        patch.setattr(NeedleTask, "draw", lambda *_: 1 / 0)
        report = bench.run(asked, progress=False)
    assert report.exit_code == 0 and "figures were not drawn: division by zero" in capsys.readouterr().err
    assert not (report.runs[0].folder / "heatmap.png").exists()
    bench.run(asked, progress=False)
    assert (report.runs[0].folder / "heatmap.png").exists()


def compute(asked: list[bench.Job]) -> None:
    import torch

    torch.set_num_threads(1)
    report = bench.run(asked, progress=False)
    raise SystemExit(report.exit_code if not report.busy else 10)


@pytest.fixture(scope="module")
def processes():
    """Processes that start at once, because what is dear to import is there already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["evaluation.bench", "pyramid.generation", "pyramid.models", "needle.heatmap"]
    )
    return context


def test_killed_at_twenty_random_moments_the_files_end_as_if_unbroken(tiny, unbroken, tmp_path, processes):
    draw = random.Random(5)
    expected, kills, round_ = files_of(unbroken), 0, 0
    for root in (unbroken, tmp_path / "timing"):  # the first starts what the others are forked from
        began = time.monotonic()
        process = processes.Process(target=compute, args=(jobs(tiny, root, **SWEEP),))
        process.start()
        process.join(60)
    whole = time.monotonic() - began
    while kills < 20:
        asked = jobs(tiny, tmp_path / str(round_), **SWEEP)
        process = processes.Process(target=compute, args=(asked,))
        process.start()
        process.join(draw.uniform(0, whole))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        if process.exitcode == 0:
            assert files_of(tmp_path / str(round_)) == expected
            round_ += 1
    final = jobs(tiny, tmp_path / str(round_), **SWEEP)
    assert bench.run(final, progress=False).exit_code == 0
    assert files_of(tmp_path / str(round_)) == expected


def test_four_sweeps_at_once_on_one_folder_lose_nothing(tiny, unbroken, tmp_path, processes):
    asked = jobs(tiny, tmp_path, **SWEEP)
    crowd = [processes.Process(target=compute, args=(asked,)) for _ in range(4)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(60)
    assert {process.exitcode for process in crowd} <= {0, 10} and 0 in {p.exitcode for p in crowd}
    assert files_of(tmp_path) == files_of(unbroken)
