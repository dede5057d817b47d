"""Models that read tokens, as people write them, for tests of what tensor parallelism divides."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, GROUPS, ROWS = 64, 8, 4, 96


class Attention(nn.Module):
    """Grouped queries, as people write them."""

    def __init__(self, width: int = WIDTH, groups: int = GROUPS) -> None:
        super().__init__()
        self.head_width = width // HEADS
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, self.head_width * groups, bias=False)
        self.v = nn.Linear(width, self.head_width * groups, bias=False)
        self.o = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: torch.Tensor = self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, mixer: nn.Module) -> None:
        super().__init__()
        self.before, self.mixer, self.after = nn.LayerNorm(width), mixer, nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixer(self.before(x))
        out: torch.Tensor = x + self.feed(self.after(x))
        return out


class Reader(nn.Module):
    def __init__(self, mixer: Any = Attention, width: int = WIDTH, rows: int = ROWS) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.layers = nn.ModuleList(Layer(width, mixer(width)) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, rows, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


class Whole(nn.Module):
    """A layer with a low-rank one beside it, whose result is whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.low, self.high = nn.Parameter(torch.zeros(width, 4)), nn.Parameter(torch.zeros(4, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + x @ self.low @ self.high
        return out


def wide() -> Reader:
    """One that is large enough for its activations to be most of a step."""
    return Reader(width=512, rows=4096)
