"""The efficiency suite as a task, and as a command on a model of random weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from evaluation import bench, launcher, table, tasks
from evaluation.efficiency import Efficiency, Points
from pyramid.types import Answer
from tests.sweeps import ROOT, save_tiny

GRID = {"lengths": [100, 50], "batches": [1, "largest"], "new_tokens": [8]}
SIZES = (
    "suite=efficiency",
    "suite.lengths=[60]",
    "suite.batches=[2]",
    "suite.new_tokens=[4]",
    "suite.repeats=2",
    "suite.warmups=0",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def task(**changes: Any) -> Efficiency:
    return Efficiency(**{**GRID, **changes})


def test_the_points_are_all_combinations() -> None:
    found = task().samples(Points(model_max_length=200))
    assert [sample.id for sample in found] == ["50+8x1", "50+8xlargest", "100+8x1", "100+8xlargest"]
    assert {(sample.max_new_tokens, sample.min_new_tokens) for sample in found} == {(8, 8)}
    assert task().batch_of == {"100+8x1": 1, "100+8xlargest": None, "50+8x1": 1, "50+8xlargest": None}
    prompt = Points(model_max_length=200).render(found[-1])
    assert (prompt.tokens, prompt.stop_ids) == (100, ())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lengths": []}, "lengths is empty"),
        ({"lengths": "512"}, r"write suite.lengths=\[512\]"),
        ({"lengths": [0]}, "holds 0; give whole numbers from 1 on$"),
        ({"batches": [2, 2]}, "holds 2 more than once"),
        ({"batches": ["lagest"]}, "'lagest'; give whole numbers from 1 on, or largest"),
        ({"new_tokens": [True]}, "holds True"),
        ({"repeats": 0}, "repeats is 0; give a whole number from 1 on"),
        ({"warmups": -1}, "warmups is -1"),
        ({"memory_gib": 0}, "memory_gib is 0"),
        ({"decode": "graf"}, "decode is 'graf', none of plain, graph"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        task(**changes)


def test_a_point_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="100 tokens and 8 new ones do not fit: the model was made for 107"):
        task().samples(Points(model_max_length=107))


def test_scores_are_seconds_and_lower_is_better() -> None:
    answer = Answer(
        id="100+8x1",
        seconds={"prefill": 2.0, "compression": 0.4, "decode": 1.4},
        measured={"batch": 5},
    )
    first, *_ = task().samples(Points(model_max_length=200))
    scores = task().score(first, answer)
    assert scores == {
        "seconds_per_token": pytest.approx(3.8 / 40),
        "seconds_to_first_token": pytest.approx(2.4),
        "seconds_per_step": pytest.approx(0.2),
    }
    assert set(scores) == set(Efficiency.lower_is_better)
    (single,) = task(new_tokens=[1], lengths=[50], batches=[1]).samples(Points(model_max_length=200))
    assert "seconds_per_step" not in task().score(single, answer), "one token takes no step"


def test_several_points_have_no_common_mean() -> None:
    records = [
        {"id": "a", "scores": {"seconds_per_token": 1.0}},
        {"id": "b", "scores": {"seconds_per_token": 3.0}},
    ]
    assert task().summarize(records[:1]) == {"seconds_per_token": 1.0}
    assert task().summarize(records) == {"seconds_per_token a": 1.0, "seconds_per_token b": 3.0}


def test_the_identity_holds_all_that_changes_a_measurement() -> None:
    changes = {
        "repeats": 5,
        "warmups": 0,
        "stock": False,
        "memory_gib": 4.0,
        "batches": [1],
        "new_tokens": [9],
    }
    identities = [task(**{name: value}).identity() for name, value in changes.items()]
    assert len({json.dumps(each) for each in [task().identity(), *identities]}) == 1 + len(changes)
    assert tasks.build("efficiency", {"kind": "efficiency", **GRID}) == task()


def jobs(*settings: str, methods: tuple[str, ...]) -> list[bench.Job]:
    """The jobs that `run.py -m` would hand to the bench."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return launcher.jobs_of(
            [compose("config", [*SIZES, *settings, f"method={name}"]) for name in methods]
        )


def test_a_sweep_measures_resumes_and_prints_its_own_tables(tmp_path: Path, tiny: Path) -> None:
    """Two methods at one point, a process each; the same sweep again measures nothing."""
    asked = jobs(f"model.id={tiny}", "budget=16", f"results_dir={tmp_path}", methods=("fullkv", "snapkv"))
    done = bench.run(asked, progress=False)
    assert done.exit_code == 0, done
    out = io.StringIO()
    table.print_table(done.runs, out)
    assert "transformers generate()" in out.getvalue() and "Efficiency: memory" in out.getvalue()
    assert "differs" not in out.getvalue() and out.getvalue().count("exact  ") == 3
    cells = json.loads(table.json_line(done.runs))["cells"]
    assert [cell["method"] for cell in cells] == ["fullkv", "snapkv"]
    assert set(cells[0]["scores"]) == set(Efficiency.metrics)
    (file,) = tmp_path.glob("runs/*fullkv*/predictions.jsonl")
    (line,) = [json.loads(text) for text in file.read_text().splitlines()]
    found = line["measured"]
    assert line["id"] == "60+4x2" and line["new_tokens"] == 4
    assert len(found["trials"]) == len(found["stock"]["trials"]) == 2 and found["agree"] == 1.0
    assert line["bytes_after_prompt"] == found["bytes_after_prompt"] == found["theory"]["bytes_after_prompt"]
    assert found["kernel"] == "sdpa" and found["machine"]["versions"]["torch"]
    before = file.stat().st_mtime_ns
    assert bench.run(asked, progress=False).exit_code == 0 and file.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("suite.lengths=[510]", "510 tokens and 4 new ones do not fit"),
        ("suite.batches=[0]", "holds 0"),
        ("suite.decode=graph", "H2O does: take decode=plain"),
        ("model.device_map=auto", "measures one device"),
    ],
)
def test_a_point_that_cannot_be_is_bad_input(tmp_path: Path, tiny: Path, setting: str, sentence: str) -> None:
    """The tiny model was made for 512 positions. Nothing is measured."""
    settings = (f"model.id={tiny}", "budget=16", f"results_dir={tmp_path}", setting)
    report = bench.run(jobs(*settings, methods=("h2o",)), progress=False)
    assert report.exit_code == 2 and sentence in " ".join(report.refused)
    assert not list(tmp_path.glob("runs/*/predictions.jsonl"))


def test_a_method_that_refuses_a_point_fails_there_with_its_sentence(tmp_path: Path, tiny: Path) -> None:
    """A tenth of 60 tokens is below SnapKV's window of 8; of 100 it is not."""
    settings = ("suite.lengths=[60,100]", "suite.repeats=1", "budget=0.1", f"results_dir={tmp_path}")
    report = bench.run(jobs(*settings, f"model.id={tiny}", methods=("snapkv",)), progress=False)
    assert report.exit_code == 1
    (file,) = tmp_path.glob("runs/*/predictions.jsonl")
    errors = [json.loads(line)["error"] for line in file.read_text().splitlines()]
    assert errors[0] is None and "always kept (the window)" in errors[1]
    out = io.StringIO()
    table.print_table(report.runs, out)
    assert "failed: SnapKV 10 % at 60+4x2: budget=0.1" in out.getvalue()
