"""Forwards with gradients that no backward follows: what comes behind them is right or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from drawn import drawn
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn

import parastrat
from parastrat.plan import Plan, Recompute
from parastrat.workload import Precision

pytestmark = pytest.mark.slow

#: all ranks have the same samples, so that the mean over ranks is that of one process
X = torch.linspace(-1, 1, 32).view(4, 8)

_ALL: dict[str, Plan] = {
    "fsdp2": plan(dp_shard=4),
    "kept": plan(dp_shard=4, reshard_after_forward=False),
    "recomputed": plan(dp_shard=4, recompute=Recompute.FULL),
    "hsdp": plan(dp_replicate=2, dp_shard=2),
    "tp fsdp2": plan(dp_shard=2, tp=2),
}
#: two that hold what FSDP2 gathers, and one of the others
PLANS = {name: _ALL[name] for name in ("fsdp2", "kept", *drawn(["recomputed", "hsdp", "tp fsdp2"], 1))}
#: FSDP2 holds what they gather
GATHERING = ("fsdp2", "kept")


class Late(Block):
    """Bounds a weight from its third forward on, past what counts writes."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        if self.forwards > 2:
            self.down.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class Normed(nn.Module):
    """Norms keep statistics, and are units of their own under mixed precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x))
        return x


def stacked(kind: type[nn.Module] = Block) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), kind(), kind(), nn.Linear(8, 4))


def wrapped(chosen: Plan | None, model: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = model or stacked()
    return model if chosen is None else parastrat.auto_parallelize(model, plan=chosen, sample_inputs=X[:1])


def answer(model: nn.Module) -> float:
    """What the model answers to a second question: the first frees what was gathered before."""
    with torch.no_grad():
        model(X)
        return float(model(X).pow(2).sum())


def optimizing(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def metric(model: nn.Module) -> float:
    return float(model(X).abs().mean().detach())


def loss(model: nn.Module) -> torch.Tensor:
    return model(X).pow(2).mean()  # type: ignore[no-any-return]


def stepped_behind(chosen: Plan | None) -> float:
    model = wrapped(chosen)
    optimizer = optimizing(model)
    for _ in range(3):
        loss(model).backward()
        metric(model)
        optimizer.step()
        optimizer.zero_grad()
    return answer(model)


def stepped_by_hand(chosen: Plan | None) -> float:
    """Of a list that was made before any forward."""
    model = wrapped(chosen)
    held = list(model.parameters())
    for _ in range(2):
        loss(model).backward()
        metric(model)
        for parameter in held:
            assert parameter.grad is not None
            parameter.data.sub_(parameter.grad, alpha=0.5)
            parameter.grad = None
        metric(model)
    return answer(model)


def clipped(chosen: Plan | None) -> float:
    model = wrapped(chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=5)
    loss(model).backward()
    metric(model)
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    return answer(model)


def averaged(chosen: Plan | None) -> float:
    model, other = wrapped(chosen), wrapped(chosen)
    optimizer = optimizing(model)
    loss(model).backward()
    optimizer.step()
    metric(model)
    metric(other)
    with torch.no_grad():
        for own, new in zip(other.parameters(), model.parameters(), strict=True):
            own.lerp_(new, 0.5)
    return answer(other)


def counted_between(chosen: Plan | None) -> float:
    """Lists parameters between a forward and its backward, and runs two forwards before one."""
    model = wrapped(chosen)
    optimizer = optimizing(model)
    for _ in range(2):
        first, second = loss(model), loss(model)
        assert sum(parameter.numel() for parameter in model.parameters())
        with torch.no_grad():
            assert float(sum(parameter.abs().sum() for parameter in model.parameters())) > 0
        (first + second).backward()
        optimizer.step()
        optimizer.zero_grad()
    return answer(model)


def decayed(chosen: Plan | None) -> float:
    """Writes through .data of what an evaluation, or a step, leaves behind."""
    model = wrapped(chosen)
    optimizer = optimizing(model)
    for _ in range(2):
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.data.mul_(0.9)
        answer(model)
        for parameter in model.parameters():
            parameter.data.mul_(0.9)
    return answer(model)


RIGHT: dict[str, Callable[[Plan | None], float]] = {
    "step": stepped_behind,
    "by hand": stepped_by_hand,
    "clipped": clipped,
    "averaged": averaged,
    "between": counted_between,
    "decayed": decayed,
}


def optimizer_made_behind(chosen: Plan) -> None:
    model = wrapped(chosen)
    metric(model)
    optimizer = optimizing(model)
    loss(model).backward()
    optimizer.step()


def last_of(model: nn.Module) -> nn.Parameter:
    """Return a weight of the root, which is gathered behind a forward."""
    return model.get_parameter("3.weight")


def written_between(chosen: Plan, *, past_autograd: bool) -> None:
    model = wrapped(chosen)
    optimizing(model)
    result = loss(model)
    if past_autograd:
        last_of(model).data.clamp_(-0.1, 0.1)
    else:
        with torch.no_grad():
            last_of(model).clamp_(-0.1, 0.1)
    result.backward()


def written_behind(chosen: Plan) -> None:
    model = wrapped(chosen)
    metric(model)
    last_of(model).data.mul_(0.5)
    answer(model)


def written_late(chosen: Plan) -> None:
    model = wrapped(chosen, stacked(Late))
    for _ in range(3):
        loss(model).backward()


def backward_behind_step(chosen: Plan) -> None:
    model = wrapped(chosen)
    optimizer = optimizing(model)
    loss(model).backward()
    early = loss(model)
    optimizer.step()
    early.backward()


def normed() -> float:
    """By how much a step of an optimizer that is made behind an evaluation moves norms."""
    model = wrapped(plan(dp_shard=4, precision=Precision.BF16_MIXED), Normed())
    with torch.no_grad():
        model.eval()(X)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.5)
    norm: Any = model.get_submodule("norms.1")
    before = norm.weight.full_tensor().clone()
    model(X).pow(2).sum().backward()
    optimizer.step()
    return float((norm.weight.full_tensor() - before).abs().max())


def not_begun() -> list[str]:
    """Return what is warned of where a hook before all others raises, and go on."""
    model = wrapped(PLANS["fsdp2"])

    def refuse(*_: Any) -> None:
        raise ValueError("not now")

    handle = model.register_forward_pre_hook(refuse, prepend=True)
    with warnings.catch_warnings(record=True) as told, suppress(ValueError):
        warnings.simplefilter("always")
        loss(model)
    handle.remove()
    loss(model).backward()
    return [str(each.message) for each in told]


REFUSED: dict[str, tuple[Callable[[Plan], None], str]] = {
    "optimizer": (optimizer_made_behind, "that FSDP2 had gathered for a forward: its steps would reach no"),
    "data": (partial(written_between, past_autograd=True), "between a forward and its backward"),
    "weight": (partial(written_between, past_autograd=False), "between a forward and its backward"),
    "behind": (written_behind, "between a forward and its backward"),
    "late": (written_late, "a forward writes to weight of a Linear, which FSDP2 has gathered"),
    "backward": (backward_behind_step, "a backward runs behind optimizer.step()"),
}


def everything() -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {
        f"{case} {name}": partial(action, chosen)
        for case, action in RIGHT.items()
        for name, chosen in PLANS.items()
    }
    for case, (refused, _) in REFUSED.items():
        asked |= {f"{case} {name}": partial(refused, PLANS[name]) for name in GATHERING}
    return answers(asked | {"normed": normed, "not begun": not_begun})


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(4, everything)


@pytest.mark.parametrize("case", RIGHT)
def test_as_on_one_device(ranks: list[dict[str, Any]], case: str) -> None:
    expected = RIGHT[case](None)
    for found in ranks:
        for name in PLANS:
            assert found[f"{case} {name}"] == pytest.approx(expected, rel=1e-4), name


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused(ranks: list[dict[str, Any]], case: str) -> None:
    for found in ranks:
        for name in GATHERING:
            assert REFUSED[case][1] in str(found[f"{case} {name}"]), name


def test_norms_that_are_units_are_freed_behind_an_evaluation(ranks: list[dict[str, Any]]) -> None:
    assert all(isinstance(found["normed"], float) and found["normed"] > 1e-3 for found in ranks)


def test_a_forward_that_another_hook_refuses_has_not_begun(ranks: list[dict[str, Any]]) -> None:
    assert [found["not begun"] for found in ranks] == [[]] * 4
