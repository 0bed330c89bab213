"""Tables are found where they lie, read whole or refused with file and line, and never fetched."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from evaluation import datasets
from evaluation.datasets import SOURCES, Table, find_table

LONGBENCH = SOURCES["longbench"]
LINES = b'{"a": 1}\n\n{"a": "\xe2\x80\xa8"}\n'  # a blank line, and a Unicode line break that ends no line


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and no network: a connection is an error."""
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket.socket, "connect", None)


def archive(path: Path, member: str, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data/", "")
        file.writestr(f"__MACOSX/data/._{member.rsplit('/', 1)[-1]}", "no table")
        file.writestr(member, content)
    return path


def values(table: Table) -> list[object]:
    return [line.parse().value("a") for line in table.lines()]


@pytest.mark.parametrize("kind", ["folder", "file", "gz", "data_folder", "zip", "zip_in_folder", "gz_in_zip"])
def test_a_table_is_found_in_every_published_form(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "here"
    path.mkdir()
    if kind in ("folder", "file"):
        (path / "trec.jsonl").write_bytes(LINES)
    elif kind == "gz":
        (path / "trec.jsonl.gz").write_bytes(gzip.compress(LINES))
    elif kind == "data_folder":
        (path / "data").mkdir()
        (path / "data" / "trec.jsonl").write_bytes(LINES)
    elif kind == "gz_in_zip":
        archive(path / "data.zip", "data/trec.jsonl.gz", gzip.compress(LINES))
    else:
        archive(path / "data.zip", "data/trec.jsonl", LINES)
    place = {"file": path / "trec.jsonl", "zip": path / "data.zip"}.get(kind, path)
    table = find_table(LONGBENCH, "trec", place)
    assert values(table) == [1, "\u2028"]
    assert [line.where.rsplit(", ", 1)[1] for line in table.lines()] == ["line 1", "line 3"]
    assert next(table.lines()).where.startswith(str(place if kind in ("file", "zip") else path))


def test_without_a_path_the_users_cache_is_looked_at(tmp_path: Path) -> None:
    archive(tmp_path / "cache" / "data" / "longbench" / "data.zip", "data/trec.jsonl", LINES)
    assert values(find_table(LONGBENCH, "trec")) == [1, "\u2028"]


def find_in_new_process(tmp_path: Path) -> str:
    """What a process that cannot reach the network says of the table `trec`, or why it has none."""
    code = (
        "import socket; socket.socket.connect = socket.getaddrinfo = None\n"
        "from evaluation.datasets import SOURCES, find_table\n"
        "try: print(find_table(SOURCES['longbench'], 'trec'))\n"
        "except ValueError as error: print(error)"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)


def test_what_the_hub_library_has_cached_is_used_without_a_call(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "datasets--THUDM--LongBench"
    cached = archive(repository / "snapshots" / "abc" / "data.zip", "data/trec.jsonl", LINES)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert find_in_new_process(tmp_path) == f"{cached}!data/trec.jsonl\n"


def test_a_missing_table_is_one_sentence_with_the_places_and_the_command(tmp_path: Path) -> None:
    said = find_in_new_process(tmp_path)
    assert said.count("\n") == 1
    assert f"in {tmp_path / 'cache' / 'data' / 'longbench'} or the Hugging Face hub's cache;" in said
    assert "data.path=PATH" in said and "python -m scripts.fetch longbench" in said


def test_a_path_that_was_given_is_the_only_one_looked_at(tmp_path: Path) -> None:
    archive(tmp_path / "cache" / "data" / "longbench" / "data.zip", "data/trec.jsonl", LINES)
    with pytest.raises(ValueError, match=f"in {tmp_path / 'empty'}; say where"):
        find_table(LONGBENCH, "trec", tmp_path / "empty")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": ', "line 1: no valid JSON"),
        (b'{"a": "\xff"}', "line 1: no valid JSON"),
        (b"[1, 2]", r"line 1: \[1, 2\] where a JSON object is expected"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "trec.jsonl"
    path.write_bytes(line + b"\n" + LINES)
    first, second, _ = Table(path=path).lines()
    with pytest.raises(ValueError, match=f"trec.jsonl, {message}"):
        first.parse()
    assert second.parse().value("a") == 1


@pytest.mark.parametrize(
    ("fields", "call", "message"),
    [
        ({}, "text", "field 'a' is missing"),
        ({"a": 1}, "text", "field 'a' is 1 and no text"),
        ({"a": None}, "text", "field 'a' is null and no text"),
        ({"a": "7"}, "number", "field 'a' is \"7\" and no whole number"),
        ({"a": True}, "number", "field 'a' is true and no whole number"),
        ({"a": 7.0}, "number", "field 'a' is 7.0 and no whole number"),
        ({"a": []}, "texts", "field 'a' is an empty list"),
        ({"a": "word"}, "texts", "field 'a' is \"word\" and no list of texts"),
        ({"a": ["x", 1]}, "texts", "no list of texts"),
        ({"a": "x" * 99}, "within", "\\.\\.\\. and no JSON object"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], call: str, message: str) -> None:
    row = datasets.Line(where="file, line 4", text=json.dumps(fields).encode()).parse()
    with pytest.raises(ValueError, match=f"^file, line 4: .*{message}"):
        getattr(row, call)("a")


@pytest.mark.parametrize("name", ["trec.jsonl.gz", "data.zip"])
def test_a_file_that_breaks_off_is_named(tmp_path: Path, name: str) -> None:
    whole = gzip.compress(b'{"a": 1}\n' * 100) if name.endswith(".gz") else b"PK\x03\x04 no archive"
    (tmp_path / name).write_bytes(whole[:-12])
    with pytest.raises(ValueError, match=rf"{name} cannot be read"):
        list(find_table(LONGBENCH, "trec", tmp_path).lines())


def test_a_twin_on_the_hub_is_used_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GSM8K is fetched from GitHub; whoever has the hub's copy needs not fetch it again."""
    pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    import huggingface_hub
    import pandas

    folder = tmp_path / "snapshots" / "abc" / "main"
    folder.mkdir(parents=True)
    for split, value in (("test", 1), ("train", 2)):
        pandas.DataFrame({"a": [value, 7]}).to_parquet(folder / f"{split}-00000-of-00001.parquet")

    def cached(repository: str, file: str, repo_type: str) -> str | None:
        found = tmp_path / "snapshots" / "abc" / file
        return str(found) if (repository, repo_type) == ("openai/gsm8k", "dataset") else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    train = find_table(SOURCES["gsm8k"], "train")
    assert values(train) == [2, 7]
    assert [line.where.rsplit(", ", 1)[1] for line in train.lines()] == ["row 1", "row 2"]
    assert values(find_table(SOURCES["gsm8k"], "test")) == [1, 7]


def test_only_what_is_on_the_hub_is_looked_for_in_its_cache() -> None:
    for name, on_hub in (("mt_bench", False), ("gsm8k", True), ("wikitext2", True), ("longbench", True)):
        assert (datasets.in_hub_cache(SOURCES[name]) is not None) is on_hub
        with pytest.raises(ValueError, match="no table 'nothing'") as error:
            find_table(SOURCES[name], "nothing")
        assert ("Hugging Face hub's cache" in str(error.value)) is on_hub


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    (tmp_path / "test.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"test\.parquet cannot be read"):
        list(find_table(SOURCES["gsm8k"], "test", tmp_path).lines())
