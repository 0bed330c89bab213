"""Each method against a plain restatement of its published algorithm, on one layer's queries and keys, loops
and all.

Keys carry their own position in their first component, so that survivors can be read off the store; the rest
is random.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pyramid.cache import CompressedCache, Phase
from pyramid.engine import attend
from pyramid.methods import build
from pyramid.rotary import rotation

QUERY_HEADS, HEADS, SIZE, SCALING = 6, 2, 16, 0.4
GROUP = QUERY_HEADS // HEADS


class Layer(nn.Module):
    """What the engine reads off an attention module."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx, self.num_key_value_groups, self.is_causal = index, GROUP, True


def tensors(tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, QUERY_HEADS, tokens, SIZE, generator=generator)
    key = torch.randn(1, HEADS, tokens, SIZE, generator=generator)
    query[..., 0] = 0  # positions in the keys do not touch the logits
    key[..., 0] = torch.arange(tokens)
    return query, key


class Run:
    """A method fed one layer's tensors through the engine: the prompt first, then token by token."""

    def __init__(
        self, method: Any, query: torch.Tensor, key: torch.Tensor, *, layer: int = 0, layers: int = 1
    ) -> None:
        self.cache = CompressedCache([method], layers)
        self.query, self.key, self.layer = query, key, Layer(layer)
        self.cache.groups[0].stores.extend([None] * layer)  # type: ignore[list-item]
        self.seen = 0

    def feed(self, tokens: int) -> list[set[int]]:
        """Feed so many tokens; the positions that each head then holds."""
        part = slice(self.seen, self.seen + tokens)
        phase = Phase.STEP if self.seen else Phase.PROMPT
        self.cache.begin(tokens, None, 1, phase)
        attend(
            "sdpa",
            self.layer,
            self.query[:, :, part],
            self.key[:, :, part],
            self.key[:, :, part],
            SCALING,
            self.cache,
        )
        self.seen += tokens
        store = self.cache.groups[0].stores[self.layer.layer_idx]
        return [set(map(int, store.values[0, head, :, 0].round().tolist())) for head in range(HEADS)]


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def attention_row(
    query: torch.Tensor, key: torch.Tensor, head: int, position: int, visible: list[int]
) -> dict[int, float]:
    """Attention of one query head at one position over the visible positions, in float64."""
    q, k = query[0, head, position].double().numpy(), key[0, head // GROUP].double().numpy()
    weights = softmax(np.array([float(q @ k[j]) * SCALING for j in visible]))
    return dict(zip(visible, weights, strict=True))


def snapkv_choice(
    query: torch.Tensor, key: torch.Tensor, head: int, select: int, window: int, kernel: int, pooling: str
) -> set[int]:
    """Votes of the last `window` queries, averaged over the group, pooled over the past only, the best
    `select` and the window.
    """
    tokens = key.shape[2]
    votes = np.zeros(tokens)
    for query_head in range(head * GROUP, (head + 1) * GROUP):
        for position in range(tokens - window, tokens):
            for j, weight in attention_row(
                query, key, query_head, position, list(range(position + 1))
            ).items():
                votes[j] += weight
    past, half = tokens - window, kernel // 2
    pooled = []
    for j in range(past):
        near = votes[max(0, j - half) : min(past, j + half + 1)]
        pooled.append(near.max() if pooling == "max" else near.sum() / kernel)
    order = sorted(range(past), key=lambda j: (-pooled[j], j))
    return set(order[:select]) | set(range(past, tokens))


@pytest.mark.parametrize(("window", "kernel", "pooling"), [(8, 7, "max"), (8, 5, "avg"), (16, 1, "max")])
def test_snapkv(window: int, kernel: int, pooling: str) -> None:
    query, key = tensors(90)
    kept = Run(build("snapkv", budget=32, window=window, kernel=kernel, pooling=pooling), query, key).feed(90)
    assert kept == [
        snapkv_choice(query, key, head, 32 - window, window, kernel, pooling) for head in range(HEADS)
    ]


@pytest.mark.parametrize("schedule", ["exact", "published"])
@pytest.mark.parametrize("layer", [0, 3, 6])
def test_pyramidkv(schedule: str, layer: int) -> None:
    """SnapKV's choice at each layer's own size: equation 1 by hand, or the integer schedule by hand."""
    layers, budget, window, beta, tokens = 7, 40, 8, 20, 150
    selected = budget - window
    if schedule == "published":
        top = selected // beta
        step = (2 * selected - 2 * top) // (layers - 1)
        size = 2 * selected - top - layer * step
    else:
        top = selected / beta
        bottom = 2 * selected - top
        exact = [bottom - at * (bottom - top) / (layers - 1) for at in range(layers)]
        spare = layers * selected - sum(math.floor(value) for value in exact)
        raised = sorted(range(layers), key=lambda at: math.floor(exact[at]) - exact[at])[:spare]
        size = math.floor(exact[layer]) + (layer in raised)
    query, key = tensors(tokens)
    kept = Run(
        build("pyramidkv", budget=budget, schedule=schedule), query, key, layer=layer, layers=layers
    ).feed(tokens)
    assert kept == [snapkv_choice(query, key, head, size, window, 7, "max") for head in range(HEADS)]


def test_streamingllm_keeps_sinks_and_recents_at_every_step() -> None:
    """At budget 128 of 300 tokens: positions 0-3 and 176-299; ten steps later 0-3 and 186-309."""
    query, key = tensors(310)
    run = Run(build("streamingllm", budget=128, positions="true"), query, key)
    assert run.feed(300) == [set(range(4)) | set(range(176, 300))] * HEADS
    for _ in range(10):
        kept = run.feed(1)
    assert kept == [set(range(4)) | set(range(186, 310))] * HEADS


@pytest.mark.parametrize("recent", [0.5, 0.25, 6, 0.0])
def test_h2o(recent: float) -> None:
    """Column sums of the full matrix after the prompt; afterwards every step adds its row and the least of
    the others goes.
    """
    budget, prompt, steps = 24, 70, 25
    query, key = tensors(prompt + steps)
    run = Run(build("h2o", budget=budget, recent=recent), query, key)
    newest = max(1, recent if isinstance(recent, int) else int(recent * budget))

    def step(mass: dict[int, float], visible: list[int], head: int, position: int) -> None:
        for query_head in range(head * GROUP, (head + 1) * GROUP):
            for j, weight in attention_row(query, key, query_head, position, visible).items():
                mass[j] = mass.get(j, 0.0) + weight

    def survivors(mass: dict[int, float]) -> list[int]:
        slots = sorted(mass)
        others = sorted(slots[: len(slots) - newest], key=lambda j: (-mass[j], j))
        return sorted(others[: budget - newest] + slots[len(slots) - newest :])

    masses: list[dict[int, float]] = [{} for _ in range(HEADS)]
    kept = run.feed(prompt)
    for head, mass in enumerate(masses):
        for position in range(prompt):
            step(mass, list(range(position + 1)), head, position)
        masses[head] = {j: mass[j] for j in survivors(mass)}
    assert kept == [set(mass) for mass in masses]
    for position in range(prompt, prompt + steps):
        kept = run.feed(1)
        for head, mass in enumerate(masses):
            step(mass, [*sorted(mass), position], head, position)
            masses[head] = {j: mass[j] for j in survivors(mass)}
        assert kept == [set(mass) for mass in masses], position


def test_random_keeps_the_window_and_differs_between_seeds_and_layers() -> None:
    query, key = tensors(90)
    found = {}
    for seed, layer in ((0, 0), (1, 0), (0, 1)):
        kept = Run(build("random", budget=32, seed=seed), query, key, layer=layer, layers=2).feed(90)
        assert all(len(head) == 32 and set(range(82, 90)) <= head for head in kept)
        found[seed, layer] = kept
    assert found[0, 0] != found[1, 0] and found[0, 0] != found[0, 1] and found[0, 0][0] != found[0, 0][1]


def test_truncated_keeps_both_ends_of_the_prompt() -> None:
    method = build("truncated", budget=5)
    assert method.shorten(tuple(range(10))) == (0, 1, 2, 8, 9)
    assert method.shorten(tuple(range(5))) == tuple(range(5))
    assert build("truncated", budget=0.5).shorten(tuple(range(10))) == (0, 1, 2, 8, 9)


def rotated(vectors: torch.Tensor, position: int) -> torch.Tensor:
    """Llama's rotary embedding written out: pairs (i, i + half) turn by position * 10000 ** (-i / half)."""
    half = vectors.shape[-1] // 2
    angles = position * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    first, second = vectors[..., :half].double(), vectors[..., half:].double()
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
    )


