"""`python -m scripts.rescore` gives the official table of any predictions, and says what it left out."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evaluation.results import RunFolder, RunSpec
from scripts.rescore import main

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("llama2-7b-chat-4k", "llama3-8b-base_full", "llama3-8b-base_quest-128", "llama3-8b-instruct")

Rescore = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rescore(capsys: pytest.CaptureFixture[str]) -> Rescore:
    """Runs the command; gives its exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def answer(pred: str, *answers: str, **more: Any) -> dict[str, Any]:
    return {"pred": pred, "answers": list(answers), "all_classes": None, "length": 100, **more}


def write(file: Path, *rows: Mapping[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file.parent


@pytest.mark.parametrize("model", MODELS)
def test_every_published_result_is_met_to_the_digit(shared_data: Path, rescore: Rescore, model: str) -> None:
    folder = shared_data / "longbench" / "pred" / model
    code, out, err = rescore(folder, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out) == json.loads((folder / "result.json").read_text())


def test_a_score_a_row_is_met_where_another_scorer_published_it(shared_data: Path, tmp_path: Path) -> None:
    """These used the Levenshtein path, no first-line rule, and for ROUGE another package."""
    from evaluation.longbench_scoring import SCORERS
    from evaluation.longbench_table import SETS

    lines = (
        (shared_data / "longbench" / "mini_pred" / "example.jsonl").read_text(encoding="utf-8").split("\n")
    )
    compared = 0
    for row in map(json.loads, filter(None, lines)):
        metric = SETS[row["dataset"]].metric
        if not metric.startswith("rouge"):
            more = {
                "classification": {"classes": row["all_classes"]},
                "code_similarity": {"backend": "indel"},
            }
            scores = [SCORERS[metric](row["pred"], each, **more.get(metric, {})) for each in row["answers"]]
            assert max(scores) == pytest.approx(row["score"], abs=0.005 + 1e-6 if "code" in metric else 1e-6)
            compared += 1
    assert compared == 181


def test_indel_scores_code_higher(shared_data: Path, rescore: Rescore) -> None:
    file = shared_data / "longbench" / "pred" / "llama2-7b-chat-4k" / "lcc.jsonl.gz"
    official = json.loads(rescore(file, "--json")[1])["lcc"]
    indel = json.loads(rescore(file, "--json", "--code-similarity", "indel")[1])["lcc"]
    assert official == 58.65
    assert 1.0 < indel - official < 2.6
    assert "code_similarity_indel" in rescore(file, "--code-similarity", "indel")[1]


def test_the_table_shows_averages_with_their_gaps(tmp_path: Path, rescore: Rescore) -> None:
    write(tmp_path / "qasper.jsonl", *[answer("x", "x")] * 200)
    write(tmp_path / "trec.jsonl.gz", answer("Food", "Food", all_classes=["Food"]))
    write(tmp_path / "vcsum.jsonl", answer("...", "预算"), answer("会议", "会议"))
    write(tmp_path / "result.json", {"qasper": 1.0})
    code, out, err = rescore(tmp_path)
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert (code, err) == (0, "")
    assert lines["qasper"] == ["qasper", "f1", "100.00", "200", "0"]
    assert lines["trec"] == ["trec", "classification", "100.00", "1", "of", "200", "0"]
    assert lines["vcsum"] == ["vcsum", "rouge_l_zh", "50.00", "2", "of", "200", "1"]
    assert " ".join(lines["english_16"][1:]) == "100.00 partial (2 of 16, 1 on a part of its rows)"
    assert " ".join(lines["categories_zh"][1:]) == "50.00 partial (1 of 7, 1 on a part of its rows)"


def test_bad_rows_are_named_and_the_others_go_on(tmp_path: Path, rescore: Rescore) -> None:
    write(tmp_path / "qasper.jsonl", answer("x", "x"), answer("y", "x"), {"answers": ["x"]}, answer("x"))
    with (tmp_path / "qasper.jsonl").open("a") as file:
        file.write('{"pred": "x", "ans')
    write(tmp_path / "hotpotqa.jsonl", answer("x", "x"))
    write(tmp_path / "passage_retrieval_en.jsonl", answer("3", "three"))
    write(tmp_path / "lsht.jsonl", answer("农业", "农业"))
    write(tmp_path / "trec.jsonl")
    write(tmp_path / "quasper.jsonl", answer("x", "x"))
    write(tmp_path / "musique.jsonl", answer("x", "x"))
    write(tmp_path / "musique.jsonl.gz", answer("x", "x"))
    code, out, err = rescore(tmp_path)
    for sentence in (
        "qasper.jsonl, line 3: field 'pred' is missing",
        "qasper.jsonl, line 4: field 'answers' is an empty list",
        "qasper.jsonl, line 5: no valid JSON",
        "passage_retrieval_en.jsonl, line 1: field 'answers' cannot be scored",
        "lsht.jsonl, line 1: field 'all_classes' is null",
        "trec.jsonl has no rows",
        "quasper.jsonl: LongBench has no set 'quasper'; did you mean qasper",
        "musique.jsonl.gz: other predictions for musique were found before",
    ):
        assert f"not scored: {tmp_path}/{sentence}" in err
    assert code == 1
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert lines["qasper"] == ["qasper", "f1", "50.00", "2", "of", "200", "0"]
    assert lines["trec"] == ["trec", "classification", "-", "0", "of", "200", "0"]
    assert lines["english_16"][1:7] == ["83.33", "partial", "(3", "of", "16,", "3"]
    scores = json.loads(rescore(tmp_path, "--json")[1])
    assert scores["hotpotqa"] == 100.0
    gaps = ("qasper", "passage_retrieval_en", "lsht", "trec", "quasper", "musique")
    assert all(scores[name] is None for name in gaps)


def test_a_broken_archive_costs_its_set_only(tmp_path: Path, rescore: Rescore) -> None:
    write(tmp_path / "qasper.jsonl.gz", *[answer(f"word {number}", "x") for number in range(500)])
    (tmp_path / "qasper.jsonl.gz").write_bytes((tmp_path / "qasper.jsonl.gz").read_bytes()[:-20])
    write(tmp_path / "trec.jsonl", answer("Food", "Food", all_classes=["Food"]))
    code, out, err = rescore(tmp_path, "--json")
    assert code == 1 and f"{tmp_path}/qasper.jsonl.gz cannot be read beyond line" in err
    assert json.loads(out) == {"qasper": None, "trec": 100.0}


def test_many_bad_rows_of_one_file_are_counted(tmp_path: Path, rescore: Rescore) -> None:
    write(tmp_path / "qasper.jsonl", *[{"pred": "x"}] * 9)
    _, _, err = rescore(tmp_path)
    assert err.count("not scored: ") == 6 and err.endswith("not scored: 4 more of this file\n")


@pytest.mark.parametrize("place", ["nowhere", "empty", "other"])
def test_without_predictions_there_is_one_sentence_and_exit_code_2(
    tmp_path: Path, rescore: Rescore, place: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("no predictions")
    code, out, err = rescore(tmp_path / place)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {tmp_path / place} ")


class TestExtended:
    ROWS = (answer("x", "x", length=3999), answer("y", "x", length=4000), answer("x", "x", length=4001))

    def test_a_folder_of_the_official_name_is_read_by_length(self, tmp_path: Path, rescore: Rescore) -> None:
        folder = write(tmp_path / "pred_e" / "model" / "qasper.jsonl", *self.ROWS)
        code, out, _ = rescore(folder, "--json")
        assert code == 0
        assert json.loads(out) == {"qasper": {"0-4k": 100.0, "4-8k": 50.0, "8k+": None}}

    @pytest.mark.parametrize(("name", "options"), [("qasper_e", ()), ("qasper", ("--extended",))])
    def test_a_suffix_or_the_option_say_so_too(
        self, tmp_path: Path, rescore: Rescore, name: str, options: tuple[str, ...]
    ) -> None:
        write(tmp_path / f"{name}.jsonl", *self.ROWS)
        _, out, _ = rescore(tmp_path, "--json", *options)
        assert json.loads(out) == {name: {"0-4k": 100.0, "4-8k": 50.0, "8k+": None}}
        table = rescore(tmp_path, *options)[1]
        assert f"{name} f1 100.00 50.00 - 3 of 224 0".split() in [line.split() for line in table.splitlines()]
        assert "extended_13 4-8k    50.00  partial (1 of 13, 1 on a part of its rows)" in table

    def test_as_many_rows_as_the_extended_set_has_are_remarked_on(
        self, tmp_path: Path, rescore: Rescore
    ) -> None:
        write(tmp_path / "qasper.jsonl", *[answer("x", "x")] * 224)
        code, _, err = rescore(tmp_path)
        assert code == 0 and "has 224 rows, and the published set 200; for LongBench-E, say so" in err

    def test_a_prediction_without_length_is_no_extended_one(self, tmp_path: Path, rescore: Rescore) -> None:
        row = answer("x", "x")
        del row["length"]
        write(tmp_path / "qasper_e.jsonl", row)
        assert "line 1: field 'length' is missing" in rescore(tmp_path)[2]
        write(tmp_path / "qasper_e.jsonl").joinpath("qasper_e.jsonl").rename(tmp_path / "qasper.jsonl")
        write(tmp_path / "qasper.jsonl", row)
        assert json.loads(rescore(tmp_path, "--json")[1]) == {"qasper": 100.0}


class TestData:
    @staticmethod
    def data(folder: Path, *answers: str) -> Path:
        row = {
            "input": "",
            "context": "",
            "length": 1,
            "dataset": "qasper",
            "language": "en",
            "all_classes": None,
        }
        rows = [{**row, "answers": [each], "_id": str(number)} for number, each in enumerate(answers)]
        return write(folder / "qasper.jsonl", *rows)

    def test_predictions_must_belong_to_the_data(self, tmp_path: Path, rescore: Rescore) -> None:
        data = self.data(tmp_path / "data", "a", "b", "c")
        folder = write(tmp_path / "pred" / "qasper.jsonl", answer("a", "a"), answer("b", "z"))
        code, _, err = rescore(folder, "--data", data)
        assert code == 1
        assert "qasper.jsonl, line 2: the answers are not those of row '1' of the data" in err
        assert "qasper.jsonl has 2 rows, and the data 3" in err

    def test_more_predictions_than_data(self, tmp_path: Path, rescore: Rescore) -> None:
        folder = write(tmp_path / "pred" / "qasper.jsonl", answer("a", "a"), answer("b", "b"))
        _, _, err = rescore(folder, "--data", self.data(tmp_path / "data", "a"))
        assert "qasper.jsonl, line 2: the data has no row for this prediction" in err

    def test_data_that_lack_a_set_are_said(self, tmp_path: Path, rescore: Rescore) -> None:
        folder = write(tmp_path / "pred" / "trec.jsonl", answer("Food", "Food", all_classes=["Food"]))
        code, _, err = rescore(folder, "--data", self.data(tmp_path / "data", "a"))
        assert code == 1 and "longbench has no table 'trec'" in err

    def test_published_predictions_belong_to_the_published_data(
        self, shared_data: Path, rescore: Rescore
    ) -> None:
        folder = shared_data / "longbench"
        file = folder / "pred" / "llama3-8b-instruct" / "multi_news.jsonl.gz"
        assert rescore(file, "--data", folder / "full", "--json") == (0, '{"multi_news": 27.15}\n', "")


class TestOwnRuns:
    @staticmethod
    def run(root: Path, method: str, name: str, *records: dict[str, Any], **task: Any) -> Path:
        spec = RunSpec(
            model={"id": "tiny"},
            method={"name": method},
            budget=None if method == "fullkv" else 64,
            protocol={"name": "fair"},
            task={"name": f"longbench/{name}", "task": "longbench", "set": name, "metric": "f1", **task},
            subset={"limit": None, "ids": None},
            seed=0,
            engine="1",
        )
        with RunFolder(root, spec) as folder:
            folder.begin({})
            for number, record in enumerate(records):
                folder.append({"id": str(number), "error": None, **record})
        return folder.path

    @staticmethod
    def record(text: str, *references: str, classes: list[str] | None = None) -> dict[str, Any]:
        return {"text": text, "references": list(references), "meta": {"length": 100, "all_classes": classes}}

    def test_each_setting_is_a_table_of_its_own(self, tmp_path: Path, rescore: Rescore) -> None:
        for method, text in (("fullkv", "x"), ("snapkv", "y")):
            self.run(tmp_path, method, "qasper", self.record(text, "x"), self.record("x", "x"))
            self.run(tmp_path, method, "trec", self.record("Food", "Food", classes=["Food"]))
        self.run(tmp_path, "fullkv", "needle", task="needle")
        code, out, err = rescore(tmp_path, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out) == {
            "fullkv, protocol fair, model tiny": {"qasper": 100.0, "trec": 100.0},
            "snapkv, budget 64, protocol fair, model tiny": {"qasper": 50.0, "trec": 100.0},
        }
        assert rescore(tmp_path / "runs", "--json")[1] == out
        assert "snapkv, budget 64, protocol fair, model tiny\n" in rescore(tmp_path)[1]

    def test_one_run_alone(self, tmp_path: Path, rescore: Rescore) -> None:
        folder = self.run(tmp_path, "fullkv", "qasper", self.record("x", "x"))
        for path in (folder, folder / "predictions.jsonl"):
            assert rescore(path, "--json") == (0, '{"qasper": 100.0}\n', "")

    def test_a_run_keeps_its_code_similarity_unless_told(self, tmp_path: Path, rescore: Rescore) -> None:
        folder = self.run(
            tmp_path, "fullkv", "lcc", self.record("tide", "diet"), metric="code_similarity_indel"
        )
        assert json.loads(rescore(folder, "--json")[1]) == {"lcc": 50.0}
        assert json.loads(rescore(folder, "--json", "--code-similarity", "difflib")[1]) == {"lcc": 25.0}

    def test_failed_torn_and_repeated_samples_are_said(self, tmp_path: Path, rescore: Rescore) -> None:
        failed = {**self.record("", "x"), "error": "out of memory"}
        folder = self.run(tmp_path, "fullkv", "qasper", self.record("x", "x"), failed)
        lines = (folder / "predictions.jsonl").read_text()
        (folder / "predictions.jsonl").write_text(lines + lines.splitlines()[0] + "\n" + lines[:30])
        code, out, err = rescore(folder)
        assert code == 1 and "qasper" in out
        for sentence in (
            "line 2: sample '1' has no answer (out of memory)",
            "line 3: sample '0' stands there a second time",
            "line 4: no valid JSON",
        ):
            assert sentence in err

    def test_recorded_samples_are_matched_by_id(self, tmp_path: Path, rescore: Rescore) -> None:
        data = TestData.data(tmp_path / "data", "a", "b")
        folder = self.run(tmp_path, "fullkv", "qasper", {**self.record("b", "b"), "id": "1"})
        assert rescore(folder, "--data", data, "--json")[0] == 0
        folder = self.run(tmp_path / "other", "fullkv", "qasper", {**self.record("b", "b"), "id": "7"})
        assert "the data has no row for this prediction" in rescore(folder, "--data", data)[2]

    def test_settings_with_the_same_words_are_told_apart(self, tmp_path: Path, rescore: Rescore) -> None:
        for seed in (0, 1):
            folder = self.run(tmp_path / str(seed), "fullkv", "qasper", self.record("x", "x"))
            spec = json.loads((folder / "spec.json").read_text())
            (folder / "spec.json").write_text(json.dumps({**spec, "seed": seed}))
            folder.rename(tmp_path / f"run{seed}")
        groups = json.loads(rescore(tmp_path, "--json")[1])
        assert len(groups) == 2 and all(scores == {"qasper": 100.0} for scores in groups.values())

    def test_a_spec_of_another_kind_is_one_sentence(self, tmp_path: Path, rescore: Rescore) -> None:
        write(tmp_path / "run" / "spec.json", {"task": "unknown"})
        code, _, err = rescore(tmp_path)
        assert code == 2 and err.endswith("spec.json was not written by this version of the harness\n")


def test_a_folder_of_folders_gives_a_table_each(tmp_path: Path, rescore: Rescore) -> None:
    write(tmp_path / "one" / "qasper.jsonl", answer("x", "x"))
    write(tmp_path / "two" / "qasper.jsonl", answer("y", "x"))
    assert json.loads(rescore(tmp_path, "--json")[1]) == {"one": {"qasper": 100.0}, "two": {"qasper": 0.0}}


def test_the_command_needs_no_model_library(tmp_path: Path) -> None:
    write(tmp_path / "qasper.jsonl", answer("x", "x"))
    code = (
        "import sys; from scripts.rescore import main; assert main([sys.argv[1]]) == 0; "
        "assert not {'torch', 'transformers', 'jieba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
