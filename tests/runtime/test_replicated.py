"""What a script sets on DDP is not taken for the module's, without a word."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import parastrat


class Annealed(nn.Linear):
    temperature = 1.0

    def no_weight_decay(self) -> set[str]:
        return {"weight"}


class Hidden:
    """Says how many blocks run, where nobody sees it."""

    count = 2


class Shorter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.hidden = nn.ModuleList(nn.Linear(2, 2) for _ in range(2)), Hidden()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in list(self.blocks)[: self.hidden.count]:
            x = block(x)
        return x


def shortened(*, replaced: bool) -> None:
    """Leave a part out behind the first step, and be told in the third."""
    model: Any = parastrat.auto_parallelize(Shorter(), plan=plan(dp_replicate=2))
    for step in range(3):
        if step and replaced:
            model.module.blocks[1] = nn.Identity()
        elif step:
            model.module.hidden.count = 1
        model(torch.ones(2, 2)).sum().backward()


def missed(model: nn.Module, name: str) -> str:
    try:
        return str(getattr(model, name))
    except AttributeError as error:
        return f"AttributeError: {error}"


def set_on_both() -> dict[str, Any]:
    model: Any = parastrat.auto_parallelize(Annealed(2, 2), plan=plan(dp_replicate=2))
    model.module.temperature = 3.0
    model.note = 1  # which the module has not
    model.require_backward_grad_sync = True
    found = answers(
        {
            "annealed": lambda: setattr(model, "temperature", 2.0),
            "decay": lambda: hasattr(model, "no_weight_decay"),
            "rates": lambda: hasattr(model, "group_matcher"),
            "shortened": partial(shortened, replaced=False),
            "replaced": partial(shortened, replaced=True),
        }
    )
    return found | {
        "kept": (model.module.temperature, model.note),
        "is ddp": isinstance(model, DistributedDataParallel),
        "asked": [missed(model, name) for name in ("in_features", "nothing")],
    }


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, set_on_both)


@pytest.mark.slow
def test_what_optimizers_ask_models_for_is_not_hidden(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "asks the model for no_weight_decay, which DDP hides" in found["decay"]
        assert found["rates"] is False


@pytest.mark.slow
def test_parts_that_are_left_out_later_are_told(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "the last backward did not reach all parameters" in found["shortened"]
        assert "blocks.1.weight is not the parameter that auto_parallelize saw" in found["replaced"]


@pytest.mark.slow
def test_attributes_of_the_module_are_not_set_on_ddp(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["annealed"].startswith("temperature is an attribute of the Annealed inside of DDP")
        assert found["kept"] == (3.0, 1)
        assert found["is ddp"]


@pytest.mark.slow
def test_attributes_of_the_module_are_said_to_be_inside(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        inside, nowhere = found["asked"]
        assert inside.startswith(
            "AttributeError: in_features is an attribute of the Annealed inside of DDP"
        )
        assert nowhere == "AttributeError: 'Replicated' object has no attribute 'nothing'"
