"""Turning keys that were turned before, against the model's own function at the new positions."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from pyramid.rotary import rotation
from tests.conftest import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turned_key_is_what_the_model_would_have_put_there(tiny_model: Any, family: str) -> None:
    """Whatever its convention: halves or neighbours, the whole head or a part of it; each row by its own distance."""
    model = tiny_model(family)
    decoder, config = model.get_decoder(), model.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    apply = sys.modules[type(decoder).__module__].apply_rotary_pos_emb  # type: ignore[attr-defined]
    plain = torch.randn(2, 3, 4, size, generator=torch.Generator().manual_seed(0))

    def at(positions: list[int]) -> torch.Tensor:
        steps = torch.tensor(positions)[:, None] + torch.arange(4)
        return apply(plain, plain, *decoder.rotary_emb(plain, steps))[1]

    turn = rotation(decoder)
    assert turn is not None
    moved = turn(at([3, 10]), [700, 0])
    assert not torch.allclose(at([3, 10])[0], at([703, 10])[0], atol=0.1), "the test turns nothing"
    torch.testing.assert_close(moved, at([703, 10]), atol=2e-4, rtol=0)
    assert torch.equal(moved[1], at([3, 10])[1]), "no distance changes nothing, to the bit"


def test_keys_of_half_precision_are_turned_in_float32(tiny_model: Any) -> None:
    turn = rotation(tiny_model().get_decoder())
    assert turn is not None
    keys = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(turn(keys, [321]), turn(keys.float(), [321]).bfloat16())


def test_a_model_without_rotary_embedding_has_no_rotation() -> None:
    from transformers import GPT2Config, GPT2Model

    assert rotation(GPT2Model(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1, n_positions=8))) is None
