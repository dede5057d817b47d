"""Copies of wrapped models, as averages of their weights are: they are divided too, and their own."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn import drawn, drawn_of
from runtime.models import Gpt, plan, token_loss, tokens
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import parastrat
from parastrat.plan import Plan, Recompute
from parastrat.runtime.tensors.shares import share_of
from parastrat.runtime.tensors.slots import slots_of
from parastrat.runtime.wrapped import is_wrapped
from parastrat.runtime.wrapping import latest_wrapping, wrapping_of
from parastrat.workload import Precision

pytestmark = pytest.mark.slow

#: of the average, what a step leaves
KEPT = 0.5
#: samples of a step
SAMPLES = 4
TOLERANCE = 1e-5


def over(**fields: Any) -> Plan:
    """A plan that steps by all samples."""
    ranks = fields.get("dp_shard", 1) * fields.get("dp_replicate", 1)
    return plan(micro_batch_size=SAMPLES // ranks, **fields)


def own(samples: torch.Tensor, chosen: Plan) -> torch.Tensor:
    """This rank's samples; those of a tp group have the same."""
    place = torch.distributed.get_rank() // chosen.mesh.tp
    return samples.chunk(chosen.mesh.dp)[place % chosen.mesh.dp]


def models(chosen: Plan) -> tuple[nn.Module, nn.Module]:
    """A model of one process, and the same one wrapped."""
    torch.manual_seed(0)
    plain = Gpt()
    return plain, parastrat.auto_parallelize(
        copy.deepcopy(plain), plan=chosen, sample_inputs=tokens(0, 2)[0]
    )


def gradients(model: nn.Module, step: int, chosen: Plan | None) -> None:
    x, y = tokens(step, SAMPLES)
    if chosen is None:
        token_loss(model(x), y).backward()
    elif step % 2:  # as a script's own loop does
        token_loss(model(own(x, chosen)), own(y, chosen)).backward()
    else:
        parastrat.forward_backward(model, own(x, chosen), own(y, chosen), loss_fn=token_loss)


def stepping(model: nn.Module, chosen: Plan | None) -> Callable[[int], None]:
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5)

    def step(number: int) -> None:
        gradients(model, number, chosen)
        optimizer.step()
        optimizer.zero_grad()

    return step


def said_by(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        answer: torch.Tensor = model(tokens(9, 2)[0])
    return answer


def apart(run: Callable[[nn.Module, Plan | None], nn.Module], chosen: Plan) -> float:
    """By how much the model that a run ends with answers otherwise than one process's."""
    plain, together = models(chosen)
    before = said_by(plain)
    alone = said_by(run(plain, None))
    assert float((alone - before).abs().max()) > 0.01
    return float((alone - said_by(run(together, chosen))).abs().max())


def by_torch(model: nn.Module, chosen: Plan | None) -> nn.Module:
    step = stepping(model, chosen)
    other = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(KEPT))
    for number in range(3):
        step(number)
        other.update_parameters(model)
    return other.eval()


def by_states(model: nn.Module, chosen: Plan | None) -> nn.Module:
    """Average what ``state_dict`` shows, before the copy ran, as timm's do."""
    step = stepping(model, chosen)
    other = copy.deepcopy(model).eval().requires_grad_(False)
    held = other.state_dict()
    for number in range(3):
        step(number)
        for name, value in model.state_dict().items():
            held[name].lerp_(value.detach(), 1 - KEPT)
        said_by(other)
    return other


def beside(model: nn.Module, chosen: Plan | None) -> nn.Module:
    """Train a model and then its copy in turn, and the copy alone to the end."""
    step = stepping(model, chosen)
    step(0)
    other = copy.deepcopy(model)
    other_step = stepping(other, chosen)
    for number in range(1, 4):
        step(number)
        other_step(number + 4)
    return other


def thawed(model: nn.Module, chosen: Plan | None) -> nn.Module:
    """Train what is frozen in a copy alone, beside one that is frozen as a whole."""
    model.requires_grad_(False)
    model.get_submodule("layers.0").requires_grad_(True)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    other = copy.deepcopy(model)
    assert [each.requires_grad for each in other.parameters()] == [
        each.requires_grad for each in model.parameters()
    ]
    step = stepping(other, chosen)
    for number in range(2):
        step(number)
        said_by(teacher)
    assert torch.equal(said_by(teacher), said_by(model))
    return other


