"""A chain of equal layers behind tokens, small enough to count by hand."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, WORDS = 32, 3, 64
WIDE_WIDTH, WIDE_LAYERS = 2048, 2


class Layer(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x).relu()


class Chain(nn.Module):
    def __init__(self, width: int = WIDTH, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Wide(Chain):
    """Its gradients fill several of DDP's buckets."""

    def __init__(self) -> None:
        super().__init__(WIDE_WIDTH, WIDE_LAYERS)


class Idle(Chain):
    """It has a layer more than it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH, bias=False)


class Feeding(nn.Module):
    """A layer that tensor parallelism divides."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Fed(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Feeding() for _ in range(LAYERS))


class Attending(Chain):
    """Its positions can be divided."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(LAYERS))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Looks(Chain):
    """Its forward needs values."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.sum() > 0:
            tokens = tokens + 1
        return super().forward(tokens)


def sample_inputs(micro_batch_size: int, sequence_length: int) -> torch.Tensor:
    return torch.zeros(micro_batch_size, sequence_length, dtype=torch.long)


class Long(Chain):
    """Four virtual stages hold a layer each, as do eight."""

    def __init__(self) -> None:
        super().__init__(layers=8)
