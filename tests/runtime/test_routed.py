"""Experts of which a rank's tokens choose some alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drawn import drawn
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from versions import reduces_unused

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import PipelineSchedule
from parastrat.runtime.blocks import has_routed_parts
from parastrat.runtime.data_parallel.apply import _reduce_unused
from parastrat.runtime.tensors.slots import clean_name
from parastrat.runtime.wrapping import wrapping_of


class Routed(nn.Module):
    """Each sample goes to one of three experts; the last one never sees any."""

    #: as models of transformers say it; what is left whole is not followed, as it depends on values
    tp_plan = {"first": "colwise_gather_output"}  # noqa: RUF012  (a dict there, too)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = [int(sample.mean() > 0) for sample in x]
        x = self.first(x)
        return torch.stack([self.experts[place](row) for place, row in zip(chosen, x, strict=True)])


class Stack(nn.Module):
    """The weights of all experts in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4, 4))


class Idle(nn.Module):
    """A sample goes to an expert with weights, or to one without, which changes nothing."""

    tp_plan = {"first": "colwise_gather_output"}  # noqa: RUF012  (as above)
    #: of the samples that work
    sign = 1

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.experts = Stack()
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        works = [bool(sample.mean() * self.sign > 0) for sample in x]
        x = self.first(x)
        rows = [row @ self.experts.weight[0] if work else row for work, row in zip(works, x, strict=True)]
        return self.last(torch.stack(rows))


class Resting(Idle):
    """Behind the first step no sample works, and the whole stack is left alone."""

    sign = -1


