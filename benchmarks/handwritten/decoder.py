"""A small decoder in the manner of Llama (arXiv 2302.13971), for plans that divide layers or stack them.

Grouped queries, rotary positions, gated feed-forward, root-mean-square norms, an untied head. It reads how
many heads it has off its tensors, so that a rank with a share of them runs the same code.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, FEATURES = 1024, 256, 768
HEADS, GROUPS = 8, 4
LAYERS = 4


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Turn pairs of channels by an angle that grows with the position (arXiv 2104.09864)."""
    length, channels = x.shape[-2:]
    rates = 10_000 ** (-torch.arange(0, channels, 2, device=x.device, dtype=torch.float32) / channels)
    angles = torch.arange(length, device=x.device, dtype=torch.float32).outer(rates)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    """Queries in groups that share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, WIDTH // HEADS * GROUPS, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH // HEADS * GROUPS, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, _ = x.shape
        q, k, v = (
            layer(x).view(samples, length, -1, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(
            rotated(q), rotated(k), v, is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).reshape(samples, length, -1))


class FeedForward(nn.Module):
    """One layer gates the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, FEATURES, bias=False)
        self.up = nn.Linear(WIDTH, FEATURES, bias=False)
        self.down = nn.Linear(FEATURES, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.feed_norm, self.feed = nn.RMSNorm(WIDTH), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class Decoder(nn.Module):
    """The blocks between an embedding and a head of its own; 4 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
