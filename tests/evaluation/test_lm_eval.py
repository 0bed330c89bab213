"""lm-evaluation-harness's tasks: the same prompts, answers and scores here as from its own model for transformers, by
both commands, and likelihoods that a compressed cache has really shaped.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

import scripts.lm_eval
from evaluation import bench, launcher
from evaluation.lm_eval_encoding import Encoder
from evaluation.lm_eval_task import LmEvalTask
from evaluation.prompts import Prompter
from evaluation.results import load_runs
from evaluation.types import Protocol, Sample
from pyramid.generation import Generator
from tests.conftest import ROOT, ByteTokenizer
from tests.evaluation.lm_eval_made import evaluated, reference, tasks, write
from tests.pyramid.tiny_checkpoint import save_tiny
from tests.sweeps import files_of

NAMES = [*tasks(Path("rows.jsonl"))]
ASKED = ["made_both", *(name for name in NAMES if name not in ("made_choices", "made_twins"))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tasks") / "made")


@pytest.fixture(scope="module")
def theirs(model: Path, folder: Path) -> Any:
    return evaluated(reference(model), ASKED, folder)


def ours(model: Path, folder: Path, names: list[str], batch_size: int = 3, **arguments: Any) -> Any:
    given = {"pretrained": str(model), "dtype": "float32", **arguments}
    return evaluated("pyramid", names, folder, model_args=given, batch_size=batch_size)


def scores(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(row[key]) for key in row if "," in key and "stderr" not in key}


def configured(*overrides: str) -> bench.Job:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        (job,) = launcher.jobs_of([compose("config", [*overrides])])
    return job


def settings(model: Path, folder: Path, results: Path, *overrides: str) -> bench.Job:
    given = [f"model.id={model}", f"results_dir={results}", f"suite.include_path={folder}"]
    return configured("suite=lm_eval", *given, *overrides)


class Ending(ByteTokenizer):
    stop_ids = (2,)


def prompter(first_token: str = "compressed", question: str = "in_prompt") -> Prompter:
    protocol = Protocol(name="fair", template="none", first_token=first_token, question=question)
    return Prompter(tokenizer=Ending(), protocol=protocol, model_max_length=2048)


class TestModel:
    """The registered model, in lm_eval's own loop."""

    def test_the_whole_cache_gives_what_lm_evals_own_model_gives(
        self, model: Path, folder: Path, theirs: Any
    ) -> None:
        found = ours(model, folder, ASKED, method="fullkv")
        for name in NAMES:
            assert scores(found["results"][name]) == pytest.approx(
                scores(theirs["results"][name]), rel=1e-5
            ), name
            for mine, other in zip(found["samples"][name], theirs["samples"][name], strict=True):
                assert mine["arguments"] == other["arguments"]
                for (answer,), (wanted,) in zip(mine["resps"], other["resps"], strict=True):
                    assert answer == (
                        wanted if isinstance(wanted, str) else pytest.approx(wanted, abs=2e-3)
                    ), name
        texts = [answer for sample in theirs["samples"]["made_answers"] for ((answer,),) in [sample["resps"]]]
        assert len({len(text) for text in texts}) > 1, (
            "some answers are stopped by a text, some by their length"
        )
        assert 0 < theirs["results"]["made_answers"]["exact_match,letter"] < 1

    def test_chat_templates_are_applied_as_theirs_are(self, model: Path, folder: Path) -> None:
        names = ["made_answers", "made_choices"]
        wanted = evaluated(reference(model), names, folder, apply_chat_template=True)
        given = {"pretrained": str(model), "dtype": "float32"}
        found = evaluated("pyramid", names, folder, model_args=given, apply_chat_template=True)
        for name in names:
            assert scores(found["results"][name]) == pytest.approx(scores(wanted["results"][name]))
            for mine, other in zip(found["samples"][name], wanted["samples"][name], strict=True):
                assert mine["arguments"] == other["arguments"] and "[assistant]" in mine["arguments"][0][0]

    def test_one_token_is_judged_on_the_compressed_cache_by_default_only(
        self, model: Path, folder: Path
    ) -> None:
        def likelihoods(**arguments: Any) -> list[float]:
            samples = ours(model, folder, ["made_letters"], **arguments)["samples"]["made_letters"]
            return [likelihood for sample in samples for ((likelihood, _),) in sample["resps"]]

        full = likelihoods(method="fullkv")
        trapped = likelihoods(method="snapkv", budget=16, first_token="full")
        assert trapped == pytest.approx(full, abs=1e-5), "the method has had no say"
        judged = likelihoods(method="snapkv", budget=16)
        assert all(abs(mine - other) > 1e-4 for mine, other in zip(judged, full, strict=True))

    def test_lm_evals_default_device_is_no_demand(self, model: Path, folder: Path) -> None:
        given = {"pretrained": str(model), "dtype": "float32"}
        found = evaluated("pyramid", ["made_letters"], folder, model_args=given, device="cuda:0")
        assert found["results"]["made_letters"]["sample_len"] == 4

    def test_what_cannot_work_is_told(self, model: Path, folder: Path) -> None:
        with pytest.raises(ValueError, match="batch_size is 'auto'"):
            ours(model, folder, ["made_letters"], batch_size="auto")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="has no parameter 'windows': did you mean window"):
            ours(model, folder, ["made_letters"], method="snapkv", budget=16, windows=4)
        assert scripts.lm_eval.Pyramid.__name__ == "Pyramid"


