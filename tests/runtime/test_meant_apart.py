"""What ranks may do otherwise, or other times, without being refused and without waiting for each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional

import parastrat
from parastrat.plan import Plan
from parastrat.runtime.communication.compared import differing, told
from parastrat.runtime.training.settings import count_step, settings_of

DDP = plan(dp_replicate=2)
TP = plan(tp=2, micro_batch_size=4)
STEPS = 5


class Cached(nn.Module):
    """Takes what only this rank has, behind what all ranks have."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor, cache: torch.Tensor | None = None) -> torch.Tensor:
        shift = 0.0 if cache is None else 0.0 * cache.sum()
        return self.net(x) + shift  # type: ignore[no-any-return]


def wrapped(chosen: Plan, kind: Callable[[], nn.Module] | None = None) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 4)) if kind is None else kind()
    return parastrat.auto_parallelize(module, plan=chosen, sample_inputs=torch.randn(4, 8))


def loss(model: nn.Module, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
    x, y = torch.randn(2, 8, generator=draw), torch.randint(4, (2,), generator=draw)
    return functional.cross_entropy(model(x), y)


def steps(
    model: Any, optimizer: torch.optim.Optimizer | None = None, count: int = STEPS
) -> Iterator[tuple[int, torch.optim.Optimizer]]:
    """Train; each step's number and optimizer are given before its own backward."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(count):
        yield step, optimizer
        loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def other_numbers_of_micro_batches() -> None:
    model: Any = wrapped(DDP)
    for step, _ in steps(model):
        with model.no_sync():
            for micro in range(1 + dist.get_rank()):
                loss(model, 7 * step + micro).backward()


def out_of_data() -> None:
    model: Any = wrapped(DDP)
    with model.join():
        for _ in steps(model, count=9 - 4 * dist.get_rank()):
            pass


def gradients_of_inputs_on_one() -> None:
    model = wrapped(DDP)
    for _ in steps(model):
        if dist.get_rank() == 0:
            x = torch.ones(2, 8, requires_grad=True)
            torch.autograd.grad(model(x).sum(), x)


def module_on_one() -> None:
    model: Any = wrapped(DDP)
    for step, optimizer in steps(model):
        if dist.get_rank() == 0:
            loss(model.module, step).backward()
            optimizer.zero_grad()


def copies_on_each() -> None:
    model: Any = wrapped(DDP)
    for step, _ in steps(model):
        for _ in range(1 + dist.get_rank()):
            loss(copy.deepcopy(model.module), step).backward()


def perturbed() -> None:
    """Sharpness-aware: weights are moved along gradients that each rank keeps, and back behind it."""
    model: Any = wrapped(DDP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        with model.no_sync():
            loss(model, step).backward()
        moves = [parameter.grad / 2 for parameter in model.parameters()]
        optimizer.zero_grad()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        loss(model, step).backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


def local_steps() -> None:
    model: Any = wrapped(DDP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        with model.no_sync():
            loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def own_reduction(_state: Any, bucket: Any) -> Any:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


# torch compares what is annotated with classes, not with their names
own_reduction.__annotations__ = {}


def reduced_by_a_hook() -> None:
    model: Any = wrapped(DDP)
    model.register_comm_hook(None, own_reduction)
    for _ in steps(model):
        pass


def nothing_left_to_step() -> None:
    model = wrapped(DDP, lambda: nn.Linear(8, 4, bias=False))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
    for _ in steps(model, optimizer):
        pass


def tables_of_each() -> None:
    model = wrapped(DDP)
    tables = [nn.Parameter(torch.randn(3, 4)) for _ in range(dist.get_rank())]
    for _ in steps(model, torch.optim.SGD([*model.parameters(), *tables], lr=0.1)):
        for table in tables:
            table.pow(2).sum().backward()


def without_a_weight() -> None:
    before: Any = wrapped(DDP)
    for _ in steps(before, count=1):
        pass
    del before.module[3].bias
    for _ in steps(wrapped(DDP)):
        pass


def nan() -> None:
    model = wrapped(TP)
    for step in range(STEPS):
        x = torch.ones(4, 8) * (torch.nan if step else 1)
        parastrat.forward_backward(
            model, x, torch.zeros(4, dtype=torch.long), loss_fn=functional.cross_entropy
        )


def caches_of_each() -> None:
    model = wrapped(TP, Cached)
    with torch.no_grad():
        for _ in range(STEPS):
            model(torch.ones(4, 8), torch.full((3,), float(dist.get_rank())))


CASES: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        other_numbers_of_micro_batches,
        out_of_data,
        gradients_of_inputs_on_one,
        module_on_one,
        copies_on_each,
        perturbed,
        local_steps,
        reduced_by_a_hook,
        nothing_left_to_step,
        tables_of_each,
        without_a_weight,
        nan,
        caches_of_each,
    )
}


def everything() -> dict[str, Any]:
    return answers(CASES)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_is_meant_so_goes_on(ranks: list[dict[str, Any]], case: str) -> None:
    assert [found[case] for found in ranks] == [None, None]


def test_optimizers_that_find_their_own_rate_are_counted() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.5))
    count_step(optimizer)
    assert settings_of({id(weight): "weight"}).numbers[:2] == (1.0, 0.5)
    optimizer.param_groups[0]["lr"] = None
    assert settings_of({id(weight): "weight"}).rates == 0
    assert settings_of({}).of != settings_of({id(weight): "weight"}).of


@pytest.mark.parametrize(
    "opaque",
    [
        torch.ones(3, dtype=torch.float8_e4m3fn),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
)
def test_what_torch_does_not_add_up_is_not_compared(opaque: torch.Tensor) -> None:
    assert told(opaque, torch.device("cpu")).tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_tensors_are_those_that_they_stand_for() -> None:
    dense, device = torch.eye(4), torch.device("cpu")
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        assert torch.equal(told(sparse, device), told(dense, device))


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch 2.11
def test_large_weights_are_taken_to_fp64_in_pieces() -> None:
    weight, device = torch.randn(9_000_001).half(), torch.device("cpu")
    with torch.profiler.profile(profile_memory=True) as profile:
        _, norm = told(weight, device).tolist()
    assert norm == pytest.approx(float(weight.double().norm()), rel=1e-9)
    assert max(event.cpu_memory_usage for event in profile.events()) < 8 * weight.numel()
    assert differing([], device, None) == ""
