"""What a loop is given: a model, batches, and a step; under a plan or in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from runtime.models import plan
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import Plan, Shard

#: of two ranks
PLANS: dict[str, Plan] = {
    "ddp": plan(dp_replicate=2),
    "fsdp2": plan(dp_shard=2),
    "cp": plan(cp=2, micro_batch_size=4, shard=Shard.PARAMETERS),
    "tp": plan(tp=2, micro_batch_size=4),
    "pp": plan(pp=2, gradient_accumulation_steps=2),
}
WIDTH, SAMPLES = 16, 4
#: of each sample, for plans that divide them
POSITIONS = 8

#: what trains, and returns numbers that must not depend on the plan
Recipe = Callable[["Setting"], list[float]]
RECIPES: dict[str, Recipe] = {}


def recipe(function: Recipe) -> Recipe:
    """Register a loop."""
    RECIPES[function.__name__] = function
    return function


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 3:
            heads = [functional.layer_norm(x, (WIDTH,)).unsqueeze(1)] * 3
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = functional.layer_norm(x + mixed.squeeze(1), (WIDTH,))
        return x + self.down(functional.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)  # type: ignore[no-any-return]


def squares(output: torch.Tensor, aim: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(output, aim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One process, or a rank under a plan."""

    plan: Plan | None = None
    #: of each sample; 0: samples are vectors
    positions: int = 0

    @classmethod
    def of(cls, strategy: str, *, alone: bool = False) -> Setting:
        """Return what a strategy's loops are given, on a rank or in one process."""
        plan = PLANS[strategy]
        return cls(plan=None if alone else plan, positions=POSITIONS if plan.mesh.cp > 1 else 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a sample."""
        return (self.positions, WIDTH) if self.positions else (WIDTH,)

    def model(self, build: Callable[[], nn.Module] = Mlp, *, seed: int = 0) -> Any:
        """Return a model, wrapped."""
        torch.manual_seed(seed)
        return self.wrapped(build())

    def wrapped(self, module: nn.Module) -> Any:
        """Return a model that was built, wrapped."""
        if self.plan is None:
            return module
        return parastrat.auto_parallelize(module, plan=self.plan, sample_inputs=torch.zeros(1, *self.shape))

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's samples of a step, and what they should give."""
        draw = torch.Generator().manual_seed(100 + step)
        x, y = torch.randn(2, SAMPLES, *self.shape, generator=draw)
        if self.plan is None or self.plan.mesh.dp == 1:
            return x, y
        mesh = self.plan.mesh
        place = torch.distributed.get_rank() // (mesh.cp * mesh.tp) % mesh.dp
        return x.chunk(mesh.dp)[place], y.chunk(mesh.dp)[place]

    def backward(self, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Run a forward and a backward; return the loss."""
        if self.plan is not None and self.plan.mesh.pp > 1:
            return parastrat.forward_backward(model, x, y, loss_fn=squares)
        loss = squares(model(x), y)
        loss.backward()
        return loss

    def mean(self, loss: torch.Tensor) -> float:
        """Return the mean of a loss over ranks: those of one tp group have the same."""
        loss = loss.detach().clone()
        if self.plan is not None and self.plan.mesh.dp > 1:
            torch.distributed.all_reduce(loss)
            loss /= torch.distributed.get_world_size()
        return float(loss)

    def loss_of(self, model: Any, step: int = 9) -> float:
        """Return the loss of a model that is not trained on this step."""
        x, y = self.batch(step)
        with torch.no_grad():
            return self.mean(squares(model(x), y))

    def trained(
        self,
        model: Any,
        optimizer: Any,
        *,
        steps: int = 4,
        before: Callable[[], Any] | None = None,
        after: Callable[[int], Any] | None = None,
        aim: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> list[float]:
        """Train for some steps; return their losses.

        Args:
            model: what is trained.
            optimizer: of it.
            steps: how many.
            before: is called between each backward and the step of the optimizer.
            after: is called behind each step of the optimizer.
            aim: what inputs should give, of them and of what the batch says; that, where it is None.
        """
        losses = []
        for step in range(steps):
            x, y = self.batch(step)
            losses.append(self.mean(self.backward(model, x, y if aim is None else aim(x, y))))
            if before is not None:
                before()
            optimizer.step()
            optimizer.zero_grad()
            if after is not None:
                after(step)
        return losses