def between(model: nn.Module, chosen: Plan | None) -> nn.Module:
    """Copy between a forward and its backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = tokens(1, SAMPLES)
    x, y = (x, y) if chosen is None else (own(x, chosen), own(y, chosen))
    loss = token_loss(model(x), y)
    other = copy.deepcopy(model)
    loss.backward()
    optimizer.step()
    stepping(other, chosen)(1)
    assert float((said_by(other) - said_by(model)).abs().max()) < TOLERANCE
    return model


def of_a_copy(model: nn.Module, chosen: Plan | None) -> nn.Module:
    """Copy a copy, with the optimizer of that one."""
    first = copy.deepcopy(model)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.5)
    held = copy.deepcopy({"optimizer": optimizer, "model": first})
    other, others = held["model"], held["optimizer"]
    gradients(other, 0, chosen)
    others.step()
    assert torch.equal(said_by(first), said_by(model))
    return other


def left_behind(chosen: Plan) -> float:
    """By how much a copy's answers move with the model that it was made of."""
    _, model = models(chosen)
    before, other = said_by(model), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return float((said_by(other) - before).abs().max())


def held(chosen: Plan) -> bool:
    """Whether a copy of one rank's alone has shards as the model has, with memory of their own."""
    _, model = models(chosen)
    said_by(model)
    if torch.distributed.get_rank():
        return True
    other = copy.deepcopy(model)
    pairs = list(zip(slots_of(model), slots_of(other), strict=True))
    parts = [(share_of(first.tensor), share_of(second.tensor)) for first, second in pairs]
    return all(
        first.names == second.names
        and torch.equal(*part)
        and (part[0].data_ptr() != part[1].data_ptr() or not part[0].numel())
        and isinstance(second.tensor, DTensor) is isinstance(first.tensor, DTensor)
        for (first, second), part in zip(pairs, parts, strict=True)
    )


class Counts:
    """A hook of a script's, with a state that is copied with it."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen, self.calls = name, seen, 0

    def __call__(self, _module: nn.Module, *_: Any) -> None:
        self.calls += 1
        self.seen.append(self.name)


def with_what_is_set(chosen: Plan) -> dict[str, Any]:
    """What a script set on a model, before it was wrapped and after, in a copy that runs once."""
    module = Gpt()
    layer: Any = module.layers[0]
    seen: list[str] = []
    calls = [Counts(name, seen) for name in ("before", "gone", "after", "first")]
    before, gone, after, first = calls
    layer.register_forward_hook(before)
    handle = layer.register_forward_hook(gone)
    layer.told = {"same": module.layers[1]}
    layer.scale = 1
    model: Any = parastrat.auto_parallelize(module, plan=chosen, sample_inputs=tokens(0, 2)[0])
    handle.remove()
    model.layers[0].register_forward_hook(after)
    model.layers[0].register_forward_hook(first, prepend=True)
    layer.scale = 2
    layer.told["more"] = model
    model.layers[1].eval()
    other = copy.deepcopy(model)
    said_by(other)
    inner = next(part for part in other.layers[0].modules() if "told" in vars(part))
    return {
        "calls of the model's": [each.calls for each in calls],
        "calls": [hook.calls for hook in hooks_in(other.layers[0])],
        "order": hooks_in(other.layers[0])[0].seen,
        "scale": inner.scale,
        "ties": inner.told["more"] is other and inner.told["same"] in set(other.modules()),
        "training": [part.training for part in (other, *other.layers)],
        "tied": other.head._parameters["weight"] is other.embed._parameters["weight"],
        "latest": latest_wrapping() is wrapping_of(model),
        "wrapped": is_wrapped(other) and wrapping_of(other) is not wrapping_of(model),
    }


def hooks_in(layer: nn.Module) -> list[Counts]:
    return [
        hook
        for part in layer.modules()
        for hook in part._forward_hooks.values()
        if isinstance(hook, Counts)
    ]


class Normed(nn.Module):
    """Statistics, and a weight without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.norm(self.up(x))) * self.scale
        return out


