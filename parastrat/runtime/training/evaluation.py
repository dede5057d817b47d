"""A metric over a whole data set, each sample counted once whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from parastrat.errors import UsageError
from parastrat.runtime.communication.told import Told
from parastrat.runtime.tensors.batches import called, target_count, to_device
from parastrat.runtime.tensors.leaves import as_tree
from parastrat.runtime.training.data_loaders import rebuilt, same_order
from parastrat.runtime.training.first_ranks_buffers import equalise_buffers
from parastrat.runtime.wrapping import wrapping_of

if TYPE_CHECKING:
    from parastrat.runtime.wrapping import Wrapping

Metric = Callable[[Any, Any], torch.Tensor]


def evaluate(model: nn.Module, loader: Iterable[Any], metric_fn: Metric) -> float:
    """Return the mean of a metric over all that ``loader`` yields, the same on every rank.

    The ranks take turns with the batches. Sharded models need all ranks in every forward, so a rank
    without a batch in the last round repeats one with weight zero; no sample is counted twice or left out.
    All ranks evaluate with rank 0's buffers, such as running statistics.

    Args:
        model: What ``auto_parallelize`` returned. Evaluated in eval mode without gradients, then put back.
        loader: Over the whole data set, as for one process, in the same order on all ranks; yields
            ``(inputs, targets)``, or a dict for the forward with ``labels`` among it.
        metric_fn: ``metric_fn(output, targets)``: one value per sample (or target), or their mean over
            all targets but the ignored class index -100.

    Raises:
        UsageError: if the loader yields nothing.
        MismatchError: if another rank failed, naming it, and with what.
    """
    with Told():
        return _mean(model, loader, metric_fn)


def _mean(model: nn.Module, loader: Iterable[Any], metric_fn: Metric) -> float:
    wrapping = wrapping_of(model)
    pipeline = wrapping.pipeline
    equalise_buffers(model)
    sums = torch.zeros(2, dtype=torch.float64)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch, counts in _turns(loader, wrapping):
                inputs, targets = (batch, batch.get("labels")) if isinstance(batch, Mapping) else batch
                inputs = to_device(as_tree(inputs), wrapping.device)
                output = called(model, inputs) if pipeline is None else pipeline.evaluate(inputs)
                if pipeline is not None and not pipeline.holds_last:
                    continue
                values = metric_fn(output, to_device(targets, wrapping.device))
                if counts:
                    number = values.numel() if values.ndim else target_count(targets)
                    total = values.double().sum().item() * (1 if values.ndim else number)
                    sums += torch.tensor([total, number], dtype=torch.float64)
    finally:
        model.train(training)
    sums = sums.to(wrapping.device)
    wrapping.mesh.sum_over_data(sums)
    if pipeline is not None:
        pipeline.sum_over_stages(sums)
    total, number = sums.tolist()
    if number == 0:
        raise UsageError(
            "there was nothing to evaluate", hint="pass a loader that yields batches with targets"
        )
    return float(total / number)


def _turns(loader: Iterable[Any], wrapping: Wrapping) -> Iterator[tuple[Any, bool]]:
    """Yield this rank's batches, as many on every rank, each with whether it counts."""
    rank, ranks = wrapping.mesh.dp_rank, wrapping.plan.mesh.dp
    if (
        isinstance(loader, DataLoader)
        and loader.batch_sampler
        and not isinstance(loader.dataset, IterableDataset)
    ):
        own = _Turns(list(_batches(loader)), rank, ranks)
        yield from zip(rebuilt(loader, dataset=loader.dataset, batch_sampler=own), own.counts, strict=True)
        return
    first: Any = None
    pending: Any = None
    for index, batch in enumerate(loader):
        first = batch if index == 0 else first
        pending = batch if index % ranks == rank else pending
        if index % ranks == ranks - 1:
            yield pending, True
            pending = None
        last = index
    if first is not None and (last + 1) % ranks:
        yield (first, False) if pending is None else (pending, True)


class _Turns:
    """Every so-many-th batch of indices; the first batch stands in where the last round has none."""

    def __init__(self, batches: list[list[int]], rank: int, ranks: int) -> None:
        rounds = -(-len(batches) // ranks)
        turns = [rank + ranks * turn for turn in range(rounds)]
        self.counts = [index < len(batches) for index in turns]
        self._own = [batches[index if index < len(batches) else 0] for index in turns]

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._own)


def _batches(loader: DataLoader[Any]) -> Iterator[list[int]]:
    """Yield the loader's batches of indices in rank 0's order."""
    yield from same_order(loader.batch_sampler)
