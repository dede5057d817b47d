"""A small copy of a model, with the same structure, to prove a layout on."""

from __future__ import annotations

import copy
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from parastrat.runtime.blocks import parameter_count, repeated_blocks
from parastrat.runtime.caches import without_caches
from parastrat.runtime.communication.mesh import RankMesh
from parastrat.runtime.first_values.initialise import Recipe, initialise
from parastrat.runtime.tensor_parallel.dropout import without_dropout
from parastrat.runtime.tensor_parallel.shrink import DEPTHS, LARGE, shrunk
from parastrat.runtime.tensors.slots import Slot, left_behind, meta_like, slots_of

if TYPE_CHECKING:
    from parastrat.runtime.first_values.replay import Record

#: equal blocks that are kept: what passes from one to the next is part of the proof
KEPT_BLOCKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The model to copy, and what is known of how it is called and built."""

    module: nn.Module
    #: one micro-batch as the user gave it; None: guessed from the model
    sample_inputs: Any
    #: how a callable built it; None for a module that was given
    record: Record | None
    device: torch.device
    #: over whose ranks it is divided
    axis: str = "tp"
    #: the plan divides the sequence too
    sequence: bool = False
    #: the plan leaves logits divided up to the loss
    loss: bool = False
    #: the blocks will be cut into pipeline stages
    stages: bool = False
    #: ranks of another axis have other positions, from the first block to the last
    positions: bool = False


def small_copies(source: Source, degree: int) -> Iterator[nn.Module]:
    """Yield copies on the device with random fp32 weights, the same on all ranks; the later the larger.

    A large Hugging Face model is built anew with small sizes and as many heads; what its inputs say may fit
    its own sizes alone, so that copies with these come next. Each has few blocks first. Forwards that
    count their blocks (``for i in range(self.depth)``) find none missing where these stand for the rest.
    Last come weights beside the model's own, where it has any: there may be a root of one.
    """
    sources = [source]
    if _parameters_kept(source.module) > LARGE:
        small = shrunk(source.module, degree)
        if small is not None:
            sources.insert(0, replace(source, module=small, record=None))
    for each in sources:
        yield _copied(each)
        if repeated_blocks(each.module).count > KEPT_BLOCKS:
            yield _copied(each, in_place=True)
    for each in sources:
        if not any(slot.is_meta for slot in slots_of(each.module)):
            yield _copied(each, beside=True)


def _parameters_kept(module: nn.Module) -> int:
    """Return how many parameters a copy with few blocks has, about."""
    blocks = repeated_blocks(module)
    inside = sum(parameter_count(block) for block in blocks.modules)
    kept = min(1.0, KEPT_BLOCKS / max(blocks.count, 1))
    return int(parameter_count(module) - inside * (1 - kept))


def _copied(source: Source, *, in_place: bool = False, beside: bool = False) -> nn.Module:
    """Return one of the copies.

    Args:
        source: of which.
        in_place: few blocks stand where the others were.
        beside: with weights close to those that the model has, not others.
    """
    parts: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in left_behind(source.module)}
    for slot in slots_of(source.module):
        anew = slot.is_parameter and not beside
        values = meta_like(slot.tensor) if anew else slot.tensor.detach().clone()
        parts[id(slot.tensor)] = slot.standing_for(values)
    few = copy.deepcopy(source.module, parts)
    few.train()
    _keep_few(few, in_place=in_place)
    slots = slots_of(few)
    without = [slot for slot in slots if slot.is_meta and not slot.is_parameter]
    if without:
        blocks = repeated_blocks(few).names
        recipe = Recipe(device=source.device, blocks=blocks, record=source.record, mesh=RankMesh())
        initialise(few, without, recipe)
    drawn = torch.Generator().manual_seed(0)
    for slot in slots:
        if slot.is_parameter:
            values = _beside(slot, drawn) if beside else _random(slot, drawn)
            slot.put(slot.standing_for(values.to(source.device)))
    without_caches(few)  # torch.export does not know all of their classes
    without_dropout(few)  # both sides would drop other values
    return few.to(source.device)


def skeleton(module: nn.Module, *, in_place: bool = False) -> nn.Module:
    """Return a copy with few blocks on the meta device, without caches and dropout: the structure alone.

    Args:
        module: on any device; it stays as it is.
        in_place: the few stand where the others were, for forwards that count them.
    """
    held = {id(tensor): tensor.detach().to("meta") for tensor in left_behind(module)}
    slots = slots_of(module)
    values = (slot.standing_for(meta_like(slot.tensor)) for slot in slots)
    few = copy.deepcopy(module, held | dict(zip((id(slot.tensor) for slot in slots), values, strict=True)))
    few.train()
    _keep_few(few, in_place=in_place)
    without_caches(few)
    without_dropout(few)
    return few


def _keep_few(module: nn.Module, *, in_place: bool) -> None:
    """Keep the first blocks of every kind in each list of blocks.

    Args:
        module: changed in place.
        in_place: let these, in turn, stand where the others were.
    """
    blocks = repeated_blocks(module)
    members = set(map(id, blocks.modules))
    for name in blocks.containers:
        container = module.get_submodule(name)
        if not isinstance(container, nn.ModuleList):
            continue
        kinds: defaultdict[Any, list[nn.Module]] = defaultdict(list)
        seen: Counter[Any] = Counter()
        kept = []
        for block in container:
            kind = (type(block), tuple((key, tuple(p.shape)) for key, p in block.named_parameters()))
            is_new = id(block) not in members or len(kinds[kind]) < KEPT_BLOCKS
            if is_new:
                kinds[kind].append(block)
            if is_new or in_place:
                kept.append(block if is_new else kinds[kind][seen[kind] % KEPT_BLOCKS])
            seen[kind] += 1
        before = len(container)
        del container[:]
        container.extend(kept)
        _state_depth(module, name, before, len(kept))


def _state_depth(module: nn.Module, container: str, before: int, after: int) -> None:
    """Let the config next to a list of blocks say how many there are: LLaVA counts layers from the last."""
    around = container.split(".")
    for depth in range(len(around) - 1, -1, -1):
        config = getattr(module.get_submodule(".".join(around[:depth])), "config", None)
        if config is None:
            continue
        for name in DEPTHS:
            if getattr(config, name, None) == before:
                # some are sums of others, and cannot be set
                with suppress(AttributeError, NotImplementedError):
                    setattr(config, name, after)
        return


def _random(slot: Slot, drawn: torch.Generator) -> torch.Tensor:
    """Return values in which every mistake shows: no zeros, no ones, outputs of ordinary size."""
    shape = slot.tensor.shape
    dtype = torch.complex64 if slot.tensor.is_complex() else torch.float32
    values = torch.randn(shape, generator=drawn, dtype=dtype)
    if len(shape) > 1:
        return values / math.sqrt(max(_inputs_of(slot), 1))
    centre = 1.0 if slot.name.endswith("weight") else 0.0
    spread: torch.Tensor = 0.3 * values
    return spread + centre


def _inputs_of(slot: Slot) -> int:
    """Return how many values a matrix of weights adds up, or a kernel, each times one of its elements."""
    shape, owner = slot.tensor.shape, slot.owners[0][0]
    if not isinstance(owner, _ConvNd):
        return shape[-1]
    # those that are transposed have their inputs first
    outputs = shape[1] if owner.transposed else shape[0]
    return slot.tensor.numel() // max(outputs, 1)


def _beside(slot: Slot, drawn: torch.Generator) -> torch.Tensor:
    """Return the values that are there, a little moved: none is zero or one, none has another sign."""
    own = slot.tensor.detach().cpu()
    own = own if own.is_complex() else own.float()
    moves = 0.1 * torch.randn(own.shape, generator=drawn, dtype=own.dtype)
    return torch.where(own == 0, 0.1 * moves, own * (1 + moves))
