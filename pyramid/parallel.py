"""One generator in several processes, as `torchrun` starts them: each holds the model and answers its share.

Rank 0 alone decides what is computed and writes what comes of it; the other ranks answer what it hands them.
So a run's folder has one writer, and may be gone on with by any number of ranks.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyramid.generation import Generator
from pyramid.method import Method
from pyramid.models import LoadedModel, ModelSpec, load
from pyramid.types import Answer, Request

PATIENCE = timedelta(days=7)  # a rank may wait for as long as another is busy


def connect() -> None:
    """Meet the other ranks, each of which takes the GPU of its number if there are any."""
    import torch
    from torch import distributed

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    distributed.init_process_group("gloo", timeout=PATIENCE)


def size() -> int:
    """How many processes work together; 1 if `connect` was not called."""
    from torch import distributed

    return distributed.get_world_size() if distributed.is_initialized() else 1


@dataclass(frozen=True)
class _Share:
    """What one rank is to answer."""

    settings: dict[str, Any]
    requests: Sequence[Sequence[Request]]  # by rank
    methods: Sequence[Method]


@dataclass(frozen=True)
class TeamGenerator:
    """A `Generator` on rank 0 that shares out each call's requests."""

    generator: Generator
    size: int

    def generate(self, requests: Sequence[Request], methods: Sequence[Method]) -> list[list[Answer]]:
        """As `Generator.generate`. Errors: RuntimeError with the words of a rank that failed."""
        shares = [requests[number :: self.size] for number in range(self.size)]
        settings = {name: getattr(self.generator, name) for name in ("first_token", "cache_heads", "kernel")}
        _tell(_Share(settings, shares, methods))
        parts = _collect(_answer(self.generator, shares[0], methods))
        answers: list[list[Answer]] = []
        for position in range(len(methods)):
            row: list[Any] = [None] * len(requests)
            for number, part in enumerate(parts):
                row[number :: self.size] = part[position]
            answers.append(row)
        return answers


def load_everywhere(spec: ModelSpec) -> LoadedModel:
    """The model on rank 0, after which every other rank has it too.

    Errors: as `load`, of any rank; ValueError if the spec wants more devices than one."""
    _check_one_device(spec)
    loaded = load(spec)
    _tell(spec)
    _collect(None)
    return loaded


def dismiss() -> None:
    """Let the other ranks end."""
    _tell(None)


def follow() -> None:
    """What every rank but 0 does: load and answer what rank 0 says, until it says no more.

    Errors: RuntimeError if rank 0 is gone."""
    from torch import distributed

    loaded: LoadedModel | None = None
    while (message := _told()) is not None:
        if isinstance(message, ModelSpec):
            loaded = None
            try:
                loaded = load(message)
            except Exception as error:
                _report(error)
            else:
                _report(None)
        else:
            assert loaded is not None
            generator = Generator(model=loaded.model, tokenizer=loaded.tokenizer, **message.settings)
            _report(_answer(generator, message.requests[distributed.get_rank()], message.methods))


def _check_one_device(spec: ModelSpec) -> None:
    if spec.device_map is not None:
        raise ValueError(
            f"model.device_map={spec.device_map!r} spreads one model over all devices: start it without "
            "torchrun, or set model.device_map=null"
        )


def _answer(generator: Generator, requests: Sequence[Request], methods: Sequence[Method]) -> Any:
    """Answers by method, or the error in their place: a failed rank must not leave the others waiting."""
    if not requests:
        return [[] for _ in methods]
    try:
        return generator.generate(requests, methods)
    except Exception as error:
        return error


def _tell(message: Any) -> None:
    from torch import distributed

    distributed.broadcast_object_list([pickle.dumps(message)], src=0)


def _told() -> Any:
    from torch import distributed

    received: list[Any] = [None]
    distributed.broadcast_object_list(received, src=0)
    return pickle.loads(received[0])


def _report(outcome: Any) -> None:
    """Send rank 0 what it asked for."""
    from torch import distributed

    failed = isinstance(outcome, Exception)
    words = f"rank {distributed.get_rank()}: {type(outcome).__name__}: {outcome}" if failed else None
    distributed.gather_object((words, None if failed else outcome), None, dst=0)


def _collect(own: Any) -> list[Any]:
    """The outcomes of all ranks in order. Errors: RuntimeError if another failed; rank 0's own as it is."""
    from torch import distributed

    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.gather_object((None, None), gathered, dst=0)
    if isinstance(own, Exception):
        raise own
    for words, _ in gathered:
        if words is not None:
            raise RuntimeError(words)
    return [own, *(outcome for _, outcome in gathered[1:])]
