"""The commands that turn runs into files: repeatable, without warnings, and plain about what they cannot do."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path

import pytest

from scripts import compare, funnel, report
from scripts.settings import listed, read_settings

ROOT = Path(__file__).resolve().parent.parent.parent
RUNS = str(ROOT / "tests" / "data" / "results")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def few_runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A part of the committed runs, for what is drawn more than once."""
    folder = tmp_path_factory.mktemp("few")
    for run in Path(RUNS).glob("runs/needle-*"):
        if "fullkv" in run.name or "-64-" in run.name:
            shutil.copytree(run, folder / "runs" / run.name)
    return str(folder)


@pytest.mark.parametrize("command", ["tables", "figures"])
def test_made_twice_the_files_are_the_same(command: str, few_runs: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("a", "b"):
            assert report.main([command, f"runs={few_runs}", f"out={tmp_path / name}"]) == 0
    first, second = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    assert first == second and len(first) >= 15
    endings = {Path(name).suffix for name in first}
    assert endings == ({".md", ".csv", ".tex"} if command == "tables" else {".png", ".pdf", ".csv"})


def test_the_page_is_written_with_the_heat_maps(
    few_runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    assert report.main(["page", f"runs={few_runs}", f"out={target}", "figures=nowhere"]) == 0
    assert "PyramidKV 64: score by depth and length." in target.read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() == str(target)


def test_the_frame_is_written(tmp_path: Path) -> None:
    assert report.main(["frame", f"runs={RUNS}/runs", f"out={tmp_path}"]) == 0
    assert {"runs.csv", "samples.csv"} <= set(files_of(tmp_path))


def test_tables_are_shown_on_the_terminal(few_runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["show", f"runs={few_runs}"]) == 0
    printed = capsys.readouterr().out
    assert "Needle in a haystack: scores by depth" in printed and "StreamingLLM" in printed


def test_unfinished_runs_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(RUNS, tmp_path / "results")
    (broken,) = (tmp_path / "results" / "runs").glob("needle-fullkv-*")
    (broken / "summary.json").unlink()
    arguments = ["tables", f"runs={tmp_path / 'results'}", f"out={tmp_path / 'tables'}"]
    assert report.main(arguments) == 0
    assert f"left out: {broken.name} is interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tables", "runs=nowhere"], "there are no finished runs in nowhere"),
        (["tables", "rnus=results"], "did you mean runs=...?"),
        (["tables", f"runs={RUNS}", "mix=weather"], "is none of model, protocol"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and sentence in error and error.count("\n") == 1


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([]) == 2 and "scripts.report tables" in capsys.readouterr().err
    assert report.main(["--help"]) == 0 and "scripts.report tables" in capsys.readouterr().out
    assert report.main(["tables", "--help"]) == 0 and "runs=results" in capsys.readouterr().out


def test_the_commands_in_the_documentation_exist() -> None:
    """H08: documented commands that the code does not know."""
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    commands = re.findall(r"python -m scripts\.(\w+)([^`]*)`", text)
    assert {name for name, _ in commands} == {"report", "compare", "funnel"}
    for name, rest in commands:
        words = rest.split()
        others = {"compare": compare.DEFAULTS, "funnel": funnel.DEFAULTS}
        defaults = report.COMMANDS[words.pop(0)][1] if name == "report" else others[name]
        assert read_settings(words, defaults)
    targets = re.findall(r"make (\w+)`", text)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets and all(f"\n{target}: " in makefile for target in targets)


def test_settings_are_read_as_run_py_reads_them() -> None:
    assert read_settings(["runs=a=b"], {"runs": "results", "out": ""}) == {"runs": "a=b", "out": ""}
    assert listed("[protocol, samples]") == listed("protocol,samples") == ["protocol", "samples"]
    assert listed("") == []
