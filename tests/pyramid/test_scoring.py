"""Attention scores against the full matrix, which the library itself never builds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pyramid import scoring
from pyramid.scoring import attention_mass, pool, window_attention

SCALING = 0.25


def random_layer(new: int, entries: int, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 6, new, 16, generator=generator), torch.randn(
        rows, 2, entries, 16, generator=generator
    )


def full_matrix(query: torch.Tensor, key: torch.Tensor, padding: int = 0) -> torch.Tensor:
    """(query heads, new, entries) float64 causal attention, one sequence."""
    keys = key[0].double().repeat_interleave(query.shape[1] // key.shape[1], 0)
    logits = query[0].double() @ keys.transpose(1, 2) * SCALING
    new, entries = logits.shape[1:]
    hidden = torch.ones(new, entries).triu(entries - new + 1).bool()
    hidden[:, :padding] = True
    return logits.masked_fill(hidden, -math.inf).softmax(-1)


@pytest.mark.parametrize("elements", [1, 6 * 50 * 7, 1 << 21])
@pytest.mark.parametrize(("new", "entries"), [(50, 50), (7, 50), (1, 50)])
def test_mass_is_the_column_sum_of_the_full_matrix(
    new: int, entries: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any block size, with and without the kernel's normaliser; the sums of a head are its number of
    queries.
    """
    monkeypatch.setattr(scoring, "BLOCK_ELEMENTS", elements)
    query, key = random_layer(new, entries)
    expected = full_matrix(query, key).sum(1).view(2, 3, entries).sum(1)
    keys = key[0].repeat_interleave(3, 0)
    logits = (query[0] @ keys.transpose(1, 2) * SCALING).masked_fill(
        torch.ones(new, entries).triu(entries - new + 1).bool(), -math.inf
    )
    for normalizer in (None, logits.logsumexp(-1)[None]):
        mass = attention_mass(
            query, key, SCALING, lengths=(entries,), query_lengths=(new,), normalizer=normalizer
        )[0]
        torch.testing.assert_close(mass.double(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mass.sum(-1), torch.full((2,), new * 3.0), atol=1e-4, rtol=1e-5)


def test_window_attention_is_the_last_rows_of_the_full_matrix() -> None:
    query, key = random_layer(50, 50)
    window = window_attention(query, key, SCALING, last=8, lengths=(50,), query_lengths=(50,))[0]
    expected = full_matrix(query, key)[:, -8:].view(2, 3, 8, 50)
    torch.testing.assert_close(window.double(), expected, atol=1e-6, rtol=1e-5)


def test_padding_changes_nothing() -> None:
    """A row padded by 5 on the left scores as it would alone, and its padding scores zero."""
    query, key = random_layer(20, 20, rows=2)
    lengths = (20, 15)
    mass = attention_mass(query, key, SCALING, lengths=lengths, query_lengths=lengths)
    window = window_attention(query, key, SCALING, last=16, lengths=lengths, query_lengths=lengths)
    alone = attention_mass(query[1:, :, 5:], key[1:, :, 5:], SCALING, lengths=(15,), query_lengths=(15,))
    torch.testing.assert_close(mass[1, :, 5:], alone[0])
    assert not mass[1, :, :5].any()
    last = window_attention(
        query[1:, :, 5:], key[1:, :, 5:], SCALING, last=16, lengths=(15,), query_lengths=(15,)
    )
    torch.testing.assert_close(window[1, :, :, 1:, 5:], last[0])
    assert not window[1, :, :, 0].any()
    assert not window[1, ..., :5].any()


def test_pooling_keeps_the_length_and_names_its_edges() -> None:
    scores = torch.tensor([[[0.0, 3.0, 0.0, 0.0, 6.0]]])
    assert pool(scores, 3, "max").tolist() == [[[3.0, 3.0, 3.0, 6.0, 6.0]]]
    assert pool(scores, 3, "avg").tolist() == [[[1.0, 1.0, 1.0, 2.0, 2.0]]]
    assert pool(scores, 1, "max") is scores


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("given", [True, False])
def test_nothing_of_the_size_of_queries_times_entries_is_ever_held(given: bool) -> None:
    """H2O's sums need no more than a block of weights, and what grows with the prompt's length alone."""
    for tokens in (1000, 2000):
        query, key = random_layer(tokens, tokens)
        normalizer = torch.zeros(1, 6, tokens) if given else None
        with Largest() as largest:
            attention_mass(
                query, key, SCALING, lengths=(tokens,), query_lengths=(tokens,), normalizer=normalizer
            )
        assert largest.elements <= max(scoring.BLOCK_ELEMENTS, 6 * 17 * tokens), largest.elements
