"""What a script sets on DDP is not taken for the module's, without a word."""

from __future__ import annotations

from typing import Any

import pytest
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import parastrat


class Annealed(nn.Linear):
    temperature = 1.0


def set_on_both() -> dict[str, Any]:
    model: Any = parastrat.auto_parallelize(Annealed(2, 2), plan=plan(dp_replicate=2))
    model.module.temperature = 3.0
    model.note = 1  # which the module has not
    model.require_backward_grad_sync = True
    found = answers({"annealed": lambda: setattr(model, "temperature", 2.0)})
    return found | {
        "kept": (model.module.temperature, model.note),
        "is ddp": isinstance(model, DistributedDataParallel),
    }


@pytest.mark.slow
def test_attributes_of_the_module_are_not_set_on_ddp() -> None:
    for found in on_ranks(2, set_on_both):
        assert found["annealed"].startswith("temperature is an attribute of the Annealed inside of DDP")
        assert found["kept"] == (3.0, 1)
        assert found["is ddp"]
