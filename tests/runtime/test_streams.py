"""Shares of a stream: as many batches on every rank, and a length where the stream has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import IterableDataset

from parastrat.runtime.training.streams import Collation, ShareOfStream, StreamLoader

RANKS, SHARE = 3, 4


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(self.samples))


class Counted(Stream):
    def __len__(self) -> int:
        return self.samples


def loader(stream: Stream, rank: int, *, drop_last: bool) -> StreamLoader:
    share = ShareOfStream(stream, rank, RANKS, SHARE, drop_last=drop_last)
    return StreamLoader(share, batch_size=SHARE, drop_last=drop_last, collate_fn=Collation(torch.stack))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [0, 1, 11, 12, 14, 23, 24, 25])
def test_batches_of_every_rank(samples: int, *, drop_last: bool) -> None:
    own = [loader(Counted(samples), rank, drop_last=drop_last) for rank in range(RANKS)]
    read = [list(each) for each in own]
    whole = samples // (RANKS * SHARE)
    last = not drop_last and samples % (RANKS * SHARE) >= RANKS
    assert [len(batches) for batches in read] == [whole + last] * RANKS
    assert [len(each) for each in own] == [whole + last] * RANKS
    drawn = torch.cat([torch.tensor([], dtype=torch.long), *(each for batches in read for each in batches)])
    assert sorted(drawn.tolist()) == list(range(samples if last else whole * RANKS * SHARE))


def test_streams_that_do_not_tell_their_length() -> None:
    with pytest.raises(TypeError, match="no len"):
        len(loader(Stream(12), 0, drop_last=False))
