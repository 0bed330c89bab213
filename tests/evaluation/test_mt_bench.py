"""MT-Bench's questions, temperatures and files are FastChat's, and the second turn is asked on the compressed cache.

What needs the published files skips where they are absent; everything else runs on rows made here.
"""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from evaluation import bench, datasets, tasks
from evaluation.mt_bench import TASK, TEMPERATURES, MTBench
from evaluation.mt_bench_rows import NEED_REFERENCE, read_grading, read_questions
from evaluation.mt_bench_rows import fields as template_fields
from evaluation.prompts import Prompter
from evaluation.results import RunFolder, RunSpec
from evaluation.runner import Cell, run_cells
from evaluation.types import Protocol
from pyramid.types import Answer

CONF = Path(__file__).resolve().parents[2] / "conf"
CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def question(id: Any = 81, category: str = "writing", **changes: Any) -> dict[str, Any]:
    return {"question_id": id, "category": category, "turns": ["Write it.", "Write {it} shorter."], **changes}


def write(file: Path, *rows: Mapping[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def prompter(byte_tokenizer: Any) -> Prompter:
    return Prompter(tokenizer=byte_tokenizer, protocol=Protocol(name="fair"), model_max_length=100_000)


class TestQuestions:
    def test_the_published_file_has_ten_questions_of_each_category_in_order(self, shared_data: Path) -> None:
        questions = read_questions(shared_data / "mt_bench").questions
        assert [each.id for each in questions] == list(range(81, 161))
        assert [each.category for each in questions] == [name for name in CATEGORIES for _ in range(10)]

    def test_every_graded_category_has_its_references_and_every_prompt_is_there(
        self, shared_data: Path
    ) -> None:
        grading = read_grading(shared_data / "mt_bench")
        questions = read_questions(shared_data / "mt_bench").questions
        assert grading.references.keys() == {each.id for each in questions if each.category in NEED_REFERENCE}
        assert len(grading.templates) == 4

    @pytest.mark.parametrize("layout", ["together", "as FastChat", "file", "compressed"])
    def test_the_files_are_found_in_every_layout(
        self, layout: str, shared_data: Path, tmp_path: Path
    ) -> None:
        source, place = shared_data / "mt_bench", tmp_path / "data" / "mt_bench"
        shutil.copytree(source / "reference_answer", place / "reference_answer")
        shutil.copy(source / "question.jsonl", place)
        shutil.copy(source / "judge_prompts.jsonl", place.parent if layout == "as FastChat" else place)
        if layout == "compressed":
            (place / "question.jsonl.gz").write_bytes(gzip.compress((place / "question.jsonl").read_bytes()))
            (place / "question.jsonl").unlink()
        data = place / "question.jsonl" if layout == "file" else place
        assert read_questions(data) == read_questions(source)
        assert read_grading(data) == read_grading(source)

    @pytest.mark.parametrize(
        ("rows", "sentence"),
        [
            (
                [question(81), question(82), question(81)],
                "line 3: field 'question_id' is 81, and so is an earlier",
            ),
            ([question(81), question("81")], "line 2: field 'question_id' is 81, and so is an earlier"),
            ([question(turns=["One."])], "line 1: field 'turns' has not 2 texts"),
            ([question(turns=["One.", " "])], "line 1: field 'turns' has not 2 texts"),
            ([question(turns="One.")], "line 1: field 'turns' is \"One.\" and no list of texts"),
            ([question(8.5)], "line 1: field 'question_id' is neither a whole number nor a text"),
            ([{"question_id": 81, "turns": ["a", "b"]}], "line 1: field 'category' is missing"),
            ([], "has no questions"),
        ],
    )
    def test_a_row_that_is_not_as_published_is_named(
        self, rows: list[dict[str, Any]], sentence: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError) as error:
            read_questions(write(tmp_path / "question.jsonl", *rows))
        assert sentence in str(error.value) and str(tmp_path) in str(error.value)

    def test_absent_files_are_answered_with_the_places_and_the_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path / "cache"))
        for data, place in ((None, tmp_path / "cache" / "data" / "mt_bench"), (tmp_path, tmp_path)):
            with pytest.raises(ValueError) as error:
                read_questions(data)
            assert f"in {place};" in str(error.value)
            assert "python -m scripts.fetch mt_bench" in str(error.value) and "hub" not in str(error.value)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"name": "single-v2"}, "has no prompt 'single-v1'"),
            ({"output_format": "[[A]]"}, "field 'output_format' is not [[rating]]"),
            ({"prompt_template": "Grade {answer}."}, "field 'prompt_template' leaves open answer"),
        ],
    )
    def test_a_prompt_that_cannot_be_used_is_named(
        self, changes: dict[str, str], sentence: str, tmp_path: Path
    ) -> None:
        rows = [
            {
                "name": name,
                "system_prompt": "Judge.",
                "prompt_template": " ".join(f"{{{field}}}" for field in template_fields(category, turn)),
                "output_format": "[[rating]]",
            }
            for name, category, turn in (
                ("single-v1", "writing", 1),
                ("single-v1-multi-turn", "writing", 2),
                ("single-math-v1", "math", 1),
                ("single-math-v1-multi-turn", "math", 2),
            )
        ]
        write(tmp_path / "reference_answer" / "gpt-4.jsonl")
        write(tmp_path / "judge_prompts.jsonl", *rows)
        assert len(read_grading(tmp_path).templates) == 4
        write(tmp_path / "judge_prompts.jsonl", rows[0] | changes, *rows[1:])
        with pytest.raises(ValueError) as error:
            read_grading(tmp_path)
        assert sentence in str(error.value)


