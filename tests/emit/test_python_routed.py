"""``parallelize.py`` for models with routed experts: ranks whose tokens chose others reduce alike."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from versions import reduces_unused

from parastrat.emit import EMITTERS, Target
from parastrat.emit.division import Division
from parastrat.emit.python import emit
from parastrat.emit.staging import Alike, Staging
from parastrat.plan import Mesh, Shard
from parastrat.runtime.emission import proven_division, proven_staging
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case
    from parastrat.hardware import Device

FSDP = {"mesh": Mesh(dp_shard=2)}
DDP = {"mesh": Mesh(dp_replicate=2), "shard": Shard.NONE}


class Layer(nn.Module):
    """Each sample goes to one of three experts; the last one never sees any."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))

    def forward(self, x: torch.Tensor, chosen: list[int]) -> torch.Tensor:
        x = self.norm(x)
        return torch.stack([self.experts[place](row) for place, row in zip(chosen, x, strict=True)])


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = [int(sample.mean() > 0) for sample in x]
        for layer in self.layers:
            x = layer(x, chosen)
        return x


class Choosing(nn.Module):
    """A part that tp divides, and experts that are given the tokens that chose them, as Mixtral's are."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (x.flatten(0, 1)[:, 0] > 0).long()
        flat = (x + self.down(self.up(x).tanh()).tanh()).flatten(0, 1)
        for place in range(3):
            rows = (chosen == place).nonzero()[:, 0]
            if len(rows):
                flat = flat.index_add(0, rows, self.experts[place](flat[rows]).tanh())
        return flat.view_as(x)


class Chain(nn.Module):
    """Tokens above 3 choose one expert of each layer, the others another; the last sees none."""

    tp_plan = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}  # noqa: RUF012  (as of transformers)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.layers = nn.ModuleList([Choosing(), Choosing()])
        self.head = nn.Linear(4, 8)
        with torch.no_grad():
            # more than what two layers add
            self.embed.weight[:, 0] = torch.tensor([-9.0] * 4 + [9.0] * 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def gradients(text: str, *, replaced: bool = False) -> dict[str, torch.Tensor]:
    """Return what emitted code leaves of two samples, one on each rank; without code, of both here.

    Behind a step in which they chose two experts comes one in which they choose the same; between them
    other objects may take the place of all parameters.
    """
    torch.manual_seed(0)
    model: nn.Module = Routed()
    x, y = torch.tensor([[1.0, 2, 3, 5], [-4, -3, -2, 1]]), torch.arange(2)
    if text:
        names: dict[str, Any] = {}
        exec(compile(text, "parallelize.py", "exec"), names)  # noqa: S102 - the emitted code is what is tested
        model = names["parallelize"](model, names["build_mesh"]())
        own = slice(dist.get_rank(), dist.get_rank() + 1)
        x, y = x[own], y[own]
    found = {}
    for step, batch in enumerate((x, x.abs())):
        model.zero_grad()
        functional.cross_entropy(model(batch), y).backward()
        found |= {f"{step}.{name}": gradient for name, gradient in whole(model).items()}
        if replaced:
            held = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            model.load_state_dict(held, assign=True)
    return found


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("module."): parameter.grad.full_tensor()
        if isinstance(parameter.grad, DTensor)
        else parameter.grad.clone()  # DDP writes the next step's there
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def of_chain(names: dict[str, Any], place: int | None) -> dict[str, torch.Tensor]:
    """Return what emitted code leaves of the tokens of one place of two; without code, of both here.

    Behind a step in which they chose two experts comes one in which they choose the same.
    """
    torch.manual_seed(0)
    tokens = torch.tensor([[0, 3, 1], [2, 1, 0], [4, 7, 5], [6, 6, 4]])
    own = slice(None) if place is None else slice(2 * place, 2 * place + 2)
    inputs, targets = tokens[own], tokens[own].roll(1, 1)
    model: nn.Module = Chain()
    parts, pipeline = [model], None
    if "Pipeline" in names:
        summed = partial(functional.cross_entropy, reduction="sum")
        pipeline = names["parallelize"](
            model,
            names["build_mesh"](),
            lambda logits, targets: summed(logits.flatten(0, 1), targets.flatten()),
        )
        parts = [stage.model for stage in pipeline.stages.values()]
    elif names:
        parts = [model := names["parallelize"](model, names["build_mesh"]())]
    found = {}
    for step, batch in enumerate((inputs, inputs % 4)):
        for part in parts:
            part.zero_grad()
        if pipeline is not None:
            pipeline.step(batch, targets)
        else:
            functional.cross_entropy(model(batch).flatten(0, 1), targets.flatten()).backward()
        for part in parts:
            found |= {f"{step}.{name}": gradient for name, gradient in whole(part).items()}
    return found


def of_chains(texts: dict[str, str]) -> dict[str, dict[str, torch.Tensor]]:
    """Run one text after the other."""
    found = {}
    for cell, text in texts.items():
        names: dict[str, Any] = {}
        exec(compile(text, "parallelize.py", "exec"), names)  # noqa: S102 - the emitted code is what is tested
        rank = int(os.environ["RANK"])
        found[cell] = of_chain(names, rank % 2 if "Pipeline" in names else rank // 2)
    return found


def text_of(case: Case, **known: Any) -> str:
    model = SimpleNamespace(
        ref="routed", parameters=1, layers=2, changing_buffers=False, divides_sequences=True, **known
    )
    (file,) = EMITTERS[Target.PYTHON](replace(case, model=model))  # type: ignore[arg-type]
    return file.text


@pytest.mark.slow
@pytest.mark.parametrize("fields", [pytest.param(FSDP, marks=reduces_unused), DDP], ids=["fsdp2", "ddp"])
def test_ranks_that_chose_other_experts_reduce_alike(
    fields: dict[str, Any], case_of: Callable[..., Case], cpu_device: Device
) -> None:
    alone = gradients("")
    assert {"0.layers.0.experts.0.0.weight", "1.layers.1.experts.1.0.weight"} <= alone.keys()
    assert {"1.layers.0.experts.0.0.weight", "0.layers.1.experts.2.0.weight"}.isdisjoint(alone)
    case = case_of(ranks=2, device=cpu_device, precision=Precision.FP32, **fields)
    for rank in on_ranks(2, gradients, text_of(case, routed=True)):
        assert rank.keys() == alone.keys()
        for name, gradient in rank.items():
            torch.testing.assert_close(gradient, alone[name])


@reduces_unused
@pytest.mark.slow
def test_parameters_may_be_replaced_between_steps(case_of: Callable[..., Case], cpu_device: Device) -> None:
    alone = gradients("")
    case = case_of(ranks=2, device=cpu_device, precision=Precision.FP32, **FSDP)
    for rank in on_ranks(2, partial(gradients, replaced=True), text_of(case, routed=True)):
        assert rank.keys() == alone.keys()
        for name, gradient in rank.items():
            torch.testing.assert_close(gradient, alone[name])


@pytest.mark.parametrize("fields", [FSDP, DDP], ids=["fsdp2", "ddp"])
def test_says_it_where_tokens_choose_or_nobody_knows(
    fields: dict[str, Any], case_of: Callable[..., Case]
) -> None:
    said = ("find_unused_parameters", "set_reduce_scatter_unused_params")
    texts = {routed: text_of(case_of(ranks=2, **fields), routed=routed) for routed in (True, None, False)}
    assert texts[True] == texts[None]
    assert any(word in texts[True] for word in said)
    assert not any(word in texts[False] for word in (*said, "expert(", "routed"))


MIXTURES: dict[str, dict[str, Any]] = {
    "fsdp2+tp": {"mesh": Mesh(dp_shard=2, tp=2)},
    "ddp+tp": {"mesh": Mesh(dp_replicate=2, tp=2), "shard": Shard.NONE},
    "fsdp2+pp": {"mesh": Mesh(pp=2, dp_shard=2), "reshard_after_forward": False},
    "ddp+pp": {"mesh": Mesh(pp=2, dp_replicate=2), "shard": Shard.NONE},
}


@reduces_unused
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_divided_and_staged_ranks_reduce_alike(case_of: Callable[..., Case], cpu_device: Device) -> None:
    ref, texts, division = f"{Path(__file__)}:Chain", {}, None
    for cell, fields in MIXTURES.items():
        steps = {"gradient_accumulation_steps": fields["mesh"].pp, "micro_batch_size": 1}
        case = case_of(ranks=4, device=cpu_device, precision=Precision.FP32, **fields, **steps)
        if case.plan.mesh.pp > 1:
            (file,) = emit(case, staging=proven_staging(ref, case))
        else:
            division = division or proven_division(ref, case)
            (file,) = emit(case, division)
        texts[cell] = file.text
    alone = of_chain({}, None)
    assert {"0.layers.0.experts.0.weight", "0.layers.1.experts.1.weight"} <= alone.keys()
    assert {"1.layers.0.experts.1.weight", "0.layers.1.experts.2.weight"}.isdisjoint(alone)
    ranks = on_ranks(4, of_chains, texts)
    for cell in texts:
        assert set().union(*(rank[cell] for rank in ranks)) == alone.keys()
        for rank in ranks:
            assert "pp" in cell or rank[cell].keys() == alone.keys()
            for name, gradient in rank[cell].items():
                torch.testing.assert_close(gradient, alone[name])


def test_divided_and_staged_code_says_it_where_tokens_choose(case_of: Callable[..., Case]) -> None:
    division = Division(container="layers", blocks=2, places=())
    staging = Staging(
        blocks=("layers.0", "layers.1"),
        stages=(("layers.0",), ("layers.1",)),
        alike=Alike(sizes=(4,), dtype="float32"),
    )
    for cell, fields in MIXTURES.items():
        said = []
        for routed in (True, False):
            case = case_of(ranks=4, gradient_accumulation_steps=2, **fields)
            staged = replace(staging, routed=routed) if fields["mesh"].pp > 1 else None
            divided = replace(division, routed=routed) if fields["mesh"].tp > 1 else None
            (file,) = emit(case, divided, staged)
            said.append("set_reduce_scatter_unused_params(True)" in file.text)
        # a pipeline of replicas averages all that any rank has
        assert said == [cell != "ddp+pp", False]
