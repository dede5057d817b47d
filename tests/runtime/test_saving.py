"""What a script saves of a divided model, or wraps once more: it is told what it would lose."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.models import Gpt, plan
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.parallel import DistributedDataParallel

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import PipelineSchedule, Plan

pytestmark = pytest.mark.slow

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
PLANS = {
    "ddp": plan(dp_replicate=2),
    "fsdp2": plan(dp_shard=2),
    "tp": plan(tp=2),
    "pp": plan(pp=2, gradient_accumulation_steps=2, pp_schedule=PipelineSchedule.ONE_F_ONE_B),
}


class Hub(Gpt):
    """It writes itself, as transformers' models do."""

    def save_pretrained(self, folder: Path, state_dict: dict[str, Any] | None = None) -> None:
        torch.save(self.state_dict() if state_dict is None else state_dict, folder / "model.pt")


def wrapped(chosen: Plan, model: nn.Module) -> nn.Module:
    example = torch.zeros(1, 8, dtype=torch.int64)
    return parastrat.auto_parallelize(model, plan=chosen, sample_inputs=example)


def told(saved: object) -> list[str]:
    """Return what is said as rank 0 saves something, as scripts do."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.save(saved() if callable(saved) else saved, io.BytesIO())
    return [str(each.message) for each in caught]


def of_weights(chosen: Plan) -> list[str]:
    model = wrapped(chosen, Gpt())
    found = told(model.state_dict) if torch.distributed.get_rank() == 0 else []
    parts = get_model_state_dict(model, options=WHOLE)
    found += [f"whole: {each}" for each in told(parts)]
    return found


@pytest.mark.parametrize("strategy", PLANS)
def test_shards_that_one_rank_saves_are_told(strategy: str) -> None:
    first, second = on_ranks(2, of_weights, PLANS[strategy])
    assert second == []
    if strategy == "ddp":
        assert first == []
        return
    assert len(first) >= 1
    assert all("parastrat.save_checkpoint(model, optimizer, folder) on all ranks" in each for each in first)
    said = "state_dict() on rank 0 has" if strategy == "pp" else "torch.save writes what rank 0 has"
    assert all(each.startswith(said) for each in first)


def of_states(chosen: Plan, folder: Path) -> list[str]:
    """Return what is said of an optimizer's states, and as parastrat saves all of it."""
    model = wrapped(chosen, Gpt())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 8, dtype=torch.int64)).sum().backward()
    optimizer.step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parastrat.save_checkpoint(model, optimizer, folder)
    assert not [each for each in caught if "rank" in str(each.message)]
    return told(optimizer.state_dict())


def test_shards_of_states_are_told_and_a_checkpoint_is_not(tmp_path: Path) -> None:
    for found in on_ranks(2, of_states, PLANS["fsdp2"], tmp_path):
        assert found
        assert all("has of each divided tensor" in each for each in found)


def of_itself(chosen: Plan, folder: Path) -> str:
    """Return how a model's own way to save itself is refused; it saves what was brought together."""
    model: Any = wrapped(chosen, Hub())
    own = getattr(model, "module", model)
    message = ""
    try:
        own.save_pretrained(folder)
    except WrapError as error:
        message = f"{error} {error.hint}"
    parastrat.save_checkpoint(model, None, folder / "checkpoint")
    state = get_model_state_dict(model, options=WHOLE)
    if torch.distributed.get_rank() == 0:
        if chosen.mesh.pp > 1:
            with pytest.raises(WrapError):
                own.save_pretrained(folder, state_dict=state)
            dcp_to_torch_save(folder / "checkpoint", folder / "whole.pt")
            state = torch.load(folder / "whole.pt")["model"]
        own.save_pretrained(folder, state_dict=state)
    return message


@pytest.mark.parametrize("strategy", PLANS)
def test_a_divided_model_does_not_write_a_part_of_itself(strategy: str, tmp_path: Path) -> None:
    messages = on_ranks(2, of_itself, PLANS[strategy], tmp_path)
    if strategy == "ddp":
        assert messages == ["", ""]
    else:
        said = (
            "dcp_to_torch_save" if strategy == "pp" else "save_pretrained(folder, state_dict=state) on one"
        )
        for message in messages:
            assert message.startswith("save_pretrained would write what this rank has of a divided model")
            assert said in message
    saved = torch.load(tmp_path / "model.pt")
    Hub().load_state_dict({name.removeprefix("module."): value for name, value in saved.items()})


def again(chosen: Plan) -> list[str]:
    """Return how a second wrapping is refused, of the model and of what has it inside."""
    model = wrapped(chosen, Gpt())
    found = []
    for outer in (model, nn.Sequential(model)):
        try:
            DistributedDataParallel(outer)
        except WrapError as error:
            found.append(f"{error} {error.hint}")
    # others may be wrapped as ever
    DistributedDataParallel(nn.Linear(2, 2))
    return found


@pytest.mark.parametrize("strategy", PLANS)
def test_a_model_is_wrapped_once(strategy: str) -> None:
    for found in on_ranks(2, again, PLANS[strategy]):
        assert len(found) == 2
        for message in found:
            assert f"wrapped already, as {PLANS[strategy].strategy}, and Distributed" in message
            assert "emit plan.toml --to accelerate" in message