def test_streamingllm_counts_positions_inside_its_cache(tiny_model: Any) -> None:
    """Logits after many evictions equal those of unrotated keys placed at slots 0, 1, ...

    with the query last (section 3.2).
    """
    decoder, budget, prompt, steps = tiny_model().get_decoder(), 12, 40, 30
    size = tiny_model().config.hidden_size // tiny_model().config.num_attention_heads
    generator = torch.Generator().manual_seed(1)
    plain = torch.randn(1, HEADS, prompt + steps, size, generator=generator)
    plain_query = torch.randn(1, QUERY_HEADS, prompt + steps, size, generator=generator)
    turned = torch.stack([rotated(plain[:, :, p], p) for p in range(prompt + steps)], 2).float()
    turned_query = torch.stack([rotated(plain_query[:, :, p], p) for p in range(prompt + steps)], 2).float()
    run = Run(build("streamingllm", budget=budget), turned_query, turned)
    run.cache.rotation = rotation(decoder)
    run.feed(prompt)
    for position in range(prompt, prompt + steps):
        run.feed(1)
        kept = [0, 1, 2, 3, *range(position - budget + 5, position + 1)]
        store = run.cache.groups[0].stores[0]
        for head in range(HEADS):
            found = store.keys[0, head].double() @ turned_query[0, head * GROUP, position].double()
            query = rotated(plain_query[0, head * GROUP, position], budget - 1)
            expected = torch.stack([rotated(plain[0, head, p], slot) @ query for slot, p in enumerate(kept)])
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
