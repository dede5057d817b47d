"""The inputs that a layout is proven with, on a small copy of the model."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.errors import ModelError, WrapError
from parastrat.runtime.tensor_parallel.copies import Source
from parastrat.runtime.tensors.batches import called, to_device
from parastrat.runtime.tracing.example_inputs import example_inputs, made, own_inputs, resized

#: samples and tokens of the proof's batch
SAMPLES, TOKENS = 2, 8


def batch_for(source: Source, few: nn.Module, degree: int) -> Any:
    """Return inputs for the copy: ids and values at random, but those that differ of the user's own.

    Raises:
        WrapError: if nobody knows what the model takes.
    """
    length = degree * max(TOKENS // degree, 2)
    given = source.sample_inputs
    if given is not None:
        return _telling(few, to_device(_cut(given, length), source.device))
    own = own_inputs(few)
    try:
        if own is not None:
            return _telling(few, to_device(made(own, SAMPLES, length), source.device))
        batch = made(example_inputs(few, None).make, SAMPLES, length)
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


def whole_batch_for(source: Source, few: nn.Module, _degree: int) -> Any:
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

    Ids past the rows of a copy with small sizes begin again at its first. Both hold for labels and for what
    an embedding or another layer reads as it was given: masks and the like mean something.
    """
    batch = _with_labels_within(few, batch)
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.numel() > 1]
    rows = min((part.num_embeddings for part in few.modules() if isinstance(part, nn.Embedding)), default=0)
    looked_at = [leaf for leaf in leaves if _is_alike(leaf) or _has_ids_from(leaf, rows)]
    if not looked_at:
        return batch
    trial = copy.deepcopy(few)  # a forward may leave tensors in the module
    drawn = torch.Generator().manual_seed(2)
    anew: dict[int, torch.Tensor] = {}

    def read(part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not args or not isinstance(args[0], torch.Tensor):
            return None
        for leaf in looked_at:
            if args[0].data_ptr() != leaf.data_ptr():
                continue
            if isinstance(part, nn.Embedding) and not leaf.is_floating_point():
                held = part.num_embeddings
                fresh = torch.randint(held, leaf.shape, generator=drawn).to(leaf)
                ids = fresh if _is_alike(leaf) else leaf % held
                anew[id(leaf)] = torch.minimum(ids, anew.get(id(leaf), ids))  # several may read it
                return (args[0] % held, *args[1:])
            if leaf.is_floating_point() and _is_alike(leaf):
                anew[id(leaf)] = torch.randn(leaf.shape, generator=drawn).to(leaf)
        return None

    for part in trial.modules():
        if any(True for _ in part.parameters(recurse=False)):
            part.register_forward_pre_hook(read)
    with torch.no_grad():
        called(trial, batch)
    return tree_map(lambda leaf: anew.get(id(leaf), leaf), batch)


def _with_labels_within(few: nn.Module, batch: Any) -> Any:
    """Return the batch of a Hugging Face model with labels that the copy's logits have."""
    labels = batch.get("labels") if isinstance(batch, dict) and hasattr(few, "config") else None
    rows = _vocabulary(few)
    if not isinstance(labels, torch.Tensor) or not _has_ids_from(labels, rows):
        return batch
    return {**batch, "labels": torch.where(labels < 0, labels, labels % rows)}  # negative: to ignore


def _has_ids_from(leaf: torch.Tensor, rows: int) -> bool:
    """Return whether these may be ids, of which some are past so many rows."""
    return not leaf.is_floating_point() and not leaf.is_complex() and bool((leaf >= rows).any())


def _is_alike(leaf: torch.Tensor) -> bool:
    return bool((leaf == leaf.flatten()[0]).all())


def _vocabulary(module: nn.Module) -> int:
    """Return how many ids every input may have."""
    config: Any = getattr(module, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    stated = getattr(config, "vocab_size", None)
    if isinstance(stated, int):
        return stated
    rows = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    return rows[0] if rows else 2
