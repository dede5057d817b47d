"""Training state saved under one plan and loaded under any other."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from parastrat.errors import UsageError
from parastrat.runtime.silence import quiet_alone
from parastrat.runtime.tensors.slots import clean_name
from parastrat.runtime.training.first_ranks_buffers import equalise_buffers
from parastrat.runtime.wrapped import inner
from parastrat.runtime.wrapping import wrapping_of

if TYPE_CHECKING:
    from parastrat.runtime.pipeline.pipelined import Pipeline


def save_checkpoint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    path: str | Path,
    *,
    extra: dict[str, Any] | None = None,
) -> None:
    """Save weights, optimizer state and ``extra`` (step, scheduler) into a folder; all ranks call it.

    The names are those of the plain model, so that any plan, or plain torch, can load it. Buffers, such as
    running statistics, are rank 0's.

    Raises:
        UsageError: for a model that ``auto_parallelize`` did not return.
    """
    wrapping = wrapping_of(model)
    equalise_buffers(model)
    state = _state(model, optimizer)
    if wrapping.pipeline is not None and optimizer is not None:
        _name_all(state["optimizer"]["param_groups"], wrapping.pipeline)
    state["extra"] = dict(extra or {})
    if wrapping.loss_scale is not None:
        state["loss_scale"] = wrapping.loss_scale.state_dict()
    with quiet_alone():
        save(state, checkpoint_id=Path(path), no_dist=not dist.is_initialized())


def load_checkpoint(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, path: str | Path
) -> dict[str, Any]:
    """Load what ``save_checkpoint`` saved, under whatever plan; all ranks call it.

    Returns:
        The ``extra`` that was saved.

    Raises:
        UsageError: for a model that ``auto_parallelize`` did not return, or a path without checkpoint.
    """
    wrapping = wrapping_of(model)
    reader = FileSystemReader(Path(path))
    if not (Path(path) / ".metadata").is_file():
        raise UsageError(f"no checkpoint in {path}", hint="pass the folder that save_checkpoint wrote")
    stored = reader.read_metadata().state_dict_metadata
    state = _state(model, optimizer)
    state["extra"] = {name.removeprefix("extra."): None for name in stored if name.startswith("extra.")}
    if wrapping.loss_scale is not None and any(name.startswith("loss_scale") for name in stored):
        state["loss_scale"] = wrapping.loss_scale.state_dict()
    groups = state.get("optimizer", {}).get("param_groups", [])
    own = [group["params"] for group in groups]
    stateless = _take_stateless(state.get("optimizer", {}).get("state", {}), stored)
    with quiet_alone():
        load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    for group, names in zip(state.get("optimizer", {}).get("param_groups", []), own, strict=True):
        group["params"] = names  # what was saved names those of all pipeline stages
    # of a DDP torch would look for a part that has two names under its second one, without the wrapper's
    set_model_state_dict(inner(model), state["model"])
    if optimizer is not None:
        # strict, it would miss the states of parameters that no loss has reached
        options = StateDictOptions(strict=False)
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
        for name, parameter in inner(model).named_parameters(remove_duplicate=False):
            if clean_name(name) in stateless:
                optimizer.state.pop(parameter, None)
    if "loss_scale" in state and wrapping.loss_scale is not None:
        wrapping.loss_scale.load_state_dict(state["loss_scale"])
    extra: dict[str, Any] = state["extra"]
    return extra


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    weights, moments = get_state_dict(model, [] if optimizer is None else optimizer)
    return {"model": weights} if optimizer is None else {"model": weights, "optimizer": moments}


def _take_stateless(states: dict[str, Any], stored: Collection[str]) -> set[str]:
    """Take the states out that a checkpoint does not have; return their parameters.

    An optimizer makes none for what no loss has reached, and torch some for all as it is asked.
    """
    absent = {
        name
        for name, held in states.items()
        if held and not any(f"optimizer.state.{name}.{key}" in stored for key in held)
    }
    for name in absent:
        del states[name]
    return absent


def _name_all(groups: list[dict[str, Any]], pipeline: Pipeline) -> None:
    """Let the optimizer's groups name the parameters of all stages, as one process would save them."""
    every: list[Any] = [[]] * dist.get_world_size(pipeline.group)
    dist.all_gather_object(every, [group["params"] for group in groups], group=pipeline.group)
    for place, group in enumerate(groups):
        held = {name for stage in every for name in stage[place]}
        group["params"] = [
            name for name, _ in pipeline.skeleton.named_parameters(remove_duplicate=False) if name in held
        ]
