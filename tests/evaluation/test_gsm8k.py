"""GSM8K's prompts are the harness's, its rows are checked, and a table says when its prompts were too short."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from evaluation import datasets, tasks
from evaluation.gsm8k import TASK, Gsm8k, exemplars
from evaluation.prompts import Prompter
from evaluation.results import RunFolder, RunSpec
from evaluation.runner import Cell, choose, run_cells
from evaluation.types import Protocol, Sample
from pyramid.types import Answer

CONF = Path(__file__).resolve().parents[2] / "conf"
ROWS = [
    {
        "question": f"What is {n} plus {n}?",
        "answer": f"It is {n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}.\n#### {2 * n}",
    }
    for n in range(1, 13)
]


def write(path: Path, *rows: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with both splits."""
    write(tmp_path / "gsm8k" / "test.jsonl", *ROWS[:5])
    write(tmp_path / "gsm8k" / "train.jsonl", *ROWS[5:])
    return tmp_path / "gsm8k"


@pytest.fixture
def prompter(byte_tokenizer: Any) -> Prompter:
    return Prompter(tokenizer=byte_tokenizer, protocol=Protocol(name="fair"), model_max_length=100_000)


def text(sample: Sample) -> str:
    return sample.context + sample.question


class TestPrompts:
    def test_the_exemplars_are_the_published_ones(self, shared_data: Path) -> None:
        published = json.loads((shared_data / "gsm8k" / "cot_8shot.json").read_text(encoding="utf-8"))
        assert list(exemplars()) == [(each["question"], each["target"]) for each in published["samples"]]

    def test_no_exemplar_has_changed(self) -> None:
        """The digest of what the test above compares, for where the published file is absent."""
        digest = hashlib.sha256(json.dumps(exemplars()).encode()).hexdigest()
        assert digest == "8891624983ad7951218788c6e80ea96393295ebbe2b89848c286d91e20129aec"

    def test_eight_shots_are_the_harness_prompt(self, data: Path, prompter: Prompter) -> None:
        sample = Gsm8k(data=data).samples(prompter)[1]
        blocks = text(sample).split("\n\n")
        assert len(blocks) == 9 and len(text(sample)) - len(blocks[8]) == 2141
        assert blocks[7].startswith("Q: Olivia has $23.") and blocks[7].endswith(
            "A: Olivia had 23 dollars. 5 "
            "bagels for 3 dollars each will be 5 x 3 = 15 dollars. So she has 23 - 15 dollars left. 23 - 15 is 8. The "
            "answer is 8."
        )
        assert sample.question == blocks[8] == "Q: What is 2 plus 2?\nA:"
        assert sample.stop_texts == ("Q:", "</s>", "<|im_end|>") and sample.references == ("4",)
        assert (sample.id, sample.max_new_tokens, sample.template) == ("1", 256, True)

    @pytest.mark.parametrize("shots", [0, 1, 3, 8])
    def test_fewer_shots_are_the_first_ones(self, data: Path, prompter: Prompter, shots: int) -> None:
        (sample, *_) = Gsm8k(data=data, shots=shots).samples(prompter)
        assert text(sample).count("Q: ") == shots + 1
        assert [question in text(sample) for question, _ in exemplars()] == [True] * shots + [False] * (
            8 - shots
        )

    def test_without_shots_the_question_is_what_is_compressed(self, data: Path, prompter: Prompter) -> None:
        (sample, *_) = Gsm8k(data=data, shots=0).samples(prompter)
        assert (sample.context, sample.question) == ("Q: What is 1 plus 1?\nA:", "")

    def test_more_shots_are_training_rows_in_prose_before_the_eight(
        self, data: Path, prompter: Prompter
    ) -> None:
        """What lengthens a prompt stands farthest from the question, and is the same for all problems."""
        eight, ten = (Gsm8k(data=data, shots=shots).samples(prompter) for shots in (8, 10))
        added = (
            "Q: What is 6 plus 6?\nA: It is 6+6=12.\nThe answer is 12.\n\n"
            "Q: What is 7 plus 7?\nA: It is 7+7=14.\nThe answer is 14.\n\n"
        )
        assert [text(each) for each in ten] == [added + text(each) for each in eight]

    def test_training_shots_are_drawn_as_the_harness_draws_them(self, data: Path, prompter: Prompter) -> None:
        """One generator, seeded with 1234, draws problem after problem."""
        samples = Gsm8k(data=data, form="train", shots=2).samples(prompter)
        draw = random.Random(1234)
        for number, sample in enumerate(samples):
            shown = "".join(
                f"Question: {row['question']}\nAnswer: {row['answer']}\n\n"
                for row in draw.sample(ROWS[5:], 2)
            )
            assert text(sample) == f"{shown}Question: What is {number + 1} plus {number + 1}?\nAnswer:"
            assert sample.stop_texts == ("Question:", "</s>", "<|im_end|>")
        assert Gsm8k(data=data, form="train").identity()["shots"] == 5

    def test_the_real_rows_make_prompts(self, shared_data: Path, prompter: Prompter) -> None:
        folder = shared_data / "gsm8k"
        task = Gsm8k(data=folder / "test.jsonl", train=folder / "train_first200.jsonl", form="train")
        samples = task.samples(prompter)
        assert len(samples) == 1319
        assert [s.references[0] for s in samples if not s.references[0].isdigit()][:2] == ["2,125", "114,200"]
        few = choose(samples, limit=20, seed=3)
        assert [s.id for s in few] == [s.id for s in choose(samples, limit=20, seed=3)] and len(few) == 20
        assert all(text(sample).count("#### ") == 5 for sample in few)


