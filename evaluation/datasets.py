"""Benchmark data as published: rows of JSON lines in folders, gzip files and zip archives, or of parquet files, on
this machine.

Reading never touches the network. What is not here is fetched once, by `python -m scripts.fetch NAME`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from pyramid.download import cache_folder

ENDINGS = (".jsonl", ".jsonl.gz", ".parquet", "-00000-of-00001.parquet")
FOLDERS = ("", "data", "main")  # where tables lie in a published folder
GITHUB = "https://raw.githubusercontent.com"
PATIENCE_SECONDS = 60  # for a server's next bytes


@dataclass(frozen=True, kw_only=True)
class GitHubFile:
    """Where a file lies in a repository, and what it must be."""

    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a benchmark's data is published: files of a data-set repository on the Hugging Face hub, or of one commit
    of a repository on GitHub.

    files: as they lie in `folder`. commit: empty for the hub. on_github: for each of the files, where it is there.
    hub_twin: the same data in a repository on the hub, which the hub's own library may have in its cache.
    """

    name: str
    repository: str
    files: tuple[str, ...]
    commit: str = ""
    on_github: tuple[GitHubFile, ...] = ()
    hub_twin: Source | None = None

    @property
    def host(self) -> str:
        return "GitHub" if self.commit else "the Hugging Face hub"

    @property
    def folder(self) -> Path:
        """Where the fetched files lie, or where a user may put them."""
        return cache_folder() / "data" / self.name


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(name="longbench", repository="THUDM/LongBench", files=("data.zip",)),
        Source(
            name="mt_bench",
            repository="lm-sys/FastChat",
            commit="0e6d3e4beaab66f4d3f93db72541a4abab8af28d",
            files=("question.jsonl", "reference_answer/gpt-4.jsonl", "judge_prompts.jsonl"),
            on_github=(
                GitHubFile(
                    path="fastchat/llm_judge/data/mt_bench/question.jsonl",
                    sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
                ),
                GitHubFile(
                    path="fastchat/llm_judge/data/mt_bench/reference_answer/gpt-4.jsonl",
                    sha256="f957a5bc977badb66885ec970e6cd08527845780313f0995764260e5777b9b3f",
                ),
                GitHubFile(
                    path="fastchat/llm_judge/data/judge_prompts.jsonl",
                    sha256="fd283293406d024f44c174b094ef48031d0687a4682fd3a56b29b138f80281b6",
                ),
            ),
        ),
        Source(
            name="gsm8k",
            repository="openai/grade-school-math",
            commit="3101c7d5072418e28b9008a6636bde82a006892c",
            files=("test.jsonl", "train.jsonl"),
            on_github=(
                GitHubFile(
                    path="grade_school_math/data/test.jsonl",
                    sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
                ),
                GitHubFile(
                    path="grade_school_math/data/train.jsonl",
                    sha256="17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
                ),
            ),
            hub_twin=Source(
                name="gsm8k",
                repository="openai/gsm8k",
                files=("main/test-00000-of-00001.parquet", "main/train-00000-of-00001.parquet"),
            ),
        ),
        Source(
            name="wikitext2",
            repository="ggml-org/ci",
            files=("wikitext-2-raw-v1.zip",),
            hub_twin=Source(
                name="wikitext2",
                repository="Salesforce/wikitext",
                files=("wikitext-2-raw-v1/test-00000-of-00001.parquet",),
            ),
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a table, not yet parsed, so that a bad one harms no other. where: its file and number."""

    where: str
    text: bytes

    def parse(self) -> Row:
        """Errors: ValueError naming file and line."""
        try:
            value = json.loads(self.text)
        except ValueError as error:
            raise ValueError(f"{self.where}: no valid JSON ({error})") from error
        if not isinstance(value, dict):
            raise ValueError(f"{self.where}: {_shown(value)} where a JSON object is expected")
        return Row(where=self.where, fields=value)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The fields of a line. Errors of all methods: ValueError naming file, line and field."""

    where: str
    fields: Mapping[str, Any]

    def text(self, field: str) -> str:
        value = self.value(field)
        if not isinstance(value, str):
            raise self.wrong(field, f"is {_shown(value)} and no text")
        return value

    def number(self, field: str) -> int:
        value = self.value(field)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(field, f"is {_shown(value)} and no whole number")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of texts with at least one in it."""
        value = self.value(field)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(field, f"is {_shown(value)} and no list of texts")
        if not value:
            raise self.wrong(field, "is an empty list")
        return tuple(value)

    def within(self, field: str) -> Row:
        """The object that is the value of `field`."""
        value = self.value(field)
        if not isinstance(value, dict):
            raise self.wrong(field, f"is {_shown(value)} and no JSON object")
        return Row(where=f"{self.where}, in {field!r}", fields=value)

    def value(self, field: str) -> Any:
        if field not in self.fields:
            raise self.wrong(field, "is missing")
        return self.fields[field]

    def wrong(self, field: str, what: str) -> ValueError:
        return ValueError(f"{self.where}: field {field!r} {what}")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A file of JSON lines, plain, compressed (`.gz`) or as a member of a zip archive; or a parquet file, whose rows
    are read as such lines."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}!{self.member}" if self.member else str(self.path)

    def lines(self) -> Iterator[Line]:
        """Its lines in order, blank ones left out. Errors: ValueError if the file ends too soon."""
        if self.path.suffix == ".parquet":
            for number, row in enumerate(_parquet_rows(self.path), 1):
                yield Line(where=f"{self}, row {number}", text=json.dumps(row, default=str).encode())
            return
        number = 0
        try:
            with self._open() as file:
                packed = (self.member or self.path.name).endswith(".gz")
                for number, line in enumerate(gzip.GzipFile(fileobj=file) if packed else file, 1):
                    if line.strip():
                        yield Line(where=f"{self}, line {number}", text=line)
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"{self} cannot be read beyond line {number} ({reason})") from error

    def _open(self) -> IO[bytes]:
        return zipfile.ZipFile(self.path).open(self.member) if self.member else self.path.open("rb")


def find_table(source: Source, name: str, path: Path | str | None = None) -> Table:
    """The table `name` of a benchmark.

    `path`, where given, is the only place looked at: a folder, a zip archive as published, or the file
    itself. Otherwise it is the user's cache folder, then what the hub's own cache already holds.

    Errors: ValueError naming the places that were tried and the command that fetches the data."""
    place = source.folder if path is None else Path(path).expanduser()
    table = find_in(place, name)
    tried = str(place)
    if table is None and path is None and (cached := in_hub_cache(source)) is not None:
        table = next(filter(None, (find_in(file.parent, name) for file in cached)), None)
        tried += " or the Hugging Face hub's cache"
    if table is None:
        raise ValueError(
            f"{source.name} has no table {name!r} ({name}.jsonl, {name}.jsonl.gz, {name}.parquet, or one of the "
            f"first two in a zip archive) in {tried}; say where it is with data.path=PATH, or fetch it once with: "
            f"python -m scripts.fetch {source.name}"
        )
    return table


def find_in(place: Path, name: str) -> Table | None:
    """The table `name` in a folder, its `data` or `main` folder or an archive there; or `place` itself if it is one.

    Errors: ValueError if an archive cannot be read."""
    if place.is_file():
        if place.suffix == ".zip":
            return _in_archive(place, name)
        return Table(path=place) if place.name.endswith(ENDINGS) else None
    for folder in (place / inner for inner in FOLDERS):
        for ending in ENDINGS:
            if (folder / f"{name}{ending}").is_file():
                return Table(path=folder / f"{name}{ending}")
    for archive in sorted(place.glob("*.zip")):
        table = _in_archive(archive, name)
        if table is not None:
            return table
    return None


def fetch(source: Source) -> list[Path]:
    """Download what of `source` is not yet in the user's cache folder, and return its files.

    Errors: ValueError with the reason and another way in one sentence."""
    files = [source.folder / file for file in source.files]
    missing = [file for file, path in zip(source.files, files, strict=True) if not path.is_file()]
    try:
        for file in missing:
            _download(source, file)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise ValueError(
            f"{source.repository} could not be fetched from {source.host} ({type(error).__name__}: "
            f"{reason}); copy {', '.join(source.files)} from another machine into {source.folder}"
        ) from error
    return files


def _download(source: Source, file: str) -> None:
    if source.commit:
        _download_from_github(source, source.on_github[source.files.index(file)], source.folder / file)
        return
    from huggingface_hub import hf_hub_download

    source.folder.mkdir(parents=True, exist_ok=True)
    hf_hub_download(source.repository, file, repo_type="dataset", local_dir=source.folder)


def _download_from_github(source: Source, file: GitHubFile, target: Path) -> None:
    address = f"{GITHUB}/{source.repository}/{source.commit}/{file.path}"
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as reply:
        content = reply.read()
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ValueError(f"{file.path} came with another content than it has in commit {source.commit[:12]}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, target)


def in_hub_cache(source: Source) -> list[Path] | None:
    """Files that the hub's own library fetched at another time; looks at the disk only. None: not on the hub."""
    from huggingface_hub import try_to_load_from_cache

    on_hub = [each for each in (source, source.hub_twin) if each is not None and not each.commit]
    found = [
        try_to_load_from_cache(each.repository, file, repo_type="dataset")
        for each in on_hub
        for file in each.files
    ]
    return [Path(each) for each in found if isinstance(each, str)] if on_hub else None


def _in_archive(archive: Path, name: str) -> Table | None:
    try:
        with zipfile.ZipFile(archive) as content:
            members = content.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{archive} cannot be read ({error}); delete it and get it again") from error
    wanted = [f"{name}{ending}" for ending in ENDINGS]
    found = next((member for member in members if member.rsplit("/", 1)[-1] in wanted), None)
    return None if found is None else Table(path=archive, member=found)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Errors: ValueError if the file cannot be read, or nothing is installed that reads it."""
    if find_spec("pyarrow") is None:
        raise ValueError(f"reading {path} needs pyarrow: pip install 'pyramid-bench[parquet]'")
    import pyarrow.parquet  # pyright: ignore[reportMissingImports]

    try:
        file = pyarrow.parquet.ParquetFile(path)
        for batch in file.iter_batches():
            yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} cannot be read ({' '.join(str(error).split())})") from error


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
