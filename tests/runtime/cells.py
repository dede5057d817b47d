"""What the ranks of test_together do; one start of the processes runs them all."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from runtime.models import Gpt, plan, token_loss, tokens
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import parastrat
from parastrat.errors import ParastratError
from parastrat.plan import Recompute
from parastrat.runtime.tensors.shares import share_of
from parastrat.runtime.wrapping import wrapping_of
from parastrat.workload import Precision

DDP, FSDP2 = {"dp_replicate": 2}, {"dp_shard": 2}
HSDP = {"dp_replicate": 2, "dp_shard": 2}
SHARE = 4

Weights = dict[str, torch.Tensor]


def whole(model: nn.Module) -> Weights:
    """All weights, unsharded, under the plain model's names; on every rank."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def wrapped(fields: dict[str, Any], model: Any = Gpt, seed: int = 0, **keywords: Any) -> nn.Module:
    torch.manual_seed(seed)
    chosen = plan(**{"gradient_accumulation_steps": 2, **fields})
    return parastrat.auto_parallelize(model, plan=chosen, **keywords)


def of_rank(batch: Any) -> Any:
    start = SHARE * (dist.get_rank() if dist.is_initialized() else 0)
    return tuple(side[start : start + SHARE] for side in batch)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, samples: int) -> list[float]:
    losses = []
    for step in steps:
        x, y = tokens(step, samples)
        if samples > SHARE:
            x, y = of_rank((x, y))
        losses.append(parastrat.forward_backward(model, x, y, loss_fn=token_loss).item())
        parastrat.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def initial_weights(fields: dict[str, Any]) -> Weights:
    return whole(wrapped(fields))


def weights_of_a_built_model(fields: dict[str, Any]) -> Weights:
    torch.manual_seed(dist.get_rank())  # the ranks begin with different weights
    return whole(wrapped(fields, Gpt()))


def weights_of_a_file(fields: dict[str, Any], folder: Path) -> Weights:
    return whole(wrapped(fields, seed=dist.get_rank(), checkpoint=folder / "plain.pt"))


def ties() -> tuple[bool, bool, bool]:
    """Tied before and after a step, and both owners in the root unit."""
    model = wrapped(FSDP2)
    before = model.head.weight is model.embed.weight
    trained(model, torch.optim.AdamW(model.parameters()), range(2), 2 * SHARE)
    state = whole(model)
    return before, torch.equal(state["head.weight"], state["embed.weight"]), isinstance(model, FSDPModule)


def keys() -> dict[str, list[str]]:
    """Names in the state_dict with blocks wrapped for recompute."""
    full = {"recompute": Recompute.FULL}
    return {
        "fsdp2": list(wrapped(FSDP2 | full).state_dict()),
        "ddp": list(wrapped(DDP | full).state_dict()),
    }


def refused(action: Callable[[], Any]) -> tuple[str, str]:
    try:
        action()
    except ParastratError as error:
        return type(error).__name__, str(error)
    return "", ""


def different_plans() -> tuple[str, str]:
    return refused(lambda: wrapped(DDP if dist.get_rank() == 0 else FSDP2, Gpt()))


def different_models() -> tuple[str, str]:
    return refused(lambda: wrapped(DDP, Gpt(layers=1 + dist.get_rank())))


def different_worlds() -> tuple[str, str]:
    return refused(lambda: wrapped(DDP if dist.get_rank() == 0 else {"dp_shard": 4}, Gpt()))


def stale_optimizer_on_one_rank() -> tuple[str, str]:
    model = Gpt()
    held = torch.optim.SGD(model.parameters(), lr=1.0) if dist.get_rank() == 1 else None
    said = refused(lambda: wrapped(FSDP2, model))
    del held
    return said


def uneven(fields: dict[str, Any]) -> tuple[list[float], float]:
    """Losses where ranks and micro-batches hold different numbers of targets, even none, and samples."""
    model = wrapped(fields)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    norm = torch.zeros(())
    for step in range(3):
        x, y = uneven_batch(step)
        own = slice(0, 4) if dist.get_rank() == 0 else slice(4, 5)
        losses.append(parastrat.forward_backward(model, x[own], y[own], loss_fn=token_loss).item())
        norm = parastrat.clip_grad_norm_(model, 1e9)
        optimizer.step()
        optimizer.zero_grad()
    return losses, norm.item()