class TestScores:
    def test_scores_and_their_means(self, data: Path, prompter: Prompter) -> None:
        task = Gsm8k(data=data)
        sample = task.samples(prompter)[1]
        right = task.score(sample, Answer(id="1", text=" It is 2 + 2 = 4. The answer is 4."))
        wrong = task.score(sample, Answer(id="1", text=" No idea."))
        assert right == {"flexible": 1, "strict": 1, "lenient": 1, "unparsed": 0, "off_format": 0}
        assert wrong == {"flexible": 0, "strict": 0, "lenient": 0, "unparsed": 1, "off_format": 1}
        assert tuple(right) == task.metrics
        records = [{"scores": scores} for scores in (right, right, right, wrong)]
        assert task.summarize(records)["flexible"] == 0.75 and task.summarize([]) == {}

    def test_a_question_that_the_model_goes_on_with_does_not_count(
        self, data: Path, prompter: Prompter, byte_tokenizer: Any
    ) -> None:
        """The answer ends before `Q:`, wherever the tokens part it; the next problem's number is not read."""
        from pyramid.row import Row, Turn
        from pyramid.types import Request

        sample = Gsm8k(data=data).samples(prompter)[1]
        request = Request(id="1", segments=((1,),), max_new_tokens=256, stop_texts=sample.stop_texts)
        row = Row(request, 0, byte_tokenizer, fed=1, last=1, turns=[Turn(1)])
        for token in byte_tokenizer.encode(" The answer is 4.\n\nQ: What is 9 plus 9?\nA: 18."):
            if not row.turn.finish:
                row.accept(token)
        answer = row.text(row.turn)
        assert answer == " The answer is 4.\n\n" and row.turn.finish == "stop"
        assert Gsm8k(data=data).score(sample, Answer(id="1", text=answer))["strict"] == 1


