"""Where one rank fails, no other waits for it: all end soon, and say who failed, and with what."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan
from runtime.pipeline.stages import several
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.errors import ParastratError
from parastrat.plan import PipelineSchedule
from parastrat.runtime.communication.told import TOGETHER_S

#: seconds in which all must have ended; a collective waits for half an hour
SOON_S = 60.0
SPLIT = {"pp": 2, **several(PipelineSchedule.INTERLEAVED_ZERO_BUBBLE)}
ONE_F_ONE_B = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}
#: plans, where the last rank fails
CELLS: dict[str, tuple[dict[str, Any], str]] = {
    "ddp": ({"dp_replicate": 2}, "forward"),
    "fsdp2": ({"dp_shard": 2}, "forward"),
    "tp": ({"tp": 2}, "backward"),
    "pp": (ONE_F_ONE_B, "backward"),
    "split": (SPLIT, "forward"),
    "share": ({"dp_shard": 2}, "share"),
    "metric": ({"dp_shard": 2}, "metric"),
    "builder": ({"dp_replicate": 2}, "builder"),
}
CELLS_OF_FOUR: dict[str, tuple[dict[str, Any], str]] = {
    "pp x fsdp2": ({**ONE_F_ONE_B, "dp_shard": 2, "reshard_after_forward": False}, "backward"),
    "pp x tp": ({**ONE_F_ONE_B, "tp": 2}, "forward"),
}


class Failing(torch.autograd.Function):
    """Fails in backward once it is told so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fails: bool) -> torch.Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.fails:
            raise ArithmeticError("backward")
        return gradient, None


class Block(nn.Module):
    fails_in = ""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails_in == "forward":
            raise ArithmeticError("forward")
        x = Failing.apply(x, self.fails_in == "backward")
        return x + self.down(torch.relu(self.up(x)))


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def fails(*_: Any) -> Any:
    raise ArithmeticError("here")


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return torch.randn(samples, 8, generator=drawn), torch.randint(4, (samples,), generator=drawn)


def said_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (ParastratError, ArithmeticError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def step(model: nn.Module, samples: int) -> None:
    parastrat.forward_backward(model, *batch(samples), loss_fn=functional.cross_entropy)


def failed(fields: dict[str, Any], where: str) -> tuple[str, str, float]:
    """What this rank says where the last one fails, and when it is called again; and after how long."""
    bad = dist.get_rank() == dist.get_world_size() - 1
    torch.manual_seed(0)
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    samples = 8 // ranks
    chosen = plan(**{"micro_batch_size": 2, "gradient_accumulation_steps": samples // 2, **fields})
    if where == "builder":
        builder = fails if bad else Chain
        begun = time.monotonic()
        said = said_of(lambda: parastrat.auto_parallelize(builder, plan=chosen))
        return (
            said,
            said_of(lambda: parastrat.auto_parallelize(Chain, plan=chosen)),
            time.monotonic() - begun,
        )
    model = parastrat.auto_parallelize(Chain(), plan=chosen, sample_inputs=batch(2)[0])
    step(model, samples)
    if bad:
        for block in (part for part in model.modules() if isinstance(part, Block)):
            block.fails_in = where
    begun = time.monotonic()
    if where == "metric":
        metric = fails if bad else functional.cross_entropy
        said = said_of(lambda: parastrat.evaluate(model, [batch(2)] * 4, metric))
    else:
        said = said_of(lambda: step(model, 100 if where == "share" and bad else samples))
    took = time.monotonic() - begun
    return said, said_of(lambda: step(model, samples)), took


def all_together() -> tuple[str, str, float]:
    """What is said where every rank fails, and by the next step; and after how long."""
    model = parastrat.auto_parallelize(Chain(), plan=plan(dp_shard=2, micro_batch_size=2))
    begun = time.monotonic()
    said = said_of(lambda: step(model, 100))
    return said, said_of(lambda: step(model, 2)), time.monotonic() - begun


def undecided() -> tuple[str, str, float]:
    """What is said where the first rank alone finds that no plan can be decided."""
    begun = time.monotonic()
    said = said_of(lambda: parastrat.auto_parallelize(Chain()))
    return said, said_of(lambda: parastrat.auto_parallelize(Chain())), time.monotonic() - begun


#: where no rank fails before the others
TOGETHER = {"all": all_together, "undecided": undecided}


def in_groups_of_their_own(cells: Any, folder: str) -> dict[str, tuple[str, str, float]]:
    found = {}
    for name, (fields, where) in cells.items():
        # no port, which another process might take before
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/{name.replace(' ', '-')}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        found[name] = TOGETHER[where]() if where in TOGETHER else failed(fields, where)
        dist.destroy_process_group()
    return found


def tried(
    ranks: int, cells: dict[str, tuple[dict[str, Any], str]]
) -> list[dict[str, tuple[str, str, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        return on_ranks(ranks, in_groups_of_their_own, cells, folder)


@pytest.fixture(scope="module")
def two() -> list[dict[str, tuple[str, str, float]]]:
    return tried(2, {**CELLS, **{name: ({}, name) for name in TOGETHER}})


@pytest.fixture(scope="module")
def four() -> list[dict[str, tuple[str, str, float]]]:
    return tried(4, CELLS_OF_FOUR)


def check(answers: list[tuple[str, str, float]], *, keeps_step: bool = False) -> None:
    *others, (own, own_again, _) = answers
    assert not own.startswith(("nothing", "MismatchError"))
    for said, again, took in others:
        assert said.startswith(f"MismatchError: rank {len(others)} stopped with {own.split(' (')[0][:40]}")
        assert took < SOON_S
        if not keeps_step:
            assert "the ranks parted in an earlier call: rank" in again
    assert keeps_step or "the ranks parted in an earlier call" in own_again


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_no_rank_waits_for_one_that_fails(cell: str, two: list[dict[str, tuple[str, str, float]]]) -> None:
    check([rank[cell] for rank in two])


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS_OF_FOUR)
def test_no_stage_waits_for_one_that_fails(
    cell: str, four: list[dict[str, tuple[str, str, float]]]
) -> None:
    check([rank[cell] for rank in four])


@pytest.mark.slow
def test_ranks_that_all_fail_can_go_on(two: list[dict[str, tuple[str, str, float]]]) -> None:
    for said, again, took in (rank["all"] for rank in two):
        assert said.startswith("UsageError: this rank got 100 samples")
        assert again == "nothing"
        assert took < TOGETHER_S + SOON_S


@pytest.mark.slow
def test_what_the_first_rank_finds_all_say(two: list[dict[str, tuple[str, str, float]]]) -> None:
    first, *others = (rank["undecided"][:2] for rank in two)
    assert all(said.startswith("UsageError: no plan was given") for said in first)
    assert others == [first]
