"""A stage's forward asks parts that other stages hold for their device and format."""

from __future__ import annotations

import pytest
import torch
from runtime.models import plan
from runtime.pipeline.stages import several
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import PipelineSchedule

SCHEDULES = {
    "1F1B": {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B},
    "ZBV": several(PipelineSchedule.ZBV),
}


class Asking(nn.Module):
    """Moves its input to where a part is, as Hugging Face's models do by ``part.device``."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleDict({name: nn.Sequential(nn.Linear(8, 8)) for name in ("sound", "image")})
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (*self.towers.values(), *self.layers):
            held = next(part.parameters())
            x = x.to(held.device, held.dtype)
        for layer in self.layers:
            x = layer(x)
        return x


def _model() -> nn.Module:
    torch.manual_seed(0)
    return Asking()


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(4, 8, generator=draw), torch.randint(8, (4,), generator=draw)


def _losses() -> dict[str, tuple[float, int]]:
    found = {}
    for name, fields in SCHEDULES.items():
        model = parastrat.auto_parallelize(
            _model(), plan=plan(gradient_accumulation_steps=2, **fields), sample_inputs=_batch()[0]
        )
        loss = parastrat.forward_backward(model, *_batch(), loss_fn=functional.cross_entropy)
        found[name] = loss.item(), sum(1 for part in model.modules() if "parameters" in vars(part))
    return found


@pytest.mark.slow
def test_parts_of_other_stages_show_what_stands_in_for_their_parameters() -> None:
    x, y = _batch()
    expected = functional.cross_entropy(_model()(x), y).item()
    for found in on_ranks(2, _losses):
        assert set(found) == set(SCHEDULES)
        for loss, left in found.values():
            assert loss == pytest.approx(expected, abs=1e-6)
            assert left == 0
