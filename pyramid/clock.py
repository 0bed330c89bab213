"""Times one call that generates, whoever generates: a hook on the model notes when the first new token's logits
are there, and what the cache holds at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from pyramid.cache import CompressedCache, Group
from pyramid.machine import Gauge, synchronized_time
from pyramid.store import LayerStore

EXHAUSTED = "memory exhausted"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One measured call. Seconds are of the whole batch; peaks are bytes above the weights, None where they
    cannot be measured.

    first_token: from the call to the logits of the first new token, compression included; answer: from there
        to the end of the call.
    """

    first_token: float
    compression: float
    answer: float
    peak_prompt: int | None
    peak_answer: int | None


class SplitBatch(RuntimeError):
    """The batch did not fit and was about to be answered in parts, which would be another measurement."""


class Clock:
    """Watches the forward passes of one call.

    rows: that every pass must have, or more. passes: until the first new token's logits are there."""

    def __init__(self, model: Any, gauge: Gauge, *, rows: int, passes: int) -> None:
        self.model, self.gauge, self.rows, self.left = model, gauge, rows, passes
        self.holders: list[Any] = []
        self.first = self.resumed = 0.0  # when the first token's logits were there, and when that was noted
        self.peak_prompt: int | None = None
        self.peak_answer: int | None = None
        self.sizes: dict[str, int] = {}

    def __enter__(self) -> Clock:
        self._hooks = [
            self.model.register_forward_pre_hook(self._check_rows, with_kwargs=True),
            self.model.register_forward_hook(self._note, with_kwargs=True),
        ]
        self.gauge.reset()
        self.started = synchronized_time(self.model.device)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = synchronized_time(self.model.device)
        self.peak_answer = self.gauge.peak()
        for hook in self._hooks:
            hook.remove()

    def trial(self, compression: float) -> Trial:
        """What was seen. Args: compression: seconds, which the caller knows."""
        assert self.holders, "the call ended before its first token"
        return Trial(
            first_token=self.first - self.started,
            compression=compression,
            answer=self.ended - self.resumed,
            peak_prompt=self.peak_prompt,
            peak_answer=self.peak_answer,
        )

    def _check_rows(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs["input_ids"].shape[0] < self.rows:  # more there may be: the engine fills up steps on a CPU
            raise SplitBatch(f"{EXHAUSTED}: a batch of {self.rows} does not fit")

    def _note(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.first = synchronized_time(self.model.device)
            self.peak_prompt = self.gauge.peak()
            self.holders = holders_of(next(value for value in kwargs.values() if isinstance(value, Cache)))
            self.sizes = sizes_of(self.holders, "after_prompt")
            self._hooks[1].remove()
            self.gauge.reset()
            self.resumed = synchronized_time(self.model.device)


def holders_of(cache: Cache) -> list[Any]:
    """What holds a cache's tensors while an answer grows: our groups, or the layers of transformers' caches."""
    return list(cache.groups) if isinstance(cache, CompressedCache) else list(cache.layers)


def sizes_of(holders: Sequence[Any], when: str) -> dict[str, int]:
    """Bytes of a cache's tensors, and of the memory behind them, in which there may be free room."""
    tensors = [tensor for holder in holders for tensor in _tensors_of(holder)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {
        f"bytes_{when}": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        f"allocated_{when}": sum({s.data_ptr(): s.nbytes() for s in storages}.values()),
    }


def _tensors_of(holder: Any) -> Iterator[Tensor]:
    for part in holder.stores if isinstance(holder, Group) else [holder]:
        yield from (part.keys, part.values)
        if isinstance(part, LayerStore):
            yield from (*part.columns.values(), *part.fixed.values())