def uneven_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Five samples: the first two without targets, the third with a few."""
    x, y = tokens(step, 5)
    y[:2] = -100
    y[2, 3:] = -100
    return x, y


def resumed(fields: dict[str, Any], folder: Path, *, save_as: str) -> list[float]:
    """Load what one process saved, train, save."""
    model = wrapped(fields, seed=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    extra = parastrat.load_checkpoint(model, optimizer, folder / "single")
    assert extra == {"step": 2}
    losses = trained(model, optimizer, range(2, 5), 2 * SHARE)
    parastrat.save_checkpoint(model, optimizer, folder / save_as, extra={"step": 5})
    return losses


def evaluated(fields: dict[str, Any]) -> tuple[float, float, bool]:
    """Accuracy over 7 samples in batches of 3, per sample and as means; whether training goes on."""
    model = wrapped(fields, lambda: nn.Linear(3, 2))
    loader = DataLoader(labelled(), batch_size=3)  # three batches for two ranks
    means = parastrat.evaluate(model, loader, functional.cross_entropy)
    stream = [tuple(batch) for batch in loader]  # no DataLoader
    singles = parastrat.evaluate(
        model, stream, lambda out, y: functional.cross_entropy(out, y, reduction="none")
    )
    return means, singles, model.training


def labelled() -> TensorDataset:
    drawn = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(7, 3, generator=drawn), torch.randint(2, (7,), generator=drawn))


def shares(*, shuffle: bool, drop_last: bool) -> list[list[int]]:
    torch.manual_seed(dist.get_rank())  # the ranks would shuffle differently
    loader = DataLoader(TensorDataset(torch.arange(19)), batch_size=3, shuffle=shuffle, drop_last=drop_last)
    sharded = parastrat.shard_dataloader(loader)
    got = [batch.tolist() for (batch,) in sharded]
    assert len(got) == len(sharded)
    return got


def overflow(fields: dict[str, Any]) -> tuple[bool, bool, float]:
    """An fp16 step whose scale is far too high: no gradients, the same weights, half the scale."""
    model = wrapped({**fields, "precision": Precision.FP16_MIXED})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    before = whole(model)
    scale = wrapping_of(model).loss_scale
    assert scale is not None
    scale.scale = 2.0**40
    x, y = of_rank(tokens(0, 2 * SHARE))
    parastrat.forward_backward(model, x, y, loss_fn=token_loss)
    dropped = all(parameter.grad is None for parameter in model.parameters())
    optimizer.step()
    after = whole(model)
    return dropped, all(torch.equal(before[name], after[name]) for name in before), scale.scale


def added_up(fields: dict[str, Any], model: Any = Gpt) -> float:
    """How far the gradients of two equal steps, added up, are from twice those of one; relative."""
    module = wrapped(fields, model)
    held = [parameter for parameter in module.parameters() if parameter.requires_grad]
    x, y = tokens(0, 2 * SHARE)
    if "pp" not in fields:
        x, y = of_rank((x, y))
    found = []
    for _ in range(2):
        parastrat.forward_backward(module, x, y, loss_fn=token_loss)
        found.append([share_of(parameter.grad).clone() for parameter in held])
    return max(
        float((twice - 2 * once).norm() / once.norm().clamp(min=1e-6))
        for once, twice in zip(*found, strict=True)
    )


def explained(chosen: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        parastrat.explain_wrapping(wrapped(chosen))
    return printed.getvalue()


def buffers_follow(fields: dict[str, Any]) -> bool:
    """DDP sends running statistics again only where there are some."""
    plain, norm = (
        wrapped(fields),
        wrapped(fields, lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))),
    )
    return bool(norm.broadcast_buffers) and not plain.broadcast_buffers


def on_two(folder: Path) -> dict[str, Any]:
    """Every cell for two ranks."""
    found: dict[str, Any] = {}
    for name, fields in (("ddp", DDP), ("fsdp2", FSDP2)):
        found[f"initial-{name}"] = initial_weights(fields)
        found[f"built-{name}"] = weights_of_a_built_model(fields)
        found[f"file-{name}"] = weights_of_a_file(fields, folder)
        found[f"uneven-{name}"] = uneven(fields)
        found[f"resumed-{name}"] = resumed(fields, folder, save_as=name)
        found[f"evaluated-{name}"] = evaluated(fields)
        found[f"overflow-{name}"] = overflow(fields)
        found[f"added-up-{name}"] = added_up({**fields, "precision": Precision.FP16_MIXED})
        found[f"explained-{name}"] = explained(fields)
    found["ties"], found["keys"], found["buffers"] = ties(), keys(), buffers_follow(DDP)
    found["different_plans"] = different_plans()
    found["different_models"] = different_models()
    found["different_worlds"] = different_worlds()
    found["stale_optimizer"] = stale_optimizer_on_one_rank()
    held = wrapped(DDP)  # four samples a rank
    for shuffle in (False, True):
        for drop_last in (False, True):
            found[f"shares-{shuffle}-{drop_last}"] = shares(shuffle=shuffle, drop_last=drop_last)
    del held
    return found


def on_four(folder: Path) -> dict[str, Any]:
    """Every cell for four ranks."""
    one = {"gradient_accumulation_steps": 1}
    model = wrapped(HSDP | one, seed=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    parastrat.load_checkpoint(model, optimizer, folder / "fsdp2")
    losses = []
    for step in range(5, 7):
        x, y = (side[2 * dist.get_rank() :][:2] for side in tokens(step, 2 * SHARE))
        losses.append(parastrat.forward_backward(model, x, y, loss_fn=token_loss).item())
        parastrat.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return {
        "initial-hsdp": initial_weights(HSDP | one),
        "built-hsdp": weights_of_a_built_model(HSDP | one),
        "resumed-hsdp": losses,
    }