class TestFetching:
    """From a real HTTP server on this machine that serves what GitHub does."""

    @pytest.fixture
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
        content: dict[str, bytes] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = content.get(self.path)
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Length", str(len(found or b"")))
                self.end_headers()
                self.wfile.write(found or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            monkeypatch.setattr(datasets, "GITHUB", f"http://127.0.0.1:{server.server_port}")
            yield content
            server.shutdown()

    def test_the_published_files_are_brought_from_the_pinned_commit(
        self, server: dict[str, bytes], shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path))
        source = datasets.SOURCES["mt_bench"]
        for name, there in zip(source.files, source.on_github, strict=True):
            path = f"/lm-sys/FastChat/{source.commit}/{there.path}"
            server[path] = (shared_data / "mt_bench" / name).read_bytes()
        found = datasets.fetch(source)
        assert [file.relative_to(source.folder).as_posix() for file in found] == list(source.files)
        server.clear()
        assert datasets.fetch(source) == found  # without a call
        assert read_questions(None) == read_questions(shared_data / "mt_bench")
        assert read_grading(None) == read_grading(shared_data / "mt_bench")

    def test_other_content_and_a_missing_file_are_refused_and_not_kept(
        self, server: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path))
        source = datasets.SOURCES["mt_bench"]
        with pytest.raises(ValueError, match=r"lm-sys/FastChat could not be fetched from GitHub \(HTTPError"):
            datasets.fetch(source)
        server[f"/lm-sys/FastChat/{source.commit}/{source.on_github[0].path}"] = b"{}\n"
        with pytest.raises(ValueError, match="another content than it has in commit 0e6d3e4beaab"):
            datasets.fetch(source)
        assert not [file for file in tmp_path.rglob("*") if file.is_file()]


