"""Models for the tests of tracing, and what autograd really saves of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

ATEN = torch.ops.aten


class Residual(nn.Module):
    """Two convolutions around a shortcut, as in a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU())
        self.stage1 = nn.Sequential(*(Residual(16, 16) for _ in range(3)))
        self.stage2 = nn.Sequential(Residual(16, 32, 2), Residual(32, 32), Residual(32, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stage2(self.stage1(self.stem(x))).mean((2, 3)))


class Skipping(nn.Module):
    """The first layer's output is read again by the last, across all cuts."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(functional.gelu(self.up(x)))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.layers[0](x)
        y = first
        for layer in self.layers[1:]:
            y = layer(y)
        return y * first


class Alternating(nn.Module):
    """Layers of one class and size of which every second one does something else."""

    class Layer(nn.Module):
        def __init__(self, *, wide: bool) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
            self.wide = wide

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.up(x)
            return x + self.down(functional.gelu(functional.gelu(y)) if self.wide else functional.gelu(y))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(wide=index % 2 == 0) for index in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _GpuFlash(torch.autograd.Function):
    """The CPU's kernel with the output laid out as a GPU lays it out: like the queries."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        out, statistics = ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        laid = torch.empty_like(q).copy_(out)
        ctx.save_for_backward(q, k, v, laid, statistics)
        return laid


def _attention(q: Any, k: Any, v: Any, attn_mask: Any = None, **options: Any) -> torch.Tensor:
    assert attn_mask is None
    repeat = q.shape[1] // k.shape[1]
    assert repeat == 1
    return _GpuFlash.apply(q, k, v, bool(options.get("is_causal")))


def really_saved(module: nn.Module, step: Callable[[nn.Module], torch.Tensor]) -> int:
    """Bytes of the tensors that autograd keeps for one step's backward, parameters left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with (
        patch.object(functional, "scaled_dot_product_attention", _attention),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        loss = step(module)
    assert loss.ndim == 0
    return sum(storage.nbytes() for storage in kept.values())