@pytest.fixture(scope="module")
def results(model: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    named = f"tasks=[made_both,{','.join(NAMES)}]"
    jobs = [
        settings(model, folder, root, named, "budget=16", f"method={method}")
        for method in ("fullkv", "snapkv")
    ]
    report = bench.run(jobs, progress=False)
    assert report.exit_code == 0, (report.refused, report.failed)
    return root


@pytest.fixture(scope="module")
def runs(results: Path) -> dict[tuple[str, str], Any]:
    return {(run.spec.task["task"], run.spec.method["name"]): run for run in load_runs(results)}


class TestSuite:
    """`suite=lm_eval`: run folders, several methods in company."""

    def test_the_summary_has_lm_evals_own_numbers(self, runs: Any, theirs: Any) -> None:
        for name in ("made_both", *NAMES):
            summary = runs[name, "fullkv"].summary
            assert summary["scores"] == pytest.approx(scores(theirs["results"][name]), rel=1e-5), name
            assert summary["n"] == (8 if name == "made_both" else 4), "a document is a sample"

    def test_a_line_has_all_that_was_asked_about_a_document(self, runs: Any, theirs: Any) -> None:
        lines = {record["id"]: record for record in runs["made_choices", "fullkv"].records}
        for sample in theirs["samples"]["made_choices"]:
            record = lines[f"made_choices/{sample['doc_id']}"]
            choices = [record, *record["follow_ups"]]
            wanted = [likelihood for ((likelihood, _),) in sample["resps"]]
            assert [choice["log_likelihood"] for choice in choices] == pytest.approx(wanted, abs=1e-4)
            assert [choice["greedy"] for choice in choices] == [greedy for ((_, greedy),) in sample["resps"]]
            assert record["scores"]["acc,none"] == sample["acc"]

    def test_perplexities_stand_in_the_summary_only(self, runs: Any) -> None:
        run = runs["made_texts", "fullkv"]
        assert list(run.summary["scores"]) == ["word_perplexity,none", "byte_perplexity,none"]
        assert [record["scores"] for record in run.records] == [{}] * 4

    def test_methods_are_told_apart_by_their_answers(self, runs: Any) -> None:
        for name in ("made_choices", "made_letters", "made_ends"):
            full, some = runs[name, "fullkv"], runs[name, "snapkv"]
            assert some.summary["compressed"] == 4 and some.summary["held"]["tokens_after_prompt"] == 16
            pairs = zip(full.records, some.records, strict=True)
            assert all(a["log_likelihood"] != b["log_likelihood"] for a, b in pairs), name

    def test_a_group_has_a_table_of_its_tasks(self, runs: Any) -> None:
        run = runs["made_both", "fullkv"]
        with (run.folder / "tasks.csv").open(newline="") as lines:
            rows = {row["task"]: row for row in csv.DictReader(lines)}
        assert [*rows] == ["made_choices", "made_twins"]
        mean = sum(float(row["acc,none"]) for row in rows.values()) / 2
        assert mean == pytest.approx(run.summary["scores"]["acc,none"])

    def test_a_run_that_lost_lines_goes_on_and_ends_the_same(
        self, model: Path, folder: Path, results: Path, runs: Any
    ) -> None:
        before = files_of(results)
        for method in ("fullkv", "snapkv"):
            run = runs["made_choices", method]
            lines = (run.folder / "predictions.jsonl").read_text().splitlines(keepends=True)
            (run.folder / "predictions.jsonl").write_text("".join(lines[:1]) + lines[1][:40])
            (run.folder / "summary.json").unlink()
        jobs = [
            settings(model, folder, results, "tasks=[made_choices]", "budget=16", f"method={method}")
            for method in ("fullkv", "snapkv")
        ]
        assert bench.run(jobs, progress=False).exit_code == 0
        assert files_of(results) == before

    def test_a_limit_takes_whole_documents(self, model: Path, folder: Path, tmp_path: Path) -> None:
        job = settings(model, folder, tmp_path, "tasks=[made_choices]", "limit=2", "batch_size=2")
        report = bench.run([job], progress=False)
        assert report.exit_code == 0
        assert [len(record["follow_ups"]) for record in report.runs[0].records] == [2, 2]

    def test_a_choice_that_fails_fails_its_document_alone(
        self, model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: Any
    ) -> None:
        real = Generator.generate

        def failing(self: Generator, requests: Any, methods: Any) -> Any:
            return [
                [replace(each, error="no") if each.id == "made_choices/1/2/0" else each for each in answers]
                for answers in real(self, requests, methods)
            ]

        monkeypatch.setattr(Generator, "generate", failing)
        report = bench.run([settings(model, folder, tmp_path, "tasks=[made_choices]")], progress=False)
        (run,) = report.runs
        assert report.exit_code == 1 and run.summary is not None and run.summary["failed"] == 1
        assert [record["id"] for record in run.records if record["error"]] == ["made_choices/1"]
        samples = theirs["samples"]["made_choices"]
        others = [sample["acc"] for sample in samples if sample["doc_id"] != 1]
        assert run.summary["scores"]["acc,none"] == pytest.approx(sum(others) / 3)

    def test_a_chat_template_is_put_around_if_the_protocol_says_so(
        self, model: Path, folder: Path, tmp_path: Path
    ) -> None:
        given = ("tasks=[made_answers]", "limit=1", "protocol.template=chat")
        (run,) = bench.run([settings(model, folder, tmp_path, *given)], progress=False).runs
        assert run.records[0]["prompt_tail"].endswith("Answer:[assistant]")


class TestTask:
    def test_the_identity_follows_the_content_and_not_its_place(self, folder: Path, tmp_path: Path) -> None:
        twin = write(tmp_path / "elsewhere")
        one, other = (
            LmEvalTask(task="made_answers", include_path=place).identity() for place in (folder, twin)
        )
        assert one == other
        changed = (twin / "rows.jsonl").read_text().replace("number 2?", "number two?")
        (twin / "changed.jsonl").write_text(changed)
        read = LmEvalTask(task="made_answers", include_path=folder, data=twin / "changed.jsonl")
        assert read.identity()["tasks_sha256"] != one["tasks_sha256"]
        assert LmEvalTask(task="made_answers", include_path=folder, shots=0).identity()["shots"] == [0]

    def test_data_comes_from_a_file_or_a_folder_with_a_file_a_split(
        self, folder: Path, tmp_path: Path
    ) -> None:
        lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "test.jsonl").write_text("".join(lines[2:]))
        for data in (tmp_path, tmp_path / "test.jsonl"):
            samples = LmEvalTask(task="made_letters", include_path=folder, data=data).samples(prompter())
            assert len(samples) == 2 and "number 2" in ByteTokenizer().decode(samples[0].ids)
        with pytest.raises(ValueError, match=r"none of test\.jsonl in"):
            LmEvalTask(task="made_letters", include_path=folder, data=folder).identity()

    @pytest.mark.parametrize(
        ("parameters", "sentence"),
        [
            ({"task": None}, "no task is named"),
            ({"task": "made_answers", "shots": -1}, "shots is -1"),
            ({"task": "made_answers", "include_path": "/nowhere"}, "include_path='/nowhere' is no folder"),
        ],
    )
    def test_bad_parameters_are_told(self, parameters: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            LmEvalTask(**parameters).identity()

    def test_a_data_set_out_of_reach_is_told_with_the_way_out(self, folder: Path, tmp_path: Path) -> None:
        config = (folder / "made_ends.yaml").read_text().replace("rows.jsonl", "gone.jsonl")
        (tmp_path / "made_ends.yaml").write_text(config)
        with pytest.raises(ValueError, match=r"'made_ends' cannot be loaded .*data\.path=FILE reads a file"):
            LmEvalTask(task="made_ends", include_path=tmp_path).identity()

    def test_programs_of_the_model_run_only_if_that_is_allowed(self, folder: Path, tmp_path: Path) -> None:
        config = (folder / "made_answers.yaml").read_text() + "unsafe_code: true\n"
        (tmp_path / "made_answers.yaml").write_text(config)
        with pytest.raises(ValueError, match=r"suite\.run_unsafe_code=true allows it"):
            LmEvalTask(task="made_answers", include_path=tmp_path).identity()
        allowed = LmEvalTask(task="made_answers", include_path=tmp_path, run_unsafe_code=True)
        assert allowed.identity()["tasks"] == 1

    def test_likelihoods_on_the_uncompressed_prompt_are_refused(self, folder: Path) -> None:
        full = prompter(first_token="full")
        with pytest.raises(ValueError, match=r"set protocol\.first_token=compressed"):
            LmEvalTask(task="made_letters", include_path=folder).samples(full)
        assert LmEvalTask(task="made_answers", include_path=folder).samples(full)
        later = prompter(question="after_compression")
        with pytest.raises(ValueError, match=r"protocol\.question=after_compression is not for them"):
            LmEvalTask(task="made_answers", include_path=folder).samples(later)

    def test_the_suite_has_rules_of_its_own_where_none_are_given(self) -> None:
        def rules(*overrides: str) -> tuple[str, str]:
            protocol = configured(*overrides).protocol
            return protocol.first_token, protocol.template

        assert rules("suite=lm_eval", "tasks=[made_letters]") == ("compressed", "none")
        assert rules("suite=needle") == ("full", "chat")
        given = ("protocol.first_token=full", "protocol.template=chat")
        assert rules("suite=lm_eval", "tasks=[made_letters]", *given) == ("full", "chat")

    def test_names_and_suites_that_do_not_go_together_are_told(self) -> None:
        with pytest.raises(ValueError, match=r"add 'tasks=\[gsm8k_cot\]'"):
            configured("suite=lm_eval")
        with pytest.raises(ValueError, match=r"add suite=lm_eval"):
            configured("suite=needle", "tasks=[made_letters]")


class TestEncoder:
    @pytest.fixture
    def encoder(self) -> Callable[..., Sample]:
        return Encoder(tokenizer=Ending(), max_length=20).generation

    def test_only_the_end_of_a_long_prompt_is_read_and_that_is_noted(self, encoder: Any) -> None:
        sample = encoder("0", "abcdefghijklmnopqrstuvwxyz", {"max_gen_toks": 8})
        assert ByteTokenizer().decode(sample.ids) == "opqrstuvwxyz"
        assert sample.meta == {"left_out_at_the_beginning": 14}

    def test_drawing_needs_a_temperature_and_knows_nothing_else(self, encoder: Any) -> None:
        drawn = encoder("0", "a", {"do_sample": True, "temperature": 0.7, "top_p": 1.0, "max_gen_toks": 8})
        assert drawn.temperature == 0.7
        greedy = encoder("0", "a", {"do_sample": False, "temperature": 0.7, "top_p": 0.9, "max_gen_toks": 8})
        assert greedy.temperature == 0
        with pytest.raises(ValueError, match=r"draws tokens with top_p=0\.9"):
            encoder("0", "a", {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_gen_toks": 8})

    def test_an_answer_longer_than_the_model_is_told(self, encoder: Any) -> None:
        with pytest.raises(ValueError, match="answers of 20 tokens do not fit into the model's 20"):
            encoder("0", "a", {"max_gen_toks": 20})


def test_gsm8k_from_a_file_is_asked_as_published(shared_data: Path, tmp_path: Path) -> None:
    """The exemplars of the shared file, the question, and a bare `A:`. Its own file is named in a folder of its own
    here, which spares the index of all of lm_eval's tasks."""
    import lm_eval

    published = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k-cot.yaml"
    (tmp_path / "mine.yaml").write_text(f"include: {published}\ntask: gsm8k_here\n")
    data = shared_data / "gsm8k"
    task = LmEvalTask(task="gsm8k_here", include_path=tmp_path, data=data / "test.jsonl")
    assert task.metrics == ("exact_match,strict-match", "exact_match,flexible-extract")
    gsm8k = task._loaded.tasks["gsm8k_here"]
    gsm8k.set_fewshot_seed(task.fewshot_seed)
    gsm8k.build_all_requests(limit=2)
    prompt, stops = gsm8k.instances[1].args
    question = json.loads((data / "test.jsonl").read_text().splitlines()[1])["question"]
    assert prompt.count("Q: ") == 9 and prompt.endswith(f"Q: {question}\nA:")
    assert all(exemplar["question"] in prompt for exemplar in exemplars(data))
    assert stops["until"] == ["Q:", "</s>", "<|im_end|>"]
    assert gsm8k.doc_to_target(gsm8k.instances[1].doc) == "3"


def exemplars(data: Path) -> list[dict[str, str]]:
    return json.loads((data / "cot_8shot.json").read_text())["samples"]
