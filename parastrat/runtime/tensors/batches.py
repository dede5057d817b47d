"""A rank's share of a batch: splitting, counting, moving to the device, and calling a model with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map

from parastrat.errors import UsageError

if TYPE_CHECKING:
    from parastrat.plan import Plan

#: targets that losses leave out, by torch's convention
IGNORED = -100
#: ends of names of what is of samples and positions in forwards of transformers and of torch's layers,
#: where ``attn_mask`` is of positions alone
_OF_SAMPLES = ("attention_mask", "padding_mask", "token_type_ids")


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with all tensors on the device."""
    return tree_map(
        lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf, batch
    )


def batch_size(inputs: Any) -> int:
    """Return the length of the first tensor's first dimension.

    Raises:
        UsageError: without a tensor that has dimensions.
    """
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return int(leaf.shape[0])
    raise UsageError("the batch holds no tensor", hint="pass a tensor, a tuple or a dict of tensors")


def micro_batches(batch: Any, plan: Plan) -> list[Any]:
    """Split this rank's share into micro-batches of the plan's size; the last may be smaller.

    Tensors whose first dimension is not the batch (position ids of length 1) go to every micro-batch.

    Args:
        batch: inputs and targets.
        plan: of the model.

    Raises:
        UsageError: for more samples than the plan's share, or none; and for inputs of which nobody can tell
            whether they are cut.
    """
    samples = batch_size(batch)
    share = plan.micro_batch_size * plan.gradient_accumulation_steps
    if not 0 < samples <= share:
        raise UsageError(
            f"this rank got {samples} samples for one optimizer step; the plan has {share} "
            f"({plan.micro_batch_size} x {plan.gradient_accumulation_steps} accumulation steps)",
            hint=f"pass {share} samples per rank (global batch {plan.global_batch_size}), "
            "as parastrat.shard_dataloader does, or re-plan with --global-batch",
        )

    if samples > plan.micro_batch_size:
        _check_cuts(batch[0], samples)

    def part(start: int) -> Any:
        end = start + plan.micro_batch_size
        return tree_map(
            lambda leaf: (
                leaf[start:end]
                if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == samples
                else leaf
            ),
            batch,
        )

    return [part(start) for start in range(0, samples, plan.micro_batch_size)]


def _check_cuts(inputs: Any, samples: int) -> None:
    """Refuse inputs over positions where a sequence is as long as the batch: they look as those of samples.

    What has the shape and format of the first, as masks of padding have those of tokens, is of samples; so
    is what has a name that is for nothing else. A triangle is of positions, whatever its name.
    """
    found = [(path, leaf) for path, leaf in tree_flatten_with_path(inputs)[0] if _has_dimensions(leaf)]
    (_, first), *others = found
    if first.ndim == 1 or first.shape[1] != samples:
        return
    for path, leaf in others:
        name = str(getattr(path[-1], "key", "")) if path else ""
        is_square = leaf.ndim > 1 and leaf.shape[:2] == (samples, samples)
        is_like_first = leaf.shape == first.shape and leaf.dtype is first.dtype
        is_told = (is_like_first or name.endswith(_OF_SAMPLES)) and not _is_triangular(leaf)
        counts = leaf.ndim == 1 and torch.equal(leaf.cpu(), torch.arange(samples, dtype=leaf.dtype))
        if counts or (is_square and not is_told):
            raise UsageError(
                f"{samples} samples of {samples} positions, and {name or 'an input'} of shape "
                f"{tuple(leaf.shape)} beside them: it may be of samples, which micro-batches cut, or of "
                "positions",
                hint="give what is of positions a first dimension of 1, as mask[None], and what is of "
                "samples a second one, as mask[:, None], or, in a dict, a name such as padding_mask; or "
                "take another batch size",
            )


def _has_dimensions(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0


def _is_triangular(leaf: torch.Tensor) -> bool:
    """Return whether this is a causal mask of positions, in any format."""
    if leaf.ndim != 2 or leaf.shape[0] != leaf.shape[1]:
        return False
    seen, whole = leaf.detach().cpu().bool(), torch.ones(leaf.shape, dtype=torch.bool)
    return any(
        torch.equal(seen, each) for each in (whole.tril(), whole.tril(-1), whole.triu(), whole.triu(1))
    )


def target_count(targets: Any, ignored: int = IGNORED) -> int:
    """Return how many targets a mean loss divides by: all but the ignored class indices."""
    count = 0
    for leaf in tree_leaves(targets):
        if isinstance(leaf, torch.Tensor):
            integral = not (leaf.is_floating_point() or leaf.is_complex())
            count += int((leaf != ignored).sum().item()) if integral else leaf.numel()
    return count


def called(model: Any, inputs: Any) -> Any:
    """Call the model with a tensor, the items of a tuple, or the keywords of a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
