"""Perplexity: the chunks are those of the text, the full cache gives the stock model's loss, and all of it is told."""

from __future__ import annotations

import gzip
import math
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from evaluation import tasks
from evaluation.perplexity import TASK, Perplexity, read_text
from evaluation.prompts import Prompter
from evaluation.results import Run, RunFolder, RunSpec
from evaluation.runner import Cell, run_cells
from evaluation.types import Protocol, Sample
from pyramid.types import Answer

CONF = Path(__file__).resolve().parents[2] / "conf"
TEXT = " = A title = \n The first line has a few words . \n And the second one has some more of them . \n"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "some.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture
def prompter(byte_tokenizer: Any) -> Prompter:
    return Prompter(tokenizer=byte_tokenizer, protocol=Protocol(name="fair"), model_max_length=2048)


class Starting:
    """A tokenizer of characters whose texts begin with a start token."""

    bos_id = 1
    stop_ids = ()

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [1] * special + [ord(character) % 128 for character in text]

    def decode(self, ids: Any, skip_special: bool = True) -> str:
        return "".join(map(chr, ids))


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


class TestChunks:
    def test_they_slide_so_that_every_token_is_asked_for_once(self, data: Path, prompter: Prompter) -> None:
        samples = Perplexity(data=data, context=30, continuation=10).samples(prompter)
        asked = sum((sample.continuation for sample in samples), ())
        assert asked == ids(TEXT)[30 : 30 + len(asked)] and len(TEXT) - 30 - len(asked) < 10
        for number, sample in enumerate(samples):
            assert sample.id == str(10 * number)
            assert sample.ids + sample.continuation == ids(TEXT)[10 * number : 10 * number + 40]
        assert all((len(sample.ids), len(sample.continuation)) == (30, 10) for sample in samples)

    def test_a_stride_leaves_tokens_out_or_asks_for_them_again(self, data: Path, prompter: Prompter) -> None:
        samples = Perplexity(data=data, context=20, continuation=10, stride=25).samples(prompter)
        assert [sample.id for sample in samples] == ["0", "25", "50"]

    def test_a_start_token_is_the_first_of_every_context(self, data: Path) -> None:
        tokenizer: Any = Starting()
        prompter = Prompter(tokenizer=tokenizer, protocol=Protocol(name="fair"), model_max_length=2048)
        first, second, *_ = Perplexity(data=data, context=30, continuation=10).samples(prompter)
        assert first.ids == (1, *ids(TEXT)[:29]) and first.continuation == ids(TEXT)[29:39]
        assert second.ids == (1, *ids(TEXT)[10:39])
        assert prompter.render(first).segments == (first.ids,), "nothing is put around it"
        with pytest.raises(ValueError, match="the start token alone fills it"):
            Perplexity(data=data, context=1).samples(prompter)

    def test_a_text_that_is_too_short_is_told(self, data: Path, prompter: Prompter) -> None:
        with pytest.raises(ValueError, match=f"has {len(TEXT)} tokens, and one chunk needs 1792"):
            Perplexity(data=data).samples(prompter)

    def test_a_chunk_that_is_too_long_for_the_model_is_told(self, data: Path, byte_tokenizer: Any) -> None:
        small = Prompter(tokenizer=byte_tokenizer, protocol=Protocol(name="fair"), model_max_length=38)
        (sample, *_) = Perplexity(data=data, context=30, continuation=10).samples(small)
        with pytest.raises(ValueError, match="has 39 tokens, and the model was made for 38"):
            small.render(sample)


