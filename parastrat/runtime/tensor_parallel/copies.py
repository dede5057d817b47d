"""A small copy of a model, with the same structure, to prove a layout on."""

from __future__ import annotations

import copy
import inspect
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.errors import ModelError, WrapError
from parastrat.runtime.blocks import parameter_count, repeated_blocks
from parastrat.runtime.caches import without_caches
from parastrat.runtime.initialise import Recipe, initialise
from parastrat.runtime.mesh import RankMesh
from parastrat.runtime.slots import Slot, left_behind, slots_of
from parastrat.runtime.tensor_parallel.dropout import without_dropout
from parastrat.runtime.tensor_parallel.shrink import LARGE, shrunk
from parastrat.runtime.tracing.example_inputs import example_inputs, made, resized
from parastrat.runtime.training.batches import called, to_device

if TYPE_CHECKING:
    from parastrat.runtime.replay import Record

#: equal blocks that are kept: what passes from one to the next is part of the proof
KEPT_BLOCKS = 2
#: samples and tokens of the proof's batch
SAMPLES, TOKENS = 2, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The model to copy, and what is known of how it is called and built."""

    module: nn.Module
    #: one micro-batch as the user gave it; None: guessed from the model
    sample_inputs: Any
    #: how a callable built it; None for a module that was given
    record: Record | None
    device: torch.device
    #: the plan divides the sequence too
    sequence: bool = False
    #: the plan leaves logits divided up to the loss
    loss: bool = False
    #: the blocks will be cut into pipeline stages
    stages: bool = False


def small_copy(source: Source, degree: int) -> nn.Module:
    """Return a copy on the device with few blocks and random fp32 weights, the same on all ranks.

    A large Hugging Face model is built anew with small sizes and as many heads; others keep their sizes.
    """
    small = None
    if _parameters_kept(source.module) > LARGE:
        small = shrunk(source.module, degree)
    return _with_few_blocks(source if small is None else replace(source, module=small, record=None))


def _parameters_kept(module: nn.Module) -> int:
    """Return how many parameters a copy with few blocks has, about."""
    blocks = repeated_blocks(module)
    inside = sum(parameter_count(block) for block in blocks.modules)
    kept = min(1.0, KEPT_BLOCKS / max(blocks.count, 1))
    return int(parameter_count(module) - inside * (1 - kept))


def _with_few_blocks(source: Source) -> nn.Module:
    parts: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in left_behind(source.module)}
    for slot in slots_of(source.module):
        values = torch.empty_like(slot.tensor, device="meta") if slot.is_parameter else slot.tensor.clone()
        parts[id(slot.tensor)] = slot.standing_for(values)
    few = copy.deepcopy(source.module, parts)
    few.train()
    _drop_blocks(few)
    slots = slots_of(few)
    without = [slot for slot in slots if slot.is_meta and not slot.is_parameter]
    if without:
        blocks = repeated_blocks(few).names
        recipe = Recipe(device=source.device, blocks=blocks, record=source.record, mesh=RankMesh())
        initialise(few, without, recipe)
    drawn = torch.Generator().manual_seed(0)
    for slot in slots:
        if slot.is_parameter:
            slot.put(slot.standing_for(_random(slot, drawn).to(source.device)))
    without_caches(few)  # torch.export does not know all of their classes
    without_dropout(few)  # both sides would drop other values
    return few.to(source.device)


def batch_for(source: Source, few: nn.Module, degree: int) -> Any:
    """Return inputs for the copy: ids and values at random, but those that the user gave and that differ.

    Raises:
        WrapError: if nobody knows what the model takes.
    """
    length = degree * max(TOKENS // degree, 2)
    given = source.sample_inputs
    if given is not None:
        return _telling(few, to_device(_cut(given, length), source.device))
    try:
        example = example_inputs(few, None)
        batch = made(example.make, SAMPLES, length)
    except ModelError as error:
        raise WrapError(
            f"tensor parallelism is proven before it is used, and {error.message}",
            hint="pass sample_inputs= to auto_parallelize: one micro-batch as the forward takes it",
        ) from error
    if isinstance(batch, dict) and hasattr(few, "config"):
        labels = batch.pop("labels", None)  # the logits say more than the loss
        if labels is not None and getattr(few.config, "is_encoder_decoder", False):
            batch["decoder_input_ids"] = labels
        if "use_cache" in inspect.signature(few.forward).parameters:
            batch["use_cache"] = False
    rows = _vocabulary(few)
    drawn = torch.Generator().manual_seed(2)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.is_floating_point():
            return torch.randn(leaf.shape, generator=drawn).to(source.device)
        return torch.randint(rows, leaf.shape, generator=drawn).to(source.device)

    return tree_map(filled, batch)


def whole_batch_for(source: Source, few: nn.Module) -> Any:
    """Return the first samples that the user gave, as long as they are: some forwards take one length."""
    return _telling(few, to_device(_cut(source.sample_inputs, None), source.device))


def _cut(batch: Any, length: int | None) -> Any:
    """Return the first samples of the user's micro-batch, with their own values; None: all of each."""
    like = resized(batch)(SAMPLES, length)

    def part(whole: Any, wanted: Any) -> Any:
        if not isinstance(whole, torch.Tensor) or whole.shape == wanted.shape:
            return whole
        if any(have < want for have, want in zip(whole.shape, wanted.shape, strict=True)):
            repeats = [-(-want // have) for have, want in zip(whole.shape, wanted.shape, strict=True)]
            whole = whole.repeat(repeats)
        # contiguous, as the user's own is: forwards may view it
        return whole[tuple(slice(size) for size in wanted.shape)].contiguous()

    return tree_map(part, batch, like)


def _telling(few: nn.Module, batch: Any) -> Any:
    """Draw anew what is the same everywhere, such as ids that are all 0: a lost position would not show.

    Only what an embedding or another layer reads as it was given: masks and the like mean something.
    """
    alike = {id(leaf): leaf for leaf in tree_leaves(batch) if _is_alike(leaf)}
    if not alike:
        return batch
    trial = copy.deepcopy(few)  # a forward may leave tensors in the module
    drawn = torch.Generator().manual_seed(2)
    anew: dict[int, torch.Tensor] = {}

    def read(part: nn.Module, args: tuple[Any, ...]) -> None:
        for key, leaf in alike.items():
            if not args or not isinstance(args[0], torch.Tensor) or args[0].data_ptr() != leaf.data_ptr():
                continue
            if leaf.is_floating_point():
                anew[key] = torch.randn(leaf.shape, generator=drawn).to(leaf)
            elif isinstance(part, nn.Embedding):
                ids = torch.randint(part.num_embeddings, leaf.shape, generator=drawn).to(leaf)
                anew[key] = torch.minimum(ids, anew.get(key, ids))  # several may read it

    for part in trial.modules():
        if any(True for _ in part.parameters(recurse=False)):
            part.register_forward_pre_hook(read)
    with torch.no_grad():
        called(trial, batch)
    return tree_map(lambda leaf: anew.get(id(leaf), leaf), batch)


def _is_alike(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.numel() > 1 and bool((leaf == leaf.flatten()[0]).all())


def skeleton(module: nn.Module) -> nn.Module:
    """Return a copy with few blocks on the meta device, without caches and dropout: the structure alone."""
    held = {id(tensor): tensor.detach().to("meta") for tensor in left_behind(module)}
    slots = slots_of(module)
    values = (slot.standing_for(torch.empty_like(slot.tensor, device="meta")) for slot in slots)
    few = copy.deepcopy(module, held | dict(zip((id(slot.tensor) for slot in slots), values, strict=True)))
    few.train()
    _drop_blocks(few)
    without_caches(few)
    without_dropout(few)
    return few


def _drop_blocks(module: nn.Module) -> None:
    """Keep the first blocks of every kind in each list of blocks."""
    blocks = repeated_blocks(module)
    members = set(map(id, blocks.modules))
    for name in blocks.containers:
        container = module.get_submodule(name)
        if not isinstance(container, nn.ModuleList):
            continue
        seen: Counter[Any] = Counter()
        kept = []
        for block in container:
            shapes = tuple((key, tuple(p.shape)) for key, p in block.named_parameters())
            seen[type(block), shapes] += 1
            if id(block) not in members or seen[type(block), shapes] <= KEPT_BLOCKS:
                kept.append(block)
        del container[:]
        container.extend(kept)


def _random(slot: Slot, drawn: torch.Generator) -> torch.Tensor:
    """Return values in which every mistake shows: no zeros, no ones, outputs of ordinary size."""
    shape = slot.tensor.shape
    dtype = torch.complex64 if slot.tensor.is_complex() else torch.float32
    values = torch.randn(shape, generator=drawn, dtype=dtype)
    if len(shape) > 1:
        return values / math.sqrt(max(shape[-1], 1))
    centre = 1.0 if slot.name.endswith("weight") else 0.0
    spread: torch.Tensor = 0.3 * values
    return spread + centre


def _vocabulary(module: nn.Module) -> int:
    """Return how many ids every input may have."""
    config: Any = getattr(module, "config", None)
    stated = getattr(config, "vocab_size", None)
    if isinstance(stated, int):
        return stated
    rows = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    return rows[0] if rows else 2