def with_statistics(chosen: Plan) -> float:
    """By how much running statistics of a copy follow the model's forwards."""
    model: Any = parastrat.auto_parallelize(Normed(), plan=chosen)
    model(torch.randn(4, 8)).sum().backward()
    other = copy.deepcopy(model)
    kept = other.norm.running_mean.clone()
    assert torch.equal(kept, model.norm.running_mean)
    model(torch.randn(4, 8) + 3)
    other.eval()
    with torch.no_grad():
        other(torch.randn(4, 8) + 3)
    assert not torch.equal(kept, model.norm.running_mean)
    return float((other.norm.running_mean - kept).abs().max())


def served(chosen: Plan, folder: Path) -> bool:
    """Whether a copy is saved, loaded and evaluated as the model is."""
    _, model = models(chosen)
    other = copy.deepcopy(model)
    parastrat.save_checkpoint(other, torch.optim.SGD(other.parameters(), lr=0.1), folder)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    loader = [tokens(step, 2) for step in range(3)]
    moved = parastrat.evaluate(other, loader, token_loss)
    parastrat.load_checkpoint(other, torch.optim.SGD(other.parameters(), lr=0.1), folder)
    found = parastrat.evaluate(other, loader, token_loss)
    return found == parastrat.evaluate(model, loader, token_loss) != moved


def refused(chosen: Plan, change: Callable[[Any], None]) -> None:
    _, model = models(chosen)
    change(model)
    copy.deepcopy(model)


def grown(model: Any) -> None:
    model.layers[1].more = nn.Linear(8, 8)


def copied_within(model: Any) -> None:
    def hook(*_: Any) -> None:
        copy.deepcopy(model)

    model.norm.register_forward_hook(hook)
    said_by(model)


def too_early(chosen: Plan) -> str:
    """What a script ends with in which a copy that was made before meets what is divided."""
    plain, model = models(chosen)
    try:
        with torch.no_grad():
            for mean, value in zip(plain.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.1)
    except (RuntimeError, AssertionError) as error:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            sys.excepthook(type(error), error, error.__traceback__)
        return printed.getvalue()
    return ""


def read(chosen: Plan) -> str:
    """What a script ends with that reads the values of a weight."""
    _, model = models(chosen)
    divided = next(each for each in model.parameters() if isinstance(each, DTensor))
    try:
        divided.tolist()
    except RuntimeError as error:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            sys.excepthook(type(error), error, error.__traceback__)
        return printed.getvalue()
    return ""


RUNS = {
    "averaged": by_torch,
    "states": by_states,
    "beside": beside,
    "thawed": thawed,
    "between": between,
    "copy": of_a_copy,
}
_ALL = {
    "fsdp2": over(dp_shard=2),
    "fsdp2 recompute": over(dp_shard=2, recompute=Recompute.FULL),
    "tp": over(tp=2),
    "tp sequence": over(tp=2, sequence_parallel=True, loss_parallel=True),
}
PLANS = drawn_of(_ALL, 2)
OF_FOUR = {
    "hsdp": over(dp_replicate=2, dp_shard=2),
    "fsdp2 x tp": over(dp_shard=2, tp=2),
}


#: what is done under which plan; how torch averages is seen under each of two ranks
DRAWN = [("averaged", name) for name in PLANS]
DRAWN += drawn([(kind, name) for kind in list(RUNS)[1:] for name in PLANS], 3)
DRAWN_OF_FOUR = drawn([(kind, name) for kind in RUNS for name in OF_FOUR], 2)


