"""One rank of a plan dry-run: the runtime's own wrapping, and two steps of it, on fake tensors."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from parastrat.dry_run import DryRun, Traffic
from parastrat.plan import Compile
from parastrat.runtime.apply import wrap
from parastrat.runtime.chunked_loss import LossInChunks
from parastrat.runtime.dry_run.alone import others_agree, pretend
from parastrat.runtime.dry_run.few import with_few_micro_batches
from parastrat.runtime.dry_run.ground import Fakes, Ground, Real
from parastrat.runtime.dry_run.stepping import OnShares
from parastrat.runtime.dry_run.watch import Watch
from parastrat.runtime.dry_run.ways import found_while, known
from parastrat.runtime.first_values.on_meta import build_on_meta
from parastrat.runtime.preset_models import builder_of
from parastrat.runtime.starting import Start
from parastrat.runtime.tensor_parallel.samples import SAMPLES
from parastrat.runtime.tensors.batches import called
from parastrat.runtime.tensors.slots import slots_of
from parastrat.runtime.tracing.example_inputs import example_inputs, made
from parastrat.runtime.tracing.example_loss import example_loss
from parastrat.runtime.training.step import completing, dividing_logits, reducing
from parastrat.runtime.wrapping import wrapping_of
from parastrat.schedules import SPLIT_ALWAYS, schedule_of
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from parastrat.plan import Plan
    from parastrat.runtime.building import Builder
    from parastrat.runtime.dry_run.ground import Meter
    from parastrat.runtime.tensor_parallel.layout import Left
    from parastrat.runtime.wrapping import Wrapping
    from parastrat.workload import Workload

#: as on GPUs, where they take all parameters at once, but for Adafactor, which takes one after the other
#: there too; on CPUs torch takes one after the other unless told
OPTIMIZERS: dict[Optimizer, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    Optimizer.ADAMW: partial(torch.optim.AdamW, foreach=True),
    Optimizer.SGD: partial(torch.optim.SGD, lr=0.1, foreach=True),
    Optimizer.SGD_MOMENTUM: partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    Optimizer.ADAFACTOR: torch.optim.Adafactor,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a rank runs."""

    ref: str
    plan: Plan
    workload: Workload
    rank: int = 0
    #: of real tensors; None: they are fake
    device: str | None = None
    #: of a pipeline, as ``ways_of`` found them; None: the rank finds them itself
    ways: bytes | None = None


def dry_run(task: Task) -> DryRun:
    """Run a few optimizer steps of a rank in this process; return what the last one finds."""
    begun = time.perf_counter()
    ground = _ground(task)
    module, batch, wrapped = _begun(task, ground)
    with others_agree(), known(task.ways), ground.wrapping():
        model = wrapped()
        parameters = _held(module, ground.watch)
        wrapping = wrapping_of(model)
        wrapping.stepping = True  # the loop below is ``forward_backward``'s
        if wrapping.pipeline is not None:
            wrapping.pipeline.route(batch)  # traces the whole, which is not this rank's memory
        optimizer = OnShares(OPTIMIZERS[task.workload.optimizer], model.parameters())
        with ground.running(module, wrapping):
            batch = tree_map(ground.batch, batch)
            optimizer.make_states()
            left = ground.steps(model)
            while left:
                ground.watch.forget_traffic()
                after_forward, forward_backward = _micro_batches(model, wrapping, batch, ground.meter)
                reserved = ground.reserved()
                # what a step takes is not told by one in whose backward more lived than there is to live
                left = max(left - 1, optimizer.forget_unused())
                ground.meter.peak = ground.meter.live
                optimizer.step()
                step = ground.meter.peak
    micro_batches = wrapping.plan.gradient_accumulation_steps
    # torch keeps what a stage receives into, for each micro-batch of a step, as long as the schedule
    beyond = _received(wrapping) * (task.plan.gradient_accumulation_steps - micro_batches)
    return DryRun(
        rank=task.rank,
        micro_batches=micro_batches,
        parameters=parameters,
        after_forward=after_forward,
        forward_backward=forward_backward + beyond,
        optimizer_step=step + beyond,
        reserved=None if reserved is None else max(reserved, ground.reserved() or 0),
        traffic=ground.watch.traffic,
        caveats=_caveats(wrapping, task.plan),
        seconds=time.perf_counter() - begun,
    )


def ways_of(task: Task) -> bytes:
    """Return what all ranks of a plan with a pipeline find alike."""
    ground = _ground(task)
    _, batch, wrapped = _begun(task, ground)
    with others_agree(), ground.wrapping():
        return found_while(wrapped, batch).packed()


def _ground(task: Task) -> Ground:
    return Fakes() if task.device is None else Real(torch.device(task.device))


