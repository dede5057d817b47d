"""Parameters that a script puts into a wrapped model are not trained by each rank alone, in silence."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn

import parastrat
from parastrat.plan import Plan
from parastrat.runtime.wrapped import inner

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 32).view(4, 8)


class Adapted(nn.Module):
    """A layer with what is trained beside it, as low-rank adapters are."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.beside = layer, nn.Linear(8, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.beside(x)  # type: ignore[no-any-return]


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(x))  # type: ignore[no-any-return]


def stepped(chosen: Plan, *, head: bool) -> None:
    """Train what is put into the model later, by calls of what DDP or nobody holds."""
    torch.manual_seed(0)
    whole = parastrat.auto_parallelize(Whole(), plan=chosen, sample_inputs=X)
    module: Any = inner(whole)
    if head:
        module.out = added = nn.Linear(8, 2)
    else:
        # past what is divided
        module.blocks[0] = nn.Sequential(added := Adapted(nn.Linear(8, 16)), nn.Linear(16, 8))
    own = X if chosen.mesh.tp > 1 else X[2 * dist.get_rank() :][:2]
    optimizer = torch.optim.SGD(added.parameters(), lr=0.1)
    added(own).pow(2).mean().backward()
    optimizer.step()


PLANS = {"ddp": plan(dp_replicate=2), "fsdp2": plan(dp_shard=2), "tp": plan(tp=2, micro_batch_size=4)}


def everything() -> dict[str, Any]:
    return answers(
        {
            f"{name} {head}": partial(stepped, each, head=head)
            for name, each in PLANS.items()
            for head in (True, False)
        }
    )


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("strategy", PLANS)
def test_what_is_put_into_blocks_later_is_refused(ranks: list[dict[str, Any]], strategy: str) -> None:
    for found in ranks:
        assert "blocks.0.0.layer.weight was put into the model behind" in str(found[f"{strategy} False"])


def test_a_head_is_refused_where_ranks_see_other_samples(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["tp True"] is None
        for strategy in ("ddp", "fsdp2"):
            assert "out.weight was put into the model behind" in str(found[f"{strategy} True"])
