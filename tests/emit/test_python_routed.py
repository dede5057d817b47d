"""``parallelize.py`` for models with routed experts: ranks whose tokens chose others reduce alike."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from parastrat.emit import EMITTERS, Target
from parastrat.plan import Mesh, Shard
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case
    from parastrat.hardware import Device

FSDP = {"mesh": Mesh(dp_shard=2)}
DDP = {"mesh": Mesh(dp_replicate=2), "shard": Shard.NONE}


class Layer(nn.Module):
    """Each sample goes to one of three experts; the last one never sees any."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))

    def forward(self, x: torch.Tensor, chosen: list[int]) -> torch.Tensor:
        x = self.norm(x)
        return torch.stack([self.experts[place](row) for place, row in zip(chosen, x, strict=True)])


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = [int(sample.mean() > 0) for sample in x]
        for layer in self.layers:
            x = layer(x, chosen)
        return x


def gradients(text: str) -> dict[str, torch.Tensor]:
    """Return what emitted code leaves of two samples, one on each rank; without code, of both here."""
    torch.manual_seed(0)
    model: nn.Module = Routed()
    x, y = torch.tensor([[1.0, 2, 3, 5], [-4, -3, -2, 1]]), torch.arange(2)
    if text:
        names: dict[str, Any] = {}
        exec(compile(text, "parallelize.py", "exec"), names)  # noqa: S102 - the emitted code is what is tested
        model = names["parallelize"](model, names["build_mesh"]())
        own = slice(dist.get_rank(), dist.get_rank() + 1)
        x, y = x[own], y[own]
    functional.cross_entropy(model(x), y).backward()
    found = {
        name.removeprefix("module."): parameter.grad.full_tensor()
        if isinstance(parameter.grad, DTensor)
        else parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {name: gradient for name, gradient in found.items() if gradient.any()}


def text_of(case: Case, **known: Any) -> str:
    model = SimpleNamespace(ref="routed", parameters=1, layers=2, changing_buffers=False, **known)
    (file,) = EMITTERS[Target.PYTHON](replace(case, model=model))  # type: ignore[arg-type]
    return file.text


@pytest.mark.slow
@pytest.mark.parametrize("fields", [FSDP, DDP], ids=["fsdp2", "ddp"])
def test_ranks_that_chose_other_experts_reduce_alike(
    fields: dict[str, Any], case_of: Callable[..., Case], cpu_device: Device
) -> None:
    alone = gradients("")
    assert {"layers.0.experts.0.0.weight", "layers.1.experts.1.0.weight"} <= alone.keys()
    case = case_of(ranks=2, device=cpu_device, precision=Precision.FP32, **fields)
    for rank in on_ranks(2, gradients, text_of(case, routed=True)):
        assert rank.keys() == alone.keys()
        for name, gradient in rank.items():
            torch.testing.assert_close(gradient, alone[name])


@pytest.mark.parametrize("fields", [FSDP, DDP], ids=["fsdp2", "ddp"])
def test_says_it_where_tokens_choose_or_nobody_knows(
    fields: dict[str, Any], case_of: Callable[..., Case]
) -> None:
    said = ("find_unused_parameters", "set_reduce_scatter_unused_params")
    texts = {routed: text_of(case_of(ranks=2, **fields), routed=routed) for routed in (True, None, False)}
    assert texts[True] == texts[None]
    assert any(word in texts[True] for word in said)
    assert not any(word in texts[False] for word in (*said, "expert(", "routed"))
