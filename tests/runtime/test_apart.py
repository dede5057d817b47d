"""Ranks that would train models of their own without a word are told apart, or kept together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import Plan
from parastrat.runtime.communication.compared import told

pytestmark = pytest.mark.slow

SAMPLES = 4
DDP, FSDP2 = plan(dp_replicate=2), plan(dp_shard=2)
TP = plan(tp=2, micro_batch_size=SAMPLES)
STEPS = 5


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 4))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self(x), y)


class Noisy(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x))  # type: ignore[no-any-return]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(SAMPLES, 8, generator=draw), torch.randint(4, (SAMPLES,), generator=draw)


def own(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    start = SAMPLES // 2 * dist.get_rank()
    x, y = batch(step)
    return x[start : start + SAMPLES // 2], y[start : start + SAMPLES // 2]


def wrapped(chosen: Plan, kind: Callable[[], nn.Module] = Net) -> nn.Module:
    torch.manual_seed(0)
    return parastrat.auto_parallelize(kind(), plan=chosen, sample_inputs=batch(0)[0])


def stepping(model: nn.Module, *others: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([*model.parameters(), *others], lr=0.1)


def trained(
    loss: Callable[[int], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    between: Callable[[int], Any] = lambda _: True,
) -> None:
    """Train; ``between`` a backward and its step tells whether that is taken."""
    for step in range(STEPS):
        loss(step).backward()
        if between(step) is not False:
            optimizer.step()
        optimizer.zero_grad()


def of(model: Callable[[torch.Tensor], torch.Tensor], step: int) -> torch.Tensor:
    x, y = own(step)
    return functional.cross_entropy(model(x), y)


def loaded_by_one(chosen: Plan) -> None:
    model = wrapped(chosen)
    if dist.get_rank() == 0:
        inside: Any = model.module
        inside.load_state_dict(Net().state_dict())
    trained(partial(of, model), stepping(model))


def called_inside(chosen: Plan) -> None:
    model = wrapped(chosen)
    inside: Any = model.module
    trained(lambda step: inside.loss(*own(step)), stepping(model))


def by_method(chosen: Plan) -> None:
    """No forward of the whole model."""
    model = wrapped(chosen)
    inside: Any = model.module
    trained(lambda step: of(lambda x: inside[3](inside[0](x)), step), stepping(model))


def by_grad(chosen: Plan) -> None:
    model = wrapped(chosen)
    for step in range(STEPS):
        gradients = torch.autograd.grad(of(model, step), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)


def in_hooks(chosen: Plan) -> None:
    model = wrapped(chosen)
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)  # type: ignore[arg-type]
    trained(partial(of, model), stepping(nn.Linear(1, 1)))


def head_outside(chosen: Plan, *, averages: bool = False) -> None:
    model, head = wrapped(chosen), nn.Linear(4, 4)
    nn.init.eye_(head.weight)
    nn.init.zeros_(head.bias)

    def average(_step: int) -> None:
        for parameter in head.parameters() if averages else ():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= dist.get_world_size()

    trained(lambda step: of(lambda x: head(model(x)), step), stepping(model, *head.parameters()), average)


def rates_of_each(chosen: Plan) -> None:
    model = wrapped(chosen)
    optimizer = stepping(model)

    def schedule(step: int) -> None:
        if step == 1:
            optimizer.param_groups[0]["lr"] /= 1 + dist.get_rank()

    trained(partial(of, model), optimizer, schedule)


def step_left_out(chosen: Plan) -> None:
    model = wrapped(chosen)
    trained(partial(of, model), stepping(model), lambda step: (step, dist.get_rank()) != (1, 1))


def hooked(chosen: Plan) -> None:
    model = wrapped(chosen)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
    given = batch if chosen.mesh.tp > 1 else own
    trained(lambda step: model(given(step)[0]).pow(2).mean(), stepping(model))


def other_samples(chosen: Plan) -> None:
    model = wrapped(chosen)
    with torch.no_grad():
        model(batch(dist.get_rank())[0])


def other_targets(chosen: Plan) -> None:
    model, (x, _) = wrapped(chosen), batch(0)
    parastrat.forward_backward(model, x, batch(dist.get_rank())[1], loss_fn=functional.cross_entropy)


def other_draws(chosen: Plan) -> None:
    model = wrapped(chosen, Noisy)
    torch.manual_seed(dist.get_rank())
    model(batch(0)[0])


def replaced(chosen: Plan) -> None:
    model = wrapped(chosen)
    for name, whole in Net().named_parameters():
        owner, _, key = name.rpartition(".")
        setattr(model.get_submodule(owner), key, whole)
    model(batch(0)[0])


def reduced_by_hand(chosen: Plan) -> None:
    model = wrapped(chosen)
    inside: Any = model.module

    def reduce(_step: int) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= dist.get_world_size()

    trained(partial(of, inside), stepping(model), reduce)


def searched(chosen: Plan) -> float:
    """By how much the weights differ from those of one process behind line searches."""
    torch.manual_seed(0)
    plain = Net()
    model = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen)
    for each, (x, y) in ((plain, batch(0)), (model, own(0))):
        optimizer = torch.optim.LBFGS(each.parameters(), max_iter=4, line_search_fn="strong_wolfe")

        def closure(each: nn.Module = each, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            each.zero_grad()
            loss = functional.cross_entropy(each(x), y)
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
    found = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    pairs = zip(plain.parameters(), found, strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


APART = "the ranks have trained apart"
UNREDUCED = "has another gradient on each rank"
SETTINGS = "the ranks step otherwise: this one took"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "loaded": (partial(loaded_by_one, DDP), APART),
    "inside": (partial(called_inside, DDP), UNREDUCED),
    "method": (partial(by_method, DDP), UNREDUCED),
    "grad": (partial(by_grad, DDP), APART),
    "hooks": (partial(in_hooks, DDP), UNREDUCED),
    "head ddp": (partial(head_outside, DDP), "shape (4, 4) beside those of a wrapped model " + UNREDUCED),
    "head fsdp2": (partial(head_outside, FSDP2), UNREDUCED),
    "rates": (partial(rates_of_each, FSDP2), SETTINGS),
    "left out": (partial(step_left_out, FSDP2), SETTINGS),
    "hooked": (partial(hooked, FSDP2), "has a hook on its gradient, and FSDP2"),
    "samples": (
        partial(other_samples, TP),
        "what a forward takes differs between the ranks of one tp group",
    ),
    "targets": (partial(other_targets, TP), "the loss differs between the ranks of one tp group"),
    "draws": (partial(other_draws, TP), "draws random numbers, which differ"),
    "replaced": (partial(replaced, TP), "was divided, and is not any more"),
}
TOGETHER: dict[str, Callable[[], Any]] = {
    "by hand": partial(reduced_by_hand, DDP),
    "head by hand": partial(head_outside, FSDP2, averages=True),
    "hooked alike": partial(hooked, TP),
}


def everything() -> dict[str, Any]:
    asked = {name: action for name, (action, _) in REFUSED.items()} | TOGETHER
    return answers(asked | {f"searched {each.strategy}": partial(searched, each) for each in (DDP, FSDP2)})


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("case", REFUSED)
def test_ranks_that_would_train_apart_are_told(ranks: list[dict[str, Any]], case: str) -> None:
    for found in ranks:
        assert REFUSED[case][1] in str(found[case])


@pytest.mark.parametrize("case", TOGETHER)
def test_what_is_alike_goes_on(ranks: list[dict[str, Any]], case: str) -> None:
    assert [found[case] for found in ranks] == [None, None]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_line_searches_follow_the_loss_of_all_ranks(ranks: list[dict[str, Any]], strategy: str) -> None:
    assert all(found[f"searched {strategy}"] < 1e-4 for found in ranks)


def test_gradients_whose_rows_add_up_to_zero_are_told_apart() -> None:
    one, other = (torch.zeros(4, 4) for _ in range(2))
    one[0], one[1], other[2], other[3] = 1.0, -1.0, 1.0, -1.0
    device = torch.device("cpu")
    assert abs(float((told(one, device) - told(other, device))[0])) > 1e-3
    assert told(None, device).tolist() == [0, 0]
    assert told(torch.full((70,), torch.nan), device).isfinite().all()