def run(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    plans = PLANS | OF_FOUR
    return {f"{kind} {name}": partial(apart, RUNS[kind], plans[name]) for kind, name in pairs}


def everything(folder: Path) -> dict[str, Any]:
    asked = run(DRAWN) | {
        "averaged ddp": partial(apart, by_torch, over(dp_replicate=2)),
        "mixed": partial(left_behind, plan(dp_replicate=2, precision=Precision.BF16_MIXED)),
        "attention": partial(left_behind, plan(dp_replicate=2, recompute=Recompute.ATTENTION)),
        "full": partial(left_behind, plan(dp_replicate=2, recompute=Recompute.FULL)),
        "mixed fsdp2": partial(left_behind, plan(dp_shard=2, precision=Precision.BF16_MIXED)),
        "attention tp": partial(left_behind, plan(tp=2, recompute=Recompute.ATTENTION)),
        "statistics": partial(with_statistics, over(dp_shard=2)),
        "grown": partial(refused, over(dp_shard=2), grown),
        "within": partial(refused, over(dp_shard=2), copied_within),
        "pp": partial(refused, plan(pp=2, gradient_accumulation_steps=2), lambda _: None),
        "early fsdp2": partial(too_early, over(dp_shard=2)),
        "early tp": partial(too_early, over(tp=2)),
        "read fsdp2": partial(read, over(dp_shard=2)),
        "read tp": partial(read, over(tp=2)),
    }
    for name, chosen in PLANS.items():
        asked[f"held {name}"] = partial(held, chosen)
        asked[f"set {name}"] = partial(with_what_is_set, chosen)
        asked[f"served {name}"] = partial(served, chosen, folder / name)
    return answers(asked)


def of_four() -> dict[str, Any]:
    replicas = over(dp_replicate=2, tp=2)
    further = {
        "averaged ddp x tp": partial(apart, by_torch, replicas),
        "optimizer first": partial(apart, of_a_copy, replicas),
    }
    return answers(run(DRAWN_OF_FOUR) | further)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, everything, tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return on_ranks(4, of_four)


@pytest.mark.parametrize("name", [*PLANS, "ddp"])
def test_averages_of_weights(ranks: list[dict[str, Any]], name: str) -> None:
    assert all(found[f"averaged {name}"] < TOLERANCE for found in ranks)


@pytest.mark.parametrize(("kind", "name"), DRAWN[len(PLANS) :])
def test_copies_answer_as_those_of_one_process(ranks: list[dict[str, Any]], kind: str, name: str) -> None:
    for found in ranks:
        assert found[f"{kind} {name}"] < TOLERANCE


@pytest.mark.parametrize(("kind", "name"), DRAWN_OF_FOUR)
def test_copies_over_two_axes(four: list[dict[str, Any]], kind: str, name: str) -> None:
    for found in four:
        assert found[f"{kind} {name}"] < TOLERANCE


def test_copies_of_replicated_shares(four: list[dict[str, Any]]) -> None:
    for found in four:
        assert found["averaged ddp x tp"] < TOLERANCE
        assert "was copied before the model holds another" in found["optimizer first"]


def test_copies_run_their_own_weights(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        for name in ("mixed", "attention", "full", "mixed fsdp2", "attention tp", "statistics"):
            assert found[name] == 0, name


@pytest.mark.parametrize("name", PLANS)
def test_copies_hold_shards_and_one_rank_copies_alone(ranks: list[dict[str, Any]], name: str) -> None:
    assert all(found[f"held {name}"] is True for found in ranks)


@pytest.mark.parametrize("name", PLANS)
def test_what_a_script_set_comes_along(ranks: list[dict[str, Any]], name: str) -> None:
    for found in ranks:
        assert found[f"set {name}"] == {
            "calls of the model's": [0, 0, 0, 0],
            "calls": [1, 1, 1],
            # a block to recompute has others around it
            "order": ["before", "first", "after"] if "recompute" in name else ["first", "before", "after"],
            "scale": 2,
            "ties": True,
            "training": [True, True, False],
            "tied": True,
            "latest": True,
            "wrapped": True,
        }


@pytest.mark.parametrize("name", PLANS)
def test_copies_are_saved_and_evaluated(ranks: list[dict[str, Any]], name: str) -> None:
    assert all(found[f"served {name}"] is True for found in ranks)


def test_what_cannot_be_copied_is_refused(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "layers.1.more.weight is not divided as" in found["grown"]
        assert "copied inside of a forward" in found["within"]
        assert "cannot be copied" in found["pp"]


@pytest.mark.parametrize("name", ["fsdp2", "tp"])
def test_copies_made_too_early_are_told_what_to_do(ranks: list[dict[str, Any]], name: str) -> None:
    for found in ranks:
        assert "copy what auto_parallelize returned" in found[f"early {name}"]


@pytest.mark.parametrize("name", ["fsdp2", "tp"])
def test_values_that_are_read_of_a_part_are_told_how(ranks: list[dict[str, Any]], name: str) -> None:
    for found in ranks:
        assert "take the whole, on all ranks: tensor.full_tensor()" in found[f"read {name}"]