def _begun(task: Task, ground: Ground) -> tuple[nn.Module, Any, Callable[[], nn.Module]]:
    """Join the group; return the module on the meta device, a micro-batch, and what wraps the module."""
    plan = replace(with_few_micro_batches(task.plan), compile=Compile.NONE)
    pretend(task.rank, plan.mesh.world_size)
    builder = builder_of(task.ref)
    module, record = build_on_meta(partial(_built, builder, task.workload.loss_chunks))
    inputs = example_inputs(module, builder.sample_inputs, estimated=True)
    length, stated = task.workload.sequence_length, builder.sample_inputs
    batch = made(inputs.make, plan.micro_batch_size, length)
    start = Start(
        record=record,
        checkpoint=None,
        # what the user says of inputs, proofs of layouts and cuts are told as well
        sample_inputs=None if stated is None else made(stated, SAMPLES, length),
        sequence_length=length,
        give_memory=ground.give_memory,
    )
    return module, batch, lambda: wrap(module, plan, ground.device, start)


def _built(builder: Builder, chunks: int) -> Any:
    """Return the model, which computes its loss in chunks if there are any."""
    return LossInChunks(builder.build(), chunks) if chunks > 1 else builder.build()


def _received(wrapping: Wrapping) -> int:
    """Return the bytes that a rank's stages receive into for one micro-batch, both ways; 0 without any.

    With the gradients that a split backward leaves in what was received forward: from a stage of this rank
    these are what that stage receives on the way back.
    """
    if wrapping.pipeline is None:
        return 0
    split = schedule_of(wrapping.plan) in SPLIT_ALWAYS
    return sum(
        each.buffer.nbytes * (2 if split and each.buffer.requires_grad and not each.is_own else 1)
        for each in wrapping.pipeline.receiving()
    )


def _held(module: nn.Module, watch: Watch) -> int:
    """Let the watch count a module's tensors; return their bytes, without what it counted before."""
    buckets = watch.live
    for slot in slots_of(module):
        watch.hold(slot.current())
    return watch.live - buckets


def step_traffic(model: nn.Module, batch: Any) -> tuple[Traffic, ...]:
    """Return what the third step of a wrapped model sends, which may be on ranks that are there.

    In the second DDP's ranks agree on their buckets.
    """
    watch, wrapping = Watch(), wrapping_of(model)
    wrapping.stepping = True
    with watch, dividing_logits(wrapping):
        for _ in range(3):
            watch.forget_traffic()
            _micro_batches(model, wrapping, batch, watch)
    return watch.traffic


def _micro_batches(
    model: nn.Module, wrapping: Wrapping, batch: Any, meter: Meter
) -> tuple[int | None, int]:
    """Run a step's forwards and backwards; return what lives after the last forward, and the most.

    A pipeline's schedule mixes them: there is no last forward.
    """
    plan = wrapping.plan
    in_fp32 = plan.precision not in (Precision.FP32, Precision.BF16)
    after_forward = None
    meter.peak = meter.live
    if wrapping.pipeline is not None:
        batches = [batch] * plan.gradient_accumulation_steps
        with completing(wrapping):
            failed = wrapping.pipeline.step(
                batches, lambda _, output: example_loss(output, in_fp32=in_fp32).float()
            )
        if failed is not None:
            raise failed
        return None, meter.peak
    with completing(wrapping):
        for index in range(plan.gradient_accumulation_steps):
            with reducing(model, last=index == plan.gradient_accumulation_steps - 1):
                # as a training script does, the logits are held while backward runs
                output = called(model, batch)
                loss = example_loss(output, in_fp32=in_fp32)
                after_forward = meter.live
                loss.backward()  # type: ignore[no-untyped-call]
                del output, loss
    return after_forward, meter.peak


def _caveats(wrapping: Wrapping, plan: Plan) -> tuple[str, ...]:
    """Return what was not proven, and what stays whole."""
    told = []
    if plan.compile is not Compile.NONE:
        told.append(
            "the plan's blocks are not compiled here: verified are the eager wrapping, its shapes and "
            "collectives; what a compiler fuses mostly takes less memory than this"
        )
    if wrapping.layout is not None:
        told.append("layers are divided over tp as derived: the proof that training makes needs values")
        told += [f"whole on every tp rank: {left}" for left in _told_once(wrapping.layout.left)]
    return tuple(told)


def _told_once(left: Iterable[Left]) -> list[str]:
    """Return what stays whole; of blocks that differ in numbers alone the first, and how many more."""
    alike = Counter[str]()
    first: dict[str, str] = {}
    for text in dict.fromkeys(map(str, left)):
        key = re.sub(r"\.\d+\b", ".*", text)
        alike[key] += 1
        first.setdefault(key, text)
    return [
        text if alike[key] == 1 else f"{text}; {alike[key] - 1:,} more like it"
        for key, text in first.items()
    ]
