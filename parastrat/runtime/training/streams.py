"""A rank's share of a stream of samples, of which every rank reads all: they must be the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from parastrat.runtime.communication.agreement import alike


@dataclass(frozen=True, slots=True)
class _Told:
    """A sample, and what the global batch that it begins is told by."""

    sample: Any
    digest: str


class ShareOfStream(IterableDataset[Any]):
    """One rank's samples of a stream that every rank reads.

    Args:
        stream: of all samples.
        rank: which part of each global batch is read.
        ranks: that read it.
        share: samples of a rank.
        drop_last: leave out the last global batch where it is not whole, on all ranks alike.
    """

    def __init__(
        self, stream: IterableDataset[Any], rank: int, ranks: int, share: int, *, drop_last: bool
    ) -> None:
        self._stream, self._rank, self._ranks, self._share = stream, rank, ranks, share
        self._drop_last = drop_last
        # workers have no group to ask in
        self._tells = dist.is_initialized()

    def __iter__(self) -> Iterator[Any]:
        # whole global batches only: nobody knows the stream's end before it comes
        batch: list[Any] = []
        tells = self._tells
        for sample in self._stream:
            batch.append(sample)
            if len(batch) == self._share * self._ranks:
                own = batch[self._rank * self._share : (self._rank + 1) * self._share]
                yield _Told(own[0], _digest(batch)) if tells else own[0]
                yield from own[1:]
                batch, tells = [], False
        yield from batch[self._last(len(batch))]

    def __len__(self) -> int:
        """Return how many samples the rank has, where the stream tells how many there are.

        Raises:
            TypeError: it does not.
        """
        whole, rest = divmod(len(self._stream), self._share * self._ranks)  # type: ignore[arg-type]
        return whole * self._share + len(range(rest)[self._last(rest)])

    def _last(self, rest: int) -> slice:
        """Return this rank's part of a global batch that is not whole, and has so many samples."""
        is_read = rest >= self._ranks and not self._drop_last
        return slice(self._rank, None, self._ranks) if is_read else slice(0)


@dataclass(frozen=True, slots=True)
class Collation:
    """Makes batches of samples, beside what the first of them tells."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> tuple[str, Any]:
        told = [sample.digest for sample in samples if isinstance(sample, _Told)]
        plain = [sample.sample if isinstance(sample, _Told) else sample for sample in samples]
        return "".join(told), self.collate(plain)


class StreamLoader(DataLoader[Any]):
    """Loads a share of a stream with ``Collation``, and compares what the ranks read first.

    Raises:
        MismatchError: while iterating, if their first global batches of an epoch differ.
    """

    def __iter__(self) -> Any:
        for told, batch in super().__iter__():
            if told:
                alike(
                    told,
                    "read other samples first: a stream must give all of them, in one order, on all ranks",
                    hint="seed what shuffles in it by the epoch, not by the rank, leave out what divides "
                    "it among ranks, and put random augmentation into collate_fn",
                )
            yield batch


def _digest(samples: list[Any]) -> str:
    """Return a hash of the numbers and texts in samples; other objects are not looked into."""
    hashed = hashlib.sha256()
    for leaf in tree_leaves(samples):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            plain = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
            hashed.update(plain.view(torch.uint8).numpy().tobytes())
        elif isinstance(leaf, bytes | str | int | float):
            hashed.update(repr(leaf).encode())
        elif getattr(getattr(leaf, "dtype", None), "hasobject", False):  # bytes of these are addresses
            hashed.update(repr(leaf.tolist()).encode())
        elif hasattr(leaf, "tobytes"):  # arrays and images
            hashed.update(leaf.tobytes())
    return hashed.hexdigest()