class TestRows:
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"question": "Why?"}, "field 'answer' is missing"),
            ({"answer": "#### 3"}, "field 'question' is missing"),
            ({"question": " ", "answer": "#### 3"}, "field 'question' is empty"),
            ({"question": "Why?", "answer": 3}, "field 'answer' is 3 and no text"),
            (
                {"question": "Why?", "answer": "It is 3."},
                "field 'answer' does not end in '####' and a number",
            ),
            (
                {"question": "Why?", "answer": "#### none"},
                "field 'answer' does not end in '####' and a number",
            ),
        ],
    )
    def test_a_wrong_field_is_named_with_file_and_line(
        self, tmp_path: Path, row: dict[str, Any], message: str
    ) -> None:
        path = write(tmp_path / "mine.jsonl", ROWS[0], row)
        with pytest.raises(ValueError, match=rf"mine\.jsonl, line 2: {message}"):
            Gsm8k(data=path).identity()

    def test_a_file_without_rows_and_a_missing_file_are_told(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"test\.jsonl has no rows"):
            Gsm8k(data=write(tmp_path / "test.jsonl")).identity()
        with pytest.raises(ValueError, match=r"no table 'test'.*python -m scripts\.fetch gsm8k"):
            Gsm8k().identity()

    def test_the_hash_is_of_the_content_and_not_of_its_packing(self, data: Path, tmp_path: Path) -> None:
        packed = tmp_path / "packed.jsonl.gz"
        packed.write_bytes(gzip.compress((data / "test.jsonl").read_bytes()))
        assert Gsm8k(data=packed).identity() == Gsm8k(data=data).identity()

    def test_parquet_as_the_hub_has_it_is_the_same_data(self, data: Path, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
        import pandas

        folder = tmp_path / "hub_copy" / "main"
        folder.mkdir(parents=True)
        for name, rows in (("test", ROWS[:5]), ("train", ROWS[5:])):
            pandas.DataFrame(rows).to_parquet(folder / f"{name}-00000-of-00001.parquet")
        for shots in (8, 10):
            there = Gsm8k(data=tmp_path / "hub_copy", shots=shots).identity()
            assert there == Gsm8k(data=data, shots=shots).identity()

    def test_parquet_without_its_reader_names_the_extra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "test.parquet").write_bytes(b"PAR1")
        monkeypatch.setattr(datasets, "find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'pyramid-bench\[parquet\]'"):
            Gsm8k(data=tmp_path).identity()

    def test_training_rows_are_looked_for_beside_a_single_file(self, data: Path) -> None:
        """Never in the test file itself, whatever its name."""
        assert Gsm8k(data=data / "test.jsonl", shots=9).identity() == Gsm8k(data=data, shots=9).identity()
        (data / "train.jsonl").unlink()
        with pytest.raises(ValueError, match=r"no table 'train'.*suite\.train=PATH"):
            Gsm8k(data=data / "test.jsonl", form="train").identity()
        with pytest.raises(ValueError, match="training rows are those of the test"):
            Gsm8k(data=data, train=data / "test.jsonl", form="train").identity()

    def test_too_few_training_rows_are_told(self, data: Path) -> None:
        with pytest.raises(ValueError, match="shots=30 needs 22 training rows, and there are 7"):
            Gsm8k(data=data, shots=30).identity()

    def test_eight_shots_need_no_training_rows(self, data: Path) -> None:
        (data / "train.jsonl").unlink()
        assert Gsm8k(data=data).identity()["train_sha256"] is None

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"form": "zero"}, "form is 'zero'; take one of cot, train"),
            ({"shots": -1}, "shots is -1; give a number from 0 on"),
            ({"shots": "8"}, "shots is '8'"),
            ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ],
    )
    def test_bad_parameters_are_named(self, parameters: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"gsm8k: {message}"):
            Gsm8k(**parameters)


def test_the_suite_builds_the_task(data: Path) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["suite=gsm8k", f"data.path={data}", "suite.form=train", "suite.shots=2"])
    suite: Any = OmegaConf.to_container(config.suite, resolve=True)
    (task,) = [tasks.build(label, values) for label, values in suite["tasks"].items()]
    assert isinstance(task, TASK) and task == Gsm8k(data=str(data), form="train", shots=2)


@pytest.mark.parametrize(("budget", "compressed"), [(1024, 0), (64, 5)])
def test_prompts_shorter_than_the_budget_are_told(
    data: Path, tmp_path: Path, byte_tokenizer: Any, tiny_model: Any, budget: int, compressed: int
) -> None:
    """E14: five problems, of which a generous budget compresses none, and a small one all."""
    from pyramid import methods
    from pyramid.generation import Generator

    task: Any = Gsm8k(data=data, shots=1, max_new_tokens=4)
    spec = RunSpec(
        model={"id": "tiny"},
        method={"name": "snapkv", "version": 1},
        budget=budget,
        protocol={"name": "fair", "question": "in_prompt"},
        task={"name": task.name, **task.identity()},
        subset={"limit": None, "ids": None},
        seed=0,
        engine="1",
    )
    cell = Cell(method=methods.build("snapkv", budget=budget), folder=RunFolder(tmp_path, spec))
    prompter = Prompter(tokenizer=byte_tokenizer, protocol=Protocol(name="fair"), model_max_length=2048)
    generator = Generator(model=tiny_model(), tokenizer=byte_tokenizer)
    (run,) = run_cells([cell], task, prompter, generator, batch_size=5)
    assert run.summary is not None and run.summary["compressed"] == compressed and run.summary["failed"] == 0
    told = [warning for warning in run.summary["warnings"] if "0 of 5 samples were compressed" in warning]
    assert len(told) == (compressed == 0)
    assert set(run.summary["scores"]) == set(run.summary["intervals"]) == set(task.metrics)
