"""One rank of a plan dry-run: the runtime's own wrapping, and two steps of it, on fake tensors."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from parastrat.dry_run import DryRun, Traffic
from parastrat.plan import PipelineSchedule
from parastrat.runtime.apply import Start, wrap
from parastrat.runtime.batches import called
from parastrat.runtime.dry_run.alone import others_agree, pretend
from parastrat.runtime.dry_run.losses import losses_of_shares
from parastrat.runtime.dry_run.replicas import replicas_on_fakes
from parastrat.runtime.dry_run.watch import Watch, resizes_seen
from parastrat.runtime.example_inputs import example_inputs, made
from parastrat.runtime.example_loss import example_loss
from parastrat.runtime.fakes import gpu_kernels
from parastrat.runtime.initialise import build_on_meta
from parastrat.runtime.preset_models import builder_of
from parastrat.runtime.slots import slots_of
from parastrat.runtime.step import dividing_logits, reducing
from parastrat.runtime.tracing import explained
from parastrat.runtime.wrapping import wrapping_of
from parastrat.schedules import schedule_of
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from parastrat.plan import Plan
    from parastrat.runtime.wrapping import Wrapping
    from parastrat.workload import Workload

#: a step's memory repeats from the second micro-batch on
_MICRO_BATCHES = 2

#: as on GPUs, where they take all parameters at once; on CPUs torch takes one after the other unless told
OPTIMIZERS: dict[Optimizer, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    Optimizer.ADAMW: partial(torch.optim.AdamW, foreach=True),
    Optimizer.SGD: partial(torch.optim.SGD, lr=0.1, foreach=True),
    Optimizer.SGD_MOMENTUM: partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a rank runs."""

    ref: str
    plan: Plan
    workload: Workload
    rank: int = 0


def dry_run(task: Task) -> DryRun:
    """Run two optimizer steps of a rank in this process; return what the second one finds."""
    begun = time.perf_counter()
    plan = with_few_micro_batches(task.plan)
    pretend(task.rank, plan.mesh.world_size)
    builder = builder_of(task.ref)
    module, record = build_on_meta(builder.build)
    inputs = example_inputs(module, builder.sample_inputs)
    batch = made(inputs.make, plan.micro_batch_size, task.workload.sequence_length)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    watch = Watch()

    def give_memory(whole: nn.Module) -> None:
        with mode:
            for slot in slots_of(whole):
                if slot.is_meta:
                    slot.put(slot.allocated(torch.device("cpu")))

    start = Start(record=record, checkpoint=None, give_memory=give_memory)
    with others_agree(), replicas_on_fakes(mode, watch):
        model = wrap(module, plan, torch.device("cpu"), start)
        buckets = watch.live
        for slot in slots_of(module):
            watch.hold(slot.current())
        parameters = watch.live - buckets
        wrapping = wrapping_of(model)
        wrapping.stepping = True  # the loop below is ``forward_backward``'s
        if wrapping.pipeline is not None:
            wrapping.pipeline.route(batch)  # traces the whole, which is not this rank's memory
        optimizer = OPTIMIZERS[task.workload.optimizer](model.parameters())
        with _watched(module, watch, mode), losses_of_shares(wrapping.layout):
            batch = tree_map(_fake, batch)
            # the second step: the first one's has no optimizer states in its backward
            for _ in range(2):
                watch.forget_traffic()
                after_forward, forward_backward = _micro_batches(model, wrapping, batch, watch)
                watch.peak = watch.live
                optimizer.step()
                optimizer.zero_grad()
                step = watch.peak
    return DryRun(
        rank=task.rank,
        micro_batches=plan.gradient_accumulation_steps,
        parameters=parameters,
        after_forward=after_forward,
        forward_backward=forward_backward,
        optimizer_step=step,
        traffic=watch.traffic,
        caveats=_caveats(wrapping),
        seconds=time.perf_counter() - begun,
    )


def with_few_micro_batches(plan: Plan) -> Plan:
    """Return the plan with no more micro-batches than the memory of a step hangs on.

    Under GPipe these are all; schedules that hold few are full after two for each rank and chunk.
    """
    steps, pp = plan.gradient_accumulation_steps, plan.mesh.pp
    if pp == 1:
        return replace(plan, gradient_accumulation_steps=min(steps, _MICRO_BATCHES))
    if schedule_of(plan) is PipelineSchedule.GPIPE or steps % pp:
        return plan
    return replace(plan, gradient_accumulation_steps=min(steps, 2 * pp * plan.virtual_stages))


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


@contextmanager
def _watched(module: nn.Module, watch: Watch, mode: FakeTensorMode) -> Iterator[None]:
    with gpu_kernels(), resizes_seen(watch), mode, explained(module), watch:
        yield


def _fake(leaf: Any) -> Any:
    return torch.empty_like(leaf, device="cpu") if isinstance(leaf, torch.Tensor) else leaf


def _micro_batches(
    model: nn.Module, wrapping: Wrapping, batch: Any, watch: Watch
) -> tuple[int | None, int]:
    """Run a step's forwards and backwards; return what lives after the last forward, and the most.

    A pipeline's schedule mixes them: there is no last forward.
    """
    plan = wrapping.plan
    in_fp32 = plan.precision not in (Precision.FP32, Precision.BF16)
    after_forward = None
    watch.peak = watch.live
    if wrapping.pipeline is not None:
        batches = [batch] * plan.gradient_accumulation_steps
        wrapping.pipeline.step(batches, lambda _, output: example_loss(output, in_fp32=in_fp32).float())
        return None, watch.peak
    with nullcontext() if wrapping.sums is None else wrapping.sums.at_the_end():
        for index in range(plan.gradient_accumulation_steps):
            with reducing(model, last=index == plan.gradient_accumulation_steps - 1):
                # as a training script does, the logits are held while backward runs
                output = called(model, batch)
                loss = example_loss(output, in_fp32=in_fp32)
                after_forward = watch.live
                loss.backward()  # type: ignore[no-untyped-call]
                del output, loss
    return after_forward, watch.peak


def _caveats(wrapping: Wrapping) -> tuple[str, ...]:
    """Return what was not proven, and what stays whole."""
    layout = wrapping.layout
    if layout is None:
        return ()
    taken = "layers are divided over tp as derived: the proof that training makes needs values"
    return (taken, *(f"whole on every tp rank: {left}" for left in dict.fromkeys(layout.left)))
