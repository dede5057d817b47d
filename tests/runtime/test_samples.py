"""Samples that are the same on all data ranks, and targets that are uneven, are told of once."""

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


class Logits(nn.Module):
    """Leaves its loss to the script."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x)
        return logits


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


def mean_of_own(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, labels)


def mean_of_all(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, labels, reduction="sum") / 3


def mean_of_places(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, labels, reduction="none").mean()


def squared(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    has = labels != IGNORED
    return functional.mse_loss(logits[has], functional.one_hot(labels[has], 8).float())


#: losses that a script computes, and whether ranks weigh targets otherwise
LOSSES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], bool]] = {
    "mean of own": (mean_of_own, True),
    "mean of all": (mean_of_all, False),
    "mean of places": (mean_of_places, False),
    "squared": (squared, False),
}


def told_of_loss(strategy: str, loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[str]:
    """Return what five steps of a script's own loss warn of, half of one rank's targets ignored."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Logits(), plan=PLANS[strategy], sample_inputs=drawn(0)["x"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            given = ignored(step, dist.get_rank())
            loss_of(model(given["x"]), given["labels"]).backward()
            model.zero_grad()
    return [str(each.message) for each in caught if UNEVEN in str(each.message)]


def everything() -> dict[str, Any]:
    tried: dict[str, Callable[[], list[str]]] = {}
    for strategy in PLANS:
        for name, (batch, plain, _) in CASES.items():
            tried[f"{strategy} {name}"] = partial(told, strategy, batch, plain=plain)
        for name, (loss_of, _) in LOSSES.items():
            tried[f"{strategy} {name}"] = partial(told_of_loss, strategy, loss_of)
    return answers(tried)


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


@pytest.mark.parametrize("strategy", PLANS)
@pytest.mark.parametrize("loss", LOSSES)
def test_targets_of_a_scripts_own_loss_that_weigh_more_are_told_of_once(
    ranks: list[dict[str, Any]], strategy: str, loss: str
) -> None:
    for found in ranks:
        said = found[f"{strategy} {loss}"]
        assert len(said) == LOSSES[loss][1], said
        assert all("a target weighs 2.00 times as much" in each for each in said)
