"""What the ranks of test_axes do: stages whose ranks divide positions and experts too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from drawn import drawn_of
from runtime.context_parallel.cells import evaluated, of_length, with_other_batches
from runtime.context_parallel.models import DIVIDED as OF_POSITIONS
from runtime.context_parallel.models import Block, Net
from runtime.expert_parallel.cells import attending, dense
from runtime.expert_parallel.models import DIVIDED as OF_EXPERTS
from runtime.models import token_loss
from runtime.pipeline.stages import several
from runtime.ranks import answers
from runtime.token_models import calls_of, saved, share, spoiled, steps_of, wrapped
from torch import nn

import parastrat
from parastrat.plan import PipelineSchedule, Recompute, Shard

CP: dict[str, Any] = {"pp": 2, "cp": 2}
EP: dict[str, Any] = {
    "pp": 2,
    "dp_shard": 2,
    "ep": 2,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 2,
}
TP: dict[str, Any] = {"tp": 2, "sequence_parallel": True, "loss_parallel": True}
CAUSAL = OF_POSITIONS["causal"]
#: whose last stage has the head alone
APART: dict[str, Any] = CP | several(PipelineSchedule.INTERLEAVED)


class Weighing(Block):
    """Returns a number beside its activations."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(x), self.norm.weight.mean()


class Weighed(Net):
    """Weighs what its blocks make by the numbers of all, which pass the cut beside the activations."""

    def __init__(self) -> None:
        super().__init__(Weighing)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, total = self.embed(ids), torch.zeros((), device=ids.device)
        for block in self.blocks:
            x, weight = block(x)
            total = total + weight
        return self.head(self.norm(x) * total)


class Again(Net):
    """Runs its blocks twice."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in (*self.blocks, *self.blocks):
            x = block(x)
        return self.head(self.norm(x))


def again() -> nn.Module:
    return Again(Block)


_OF_FOUR: dict[str, tuple[Any, dict[str, Any]]] = {
    **{f"cp: {name}": (OF_POSITIONS[name], CP) for name in ("mask given", "counted behind the blocks")},
    "cp: a number beside": (Weighed, CP),
    "cp, recomputed": (CAUSAL, CP | {"recompute": Recompute.FULL}),
    "cp, interleaved": (CAUSAL, APART),
    "cp, split backwards": (CAUSAL, CP | several(PipelineSchedule.ZBV)),
    **{f"ep: {name}": (OF_EXPERTS[name], EP) for name in ("crowded", "shared")},
    "ep, recomputed": (
        attending,
        EP | several(PipelineSchedule.INTERLEAVED) | {"recompute": Recompute.SELECTIVE},
    ),
    "tp+ep": (dense, {"pp": 2, **TP, "ep": 2, "shard": Shard.NONE}),
}
#: on four ranks
OF_FOUR = drawn_of(_OF_FOUR, 2)
#: on eight ranks, each of which proves its divisions
_OF_EIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "cp+tp+ep": (attending, {"pp": 2, "cp": 2, **TP, "ep": 4}),
    "hsdp+ep": (attending, EP | {"dp_replicate": 2, "dp_shard": 2, "micro_batch_size": 1}),
}
OF_EIGHT = drawn_of(_OF_EIGHT, 1)


def dropped() -> tuple[list[float], bool]:
    """What this rank drops in the last block that it has, and whether draws behind go on as before."""
    model = wrapped(lambda: Net(lambda: Block(rate=0.5)), **CP)
    masks: list[torch.Tensor] = []
    for name in ("blocks.0", "blocks.2"):
        block: Any = model.get_submodule(name)
        block.drop.register_forward_hook(lambda *given: masks.append((given[-1] == 0).float().flatten()))
    torch.manual_seed(7)
    parastrat.forward_backward(model, *share(model, 0), loss_fn=token_loss)
    behind, generator = torch.rand(1), torch.Generator().manual_seed(7)
    # a pipeline draws one seed of the caller's for each step
    torch.randint(2**62, (1,), generator=generator)
    return masks[0].tolist(), torch.equal(behind, torch.rand(1, generator=generator))


def four_ranks(folder: str) -> dict[str, Any]:
    one, other = wrapped(CAUSAL, **CP), wrapped(lambda: CAUSAL().apply(spoiled), **CP)
    experts, others = wrapped(attending, **EP), wrapped(lambda: attending().apply(spoiled), **EP)
    return {
        **{name: steps_of(wrapped(build, **fields)) for name, (build, fields) in OF_FOUR.items()},
        "calls": calls_of(one),
        "calls, head apart": calls_of(wrapped(CAUSAL, **APART)),
        "saved": saved(one, Path(folder) / "positions", other),
        "saved, experts": saved(experts, Path(folder) / "experts", others),
        "evaluated": evaluated(CAUSAL, **CP),
        "dropped": dropped(),
        **answers({"again": lambda: wrapped(again, **CP)}),
        "odd length": of_length(other, 6),
        # at last: no rank goes on from there
        "other batches": with_other_batches(one, odd=1),
    }


def eight_ranks() -> dict[str, Any]:
    return {name: steps_of(wrapped(build, **fields)) for name, (build, fields) in OF_EIGHT.items()}
