"""torch's GradScaler leaves a step out on all ranks or on none, as one process does."""

from __future__ import annotations

import pytest
import torch
from drawn import drawn
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import PipelineSchedule, Plan

pytestmark = pytest.mark.slow

INFINITE_STEP = 2
PLANS = {
    "ddp": plan(dp_replicate=2, micro_batch_size=4),
    "fsdp2": plan(dp_shard=2, micro_batch_size=4),
    "tp": plan(tp=2, micro_batch_size=8),
    "pp": plan(
        pp=2, micro_batch_size=4, gradient_accumulation_steps=2, pp_schedule=PipelineSchedule.ONE_F_ONE_B
    ),
}


class Block(nn.Module):
    """Begins with weights that tensor parallelism leaves whole: by the first gradient torch asks others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())  # type: ignore[no-any-return]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def overflow(model: nn.Module) -> None:
    """Make the last gradient of a weight of the second block infinite, where a rank holds it."""
    for name, parameter in model.named_parameters():
        if name.endswith("blocks.1.up.weight") and parameter.grad is not None:
            grad = parameter.grad
            local = grad.to_local() if hasattr(grad, "to_local") else grad
            is_last = grad is local or torch.distributed.get_rank() == 1
            local[-1, -1] = torch.inf if is_last else local[-1, -1]


def trained(chosen: Plan | None, fused: bool) -> list[tuple[float, float]]:
    """Return the loss and the scale after each of some steps, one of which overflows."""
    torch.manual_seed(0)
    model: nn.Module = Several()
    if chosen is not None:
        model = parastrat.auto_parallelize(model, plan=chosen, sample_inputs=torch.ones(1, 4, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ranks = 1 if chosen is None else chosen.mesh.dp
    rank = torch.distributed.get_rank() if ranks > 1 else 0
    found = []
    for step in range(5):
        torch.manual_seed(step)
        x, y = (torch.randn(8, 4, 8).chunk(ranks)[rank] for _ in range(2))
        optimizer.zero_grad()
        if chosen is None or chosen.mesh.pp == 1:
            loss = functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
        else:
            scale = 1024.0 if step <= INFINITE_STEP else 512.0
            loss = parastrat.forward_backward(
                model, x, y, loss_fn=lambda out, aim: scaler.scale(functional.mse_loss(out, aim))
            )
            loss = loss / scale
        if step == INFINITE_STEP:
            overflow(model)
        scaler.step(optimizer)
        scaler.update()
        mean = loss.detach().clone()
        if ranks > 1:
            torch.distributed.all_reduce(mean)
        found.append((round(float(mean) / ranks, 5), scaler.get_scale()))
    return found


@pytest.mark.parametrize(
    ("strategy", "fused"), drawn([(name, fused) for name in PLANS for fused in (False, True)], 3)
)
def test_all_ranks_leave_a_step_out_where_one_has_an_infinite_gradient(strategy: str, fused: bool) -> None:
    expected = trained(None, fused)
    assert [scale for _, scale in expected] == [1024, 1024, 512, 512, 512]
    for own in on_ranks(2, trained, PLANS[strategy], fused):
        assert own == [(pytest.approx(loss, rel=1e-3), scale) for loss, scale in expected]