class TestText:
    def test_every_published_form_is_the_same_text(self, tmp_path: Path) -> None:
        """With blank lines or without, in the archive or out of it, with either line end."""
        forms = {
            "plain": TEXT,
            "blank": " \n" + TEXT.replace("\n", "\n \n\n"),
            "dos": TEXT.replace("\n", "\r\n"),
        }
        for name, content in forms.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "wiki.test.raw").write_bytes(content.encode())
            assert read_text(tmp_path / name) == read_text(tmp_path / name / "wiki.test.raw") == TEXT
        with zipfile.ZipFile(tmp_path / "wikitext-2-raw-v1.zip", "w") as archive:
            archive.writestr("wikitext-2-raw/wiki.train.raw", "another text")
            archive.writestr("wikitext-2-raw/wiki.test.raw", forms["blank"])
        assert read_text(tmp_path) == TEXT
        rows = "".join(f'{{"text": "{line}"}}\n' for line in ("", *TEXT.splitlines()))
        (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
        assert read_text(tmp_path / "rows.jsonl.gz") == TEXT

    def test_parquet_as_the_hub_has_it_is_the_same_text(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
        import pandas

        lines = ["", *(f"{line}\n" for line in TEXT.splitlines()), ""]
        pandas.DataFrame({"text": lines}).to_parquet(tmp_path / "test-00000-of-00001.parquet")
        assert read_text(tmp_path) == TEXT

    def test_a_separator_that_is_no_line_end_stays(self, tmp_path: Path) -> None:
        (tmp_path / "some.txt").write_text("one\u2028still one\x0cand\x85on\n", encoding="utf-8")
        assert read_text(tmp_path / "some.txt") == "one\u2028still one\x0cand\x85on\n"

    @pytest.mark.parametrize(
        ("content", "message"), [(b"\xff\xfe", "is no text in UTF-8"), (b" \n\n", "has no text")]
    )
    def test_a_file_without_a_text_is_named(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "some.txt").write_bytes(content)
        with pytest.raises(ValueError, match=rf"some\.txt {message}"):
            Perplexity(data=tmp_path / "some.txt").identity()

    def test_a_missing_text_and_a_broken_archive_are_told(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"none of wiki\.test\.raw, .*python -m scripts\.fetch wikitext2"
        ):
            Perplexity().identity()
        (tmp_path / "broken.zip").write_bytes(b"PK no archive")
        with pytest.raises(ValueError, match=r"broken\.zip cannot be read"):
            Perplexity(data=tmp_path / "broken.zip").identity()

    def test_the_real_file_is_read_whole(self, shared_data: Path) -> None:
        text = read_text(shared_data / "wikitext2" / "wiki.test.raw")
        assert (len(text.split()), text.count("\n")) == (241_211, 2_891)
        assert text.startswith(" = Robert Boulter = \n Robert Boulter is an English film")


class TestScores:
    def answered(self, *likelihoods: float) -> dict[str, float]:
        sample = Sample(id="0", context="", max_new_tokens=2, ids=(1,), continuation=(1,) * len(likelihoods))
        return Perplexity().score(sample, Answer(id="0", log_likelihoods=likelihoods))

    def test_a_chunks_perplexity_is_that_of_its_mean_loss(self) -> None:
        assert self.answered(math.log(0.5), math.log(0.125)) == pytest.approx(
            {"perplexity": 4, "nll": math.log(4)}
        )

    def test_the_text_s_perplexity_is_that_of_all_its_tokens(self) -> None:
        """One token at 1/16 and three at 1/2: the fourth root of 16 * 2 * 2 * 2, and not a mean of perplexities."""
        parts = (self.answered(math.log(1 / 16)), self.answered(*[math.log(0.5)] * 3))
        records = [{"scores": scores, "new_tokens": n} for scores, n in zip(parts, (1, 3), strict=True)]
        assert Perplexity().summarize(records)["perplexity"] == pytest.approx(128**0.25)
        assert Perplexity().summarize([]) == {}

    @pytest.mark.parametrize("likelihood", [-math.inf, math.nan])
    def test_what_is_no_number_is_no_score(self, likelihood: float) -> None:
        with pytest.raises(ValueError, match="mean negative log-likelihood is"):
            self.answered(-1.0, likelihood)

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"context": 0}, "context is 0"),
            ({"continuation": None}, "continuation is None"),
            ({"stride": 1.5}, "1.5"),
        ],
    )
    def test_bad_parameters_are_named(self, parameters: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Perplexity(**parameters)


def run(task: Any, methods: dict[str, int | None], prompter: Prompter, model: Any, root: Path) -> list[Run]:
    """The task under each method at its budget, all in company."""
    from pyramid import methods as library
    from pyramid.generation import Generator

    cells = []
    for name, budget in methods.items():
        spec = RunSpec(
            model={"id": "tiny"},
            method={"name": name, "version": 1},
            budget=budget,
            protocol={"name": "fair", "question": "in_prompt"},
            task={"name": task.name, **task.identity()},
            subset={"limit": None, "ids": None},
            seed=0,
            engine="1",
        )
        cells.append(Cell(method=library.build(name, budget=budget), folder=RunFolder(root, spec)))
    generator = Generator(model=model, tokenizer=prompter.tokenizer)
    return run_cells(cells, task, prompter, generator, batch_size=3)


def plain_losses(model: Any, samples: Any) -> list[float]:
    """Each chunk's mean loss by one pass of the stock model over context and continuation, without any cache."""
    import torch

    losses = []
    for sample in samples:
        whole = torch.tensor([sample.ids + sample.continuation])
        with torch.inference_mode():
            logits = model(whole, use_cache=False).logits[0, len(sample.ids) - 1 : -1].float()
        wanted = torch.tensor(sample.continuation)
        losses.append(torch.nn.functional.cross_entropy(logits, wanted).item())
    return losses


def test_the_full_cache_gives_the_stock_models_loss(
    data: Path, prompter: Prompter, tiny_model: Any, tmp_path: Path
) -> None:
    """And a compressed context another one; all chunks of all methods are told to be compressed or not."""
    task = Perplexity(data=data, context=40, continuation=12)
    full, snap, h2o, wide = run(
        task, {"fullkv": None, "snapkv": 16, "h2o": 20, "pyramidkv": 40}, prompter, tiny_model(), tmp_path
    )
    expected = plain_losses(tiny_model(), task.samples(prompter))
    found = full.scores("nll")
    assert [found[sample.id] for sample in task.samples(prompter)] == pytest.approx(expected, rel=1e-4)
    assert full.summary is not None
    mean = math.fsum(expected) / len(expected)
    assert full.summary["scores"] == pytest.approx({"perplexity": math.exp(mean), "nll": mean}, rel=1e-4)
    assert wide.scores("nll") == pytest.approx(found, rel=1e-6), (
        "a budget for all of the context changes nothing"
    )
    for each in (snap, h2o):
        assert each.summary is not None and each.summary["compressed"] == len(expected)
        assert each.scores("nll") != pytest.approx(found, rel=1e-4)
    assert all(record["finish"] == "scored" and record["new_tokens"] == 12 for record in full.records)


def test_the_full_cache_of_a_real_model_gives_its_loss(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chunks of WikiText-2 under the default model."""
    from pyramid.download import DownloadError
    from pyramid.models import ModelSpec, load

    monkeypatch.delenv("PYRAMID_CACHE")
    try:
        real = load(ModelSpec(dtype="float32", device="cpu"))
    except DownloadError as problem:
        pytest.skip(str(problem))
    (tmp_path / "some.txt").write_text(read_text(shared_data / "wikitext2" / "wiki.test.raw")[:3000])
    prompter = Prompter(
        tokenizer=real.tokenizer, protocol=Protocol(name="fair"), model_max_length=real.max_length
    )
    task = Perplexity(data=tmp_path / "some.txt", context=192, continuation=40, stride=150)
    (full,) = run(task, {"fullkv": None}, prompter, real.model, tmp_path)
    samples = task.samples(prompter)
    expected = plain_losses(real.model, samples)
    assert len(samples) >= 2 and all(1 < loss < 5 for loss in expected)
    assert [full.scores("nll")[sample.id] for sample in samples] == pytest.approx(expected, rel=1e-4)


def test_the_suite_builds_the_task(data: Path) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["suite=perplexity", f"data.path={data}", "suite.context=20"])
    suite: Any = OmegaConf.to_container(config.suite, resolve=True)
    (task,) = [tasks.build(label, values) for label, values in suite["tasks"].items()]
    assert isinstance(task, TASK) and task == Perplexity(data=str(data), context=20)
