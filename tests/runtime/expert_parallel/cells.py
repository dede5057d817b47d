"""What the ranks of test_parity do; one start of the processes runs them all."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from drawn import drawn
from runtime.cells import whole
from runtime.expert_parallel.models import DIVIDED, REFUSED, Attending, Dense, Experts, Gated, Net
from runtime.models import plan, token_loss
from runtime.ranks import answers
from runtime.token_models import Trained, by_hand, calls_of, saved, share, spoiled, trained, wrapped
from torch import nn

import parastrat
from parastrat.plan import Recompute

EP: dict[str, Any] = {"dp_shard": 2, "ep": 2}
FOUR: dict[str, Any] = {"micro_batch_size": 1, "gradient_accumulation_steps": 1}
TP: dict[str, Any] = {"tp": 2, "sequence_parallel": True, "loss_parallel": True}
STACKS = DIVIDED["stacks"]
#: ways in which experts that read no values of their tokens are tried too
OF_DENSE = drawn(["fsdp2+tp+ep, one sample", "fsdp2+tp+ep, tokens alike", "fsdp2+cp+tp+ep"], 1)
#: ways in which experts beside layers that tp divides are tried too
OF_GATED = drawn(["fsdp2+tp+ep", "fsdp2+tp+ep, tokens alike"], 1)
_OF_FOUR: dict[str, dict[str, Any]] = {
    "fsdp2+ep": {"dp_shard": 4, "ep": 2, "recompute": Recompute.SELECTIVE, **FOUR},
    "hsdp+ep": {"dp_replicate": 2, "dp_shard": 2, "ep": 2, "recompute": Recompute.FULL, **FOUR},
    "fsdp2+cp+ep": {"dp_shard": 2, "cp": 2, "ep": 4},
    "fsdp2+tp+ep, tokens alike": {"dp_shard": 2, "tp": 2, "ep": 4},
    "fsdp2+tp+ep, one sample": {"dp_shard": 2, **TP, "ep": 2},
    "fsdp2+tp+ep": {"dp_shard": 2, **TP, "ep": 4, "recompute": Recompute.FULL},
    "hsdp+tp+ep": {"dp_replicate": 2, "dp_shard": 1, **TP, "ep": 2},
    "fsdp2+cp+tp+ep": {"cp": 2, **TP, "ep": 4},
}
#: those in which experts that attend are tried
OF_ATTENDING = drawn(list(_OF_FOUR), 2)


def attending() -> nn.Module:
    return Net(lambda: Attending(Experts))


def dense() -> nn.Module:
    return Net(lambda: Attending(Dense))


def gated() -> nn.Module:
    """All tokens see a further layer too, joined over samples, which tp divides."""
    return Net(Gated)


def copied() -> float:
    """How far a copy's outputs are from those of the model."""
    model = wrapped(STACKS, **EP)
    twin = copy.deepcopy(model)
    x, _ = share(model, 0)
    with torch.no_grad():
        return float((twin(x) - model(x)).abs().max())


def built(folder: Path) -> float:
    """How far a model's weights are that no rank held whole from those of its checkpoint."""
    torch.manual_seed(3)
    stored = STACKS().state_dict()
    if dist.get_rank() == 0:
        torch.save(stored, folder / "weights.pt")
    dist.barrier()
    model = parastrat.auto_parallelize(STACKS, plan=plan(**EP), checkpoint=folder / "weights.pt")
    held = whole(model)
    return max(float((held[name] - value).abs().max()) for name, value in stored.items())


def clipped() -> list[float]:
    """Norms of gradients that torch's own function clips to a tenth."""
    model = wrapped(STACKS, **EP)
    parastrat.forward_backward(model, *share(model, 0), loss_fn=token_loss)
    return [float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)) for _ in range(2)]


def two_ranks(folder: str) -> dict[str, Any]:
    one, other = wrapped(STACKS, **EP), wrapped(lambda: STACKS().apply(spoiled), **EP)
    refused = {f"refused: {name}": partial(wrapped, build, **EP) for name, (build, _) in REFUSED.items()}
    return {
        **{f"model: {name}": trained(build, **EP) for name, build in DIVIDED.items()},
        "by hand": by_hand(STACKS, **EP),
        "calls": calls_of(one),
        "saved": saved(one, Path(folder), other),
        "built": built(Path(folder)),
        "copied": copied(),
        "clipped": clipped(),
        **answers(refused),
    }


def four_ranks() -> dict[str, Any]:
    fields = _OF_FOUR
    return {
        **answers({"without data ranks": partial(wrapped, dense, **{**FOUR, "tp": 4, "ep": 2})}),
        **{name: trained(attending, **fields[name]) for name in OF_ATTENDING},
        **{f"dense, {name}": trained(dense, **fields[name]) for name in OF_DENSE},
        **{f"gated, {name}": trained(gated, **fields[name]) for name in OF_GATED},
        "calls": calls_of(wrapped(gated, **fields["fsdp2+tp+ep"])),
    }


def eight_ranks() -> Trained:
    """Each tp group has several sets of experts."""
    return trained(dense, dp_shard=2, **{**TP, "tp": 4}, ep=2)
