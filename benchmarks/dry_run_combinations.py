"""Which models under which plans dry runs are made of, drawn once and for all."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from dry_run_models import BLOCKS, builder_name, cut, decoders

from parastrat.chunked_loss import USUAL_CHUNKS
from parastrat.errors import WrapError
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.runtime.refusals import check_plan
from parastrat.workload import Precision

MODELS = Path(__file__).with_name("dry_run_models.py")
_OF_TP = {"sequence_parallel": True, "loss_parallel": True}
_IN_STAGES: dict[str, Any] = {
    "reshard_after_forward": False,
    "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
    "gradient_accumulation_steps": 8,
}
WAYS = {
    "single": {"mesh": Mesh(), "shard": Shard.NONE},
    "ddp": {"mesh": Mesh(dp_replicate=8), "shard": Shard.NONE},
    "ddp, 2 micro-batches": {
        "mesh": Mesh(dp_replicate=8),
        "shard": Shard.NONE,
        "gradient_accumulation_steps": 2,
    },
    "tp 2": {"mesh": Mesh(tp=2), "shard": Shard.NONE},
    "tp 4, sp": {"mesh": Mesh(tp=4), "shard": Shard.NONE, "sequence_parallel": True},
    "tp 8, sp, loss": {
        "mesh": Mesh(tp=8),
        "shard": Shard.NONE,
        **_OF_TP,
    },
    "fsdp2 x tp 8, sp, loss": {
        "mesh": Mesh(dp_shard=8, tp=8),
        **_OF_TP,
    },
    "hsdp x tp 4, sp": {"mesh": Mesh(dp_replicate=2, dp_shard=8, tp=4), "sequence_parallel": True},
    "ddp x tp 4, sp": {
        "mesh": Mesh(dp_replicate=8, tp=4),
        "shard": Shard.NONE,
        "sequence_parallel": True,
    },
    **{
        f"pp 4, {schedule.value}": {
            "mesh": Mesh(pp=4),
            "shard": Shard.NONE,
            "pp_schedule": schedule,
            "gradient_accumulation_steps": 8,
        }
        for schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
    },
    **{
        f"pp 2, {schedule.value}": {
            "mesh": Mesh(pp=2),
            "shard": Shard.NONE,
            "pp_schedule": schedule,
            "virtual_stages": 2,
            "gradient_accumulation_steps": 8,
        }
        for schedule in (
            PipelineSchedule.INTERLEAVED,
            PipelineSchedule.INTERLEAVED_ZERO_BUBBLE,
            PipelineSchedule.ZBV,
        )
    },
    "pp 2 x fsdp2": {"mesh": Mesh(pp=2, dp_shard=8), **_IN_STAGES},
    "pp 2 x fsdp2 x tp 4, sp": {
        "mesh": Mesh(pp=2, dp_shard=8, tp=4),
        "sequence_parallel": True,
        **_IN_STAGES,
    },
    "fsdp2": {"mesh": Mesh(dp_shard=64)},
    "fsdp2, kept gathered": {"mesh": Mesh(dp_shard=64), "reshard_after_forward": False},
    "fsdp2, 2 micro-batches": {"mesh": Mesh(dp_shard=64), "gradient_accumulation_steps": 2},
    "hsdp": {"mesh": Mesh(dp_replicate=8, dp_shard=8)},
}
#: with context parallelism
OF_CONTEXT = {
    "fsdp2 x cp 2": {"mesh": Mesh(dp_shard=32, cp=2)},
    "fsdp2 x cp 8, 2 micro-batches": {
        "mesh": Mesh(dp_shard=8, cp=8),
        "gradient_accumulation_steps": 2,
    },
    "hsdp x cp 4": {"mesh": Mesh(dp_replicate=4, dp_shard=4, cp=4)},
}
#: with context parallelism beside tensor parallelism
OF_BOTH = {
    "fsdp2 x cp 2 x tp 4, sp, loss": {
        "mesh": Mesh(dp_shard=8, cp=2, tp=4),
        **_OF_TP,
    },
    "fsdp2 x cp 4 x tp 2": {"mesh": Mesh(dp_shard=8, cp=4, tp=2)},
}
#: with expert parallelism
OF_EXPERTS = {
    "fsdp2 x ep 8": {"mesh": Mesh(dp_shard=64, ep=8)},
    "fsdp2 x cp 2 x ep 4": {"mesh": Mesh(dp_shard=32, cp=2, ep=4)},
    "fsdp2 x tp 4 x ep 8, sp, loss": {
        "mesh": Mesh(dp_shard=16, tp=4, ep=8),
        **_OF_TP,
    },
}
#: with context parallelism beside stages
OF_CONTEXT_IN_STAGES = {
    "pp 2 x fsdp2 x cp 4": {"mesh": Mesh(pp=2, dp_shard=4, cp=4), **_IN_STAGES},
    "pp 2 x fsdp2 x cp 2 x tp 4, sp, loss": {
        "mesh": Mesh(pp=2, dp_shard=4, cp=2, tp=4),
        **_OF_TP,
        **_IN_STAGES,
    },
}
#: with expert parallelism beside stages
OF_EXPERTS_IN_STAGES = {
    "pp 2 x fsdp2 x ep 8": {"mesh": Mesh(pp=2, dp_shard=16, ep=8), **_IN_STAGES},
    "pp 2 x fsdp2 x tp 4 x ep 8, sp, loss": {
        "mesh": Mesh(pp=2, dp_shard=8, tp=4, ep=8),
        **_OF_TP,
        **_IN_STAGES,
    },
}
EVERY_WAY: dict[str, dict[str, Any]] = {
    **WAYS,
    **OF_CONTEXT,
    **OF_BOTH,
    **OF_EXPERTS,
    **OF_CONTEXT_IN_STAGES,
    **OF_EXPERTS_IN_STAGES,
}
SIZES = (1, 2)
#: combinations of a model and a way at full depth
WHOLE = (
    ("llama-3.2-1b", "single", Recompute.NONE),
    ("gpt2", "ddp", Recompute.NONE),
    ("qwen2.5-0.5b", "tp 2", Recompute.ATTENTION),
    ("opt-1.3b", "fsdp2", Recompute.SELECTIVE),
    ("qwen3-4b", "hsdp", Recompute.FULL),
    ("llama-3.1-8b", "fsdp2", Recompute.FULL),
    ("olmo-2-7b", "fsdp2 x tp 8, sp, loss", Recompute.SELECTIVE),
    ("gemma-2b", "pp 2 x fsdp2", Recompute.FULL),
    ("phi-3-mini", "pp 4, 1F1B", Recompute.FULL),
    ("mistral-7b", "pp 2 x fsdp2 x tp 4, sp", Recompute.NONE),
)
#: combinations of a model, a way and a micro-batch whose loss comes in eight chunks
CHUNKED = (
    ("llama-3.1-8b", "fsdp2", Recompute.FULL, 4),
    ("llama-3.1-8b", "ddp, 2 micro-batches", Recompute.FULL, 1),
    ("qwen2.5-0.5b", "single", Recompute.SELECTIVE, 8),
    ("qwen2.5-0.5b", "fsdp2, 2 micro-batches", Recompute.NONE, 1),
    ("gpt2", "ddp, 2 micro-batches", Recompute.FULL, 8),
    ("gemma-2-2b", "hsdp", Recompute.FULL, 2),
    ("olmo-2-7b", "fsdp2, kept gathered", Recompute.FULL, 8),
    ("phi-3-mini", "ddp", Recompute.NONE, 2),
    ("qwen3-4b", "fsdp2", Recompute.ATTENTION, 4),
    ("mistral-7b", "single", Recompute.FULL, 8),
    ("deepseek-v2-lite", "fsdp2", Recompute.NONE, 4),
    ("deepseek-v2-lite", "fsdp2", Recompute.FULL, 4),
    ("falcon-7b", "fsdp2", Recompute.NONE, 1),
    ("falcon-7b", "fsdp2", Recompute.FULL, 4),
    ("gpt-neox-20b", "fsdp2", Recompute.NONE, 1),
    ("gpt-neox-20b", "fsdp2", Recompute.FULL, 4),
    ("phi-3-mini", "fsdp2", Recompute.NONE, 4),
    ("phi-4", "fsdp2", Recompute.FULL, 4),
    ("gemma-2-2b", "fsdp2", Recompute.FULL, 4),
    ("gemma-3-4b", "fsdp2", Recompute.NONE, 4),
    ("bloom-7b1", "fsdp2", Recompute.FULL, 1),
    ("bloom-7b1", "fsdp2", Recompute.FULL, 4),
    ("gpt-oss-20b", "fsdp2", Recompute.FULL, 4),
    ("mixtral-8x7b", "fsdp2", Recompute.FULL, 4),
    ("qwen3-30b-a3b", "fsdp2", Recompute.FULL, 4),
    ("mpt-7b", "fsdp2", Recompute.FULL, 4),
    ("opt-6.7b", "fsdp2", Recompute.FULL, 4),
    ("nemotron-3-8b", "fsdp2", Recompute.NONE, 4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """What is compared."""

    model: str
    #: of ``WAYS``, or of those with further axes
    way: str
    recompute: Recompute
    #: samples of a micro-batch
    size: int = 1
    #: None: as deep as it is
    blocks: int | None = BLOCKS
    #: of the loss
    chunks: int = 1

    @property
    def key(self) -> str:
        """What names it in a state."""
        depth = "whole" if self.blocks is None else f"{self.blocks} blocks"
        loss = f", loss in {self.chunks} chunks" if self.chunks > 1 else ""
        way = f"{self.way}, recompute {self.recompute}, micro-batch {self.size}{loss}"
        return f"{self.model}, {depth}, {way}"

    @property
    def ref(self) -> str:
        """The builder of the model."""
        if self.blocks is None:
            return self.model
        return f"{MODELS}:{builder_name(self.model)}"

    @property
    def plan(self) -> Plan:
        fields = {
            "gradient_accumulation_steps": 1,
            "shard": Shard.PARAMETERS,
            **EVERY_WAY[self.way],
        }
        return Plan(
            micro_batch_size=self.size,
            precision=Precision.BF16_MIXED,
            backend=Backend.NCCL,
            recompute=self.recompute,
            **fields,
        )

    @property
    def runs(self) -> bool:
        """Whether the runtime applies such plans."""
        try:
            check_plan(self.plan)
        except WrapError:
            return False
        return True


@cache
def combinations(each: int = 3) -> tuple[Combination, ...]:
    """Return so many combinations of every model, drawn once and for all, each way about as often."""
    drawn = random.Random(0)  # noqa: S311  (a draw that can be repeated)
    ways: list[str] = []
    found = []
    for model in decoders():
        for _ in range(each):
            ways = ways or drawn.sample(list(WAYS), len(WAYS))
            way = ways.pop()
            every = (
                Combination(model=model, way=way, recompute=recompute, size=size)
                for recompute, size in product(Recompute, SIZES)
            )
            found.append(drawn.choice([one for one in every if one.runs]))
    whole = (
        Combination(model=model, way=way, recompute=recompute, blocks=None)
        for model, way, recompute in WHOLE
    )
    chunked = (
        Combination(model=model, way=way, recompute=recompute, size=size, chunks=USUAL_CHUNKS)
        for model, way, recompute, size in CHUNKED
    )
    context = _in_turn(decoders(), list(OF_CONTEXT), seed=1)
    both = _in_turn(decoders()[::2], list(OF_BOTH), seed=2)
    mixtures = [model for model in decoders() if cut(model).architecture.experts is not None]
    experts = (each for way in OF_EXPERTS for each in _in_turn(mixtures, [way], seed=3))
    in_stages = _in_turn(decoders()[1::3], list(OF_CONTEXT_IN_STAGES), seed=4)
    experts_in_stages = (each for way in OF_EXPERTS_IN_STAGES for each in _in_turn(mixtures, [way], seed=5))
    return (
        *drawn.sample(found, len(found)),
        *whole,
        *chunked,
        *context,
        *both,
        *experts,
        *in_stages,
        *experts_in_stages,
    )


def _in_turn(models: Sequence[str], ways: list[str], seed: int) -> Iterator[Combination]:
    """Yield a combination of each model, each way in turn."""
    drawn = random.Random(seed)  # noqa: S311  (as above)
    for place, model in enumerate(models):
        way = ways[place % len(ways)]
        every = (
            Combination(model=model, way=way, recompute=recompute, size=size)
            for recompute, size in product(Recompute, SIZES)
        )
        yield drawn.choice([one for one in every if one.runs])