class TestSamples:
    def test_temperatures_are_fastchats_by_category(self, shared_data: Path, prompter: Prompter) -> None:
        samples = MTBench(data=shared_data / "mt_bench").samples(prompter)
        assert Counter(sample.temperature for sample in samples) == {0.0: 40, 0.7: 20, 0.1: 20}
        assert {s.meta["category"] for s in samples if s.temperature == 0} == {
            "extraction",
            "math",
            "coding",
            "reasoning",
        }
        assert set(TEMPERATURES) == set(CATEGORIES)

    def test_the_second_question_follows_in_the_same_request(
        self, tmp_path: Path, prompter: Prompter
    ) -> None:
        file = write(tmp_path / "question.jsonl", question(category="my own"))
        (sample,) = MTBench(data=file, max_new_tokens=9).samples(prompter)
        assert (sample.context, sample.follow_ups) == ("Write it.", ("Write {it} shorter.",))
        assert (sample.temperature, sample.max_new_tokens, sample.id) == (0.7, 9, "81")
        assert "Write {it} shorter." in prompter.tokenizer.decode(prompter.render(sample).follow_ups[0])

    def test_greedy_is_another_identity_and_another_file_is_too(
        self, tmp_path: Path, prompter: Prompter
    ) -> None:
        file = write(tmp_path / "question.jsonl", question())
        tasks_ = [MTBench(data=file), MTBench(data=file, temperature=0), MTBench(data=file, max_new_tokens=9)]
        tasks_.append(MTBench(data=write(tmp_path / "other.jsonl", question(82))))
        identities = [json.dumps(task.identity()) for task in tasks_]
        assert len(set(identities)) == 4
        assert identities[1] == json.dumps(MTBench(data=file, temperature=0.0).identity())
        assert tasks_[1].samples(prompter)[0].temperature == 0

    @pytest.mark.parametrize(
        ("field", "value"),
        [("temperature", "greedy"), ("temperature", -1), ("temperature", True), ("max_new_tokens", 0)],
    )
    def test_parameters_that_cannot_be_are_refused(self, field: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"mt_bench: {field} is {value!r}; "):
            MTBench(**{field: value})

    def test_the_suite_has_the_fields_of_the_task(self) -> None:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", ["suite=mt_bench", "data.path=here", "limit=4"])
        values: Any = OmegaConf.to_container(config.suite.tasks.mt_bench, resolve=True)
        assert values.keys() - {"kind"} == {field.name for field in fields(TASK)}
        built = tasks.build("mt_bench", values)
        assert built == MTBench(data="here")

    @pytest.mark.parametrize(
        ("texts", "score"), [(("a", "b"), 1.0), (("", "b"), 0.0), (("a", " \n"), 0.0), (("", ""), 0.0)]
    )
    def test_a_sample_is_answered_if_both_turns_are(
        self, texts: tuple[str, str], score: float, tmp_path: Path, prompter: Prompter
    ) -> None:
        task = MTBench(data=write(tmp_path / "question.jsonl", question()))
        (sample,) = task.samples(prompter)
        answer = Answer(id="81", text=texts[0], follow_ups=(Answer(id="81", text=texts[1]),))
        assert task.score(sample, answer) == {"answered": score}
        assert task.summarize([{"scores": {"answered": score}}, {"scores": {"answered": 1.0}}]) == {
            "answered": (score + 1) / 2
        }


