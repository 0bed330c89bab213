"""Linear layers that multiply few rows faster on CPUs, with a second copy of their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEW_ROWS = range(2, 41)  # chosen from the measurements in docs/log.md
MOST_BYTES = 2 << 30  # of weights that are copied; larger models keep their memory


class PackedLinear(nn.Linear):
    """A linear layer for inference whose weight also lies in oneDNN's own order, for inputs of few rows."""

    packed: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() // self.in_features in FEW_ROWS and not torch.is_grad_enabled():
            product: Any = torch.ops.mkldnn._linear_pointwise
            return product(input.contiguous(), self.packed, self.bias, "none", [], "")
        return F.linear(input, self.weight, self.bias)


def pack_linears(model: nn.Module) -> None:
    """Turn the float32 linear layers on CPUs into `PackedLinear`, if they are small enough to be held twice and torch
    was built with oneDNN. Weights, shapes and names stay; products differ by rounding."""
    layers = [
        layer
        for layer in model.modules()
        if type(layer) is nn.Linear
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype == torch.float32
    ]
    size = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    if size > MOST_BYTES or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return
    for layer in layers:
        layer.__class__ = PackedLinear
        layer.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