class Choosing(nn.Module):
    """As Mixtral does it: each expert that any token chose is given those tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (x.mean(-1) > 0).long()
        for place in range(3):
            rows = (chosen == place).nonzero()[:, 0]
            if len(rows):
                x = x.index_add(0, rows, self.experts[place](self.first(x[rows])).tanh() / 2)
        return x


class Chain(nn.Module):
    """Layers of which stages can be made."""

    tp_plan = {"layers.*.first": "colwise_gather_output"}  # noqa: RUF012  (as above)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Choosing() for _ in range(4))
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


#: with weights of which one rank's samples use each, or one rank's alone
MODELS: dict[str, tuple[type[nn.Module], set[str]]] = {
    "listed": (Routed, {"experts.0.weight", "experts.1.weight"}),
    "stacked": (Idle, {"experts.weight"}),
    "resting": (Resting, set()),
    "chain": (Chain, {"layers.0.experts.0.weight", "layers.1.experts.1.weight"}),
}
#: data axes of two, with a second axis of two or none
AXES: dict[str, dict[str, Any]] = {
    "fsdp2": {"dp_shard": 2},
    "ddp": {"dp_replicate": 2},
    "fsdp2+tp": {"dp_shard": 2, "tp": 2},
    "ddp+tp": {"dp_replicate": 2, "tp": 2},
    "fsdp2+pp": {"dp_shard": 2, "pp": 2, "gradient_accumulation_steps": 2},
    "fsdp2+tp+pp": {"dp_shard": 2, "tp": 2, "pp": 2, "gradient_accumulation_steps": 2},
    "fsdp2+zbv": {
        "dp_shard": 2,
        "pp": 2,
        "gradient_accumulation_steps": 4,
        "virtual_stages": 2,
        "pp_schedule": PipelineSchedule.ZBV,
    },
    "hsdp": {"dp_replicate": 2, "dp_shard": 2},
    "ddp+pp": {"dp_replicate": 2, "pp": 2, "gradient_accumulation_steps": 2},
}
#: by ranks
CELLS = {
    2: [(axes, kind) for axes in ("fsdp2", "ddp") for kind in ("listed", "stacked")],
    4: [
        *((axes, kind) for axes in ("fsdp2+tp", "ddp+tp") for kind in ("listed", "stacked")),
        *((axes, "chain") for axes in ("fsdp2+pp", "ddp+pp")),
    ],
}
Tensors = dict[str, torch.Tensor]


def samples_of(place: int) -> torch.Tensor:
    """Return the two samples of one data rank."""
    return torch.tensor([-4.0, -3, -2, 1] if place else [1.0, 2, 3, 5]).repeat(2, 1)


def gradients(kind: str, fields: dict[str, Any]) -> Tensors:
    """Return what this rank holds of the gradients of both data ranks' samples."""
    torch.manual_seed(0)
    chosen = plan(**{"micro_batch_size": 2 // fields.get("pp", 1), **fields})
    model = parastrat.auto_parallelize(MODELS[kind][0](), plan=chosen, sample_inputs=samples_of(0))
    places = [wrapping_of(model).mesh.dp_rank] if fields else [0, 1]
    for place in places:
        parastrat.forward_backward(
            model, samples_of(place), torch.full((2,), place), loss_fn=functional.cross_entropy
        )
    found = {
        name.removeprefix("module."): parameter.grad.full_tensor()
        if isinstance(parameter.grad, DTensor)
        else parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {name: gradient / len(places) for name, gradient in found.items() if gradient.any()}


def of_cells(ranks: int) -> list[Tensors]:
    return [gradients(kind, dict(AXES[axes])) for axes, kind in CELLS[ranks]]


@pytest.fixture(scope="module", params=CELLS)
def cells(request: pytest.FixtureRequest) -> dict[tuple[str, str], list[Tensors]]:
    """Return the gradients of each rank, by axes and kind; one start of the processes runs many."""
    ranks: int = request.param
    found = on_ranks(ranks, of_cells, ranks)
    return {cell: [rank[index] for rank in found] for index, cell in enumerate(CELLS[ranks])}


@reduces_unused
@pytest.mark.slow
def test_ranks_that_chose_other_experts_reduce_alike(
    cells: dict[tuple[str, str], list[Tensors]],
) -> None:
    for (axes, kind), ranks in cells.items():
        alone = gradients(kind, {})
        assert MODELS[kind][1] <= alone.keys()
        assert set().union(*ranks) == alone.keys()
        for rank in ranks:
            assert "pp" in AXES[axes] or rank.keys() == alone.keys()
            for name, gradient in rank.items():
                torch.testing.assert_close(gradient, alone[name])


def test_sharding_experts_is_refused_where_torch_cannot_reduce_zeros() -> None:
    with pytest.raises(
        WrapError, match="leaves out experts or layers that a rank did not choose"
    ) as refused:
        _reduce_unused(MODELS["listed"][0](), wrapping=SimpleNamespace())  # type: ignore[arg-type]
    assert "ddp without tp" in refused.value.hint


def walk(place: int, step: int) -> torch.Tensor:
    """Return one sample of a data rank; behind the first, none chooses the first expert."""
    sign = -1 if place % 2 and not step else 1
    return torch.tensor([[1.0, 2, 3, 5]]) * sign + place + step / 4


def trained(kind: str, fields: dict[str, Any], loop: str, samples: int = 1) -> Tensors:
    """Return the weights of this rank's stage after AdamW's steps on so many samples a rank."""
    torch.manual_seed(0)
    rounds = fields.get("gradient_accumulation_steps", 1)
    chosen = plan(micro_batch_size=samples, **fields)
    model = parastrat.auto_parallelize(MODELS[kind][0](), plan=chosen, sample_inputs=walk(0, 0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    places = [wrapping_of(model).mesh.dp_rank] if fields else list(range(samples))
    for step in range(4):
        x = torch.cat([walk(place, step) for place in places])
        y = torch.tensor([place % 3 for place in places])
        if loop == "step":
            x, y = x.repeat(rounds, 1), y.repeat(rounds)
            parastrat.forward_backward(model, x, y, loss_fn=functional.cross_entropy)
            optimizer.step()
            optimizer.zero_grad()
        elif loop in ("plain", "replaced"):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loop == "replaced":  # by objects with the same values, which another optimizer holds
                held = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
                model.load_state_dict(held, assign=True)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        else:  # one step for two backwards, which FSDP2 reduces each or together
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(loop == "summed" or step % 2 == 1)
            functional.cross_entropy(model(x), y).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
    held = {
        clean_name(name).removeprefix("module."): p for name, p in model.named_parameters() if not p.is_meta
    }
    return {name: p.full_tensor() if isinstance(p, DTensor) else p.detach() for name, p in held.items()}


#: ways to write a loop, on the axes where they are told apart
LOOPS = {
    2: [
        *(("fsdp2", "listed", loop) for loop in ("step", "plain", "summed", "delayed", "replaced")),
        ("fsdp2", "resting", "step"),
        ("fsdp2", "resting", "plain"),
        ("ddp", "listed", "step"),
        ("ddp", "listed", "plain"),
        ("fsdp2", "chain", "plain"),
        ("fsdp2", "chain", "step"),
    ],
    4: [
        ("fsdp2+tp", "listed", "step"),
        ("fsdp2+tp", "listed", "plain"),
        ("ddp+tp", "listed", "step"),
        ("ddp+tp", "listed", "plain"),
        ("ddp+tp", "resting", "step"),
        ("fsdp2+pp", "chain", "step"),
        ("fsdp2+zbv", "chain", "step"),  # which sets gradients of weights itself
        ("ddp+pp", "chain", "step"),
        ("hsdp", "chain", "step"),
        ("hsdp", "listed", "plain"),
    ],
    8: [("fsdp2+tp+pp", "chain", "step")],  # what stays gathered between micro-batches is divided by tp
}


LOOPS = {ranks: drawn(loops, 3) for ranks, loops in LOOPS.items()}


def trainings(ranks: int) -> list[Tensors]:
    return [trained(kind, dict(AXES[axes]), loop) for axes, kind, loop in LOOPS[ranks]]


@reduces_unused
@pytest.mark.slow
@pytest.mark.parametrize("ranks", LOOPS)
def test_an_optimizer_leaves_experts_alone_that_no_rank_used(ranks: int) -> None:
    found = on_ranks(ranks, trainings, ranks)
    for index, (axes, kind, loop) in enumerate(LOOPS[ranks]):
        samples = plan(**AXES[axes]).mesh.dp
        alone = trained(kind, {}, loop, samples)
        assert set().union(*(rank[index] for rank in found)) == alone.keys()
        for rank in found:
            for name, weight in rank[index].items():
                assert (weight - alone[name]).abs().max() < 2e-6, (axes, loop, name)


class Stacked(nn.Module):
    """Three matrices, which two ranks do not divide, and rows that they do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(48.0).view(3, 4, 4) / 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x @ own for own in self.weight]).sum(dim=0)


def sharded_along_rows() -> tuple[tuple[int, ...], torch.Tensor]:
    fields = AXES["fsdp2"]
    model = parastrat.auto_parallelize(Stacked(), plan=plan(**fields), sample_inputs=torch.ones(1, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4) * (1 + wrapping_of(model).mesh.dp_rank)).square().sum().backward()
    optimizer.step()
    (weight,) = model.parameters()
    return tuple(weight.to_local().shape), weight.full_tensor()


@pytest.mark.slow
def test_stacks_that_ranks_do_not_divide_are_sharded_along_rows() -> None:
    alone = Stacked()
    loss = sum(alone(torch.ones(1, 4) * scale).square().sum() / 2 for scale in (1, 2))
    loss.backward()
    for shape, weight in on_ranks(2, sharded_along_rows):
        assert shape == (3, 2, 4)
        assert (weight - (alone.weight - 0.1 * alone.weight.grad)).abs().max() < 2e-6


def test_experts_are_told_from_other_lists() -> None:
    assert has_routed_parts(Routed())
    assert not has_routed_parts(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))
    assert has_routed_parts(Idle())
    lone = Routed()
    lone.experts = lone.experts[:1]
    assert not has_routed_parts(lone)
