"""What the ranks of test_parity do; one start of the processes runs them all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from drawn import drawn_of
from runtime import token_models
from runtime.cells import whole
from runtime.context_parallel.models import DIVIDED, REFUSED, Block, Chunked, Local, Net
from runtime.models import token_loss
from runtime.ranks import answers
from runtime.token_models import BATCH, STEPS, Trained, adam, batch, calls_of, saved, share, spoiled
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import Recompute

#: beside cp
TP: dict[str, Any] = {"tp": 2, "sequence_parallel": True, "loss_parallel": True}
#: models that two ranks train, and ways in which four do
DRAWN = drawn_of(DIVIDED, 2)
OF_FOUR: dict[str, dict[str, Any]] = drawn_of(
    {"fsdp2+cp": {"dp_shard": 2}, "hsdp+cp": {"dp_replicate": 2}, "cp 4": {"cp": 4}}, 1
)


by_hand, trained, wrapped = (
    partial(each, cp=2) for each in (token_models.by_hand, token_models.trained, token_models.wrapped)
)


def local() -> nn.Module:
    """A model whose heads, stream and logits tp divides too."""
    return Net(Local)


def in_chunks(alone: bool) -> Trained:
    """A model that returns its loss; in one process, or a rank."""
    build = partial(Chunked, Block)
    torch.manual_seed(3)
    model = (
        build()
        if alone
        else wrapped(build, sample_inputs=dict(zip(("ids", "labels"), batch(0), strict=True)))
    )
    optimizer, losses = adam(model), []
    for step in range(STEPS):
        x, y = batch(step)
        loss, _ = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, dict(model.state_dict()) if alone else whole(model)


def evaluated(build: Callable[[], nn.Module], **fields: Any) -> tuple[float, float]:
    """The mean of a metric over a loader, and of the plain model's."""
    torch.manual_seed(3)
    plain, model = build(), wrapped(build, **fields)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch(0)), batch_size=3)

    def metric(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    counted = [(x, y.clamp(min=0)) for x, y in loader]
    found = parastrat.evaluate(model, counted, metric)
    with torch.no_grad():
        each = [(metric(plain(x), y).item(), y.numel()) for x, y in counted]
    return found, sum(mean * count for mean, count in each) / sum(count for _, count in each)


def with_other_batches(model: nn.Module, odd: int) -> str:
    """What is said where rank ``odd`` of a sequence is given another."""
    x, y = share(model, int(dist.get_rank() == odd))
    return str(answers({"": lambda: parastrat.forward_backward(model, x, y, loss_fn=token_loss)})[""])


def of_length(model: nn.Module, length: int) -> str:
    """What is said of sequences that are so long."""
    x, y = (part[:, :length] for part in share(model, 0))
    return str(answers({"": lambda: parastrat.forward_backward(model, x, y, loss_fn=token_loss)})[""])


def dropped(**fields: Any) -> tuple[list[list[float]], bool, float]:
    """What each rank drops in the first block, whether draws behind go on as before, and a step's loss."""
    model = wrapped(lambda: Net(lambda: Block(rate=0.5)), **fields)
    drawn: list[torch.Tensor] = []
    block: Any = model.get_submodule("blocks.0")
    block.drop.register_forward_hook(lambda *given: drawn.append((given[-1] == 0).float().flatten()))
    torch.manual_seed(7)
    loss = parastrat.forward_backward(model, *share(model, 0), loss_fn=token_loss)
    behind, generator = torch.rand(1), torch.Generator().manual_seed(7)
    every = [torch.empty_like(drawn[0]) for _ in range(dist.get_world_size())]
    dist.all_gather(every, drawn[0].contiguous())
    goes_on = torch.equal(behind, torch.rand(1, generator=generator))
    return [each.tolist() for each in every], goes_on, loss.item()


def copied() -> tuple[list[int], float]:
    """How many positions a block of a copy is given, and how far its outputs are from the model's.

    Rank 0 makes another for itself: the other is not asked, whatever the model drops.
    """
    model = wrapped(lambda: Net(lambda: Block(rate=0.5)))
    if dist.get_rank() == 0:
        copy.deepcopy(model)
    twin = copy.deepcopy(model)
    seen: list[int] = []
    twin.get_submodule("blocks.1.norm").register_forward_pre_hook(
        lambda *given: seen.append(given[1][0].shape[1])
    )
    x, _ = share(model, 0)
    with torch.no_grad():
        apart = (twin.eval()(x) - model.eval()(x)).abs().max()
    return seen, float(apart)


def with_a_penalty_on_gradients() -> str:
    """What is said of a loss that has gradients of a loss in it."""
    model = wrapped(DIVIDED["causal"], micro_batch_size=BATCH, gradient_accumulation_steps=1)
    x, y = share(model, 0)

    def backward() -> str:
        loss = token_loss(model(x), y)
        loss.backward(create_graph=True)
        return "done"

    return str(answers({"": backward})[""])


def _of_two_models(folder: str, **fields: Any) -> dict[str, Any]:
    """What is told of one, saved of it in another, and said of each at last: none goes on from there."""
    one, other = wrapped(local, **fields), wrapped(lambda: local().apply(spoiled), **fields)
    return {
        "calls": calls_of(one),
        "saved": saved(one, Path(folder), other),
        "other batches": with_other_batches(one, odd=dist.get_world_size() - 1),
        "odd length": of_length(other, 6),
    }


def two_ranks(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"model: {name}": trained(build, tail=3 if name == "last positions" else 0)
        for name, build in DRAWN.items()
    }
    for policy in (Recompute.FULL, Recompute.SELECTIVE):
        found[f"recompute: {policy.value}"] = trained(DIVIDED["causal"], recompute=policy)
    found["by hand"] = by_hand(DIVIDED["causal"])
    found["in chunks"] = in_chunks(alone=False)
    found["other calls"] = calls_of(wrapped(DIVIDED["counted behind the blocks"]))
    found["evaluated"] = evaluated(DIVIDED["causal"])
    found |= _of_two_models(folder)
    found["dropped"] = dropped()
    found["copied"] = copied()
    found["penalty on gradients"] = with_a_penalty_on_gradients()
    refused = {f"refused: {name}": partial(wrapped, build) for name, (build, _) in REFUSED.items()}
    return found | answers(refused)


def four_ranks() -> dict[str, Any]:
    return {name: trained(DIVIDED["causal"], **fields) for name, fields in OF_FOUR.items()}


def beside_layers(folder: str) -> dict[str, Any]:
    """What four ranks give, of which pairs divide positions, and pairs layers."""
    return {
        "all": trained(local, recompute=Recompute.FULL, **TP),
        # whose heads are DTensors, as their number is written
        "whole activations": trained(DIVIDED["mask given"], tp=2),
        **_of_two_models(folder, **TP),
        "dropped": dropped(tp=2),
        "refused": str(answers({"": lambda: wrapped(REFUSED["products"][0], tp=2)})[""]),
    }
