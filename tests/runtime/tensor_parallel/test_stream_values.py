"""Values of the stream that blocks read: a rank has some positions alone, and would choose another way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from parastrat.runtime.tensor_parallel.derived import derived_layout
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.runtime.tensor_parallel.sequence import NoStreamError, streamed
from parastrat.runtime.tensor_parallel.stream_values import check_no_values

IDS = torch.randint(16, (2, 8), generator=torch.Generator().manual_seed(0))


class Inner(nn.Module):
    """What is given all positions, as it holds a column and its row."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.up, self.down, self.reads = nn.Linear(8, 16), nn.Linear(16, 8), reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.down(self.up(x).relu())
        return wide.clamp(-1, 1) if self.reads and bool(x.mean() > 1) else wide


class Block(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.norm, self.inner, self.where = nn.LayerNorm(8), Inner(reads=where == "inner"), where

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.inner(self.norm(x))
        if self.where == "stream" and x.isnan().any():
            return x * 2
        if self.where == "rows":
            x[x.abs() > 9] = 0.0  # no way is chosen: rows of each rank's own
            return x[x.sum(-1) > -99].view_as(x)
        return x * 2 if self.where == "mask" and bool(mask.all()) else x


class Model(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.embed = where, nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block(where) for _ in range(2))
        self.head = nn.Linear(8, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        if self.where == "embedded" and bool(x.mean() > 1):
            x = x * 2
        for block in self.blocks:
            x = block(x, ids > 3)
        return self.head(x)


def check(where: str) -> None:
    model = Model(where)
    # what is divided does not hang on what is read
    layout = derived_layout(Model("nowhere"), IDS, degree=2)
    assert layout.groups
    check_no_values(model, IDS, streamed(model, layout), Extent.of(model))


@pytest.mark.parametrize("where", ["nowhere", "inner", "mask"])
def test_values_that_are_whole_on_every_rank_may_be_read(where: str) -> None:
    check(where)


@pytest.mark.parametrize(
    ("where", "reader"), [("stream", "Block"), ("rows", "Block"), ("embedded", "Model")]
)
def test_values_of_the_stream_are_not(where: str, reader: str) -> None:
    with pytest.raises(NoStreamError, match=f"{reader} reads values of the stream"):
        check(where)
