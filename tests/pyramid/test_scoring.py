"""Attention scores against the full matrix, which the library itself never builds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pyramid import scoring
from pyramid.scoring import attention_mass, attention_with_mass, pool, window_attention

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
def test_mass_and_output_are_those_of_the_full_matrix(
    new: int, entries: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any block size; the sums of a head are its number of queries."""
    monkeypatch.setattr(scoring, "BLOCK_ELEMENTS", elements)
    query, key = random_layer(new, entries)
    value = torch.randn(1, 2, entries, 5, generator=torch.Generator().manual_seed(1))
    full = full_matrix(query, key)
    expected = full.sum(1).view(2, 3, entries).sum(1)
    lengths: Any = {"lengths": (entries,), "query_lengths": (new,)}
    mass = attention_mass(query, key, SCALING, **lengths)[0]
    torch.testing.assert_close(mass.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mass.sum(-1), torch.full((2,), new * 3.0), atol=1e-4, rtol=1e-5)
    output, same = attention_with_mass(query, key, value, SCALING, **lengths)
    torch.testing.assert_close(same[0], mass)
    mixed = full @ value[0].double().repeat_interleave(3, 0)
    torch.testing.assert_close(output[0].double(), mixed, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("new", [20, 1])
def test_mass_counts_each_query_by_its_weight(new: int) -> None:
    query, key = random_layer(new, 30, rows=2)
    weights = torch.rand(2, new, generator=torch.Generator().manual_seed(2))
    mass = attention_mass(query, key, SCALING, lengths=(30, 30), query_lengths=(new, new), weights=weights)
    for row in range(2):
        full = full_matrix(query[row, None], key[row, None]) * weights[row].double()[:, None]
        expected = full.sum(1).view(2, 3, 30).sum(1)
        torch.testing.assert_close(mass[row].double(), expected, atol=1e-5, rtol=1e-5)


def test_window_attention_is_the_last_rows_of_the_full_matrix() -> None:
    query, key = random_layer(50, 50)
    window = window_attention(query, key, SCALING, last=8, lengths=(50,), query_lengths=(50,))[0]
    expected = full_matrix(query, key)[:, -8:].view(2, 3, 8, 50)
    torch.testing.assert_close(window.double(), expected, atol=1e-6, rtol=1e-5)


def test_padding_changes_nothing() -> None:
    """A row padded by 5 on the left scores as it would alone, and its padding scores zero. Lengths may be a list."""
    query, key = random_layer(20, 20, rows=2)
    lengths = [20, 15]
    mass = attention_mass(query, key, SCALING, lengths=lengths, query_lengths=lengths)
    window = window_attention(query, key, SCALING, last=16, lengths=lengths, query_lengths=lengths)
    alone = attention_mass(query[1:, :, 5:], key[1:, :, 5:], SCALING, lengths=(15,), query_lengths=(15,))
    torch.testing.assert_close(mass[1, :, 5:], alone[0])
    assert not mass[1, :, :5].any()
    value = torch.randn(2, 2, 20, 5, generator=torch.Generator().manual_seed(1))
    output, same = attention_with_mass(query, key, value, SCALING, lengths=lengths, query_lengths=lengths)
    torch.testing.assert_close(same, mass)
    one, _ = attention_with_mass(
        query[1:, :, 5:], key[1:, :, 5:], value[1:, :, 5:], SCALING, lengths=(15,), query_lengths=(15,)
    )
    torch.testing.assert_close(output[1, :, 5:], one[0])
    assert not output[1, :, :5].any()
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


@pytest.mark.parametrize("output", [True, False])
def test_nothing_of_the_size_of_queries_times_entries_is_ever_held(output: bool) -> None:
    """H2O needs no more than two blocks of weights, and what grows with the prompt's length alone."""
    for tokens in (1000, 2000):
        query, key = random_layer(tokens, tokens)
        lengths: Any = {"lengths": (tokens,), "query_lengths": (tokens,)}
        with Largest() as largest:
            if output:
                attention_with_mass(query, key, key, SCALING, **lengths)
            else:
                attention_mass(query, key, SCALING, **lengths)
        assert largest.elements <= 2 * scoring.BLOCK_ELEMENTS, largest.elements
