"""A rank's share of a batch: splitting, counting, moving to the device, and loading it alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from parastrat.errors import UsageError
from parastrat.runtime.agreement import alike, from_first, shared_seed
from parastrat.runtime.training.streams import Collation, ShareOfStream, StreamLoader
from parastrat.runtime.wrapping import latest_wrapping

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


def shard_dataloader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of this rank's share of every optimizer step, for the last model that was wrapped.

    The plan sets the batch: each item has ``micro_batch_size x gradient_accumulation_steps`` samples, and
    the shares of all data-parallel ranks make up one global batch, in the order of the loader's sampler
    (rank 0's random order). Ranks with the same data coordinate get the same samples. A last incomplete
    global batch is dropped if ``loader.drop_last``, else divided evenly; if it is too small to give each
    rank a sample, it is dropped with a warning.

    Args:
        loader: Over the whole dataset, as for one process. Of an ``IterableDataset`` every rank reads all
            samples and keeps its own: it must give the same ones in one order on all ranks; ``len`` of what
            is returned is known where that of the stream is.

    Raises:
        UsageError: if no model was wrapped, or the loader does not batch.
        MismatchError: while iterating, if ranks draw or read other samples first.
    """
    wrapping = latest_wrapping()
    plan = wrapping.plan
    if isinstance(loader.sampler, DistributedSampler):
        raise UsageError(
            "the loader's DistributedSampler has only one rank's samples, which would be divided again",
            hint="leave it out: pass a DataLoader over all samples, with shuffle=True or a sampler of them",
        )
    share = plan.micro_batch_size * plan.gradient_accumulation_steps
    if loader.batch_size is None:
        raise UsageError(
            "this DataLoader batches by itself (no batch_size), but the plan sets the batch",
            hint="pass a DataLoader with a batch_size and, if need be, a sampler",
        )
    if isinstance(loader.dataset, IterableDataset):
        stream = ShareOfStream(
            loader.dataset, wrapping.mesh.dp_rank, plan.mesh.dp, share, drop_last=loader.drop_last
        )
        kept = kept_by(loader) | {"collate_fn": Collation(loader.collate_fn)}
        return StreamLoader(stream, batch_size=share, drop_last=loader.drop_last, **kept)
    sampler = ShareSampler(
        loader.sampler,
        rank=wrapping.mesh.dp_rank,
        ranks=plan.mesh.dp,
        share=share,
        drop_last=loader.drop_last,
    )
    return rebuilt(loader, dataset=loader.dataset, batch_sampler=sampler)


class ShareSampler:
    """One rank's indices of every global batch."""

    def __init__(self, order: Iterable[int], *, rank: int, ranks: int, share: int, drop_last: bool) -> None:
        self._order = order
        self._rank, self._ranks, self._share, self._drop_last = rank, ranks, share, drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self._order), self._share * self._ranks)  # type: ignore[arg-type]
        return whole + int(not self._drop_last and rest >= self._ranks)

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        is_first = dist.is_initialized()
        for index in same_order(self._order):
            batch.append(index)
            if len(batch) == self._share * self._ranks:
                if is_first:
                    # samplers of other makes may draw from what nobody could make alike
                    alike(str(batch), "draw other samples first: a sampler does not draw by torch's seed")
                    is_first = False
                yield batch[self._rank * self._share : (self._rank + 1) * self._share]
                batch = []
        if not batch or self._drop_last:
            return
        if len(batch) < self._ranks:
            warnings.warn(
                f"the last {len(batch)} samples are left out: there are {self._ranks} data-parallel ranks",
                stacklevel=2,
            )
            return
        yield batch[self._rank :: self._ranks]


def same_order(order: Any) -> Iterator[Any]:
    """Iterate a sampler in rank 0's random order.

    torch's samplers draw one seed for an epoch as they begin, from their generator or the global one.
    """
    if not dist.is_initialized():
        yield from order
        return
    sampler = getattr(order, "sampler", order)  # a batch sampler has one
    generator = getattr(sampler, "generator", None)
    if generator is not None:
        generator.set_state(from_first(generator.get_state))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shared_seed())
        remaining = iter(order)
        first = next(remaining, None)
    if first is not None:
        yield first
        yield from remaining


def called(model: Any, inputs: Any) -> Any:
    """Call the model with a tensor, the items of a tuple, or the keywords of a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def rebuilt(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return a loader with the same workers and collation, but other samples."""
    return DataLoader(**kept_by(loader), **changes)


def kept_by(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the workers and the collation of a loader, as arguments of another."""
    kept = (
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "generator",
        "prefetch_factor",
        "persistent_workers",
    )
    return {name: getattr(loader, name) for name in kept}