def read_as_fastchat(folder: Path) -> dict[str, dict[Any, dict[str, Any]]]:
    """Model to question to line: what FastChat's tools make of a folder model_answer."""
    found: dict[str, dict[Any, dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        found[file.name.removesuffix(".jsonl")] = {line["question_id"]: line for line in lines}
    return found


BUDGET = 24


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_model: Any, byte_tokenizer: Any) -> dict[str, Any]:
    """Real runs of a tiny model with random weights over made questions."""
    from pyramid.generation import Generator
    from pyramid.methods import build

    folder = tmp_path_factory.mktemp("mt_bench")
    rows = [
        question(
            number,
            category,
            turns=[f"{category} number {number} is long enough to be cut.", "And now shorter?"],
        )
        for number, category in ((90, "math"), (81, "writing"), (9, "stem"))
    ]
    task: Any = MTBench(data=write(folder / "question.jsonl", *rows), max_new_tokens=12)
    protocol = Protocol(name="fair")
    prompter = Prompter(tokenizer=byte_tokenizer, protocol=protocol, model_max_length=2048)
    generator = Generator(model=tiny_model(), tokenizer=byte_tokenizer)
    methods = {"fullkv": build("fullkv"), "snapkv": build("snapkv", budget=BUDGET, window=8)}
    cells = []
    for name, method in methods.items():
        spec = RunSpec(
            model={"id": "tiny"},
            method={"name": name},
            budget=None if name == "fullkv" else BUDGET,
            protocol={"name": "fair"},
            task={"name": task.name, **task.identity()},
            subset={"limit": None, "ids": None},
            seed=0,
            engine="test",
        )
        cells.append(Cell(method=method, folder=RunFolder(folder, spec)))
    found = run_cells(cells, task, prompter, generator, batch_size=2)
    for run in found:
        assert [record["error"] for record in run.records] == [None] * 3
        task.draw(run.records, run.folder)
    return dict(zip(methods, found, strict=True))


class TestRun:
    def test_the_second_turn_is_read_onto_what_the_first_left(self, runs: dict[str, Any]) -> None:
        """The full cache holds everything both turns had; SnapKV, its budget after either question."""
        for full, cut in zip(runs["fullkv"].records, runs["snapkv"].records, strict=True):
            (second,), (cut_second,) = full["follow_ups"], cut["follow_ups"]
            read = full["prompt_tokens"] + full["new_tokens"] + second["prompt_tokens"]
            assert set(full["kept_tokens"]) == {full["prompt_tokens"]}
            assert set(second["kept_tokens"]) == {read}
            assert set(cut["kept_tokens"]) == set(cut_second["kept_tokens"]) == {BUDGET}
            assert BUDGET < min(cut["kept_tokens_at_end"]) < read
            assert cut_second["bytes_after_prompt"] * read == second["bytes_after_prompt"] * BUDGET

    def test_what_the_first_turn_dropped_changes_the_second_answer(self, runs: dict[str, Any]) -> None:
        """Greedy samples: the same questions, other answers, and so the second was not read from the whole text."""
        pairs = zip(runs["fullkv"].records, runs["snapkv"].records, strict=True)
        (full, cut) = next((f, c) for f, c in pairs if f["meta"]["temperature"] == 0)
        assert full["follow_ups"][0]["text"] != cut["follow_ups"][0]["text"]

    def test_answers_are_as_fastchat_reads_them(self, runs: dict[str, Any], shared_data: Path) -> None:
        with gzip.open(
            shared_data / "mt_bench/model_answer/vicuna-7b-v1.3.jsonl.gz", "rt", encoding="utf-8"
        ) as lines:
            published = json.loads(next(lines))
        for run in runs.values():
            answers = read_as_fastchat(run.folder / "model_answer")
            assert list(answers) == [run.key] and list(answers[run.key]) == [9, 81, 90]
            for record in run.records:
                line = answers[run.key][record["meta"]["question_id"]]
                assert {name: type(value) for name, value in line.items()} == {
                    name: type(value) for name, value in published.items()
                }
                assert line["choices"][0]["index"] == published["choices"][0]["index"]
                assert line["choices"][0]["turns"] == [
                    record["text"].strip(),
                    record["follow_ups"][0]["text"].strip(),
                ]
                assert line["model_id"] == run.key
            assert len({line["answer_id"] for line in answers[run.key].values()}) == 3


def test_a_missing_file_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyramid import models

    monkeypatch.setattr(models, "load", lambda spec: 1 / 0)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["suite=mt_bench", f"data.path={tmp_path}", "model.weights=random"])
    values: Any = OmegaConf.to_container(config, resolve=True)
    report = bench.run([bench.Job.of(values, tmp_path)])
    assert report.exit_code == 2 and "mt_bench has no table 'question'" in report.refused[0]
