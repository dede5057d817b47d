"""Cross entropy in chunks: the loss and the gradients of all logits at once."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.errors import UsageError
from parastrat.plan import Plan
from parastrat.runtime.chunked_loss import chunked_cross_entropy


class Tokens(nn.Module):
    """A language model that computes its loss in chunks, or with None all at once."""

    def __init__(self, chunks: int | None) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, 50)
        self.chunks = chunks

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.table(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        if self.chunks is None:
            return functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())
        return chunked_cross_entropy(self.head, hidden, labels, chunks=self.chunks)


def batch(rank: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(rank)
    ids = torch.randint(50, (3, 7), generator=drawn)
    labels = torch.randint(50, (3, 7), generator=drawn)
    labels[rank, :3] = -100
    return {"ids": ids, "labels": labels}


def trained(chunks: int | None, chosen: Plan | None, rank: int, ranks: int) -> list[float]:
    """The losses of three steps on each rank's samples, or on those of all."""
    torch.manual_seed(0)
    model: nn.Module = Tokens(chunks)
    own = batch(rank)
    if chosen is None:
        every = [batch(each) for each in range(ranks)]
        own = {name: torch.cat([each[name] for each in every]) for name in own}
    else:
        model = parastrat.auto_parallelize(model, plan=chosen, sample_inputs=own)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(**own)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("chunks", [1, 3, 8, 40])
def test_loss_and_gradients_are_those_of_all_at_once(chunks: int) -> None:
    found = []
    for each in (None, chunks):
        torch.manual_seed(0)
        model = Tokens(each)
        loss = model(**batch(1))
        loss.backward()
        found.append([loss, *(parameter.grad for parameter in model.parameters())])
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole)


def test_logits_never_exist_all_at_once() -> None:
    most = 0

    def head(rows: torch.Tensor) -> torch.Tensor:
        nonlocal most
        most = max(most, len(rows))
        return rows

    chunked_cross_entropy(head, torch.randn(4, 10, 6), torch.zeros(4, 10, dtype=torch.long), chunks=8)
    assert most == 5


def test_what_does_not_go_together_is_refused() -> None:
    hidden, head = torch.randn(2, 5, 16), nn.Linear(16, 50)
    with pytest.raises(UsageError, match=r"targets are of shape \(2, 4\)"):
        chunked_cross_entropy(head, hidden, torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(UsageError, match="0 chunks"):
        chunked_cross_entropy(head, hidden, torch.zeros(2, 5, dtype=torch.long), chunks=0)


def everywhere() -> dict[str, Any]:
    rank = int(os.environ["RANK"])
    plans = {"ddp": plan(dp_replicate=2), "fsdp2": plan(dp_shard=2), "tp": plan(tp=2)}
    return answers(
        {
            name: partial(trained, 3, chosen, 0 if name == "tp" else rank, 2)
            for name, chosen in plans.items()
        }
    )


@pytest.mark.slow
def test_it_trains_in_parallel_as_in_one_process() -> None:
    ranks = on_ranks(2, everywhere)
    expected = trained(None, None, 0, 2)
    for name in ("ddp", "fsdp2"):
        means = [sum(losses) / 2 for losses in zip(*(found[name] for found in ranks), strict=True)]
        assert means == pytest.approx(expected, rel=1e-5)
    # each chunk runs again in backward, with this rank's share of what tp divides
    alone = trained(None, None, 0, 1)
    for found in ranks:
        assert found["tp"] == pytest.approx(alone, rel=1e-5)
