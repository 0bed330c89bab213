"""Packed linear layers compute what plain ones do, and are used where they are meant to be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pyramid import packing
from pyramid.packing import FEW_ROWS, PackedLinear, pack_linears

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN"
)


def packed_layer(bias: bool) -> PackedLinear:
    model = nn.Sequential(nn.Linear(48, 80, bias=bias))
    pack_linears(model)
    layer = model[0]
    assert isinstance(layer, PackedLinear)
    return layer


@needs_onednn
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (13, 1), (40, 1), (3, 7), (41, 1), (2, 50)])
def test_products_are_those_of_float64(bias: bool, shape: tuple[int, int]) -> None:
    layer = packed_layer(bias)
    rows = torch.randn(*shape, 48)
    with torch.inference_mode():
        found = layer(rows)
    exact = F.linear(rows.double(), layer.weight.double(), layer.bias.double() if bias else None)
    assert found.shape == (*shape, 80)
    assert torch.allclose(found.double(), exact, atol=1e-5)


@needs_onednn
def test_inputs_need_not_lie_in_order() -> None:
    layer, rows = packed_layer(True), torch.randn(48, 13).t()
    with torch.inference_mode():
        assert torch.allclose(layer(rows), F.linear(rows, layer.weight, layer.bias), atol=1e-5)


@needs_onednn
def test_few_rows_alone_take_the_packed_copy() -> None:
    """Seen by replacing the copy by one of twice the weight."""
    layer = packed_layer(False)
    layer.packed = torch.ops.mkldnn._reorder_linear_weight(2 * layer.weight.detach())
    for count in (1, 2, FEW_ROWS[-1], FEW_ROWS[-1] + 1):
        rows = torch.randn(count, 48)
        plain = F.linear(rows, layer.weight)
        with torch.inference_mode():
            factor = 2 if count in FEW_ROWS else 1
            assert torch.allclose(layer(rows), factor * plain, atol=1e-5), count
        assert torch.allclose(layer(rows), plain, atol=1e-5), "gradients need the plain product"


def test_large_models_and_other_types_keep_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.bfloat16))
    pack_linears(model)
    assert type(model[0]) is nn.Linear
    monkeypatch.setattr(packing, "MOST_BYTES", 4 * 4 * 4 - 1)
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    pack_linears(model)
    assert type(model[0]) is nn.Linear
