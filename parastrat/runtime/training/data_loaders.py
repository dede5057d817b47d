"""A rank's share of a data loader's samples, in the same order on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from parastrat.errors import UsageError
from parastrat.runtime.communication.agreement import alike, from_first, shared_seed
from parastrat.runtime.training.streams import Collation, ShareOfStream, StreamLoader
from parastrat.runtime.wrapping import latest_wrapping


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
