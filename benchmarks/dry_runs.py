"""The closed form's peaks beside dry runs of the same plans: the runtime's own wrapping on fake tensors.

Usage: python benchmarks/dry_runs.py [--state FILE] [--each COUNT] [--jobs COUNT] [--until HH:MM] [--write]

Of every decoder preset up to 405B so many combinations of a way and a recompute policy, drawn once and for
all, on the model cut to four blocks; one of every model with context parallelism, of every second with
tensor parallelism beside it, and of every third beside stages; five of every mixture with expert
parallelism, two of them beside stages; ten at full depth; and 28 whose loss comes in chunks. Compared are
bytes of tensors on the rank that needs most: what the estimate has without its overhead, and what lives,
each at its own moment of most. The state keeps what dry runs found, one line each: a run that ended early
goes on there, and none begins after ``--until``. ``--write`` writes docs/dry_runs.md from what the state
has; why combinations are off stands in benchmarks/data/dry_runs.toml.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from dry_run_models import BLOCKS, builder_name, cut, decoders

from parastrat.assess import assess, columns_of
from parastrat.case import Facts
from parastrat.chunked_loss import USUAL_CHUNKS
from parastrat.errors import ParastratError, WrapError
from parastrat.memory.one_plan import one_plan
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.rules import findings_of
from parastrat.runtime.dry_run import preload, ranks_to_run, run_on_fakes
from parastrat.runtime.refusals import check_plan
from parastrat.sources.training import trained_model
from parastrat.units import GIB
from parastrat.workload import Optimizer, Precision, Workload

MODELS = Path(__file__).with_name("dry_run_models.py")
DATA = Path(__file__).with_name("data")
STATE = DATA / "dry_runs.jsonl"
#: plans that no advice has: heads that tp does not divide stay whole in the runtime, and blocks are made
#: again for each of their weights
_REFUSING = ("PS201", "PS202", "PS715")
LENGTH = 4096
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A combination's peaks."""

    of: Combination
    #: bytes; None where the plan is refused
    dry_run: int | None
    estimate: float
    #: why it was refused; empty where it ran
    refused: str = ""

    @property
    def error(self) -> float:
        """The estimate over the dry run, less 1."""
        return self.estimate / self.dry_run - 1 if self.dry_run else 0.0

    def __str__(self) -> str:
        if self.dry_run is None:
            return f"{self.of.key}: refused, {self.refused}"
        return f"{self.of.key}: dry run {self.dry_run / GIB:.2f} GiB, {100 * self.error:+.2f} %"


def compared(each: Combination, known: dict[str, Any] | None = None) -> Compared:
    """Return a combination's estimate beside its dry run.

    Args:
        each: the combination.
        known: the state's line of it, whose dry run is not repeated.
    """
    plan, source = each.plan, cut(each.model, each.blocks)
    length = min(LENGTH, source.architecture.positions or LENGTH)
    workload = Workload(
        global_batch_size=plan.global_batch_size,
        sequence_length=length,
        optimizer=Optimizer.ADAMW,
        precision=plan.precision,
        loss_chunks=each.chunks,
    )
    stack = load_stack("torch")
    job = Facts(
        model=trained_model(source, workload, stack.kernels),
        hardware=load_hardware("dgx-h100:8"),
        workload=workload,
        stack=stack,
    )
    case, estimate = assess(job, plan), most_of_tensors(job, plan)
    broken = [each for each in findings_of(case, columns_of(case)) if each.code in _REFUSING]
    if broken:
        refused = f"{broken[0].code}, {broken[0].message}"
        return Compared(of=each, dry_run=None, estimate=estimate, refused=refused)
    if known is not None:
        return Compared(of=each, dry_run=known["peak"], estimate=estimate, refused=known["refused"])
    try:
        peak = max(
            run_on_fakes(each.ref, plan, workload, rank).peak for rank in ranks_to_run(job.model, plan)
        )
    except ParastratError as error:
        return Compared(of=each, dry_run=None, estimate=estimate, refused=error.message)
    return Compared(of=each, dry_run=peak, estimate=estimate)


def most_of_tensors(job: Facts, plan: Plan) -> float:
    """Return the bytes of tensors at the moment of a step at which the estimate has most of them.

    A plan's own estimate is of the moment at which a device holds most, with what its allocator keeps: that
    may be another, as memory which an allocator keeps for gathered parameters is idle at some moments only.
    """
    moments = (each for rank in one_plan(job, plan).ranks for each in (*rank.moments, rank.beginning))
    return max(each.total - each.parts["overhead"] for each in moments if each is not None)


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


def read_state(state: Path = STATE) -> dict[str, dict[str, Any]]:
    """Return a state's lines by their keys."""
    text = state.read_text(encoding="utf-8") if state.exists() else ""
    return {line["key"]: line for line in map(json.loads, text.splitlines())}


def _run(
    each: Combination, state: Path, lines: dict[str, dict[str, Any]], until: str | None
) -> Compared | None:
    if each.key not in lines and until is not None and time.strftime("%H:%M") >= until:
        return None
    begun = time.monotonic()
    found = compared(each, lines.get(each.key))
    print(found, flush=True)
    if each.key not in lines:
        line = {"key": each.key, "peak": found.dry_run, "refused": found.refused}
        with state.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | {"seconds": round(time.monotonic() - begun, 1)}) + "\n")
    return found


def main() -> None:
    """Print every comparison, and what the errors come to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--each", type=int, default=3, help="combinations of each model")
    parser.add_argument("--jobs", type=int, default=2, help="dry runs at once")
    parser.add_argument("--until", help="of the clock: no dry run begins later")
    parser.add_argument("--write", action="store_true", help="docs/dry_runs.md")
    given = parser.parse_args()
    drawn, lines = combinations(given.each), read_state(given.state)
    preload("transformers.models.llama.modeling_llama")
    with ThreadPoolExecutor(max_workers=given.jobs) as pool:
        found = pool.map(lambda each: _run(each, given.state, lines, given.until), drawn)
        every = [each for each in found if each is not None]
    if given.write:
        from dry_runs_page import PAGE, page  # noqa: PLC0415  (it imports what is made here)

        PAGE.write_text(page(every, len(drawn)), encoding="utf-8")
    ran = [each for each in every if each.dry_run is not None]
    for way in WAYS:
        own = [each for each in ran if each.of.way == way]
        if own:
            print(f"{way}: {summary(own)}")
    whole = [each for each in ran if each.of.blocks is None]
    chunked = [each for each in ran if each.of.chunks > 1]
    for name, chosen in (("whole", whole), ("loss in chunks", chunked), ("all", ran)):
        if chosen:
            print(f"{name}: {summary(chosen)}; {len(every) - len(ran)} refused")


def summary(found: list[Compared]) -> str:
    """Return what errors come to, in words."""
    errors = [abs(each.error) for each in found]
    near, far = (sum(error <= most for error in errors) for most in (0.03, 0.08))
    return (
        f"{len(errors)} combinations: median {100 * statistics.median(errors):.2f} %, {near} within 3 %, "
        f"{far} within 8 %, worst {100 * max(errors):.2f} %"
    )


if __name__ == "__main__":
    main()
