"""GSM8K's tables: three readings with intervals side by side, what flipped, and how much longer answers became."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluation.frame import Result, results_of
from evaluation.gsm8k import Gsm8k
from evaluation.gsm8k_scoring import score
from evaluation.report import sheets
from evaluation.results import RunSpec, load_runs
from evaluation.sheet import Sheet, comma_separated, latex, markdown
from evaluation.summary import summarize
from tests.evaluation.made_runs import make as make_other
from tests.evaluation.made_runs import record

RIGHT, BARE, BOXED, WRONG, SILENT = (
    "It is 4. The answer is 4.",
    "It is 2 + 2 = 4",
    r"\boxed{4} is what all 9 of us say",
    "The answer is 5.",
    "I cannot say.",
)


def make(root: Path, method: str, budget: int | None, texts: Sequence[str], extra: int = 0) -> Result:
    """A finished run whose answers to problems with the answer 4 are `texts`, `extra` tokens longer than usual."""
    spec = RunSpec(
        model={"id": "org/tiny"},
        method={"name": method, "version": 1},
        budget=budget,
        protocol={"name": "fair", "question": "in_prompt"},
        task={"name": "gsm8k", "version": 1},
        subset={"limit": None, "ids": None},
        seed=0,
        engine="1",
    )
    records = [
        record(number, 0.0, budget or 1000, text)
        | {
            "scores": score(text, "4", "cot"),
            "new_tokens": 10 + extra,
            "finish": "length" if extra else "stop",
        }
        for number, text in enumerate(texts)
    ]
    folder = root / "runs" / spec.key
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(json.loads(spec.canonical())))
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    task: Any = Gsm8k()
    (folder / "summary.json").write_text(
        json.dumps(summarize(records, spec=spec, task=task, environments=[]))
    )
    return next(result for result in results_of(load_runs(root)) if result.run.key == spec.key)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sheet]:
    root = tmp_path_factory.mktemp("runs")
    make(root, "fullkv", None, [RIGHT, RIGHT, RIGHT, WRONG])
    make(root, "snapkv", 64, [RIGHT, BARE, BOXED, RIGHT], extra=5)
    make(root, "h2o", 64, [WRONG, WRONG, SILENT, SILENT])
    return {sheet.name: sheet for sheet in sheets(results_of(load_runs(root)))}


def texts(sheet: Sheet, method: str) -> dict[str, list[str]]:
    """Head to the texts under it; heads such as `95 % from` occur more than once."""
    (row,) = [row for row in sheet.rows if row[0].text == method]
    cells: dict[str, list[str]] = {}
    for name, cell in zip(sheet.head, row, strict=True):
        cells.setdefault(name.replace("\n", " "), []).append(cell.text)
    return cells


def test_three_readings_stand_side_by_side(found: dict[str, Sheet]) -> None:
    """D12: with the share of answers that are not in the asked form, and of those without a number."""
    snap, h2o = (texts(found["readings"], method) for method in ("SnapKV", "H2O"))
    assert (snap["flexible"], snap["strict"], snap["lenient"]) == (["75.00"], ["50.00"], ["100.00"])
    assert (snap["off format"], snap["unparsed"]) == (["50.00"], ["0.00"])
    assert (h2o["flexible"], h2o["off format"], h2o["unparsed"]) == (["0.00"], ["50.00"], ["50.00"])
    assert len(snap["95 % from"]) == 3 and snap["95 % from"][2] == snap["95 % to"][2] == "100.00"


def test_flips_are_counted_for_each_reading_and_lengths_compared(found: dict[str, Sheet]) -> None:
    snap, full = (texts(found["flips"], method) for method in ("SnapKV", "FullKV"))
    pairs = [
        (snap[f"{name} gained"][0], snap[f"{name} lost"][0]) for name in ("flexible", "strict", "lenient")
    ]
    assert pairs == [("1", "1"), ("1", "2"), ("1", "0")]
    assert (snap["answer tokens"], snap["longer by"], snap["cut at the limit"]) == (["15.0"], ["+5.0"], ["4"])
    assert (full["flexible gained"], full["longer by"], full["cut at the limit"]) == (["-"], ["-"], ["0"])


def test_the_best_of_a_budget_is_marked(found: dict[str, Sheet]) -> None:
    marks = {row[0].text: row[3].mark for row in found["readings"].rows}
    assert marks == {"FullKV": "", "SnapKV": "best", "H2O": ""}


def test_they_stand_beside_the_common_tables_and_can_be_typeset(found: dict[str, Sheet]) -> None:
    assert {"readings", "flips", "scores", "differences", "costs"} <= set(found)
    for sheet in found.values():
        assert markdown(sheet) and comma_separated(sheet) and latex(sheet)
    assert any("lm-evaluation-harness" in note for note in found["readings"].notes)


def test_one_answer_has_no_interval_and_other_tasks_no_readings(tmp_path: Path) -> None:
    (sheet, *_) = [s for s in sheets([make(tmp_path / "one", "snapkv", 64, [RIGHT])]) if s.name == "readings"]
    assert texts(sheet, "SnapKV")["95 % from"] == ["-"] * 3
    other = make_other(tmp_path / "other", "snapkv", 64, [1.0])
    assert "readings" not in {sheet.name for sheet in sheets([other])}
