"""Samples that are the same on all data ranks, and targets that are uneven, are told of once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional

import parastrat

pytestmark = pytest.mark.slow

SAME, UNEVEN = "data-parallel ranks are given the same samples", "a plain loss.backward() weighs each rank"
PLANS = {"ddp": plan(dp_replicate=2, micro_batch_size=4), "fsdp2": plan(dp_shard=2, micro_batch_size=4)}
IGNORED = -100


class Net(nn.Module):
    """Computes its loss, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(Block(), Block())

    def forward(
        self,
        x: torch.Tensor,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | None = None,
    ) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        if labels is None:
            return {"loss": logits.pow(2).mean()}
        total = functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": total / (num_items_in_batch or max(1, int((labels != IGNORED).sum())))}


def drawn(seed: int, samples: int = 4) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 8, generator=draw)
    return {"x": x, "labels": torch.randint(8, (samples,), generator=draw)}


def of_all(step: int, _rank: int) -> dict[str, Any]:
    return drawn(step)


def of_each(step: int, rank: int) -> dict[str, Any]:
    return drawn(2 * step + rank)


def synthetic(_step: int, _rank: int) -> dict[str, Any]:
    return drawn(0)


def ignored(step: int, rank: int) -> dict[str, Any]:
    batch = drawn(2 * step + rank)
    batch["labels"][: 2 * rank] = IGNORED
    return batch


def counted(step: int, rank: int) -> dict[str, Any]:
    return ignored(step, rank) | {"num_items_in_batch": 3}


def fewer(step: int, rank: int) -> dict[str, Any]:
    return {"x": drawn(2 * step + rank, samples=4 - rank)["x"]}


def told(strategy: str, batch: Callable[[int, int], dict[str, Any]], *, plain: bool = True) -> list[str]:
    """Return what five steps warn of."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Net(), plan=PLANS[strategy], sample_inputs=drawn(0)["x"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            given = batch(step, dist.get_rank())
            if plain:
                model(**given)["loss"].backward()
            else:
                parastrat.forward_backward(model, given)
            model.zero_grad()
    said = [str(each.message) for each in caught]
    return [each for each in said if SAME in each or UNEVEN in each]


CASES: dict[str, tuple[Callable[[int, int], dict[str, Any]], bool, str]] = {
    "of all": (of_all, True, SAME),
    "of all by steps": (of_all, False, SAME),
    "of each": (of_each, True, ""),
    "synthetic": (synthetic, True, ""),
    "ignored": (ignored, True, "from 2 to 4 targets, and " + UNEVEN),
    "ignored by steps": (ignored, False, ""),
    "counted": (counted, True, ""),
    "fewer": (fewer, True, "from 3 to 4 samples, and " + UNEVEN),
}


def everything() -> dict[str, Any]:
    return answers(
        {
            f"{strategy} {name}": lambda strategy=strategy, batch=batch, plain=plain: told(
                strategy, batch, plain=plain
            )
            for strategy in PLANS
            for name, (batch, plain, _) in CASES.items()
        }
    )


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("strategy", PLANS)
@pytest.mark.parametrize("case", CASES)
def test_they_are_told_of_once(ranks: list[dict[str, Any]], strategy: str, case: str) -> None:
    said = CASES[case][2]
    for found in ranks:
        assert len(found[f"{strategy} {case}"]) == (1 if said else 0), found[f"{strategy} {case}"]
        assert all(said in each for each in found[f"{strategy} {case}"])
