"""The comparison with lm_eval's own model: equal on a real, tiny model; and it sees what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import check_lm_eval, lm_eval
from tests.evaluation.lm_eval_made import write
from tests.pyramid.tiny_checkpoint import save_tiny


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str) -> tuple[int, dict[str, Any]]:
    model, folder = save_tiny(tmp_path / "model"), write(tmp_path / "tasks")
    asked = ["--task", task, "--include-path", str(folder), "--pretrained", str(model), "--items", "3"]
    code = check_lm_eval.main(asked)
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(("task", "judgements"), [("made_answers", 6), ("made_choices", 3)])
def test_both_models_agree(
    task: str, judgements: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(tmp_path, capsys, task)
    assert code == 0 and found["judgements"] == judgements and found["differing"] == []
    assert found["scores_equal"] and found["scores_ours"][task]


def test_a_difference_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lm_eval.Pyramid.generate_until

    def last_differs(self: Any, requests: list[Any]) -> list[str]:
        texts = real(self, requests)
        return [*texts[:-1], texts[-1] + "."]

    monkeypatch.setattr(lm_eval.Pyramid, "generate_until", last_differs)
    code, found = run(tmp_path, capsys, "made_answers")
    assert code == 1 and found["differing"] == ["made_answers/2"]


def test_an_unknown_task_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_lm_eval.main(["--task", "gsm8k", "--include-path", str(tmp_path / "no")]) == 2
    assert "is no folder" in capsys.readouterr().err
