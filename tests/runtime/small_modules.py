"""Modules as beginners write them: nothing is repeated, inputs are odd, layers say little."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Perceptron(nn.Module):
    """Nothing in it is repeated, so that FSDP2 has no unit but the root."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(32, 64)
        self.out = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.hidden(x).relu())
        return out


class Rating(nn.Module):
    """Two inputs of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(1000, 16)
        self.items = nn.Embedding(500, 16)
        self.hidden = nn.Linear(32, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.users(users), self.items(items)], -1)
        out: torch.Tensor = self.out(self.hidden(both).relu())
        return out

    def sample_inputs(self, micro_batch_size: int, _length: int | None) -> Any:
        return tuple(torch.zeros(micro_batch_size, dtype=torch.long) for _ in range(2))


class Normed(nn.Module):
    """Running statistics beside a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.first(x)) * self.get_buffer("mask"))
        return out


class Heard(nn.Module):
    """A recurrent layer first."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(16, 32, 2, batch_first=True)
        self.out = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.cells(x)[0][:, -1])
        return out


class Adapted(nn.Module):
    """A frozen layer with a small one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Linear(64, 64).requires_grad_(False)
        self.down = nn.Linear(64, 4, bias=False)
        self.up = nn.Linear(4, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.whole(x) + self.up(self.down(x))
        return out


class Crossed(nn.Module):
    """One layer of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Bilinear(8, 8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.only(x, y)
        return out

    def sample_inputs(self, micro_batch_size: int, _length: int | None) -> Any:
        return torch.zeros(micro_batch_size, 8), torch.zeros(micro_batch_size, 8)


def lazy() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(3))


def images() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(*layers)


def deep() -> nn.Module:
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(8)]
    )


def scripted() -> nn.Module:
    return nn.Sequential(torch.jit.script(nn.Linear(16, 16)), nn.Linear(16, 16))


class Looked(nn.Module):
    """A table whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 16, sparse=True)
        self.out = nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.table(ids).mean(1))
        return out
