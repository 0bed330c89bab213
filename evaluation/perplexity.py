"""Perplexity under a compressed context: how well a model foretells a text when what it has read is compressed.

The text is cut by tokens into chunks: `context` tokens are read and compressed, and the likelihood of the
`continuation` tokens behind them is asked for. docs/perplexity.md says what that measures and what it does not.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from evaluation import datasets
from evaluation.prompts import Prompter
from evaluation.types import Sample
from pyramid.types import Answer

VERSION = 1  # raised whenever the same parameters give other samples or scores
SOURCE = datasets.SOURCES["wikitext2"]
PUBLISHED = "wiki.test.raw"  # in a folder, or in the published archive


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """The fields are those of conf/task/perplexity.yaml.

    context: tokens before each continuation, a start token included where the model has one.
    continuation: tokens whose likelihood is asked for.
    stride: tokens from one chunk's beginning to the next one's; None: as many as are asked for, so that every token
        after the first context is asked for once.
    data: a text file, or a folder or archive with WikiText-2; None looks into the user's cache.

    Errors: ValueError with the offending value and the mend.
    """

    name: ClassVar[str] = "perplexity"
    metrics: ClassVar[tuple[str, ...]] = ("perplexity", "nll")
    lower_is_better: ClassVar[tuple[str, ...]] = ("perplexity", "nll")

    context: int = 1536
    continuation: int = 256
    stride: int | None = None
    data: str | Path | None = None

    def __post_init__(self) -> None:
        for field in ("context", "continuation", "stride"):
            value = getattr(self, field)
            if (value is not None or field != "stride") and (type(value) is not int or value < 1):
                raise ValueError(f"perplexity: {field} is {value!r}; give a number from 1 on")

    def identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "context": self.context,
            "continuation": self.continuation,
            "stride": self._stride,
            "data_sha256": hashlib.sha256(read_text(self.data).encode()).hexdigest(),
        }

    def samples(self, prompter: Prompter) -> Sequence[Sample]:
        tokenizer = prompter.tokenizer
        start = [token for token in tokenizer.encode("", special=True)[:1] if token == tokenizer.bos_id]
        ids = tokenizer.encode(read_text(self.data))
        own = self.context - len(start)
        if own < 1:
            raise ValueError(f"perplexity: context is {self.context}, and the start token alone fills it")
        if len(ids) < own + self.continuation:
            raise ValueError(
                f"perplexity: the text has {len(ids)} tokens, and one chunk needs {own + self.continuation}; give "
                "a longer text, or a smaller context or continuation"
            )
        return tuple(
            Sample(
                id=str(place),
                context="",
                max_new_tokens=self.continuation,
                template=False,
                ids=(*start, *ids[place : place + own]),
                continuation=tuple(ids[place + own : place + own + self.continuation]),
                meta={"prompt": f"perplexity, {self.context} + {self.continuation} tokens", "place": place},
            )
            for place in range(0, len(ids) - own - self.continuation + 1, self._stride)
        )

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        """Errors: ValueError if a token had no probability that a number can hold."""
        assert len(answer.log_likelihoods) == len(sample.continuation), "each token has its likelihood"
        loss = -math.fsum(answer.log_likelihoods) / len(answer.log_likelihoods)
        if not math.isfinite(loss):
            raise ValueError(f"the mean negative log-likelihood is {loss}")
        return {"perplexity": math.exp(loss), "nll": loss}

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Over tokens, not over chunks: the perplexity is that of the mean loss of all tokens."""
        tokens = sum(record["new_tokens"] for record in records)
        if not tokens:
            return {}
        loss = math.fsum(record["scores"]["nll"] * record["new_tokens"] for record in records) / tokens
        return {"perplexity": math.exp(loss), "nll": loss}

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        return []

    @property
    def _stride(self) -> int:
        return self.continuation if self.stride is None else self.stride


def read_text(data: str | Path | None) -> str:
    """The text without its blank lines, which the published forms of WikiText-2 do not agree on.

    Errors: ValueError naming the places tried, or the file that cannot be read or has no text."""
    place = _place(data)
    return _read_once(place, place.stat().st_mtime_ns)


def _place(data: str | Path | None) -> Path:
    folder = SOURCE.folder if data is None else Path(data).expanduser()
    if folder.is_file():
        return folder
    names = (PUBLISHED, *SOURCE.files, "test-00000-of-00001.parquet", "test.parquet")
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None and data is None:
        found = next(iter(datasets.in_hub_cache(SOURCE) or ()), None)
    if found is None:
        tried = f"{folder} or the Hugging Face hub's cache" if data is None else str(folder)
        raise ValueError(
            f"there is none of {', '.join(names)} in {tried}; say which text to read with data.path=FILE, or fetch "
            f"WikiText-2 once with: python -m scripts.fetch {SOURCE.name}"
        )
    return found


@cache
def _read_once(place: Path, _changed: int) -> str:
    if place.name.endswith(datasets.ENDINGS):
        lines = [line.parse().text("text") for line in datasets.Table(path=place).lines()]
    else:
        content = _content(place)
        try:
            lines = content.decode("utf-8").replace("\r\n", "\n").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{place} is no text in UTF-8 ({error})") from error
    text = "".join(line.rstrip("\r\n") + "\n" for line in lines if line.strip())
    if not text:
        raise ValueError(f"{place} has no text")
    return text


def _content(place: Path) -> bytes:
    try:
        if place.suffix != ".zip":
            return place.read_bytes()
        with zipfile.ZipFile(place) as archive:
            member = next((name for name in archive.namelist() if name.endswith(f"/{PUBLISHED}")), PUBLISHED)
            return archive.read(member)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{place} cannot be read ({' '.join(str(error).split())})") from error


TASK = Perplexity
