"""What a script does once its model is cut into stages counts as in one process, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from drawn import drawn
from runtime.models import Block, plan
from runtime.pipeline.stages import several
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.errors import ParastratError
from parastrat.plan import PipelineSchedule, Plan

pytestmark = pytest.mark.slow

BATCH = 8
PLANS = {
    "1F1B": plan(pp=2, pp_schedule=PipelineSchedule.ONE_F_ONE_B, gradient_accumulation_steps=4),
    "Interleaved": plan(gradient_accumulation_steps=4, **several(PipelineSchedule.INTERLEAVED)),
    "ZBV": plan(gradient_accumulation_steps=4, **several(PipelineSchedule.ZBV)),
}
LATER = 2


class Auxiliary(Block):
    """Keeps what a loss may add."""

    def __init__(self) -> None:
        super().__init__()
        self.aux: Any = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.aux = x.pow(2).mean()
        return super().forward(x)


@dataclass
class Output:
    """torch's trees do not look into it."""

    logits: torch.Tensor


class Model(nn.Module):
    """Its own forward reads attributes between its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Auxiliary() for _ in range(4))
        self.head = nn.Linear(8, 8)
        self.register_buffer("offset", torch.zeros(()))
        self.temperature = 1.0
        self.skips = self.reads = self.hides = False
        self.calls = 0
        self.factors = [1.0]
        self.order = [*self.blocks]
        self.size: Any = None
        self.early: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor | Output:
        self.calls += 1
        for block in self.order:
            x = block(x)
            if block is self.order[0]:
                first = x
                self.early = x.mean()
        if self.skips or (self.reads and self.calls > LATER):
            x = x + first
        if self.reads:
            x = x * self.blocks[0].up.bias.sum()
        x = self.head(x) * self.temperature * self.factors[0] + self.offset
        self.size = x.pow(2).mean()
        return Output(x) if self.hides else x


@dataclass(frozen=True, slots=True)
class Case:
    """What a script does."""

    #: to the wrapped model, at once
    begin: Callable[[Model], Any] = lambda _model: None
    #: behind some steps
    later: Callable[[Model], Any] = lambda _model: None
    #: its model returns an object with the tensor
    hides: bool = False
    #: what it adds to the loss
    term: Callable[[Model], Any] = lambda _model: 0.0


def set_to(name: str, value: Any) -> Callable[[Model], Any]:
    return lambda model: setattr(model, name, value)


def doubled(_part: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
    return 2 * output


def halved(_part: nn.Module, given: Any, _outputs: Any) -> Any:
    return tuple(None if each is None else each / 2 for each in given)


def sum_of_aux(model: Model) -> Any:
    return sum(block.aux for block in model.blocks)  # type: ignore[union-attr]


CASES = {
    "an attribute": Case(later=set_to("temperature", 3.0)),
    "what an attribute holds": Case(later=lambda model: model.factors.__setitem__(0, 3.0)),
    "a buffer": Case(later=set_to("offset", torch.ones(()))),
    "what a forward keeps": Case(term=lambda model: model.size),
    "hooks on all blocks": Case(
        begin=lambda model: [block.register_forward_hook(doubled) for block in model.blocks]
    ),
}
#: with what schedules of any number of stages a rank refuse them, and those of several
REFUSED = {
    "a flag": (Case(later=set_to("skips", True)), "takes another way"),
    "a flag, in an object": (Case(later=set_to("skips", True), hides=True), "takes another way"),
    "a number of calls": (Case(begin=set_to("reads", True)), "takes another way"),
    "another stage's output": (Case(term=lambda model: model.early), "the loss reads early, which"),
    "other stages' blocks": (Case(term=sum_of_aux), "the loss reads blocks.0.aux, which"),
    "hooks on the model": (
        Case(begin=lambda model: model.register_forward_hook(doubled)),
        "the model has a hook",
    ),
}
REFUSED_OF_SEVERAL = {
    "another part": (Case(later=set_to("head", nn.Linear(8, 8))), "head was replaced after the model"),
    "hooks on gradients": (
        Case(begin=lambda model: [block.register_full_backward_hook(halved) for block in model.blocks]),
        "has a hook that stages would not run",
    ),
}


def losses(case: Case, chosen: Plan | None) -> list[float] | str:
    """Train for some steps; return the losses, or why that is refused."""
    torch.manual_seed(0)
    model = Model()
    model.hides = case.hides
    if chosen is not None:
        model = parastrat.auto_parallelize(model, plan=chosen, sample_inputs=torch.ones(1, 8))  # type: ignore[assignment]

    def loss_of(output: Any, aim: torch.Tensor) -> torch.Tensor:
        output = output.logits if case.hides else output
        return functional.mse_loss(output, aim) + 0.1 * case.term(model)  # type: ignore[no-any-return]

    case.begin(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for step in range(2 * LATER):
        if step == LATER:
            case.later(model)
        torch.manual_seed(step)
        x, y = torch.randn(BATCH, 8), torch.randn(BATCH, 8)
        optimizer.zero_grad()
        try:
            if chosen is None:
                loss = loss_of(model(x), y)
                loss.backward()
            else:
                loss = parastrat.forward_backward(model, x, y, loss_fn=loss_of)
        except ParastratError as error:
            return error.message
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def every_case(chosen: Plan) -> dict[str, list[float] | str]:
    return {name: losses(case, chosen) for name, case in CASES.items()}


@pytest.mark.parametrize("schedule", PLANS)
def test_what_is_changed_counts(schedule: str) -> None:
    for own in on_ranks(2, every_case, PLANS[schedule]):
        for name, case in CASES.items():
            expected = losses(case, None)
            assert own[name] == pytest.approx(expected, rel=1e-4), name


def refused(name: str, chosen: Plan) -> list[float] | str:
    case, _ = (REFUSED | REFUSED_OF_SEVERAL)[name]
    return losses(case, chosen)


@pytest.mark.parametrize(
    ("schedule", "name"),
    drawn(
        [
            *(("1F1B", name) for name in REFUSED),
            *(("ZBV", name) for name in REFUSED | REFUSED_OF_SEVERAL),
        ],
        4,
    ),
)
def test_what_stages_cannot_follow_is_refused(schedule: str, name: str) -> None:
    _, reason = (REFUSED | REFUSED_OF_SEVERAL)[name]
    for message in on_ranks(2, refused, name, PLANS[schedule]):
        assert isinstance(message, str), message
        assert reason in message
