"""Buffers that follow each rank's own samples are told of once; running statistics are known to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn

import parastrat

PLANS = {"ddp": plan(dp_replicate=2, micro_batch_size=4), "fsdp2": plan(dp_shard=2, micro_batch_size=4)}


class Centred(nn.Module):
    """Follows the mean of what it is given, as DINO's centre does."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.blocks(x)
        self.centre.lerp_(self.mean_of(out.detach()), 0.1)
        return out - self.centre.clone()

    def mean_of(self, out: torch.Tensor) -> torch.Tensor:
        return out.mean(0)


class Reduced(Centred):
    def mean_of(self, out: torch.Tensor) -> torch.Tensor:
        mean = out.mean(0)
        dist.all_reduce(mean)
        return mean / dist.get_world_size()


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(8), Block(), Block())


def told(strategy: str, kind: Callable[[], nn.Module]) -> list[str]:
    """Return what four steps warn of."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(kind(), plan=PLANS[strategy])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            draw = torch.Generator().manual_seed(2 * step + dist.get_rank())
            model(torch.randn(4, 8, generator=draw)).pow(2).mean().backward()
            model.zero_grad()
    return [str(each.message) for each in caught if "differs between data-parallel" in str(each.message)]


def everything() -> dict[str, Any]:
    return answers(
        {
            f"{strategy} {kind.__name__}": partial(told, strategy, kind)
            for strategy in PLANS
            for kind in (Centred, Reduced, Normed)
        }
    )


@pytest.mark.slow
def test_what_each_rank_follows_by_itself_is_told_of_once() -> None:
    for found in on_ranks(2, everything):
        for strategy in PLANS:
            (said,) = found[f"{strategy} Centred"]
            assert said.startswith("centre differs between data-parallel ranks behind a step")
            assert found[f"{strategy} Reduced"] == found[f"{strategy} Normed"] == []
