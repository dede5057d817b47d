"""Numbers that scripts read of divided gradients and weights are those of the whole, as in one process."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
import torch
from drawn import drawn
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import PipelineSchedule, Plan
from parastrat.runtime.training import whole_values

pytestmark = pytest.mark.slow

BATCH = 8
STAGES = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B, "gradient_accumulation_steps": 2}
PLANS = {
    "ddp": plan(dp_replicate=2, micro_batch_size=4),
    "fsdp2": plan(dp_shard=2, micro_batch_size=4),
    "hsdp": plan(dp_replicate=2, dp_shard=2),
    "tp": plan(tp=2, micro_batch_size=8),
    "fsdp2 x tp": plan(dp_shard=2, tp=2, micro_batch_size=4),
}


class Blocks(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(Block() for _ in range(3)))


def built(chosen: Plan | None) -> nn.Module:
    torch.manual_seed(0)
    if chosen is None:
        return Blocks()
    return parastrat.auto_parallelize(Blocks(), plan=chosen, sample_inputs=torch.ones(1, 8))


def backward(model: nn.Module, chosen: Plan | None, step: int) -> None:
    torch.manual_seed(step)
    ranks = 1 if chosen is None else chosen.mesh.dp
    place = torch.distributed.get_rank() // chosen.mesh.tp if chosen is not None else 0
    x, y = (torch.randn(BATCH, 8).chunk(ranks)[place % ranks] for _ in range(2))
    if chosen is not None and chosen.mesh.pp > 1:
        parastrat.forward_backward(model, x, y, loss_fn=functional.mse_loss)
    else:
        functional.mse_loss(model(x), y).backward()


def clip_by_hand(model: nn.Module, most: float) -> float:
    """Clip as scripts of before ``clip_grad_norm_`` do, gradient by gradient."""
    total = 0.0
    for parameter in model.parameters():
        assert parameter.grad is not None
        total += parameter.grad.detach().norm(2).item() ** 2
    norm = math.sqrt(total)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(min(most / (norm + 1e-6), 1.0))
    return norm


def numbers(chosen: Plan | None) -> list[float]:
    model = built(chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        backward(model, chosen, step)
        found.append(clip_by_hand(model, 0.05))
        for parameter in model.parameters():
            grad = parameter.grad
            assert grad is not None
            found += [float(parameter.detach().abs().sum()), float(grad.mean()), float(grad.abs().max())]
        optimizer.step()
    return found


@pytest.mark.parametrize("strategy", drawn(list(PLANS), 2))
def test_numbers_are_those_of_one_process(strategy: str) -> None:
    expected = numbers(None)
    for own in on_ranks(PLANS[strategy].mesh.world_size, numbers, PLANS[strategy]):
        assert own == [pytest.approx(each, rel=1e-3, abs=1e-6) for each in expected]


def left_out(chosen: Plan) -> list[bool]:
    """Leave steps out where any gradient is infinite, of which one rank holds the place."""
    model = built(chosen)
    found = []
    for step in range(2):
        model.zero_grad()
        backward(model, chosen, step)
        if step and torch.distributed.get_rank() == 1:
            weight = model.get_parameter("1.up.weight")
            assert weight.grad is not None
            local: Any = weight.grad
            local.to_local()[-1, -1] = torch.inf
        found.append(all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None))
    return found


@pytest.mark.parametrize("strategy", ["fsdp2", "tp"])
def test_an_infinite_gradient_of_one_rank_is_seen_by_all(strategy: str) -> None:
    assert on_ranks(2, left_out, PLANS[strategy]) == [[True, False]] * 2


def alone(chosen: Plan) -> dict[str, Any]:
    """Read on rank 0 alone what torch's clipping returns, then a gradient's norm."""
    whole_values.WAIT = timedelta(seconds=1)
    model = built(chosen)
    backward(model, chosen, 0)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.distributed.get_rank():
        return {}
    grad = next(parameter.grad for parameter in model.parameters() if parameter.grad is not None)
    return answers({"clipped": norm.item, "read": lambda: grad.norm().item()})


@pytest.mark.parametrize("strategy", ["fsdp2", "tp"])
def test_a_rank_that_reads_alone_is_told(strategy: str) -> None:
    model = built(None)
    backward(model, None, 0)
    expected = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    found, _ = on_ranks(2, alone, PLANS[strategy])
    assert found["clipped"] == pytest.approx(expected, rel=1e-4)
    assert found["read"].startswith("rank 0 reads a number of a tensor that is divided over the ranks of")


def of_stages(chosen: Plan) -> list[float]:
    model = built(chosen)
    backward(model, chosen, 0)
    found = [float(p.grad.norm()) for p in model.parameters() if p.grad is not None]
    # the first rank has the store by which the other stage's ranks find each other as they read
    torch.distributed.barrier()
    return found


def test_stages_read_their_own() -> None:
    model = built(None)
    backward(model, None, 0)
    expected = [float(p.grad.norm()) for p in model.parameters() if p.grad is not None]
    chosen = plan(tp=2, **STAGES, micro_batch_size=4)
    first, again, second, _ = on_ranks(4, of_stages, chosen)
    assert first == again
    assert len(first) < len(expected)
    assert first + second == [pytest.approx(each, rel=1e-4) for each in expected]
