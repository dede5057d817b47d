"""What would train on silently, and otherwise than one process does, is refused or right."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler, TensorDataset

import parastrat
from parastrat.plan import Plan

pytestmark = pytest.mark.slow

DATA = TensorDataset(torch.arange(32.0).unsqueeze(1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.outer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(x + self.inner(x))  # type: ignore[no-any-return]


class Stream(IterableDataset[torch.Tensor]):
    """Samples in an order of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(32, generator=torch.Generator().manual_seed(self.seed))
        return iter(order.float().unsqueeze(1))


class Shuffled(Sampler[int]):
    """Draws from where torch's seed does not reach."""

    def __len__(self) -> int:
        return 32

    def __iter__(self) -> Iterator[int]:
        order = list(range(32))
        random.shuffle(order)
        return iter(order)


def plans() -> dict[str, Plan]:
    return {"ddp": plan(dp_replicate=2), "fsdp2": plan(dp_shard=2), "tp": plan(tp=2)}


def of_lists_made_before(chosen: Plan) -> float:
    """By how much an optimizer of a list of parameters, made before, changes the loss."""
    torch.manual_seed(0)
    model = Residual()
    several = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    wrapped = parastrat.auto_parallelize(model, plan=chosen, sample_inputs=torch.ones(1, 8))
    optimizer = torch.optim.SGD([{"params": several}], lr=0.1)
    losses = []
    for _ in range(2):
        loss = wrapped(torch.ones(2, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses[0] - losses[1]


def with_loss(loss_fn: Any) -> float:
    """By how much a step's gradient is off, of ranks whose targets are of other classes."""
    torch.manual_seed(0)
    plain, x, y = nn.Linear(8, 4), torch.randn(4, 8), torch.tensor([0, 1, 2, 2])
    wrapped = parastrat.auto_parallelize(copy.deepcopy(plain), plan=plan(dp_replicate=2))
    loss_fn(plain(x), y).backward()
    rank = torch.distributed.get_rank()
    own = slice(2 * rank, 2 * rank + 2)
    parastrat.forward_backward(wrapped, x[own], y[own], loss_fn=loss_fn)
    (found,) = (p.grad for name, p in wrapped.named_parameters() if name.endswith("weight"))
    assert found is not None
    assert plain.weight.grad is not None
    return float((found - plain.weight.grad).abs().max())


def of_gradients() -> float:
    """By how much gradients of a penalty on gradients are off under tensor parallelism."""
    torch.manual_seed(0)
    plain, x = Residual(), torch.randn(4, 8)
    wrapped = parastrat.auto_parallelize(copy.deepcopy(plain), plan=plan(tp=2), sample_inputs=x[:1])
    for model in (plain, wrapped):
        given = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(given).sum(), given, create_graph=True)
        slope.pow(2).sum(1).mean().backward()
    found = [parameter.grad for parameter in wrapped.parameters() if parameter.grad is not None]
    expected = [parameter.grad for parameter in plain.parameters() if parameter.grad is not None]
    assert len(found) == len(expected)
    return max(
        float((each.full_tensor() - other).abs().max())  # type: ignore[attr-defined]
        for each, other in zip(found, expected, strict=True)
    )


def with_sampler(sampler: Any) -> list[float]:
    """This rank's samples of an epoch."""
    random.seed(torch.distributed.get_rank())
    model = parastrat.auto_parallelize(nn.Linear(1, 1), plan=plan(dp_replicate=2, micro_batch_size=4))
    loader = parastrat.shard_dataloader(DataLoader(DATA, batch_size=8, sampler=sampler))
    del model  # which must live until then
    return [float(value) for (batch,) in loader for value in batch]


def of_stream(*, alike: bool, workers: int) -> list[float]:
    """This rank's samples of an epoch over a stream that shuffles by itself."""
    rank = torch.distributed.get_rank()
    model = parastrat.auto_parallelize(nn.Linear(1, 1), plan=plan(dp_replicate=2, micro_batch_size=4))
    stream = DataLoader(Stream(7 if alike else rank), batch_size=8, num_workers=workers)
    loader = parastrat.shard_dataloader(stream)
    del model  # which must live until then
    return [float(value) for batch in loader for value in batch]


def embedding() -> nn.Module:
    return parastrat.auto_parallelize(
        nn.Sequential(nn.Embedding(8, 8, max_norm=1.0), nn.Linear(8, 8)), plan=plan(dp_replicate=2)
    )


def counted() -> nn.Module:
    return parastrat.auto_parallelize(
        nn.Sequential(nn.Embedding(8, 8, scale_grad_by_freq=True), nn.Linear(8, 8)),
        plan=plan(dp_replicate=2),
    )


def compiled() -> nn.Module:
    return parastrat.auto_parallelize(torch.compile(Residual()), plan=plan(dp_shard=2))


def squares(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output - functional.one_hot(targets, 4)).pow(2).sum()


class Summing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(reduction="none")

    def forward(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.sum(self.inner(output, targets))


def focused(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean of what is added up over classes, which refuses less than two samples."""
    assert len(output) > 1
    own = (output.log_softmax(-1) * functional.one_hot(targets, 4)).sum(-1)
    return (-own * (1 - own.exp()).pow(2)).mean()


#: of cross entropies, and of distances
SUMS: dict[str, Any] = {
    "plain": lambda o, t: functional.cross_entropy(o, t, reduction="none").sum(),
    "called": lambda o, t: squares(o, t) * 2,
    "module": Summing(),
}
MEANS: dict[str, Any] = {
    "divided": lambda o, t: functional.cross_entropy(o, t, reduction="none").sum() / t.numel(),
    "classes": focused,
    "over samples": lambda o, t: (o - functional.one_hot(t, 4)).pow(2).sum(-1).mean(),
}


def through_stages(loss_fn: Any) -> float:
    chosen = plan(pp=2, micro_batch_size=2, gradient_accumulation_steps=2)
    model = parastrat.auto_parallelize(
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), plan=chosen, sample_inputs=torch.ones(2, 4)
    )
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 2])
    return float(parastrat.forward_backward(model, x, y, loss_fn=loss_fn))


def everything() -> dict[str, Any]:
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    asked = {
        **{f"list {name}": partial(of_lists_made_before, each) for name, each in plans().items()},
        "plain loss": partial(with_loss, nn.CrossEntropyLoss()),
        "weighted": partial(with_loss, nn.CrossEntropyLoss(weight=weight)),
        "weighted part": partial(with_loss, partial(functional.cross_entropy, weight=weight)),
        "summed part": partial(with_loss, partial(functional.cross_entropy, reduction="sum")),
        "summed lambda": partial(with_loss, lambda o, t: functional.cross_entropy(o, t, reduction="sum")),
        "own mean": partial(
            with_loss, lambda o, t: functional.cross_entropy(o, t, reduction="sum") / t.shape[0]
        ),
        **{f"sum {name}": partial(with_loss, each) for name, each in SUMS.items()},
        **{f"mean {name}": partial(with_loss, each) for name, each in MEANS.items()},
        "sum pp": lambda: through_stages(squares),
        "mean pp": lambda: through_stages(lambda o, t: squares(o, t) / o.numel()),
        "ignoring part": partial(with_loss, partial(functional.cross_entropy, ignore_index=0)),
        "gradients": of_gradients,
        "divided": lambda: with_sampler(DistributedSampler(DATA, num_replicas=2, rank=0)),
        "another order": lambda: with_sampler(Shuffled()),
        "one order": lambda: with_sampler(None),
        **{
            f"stream {alike} {workers}": partial(of_stream, alike=alike, workers=workers)
            for alike in (True, False)
            for workers in (0, 1)
        },
        "renormalised": embedding,
        "counted": counted,
        "compiled": compiled,
    }
    return answers(asked)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def test_lists_of_parameters_made_before(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        # DDP keeps them
        assert found["list ddp"] > 0
        for name in ("list fsdp2", "list tp"):
            assert "auto_parallelize has replaced: its steps would train nothing" in found[name]


def test_losses_that_are_no_mean_over_targets(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        for right in ("plain loss", "ignoring part", "own mean"):
            assert found[right] < 1e-6
        for name in ("weighted", "weighted part"):
            assert "loss_fn weighs classes" in found[name]
        for name in ("summed part", "summed lambda"):
            assert "loss_fn reduces by 'sum'" in str(found[name])


def test_losses_that_add_up_over_samples(ranks: list[dict[str, Any]]) -> None:
    for name in (*(f"sum {name}" for name in SUMS), "sum pp"):
        assert any("loss_fn adds up over samples" in str(found[name]) for found in ranks), name
    for found in ranks:
        assert not [name for name in SUMS if isinstance(found[f"sum {name}"], float)]
        assert all(found[f"mean {name}"] < 1e-6 for name in MEANS)
        assert isinstance(found["mean pp"], float)


def test_gradients_of_gradients_under_tensor_parallelism(ranks: list[dict[str, Any]]) -> None:
    assert all(found["gradients"] < 1e-5 for found in ranks)


def test_samplers_that_give_each_rank_others(ranks: list[dict[str, Any]]) -> None:
    assert all("DistributedSampler has only one rank's samples" in found["divided"] for found in ranks)
    assert any("draw other samples first" in str(found["another order"]) for found in ranks)
    first, second = (set(found["one order"]) for found in ranks)
    assert len(first | second) == 32


def test_streams_that_each_rank_shuffles_otherwise(ranks: list[dict[str, Any]]) -> None:
    for workers in (0, 1):
        first, second = (set(found[f"stream True {workers}"]) for found in ranks)
        assert len(first | second) == 32
        for found in ranks:
            assert "read other samples first" in str(found[f"stream False {workers}"])


def test_embeddings_that_rewrite_what_they_look_up(ranks: list[dict[str, Any]]) -> None:
    assert all("max_norm" in found["renormalised"] for found in ranks)


def test_embeddings_that_count_what_they_look_up(ranks: list[dict[str, Any]]) -> None:
    assert all("scale_grad_by_freq" in found["counted"] for found in ranks)


def test_modules_that_are_compiled_already(ranks: list[dict[str, Any]]) -> None:
    assert all("the model is compiled already" in found["compiled"] for found in ranks)
