"""A plan dry-run: each kind of rank in a process of its own, on a process group that only pretends."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from parastrat.dry_run import DryRun
from parastrat.errors import LaunchError, ParastratError, WrapError
from parastrat.plan import Compile
from parastrat.runtime.apply import Start, wrap
from parastrat.runtime.batches import called
from parastrat.runtime.building import described
from parastrat.runtime.dry_run.watch import Watch, resizes_seen
from parastrat.runtime.example_inputs import example_inputs, made
from parastrat.runtime.example_loss import example_loss
from parastrat.runtime.fakes import gpu_kernels
from parastrat.runtime.initialise import build_on_meta
from parastrat.runtime.preset_models import builder_of
from parastrat.runtime.refusals import check_plan
from parastrat.runtime.slots import slots_of
from parastrat.runtime.step import reducing
from parastrat.runtime.tracing import explained
from parastrat.runtime.wrapping import wrapping_of
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from parastrat.plan import Plan
    from parastrat.workload import Workload

#: a step's memory repeats from the second micro-batch on
_MICRO_BATCHES = 2

_OPTIMIZERS: dict[Optimizer, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    Optimizer.ADAMW: torch.optim.AdamW,
    Optimizer.SGD: partial(torch.optim.SGD, lr=0.1),
    Optimizer.SGD_MOMENTUM: partial(torch.optim.SGD, lr=0.1, momentum=0.9),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a rank runs."""

    ref: str
    plan: Plan
    workload: Workload
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error on its way between processes, which errors with a hint do not survive."""

    kind: type[ParastratError]
    message: str
    hint: str


def run_on_fakes(ref: str, plan: Plan, workload: Workload) -> DryRun:
    """Run one optimizer step of a plan's first rank, without the others and without memory.

    The model is wrapped by what ``auto_parallelize`` wraps with, on as many ranks as the plan has; all
    ranks of a plan without a pipeline hold and send the same.

    Args:
        ref: MODEL: ``path.py:callable``, ``package.module:callable``, a Hugging Face config, or a preset
            that transformers can build.
        plan: of any number of ranks.
        workload: its sequence length and optimizer.

    Raises:
        WrapError: the plan has an axis or an option that a dry run does not know yet.
        ModelError: the model cannot be built, or its forward needs values.
        LaunchError: the process ended without an answer.
    """
    _check(plan, workload)
    builder_of(ref)  # what cannot be built is told before anything starts
    # a process of its own: groups leave traces in torch, and patches would reach others
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    task = Task(ref=ref, plan=plan, workload=workload)
    process = context.Process(target=_answer, args=(theirs, task))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError as error:
        process.join()
        raise LaunchError(
            f"the dry run ended with exit code {process.exitcode}",
            hint="a negative code is a signal, -9 mostly for want of memory; else see above",
        ) from error
    process.join()
    if isinstance(answer, Refusal):
        raise answer.kind(answer.message, hint=answer.hint)
    found: DryRun = answer
    return found


def _check(plan: Plan, workload: Workload) -> None:
    mesh = plan.mesh
    check_plan(plan)
    unknown = [axis for axis in ("pp", "cp", "tp", "ep") if getattr(mesh, axis) > 1]
    if unknown:
        raise WrapError(
            f"{plan.strategy}: dry runs do not know {' and '.join(unknown)} yet",
            hint="they know one device, fsdp2 and hsdp",
        )
    if mesh.dp > 1 and not plan.shards_parameters:
        raise WrapError(
            f"{plan.strategy}: dry runs do not know DistributedDataParallel yet",
            hint="they know one device, fsdp2 and hsdp",
        )
    if plan.compile is not Compile.NONE:
        raise WrapError("a dry run does not compile", hint='set compile = "none" in the plan')
    if workload.optimizer not in _OPTIMIZERS:
        known = ", ".join(sorted(_OPTIMIZERS))
        raise WrapError(
            f"dry runs do not know the optimizer {workload.optimizer}", hint=f"they know {known}"
        )


def _answer(pipe: Any, task: Task) -> None:
    torch.set_num_threads(1)
    try:
        answer: Any = _of_rank(task)
    except ParastratError as error:
        answer = Refusal(kind=type(error), message=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001  (the model's code may raise anything; the message quotes it)
        answer = Refusal(
            kind=WrapError,
            message=f"the dry run raised {described(error)}",
            hint="see whether the model trains on one device",
        )
    pipe.send(answer)
    pipe.close()


def _of_rank(task: Task) -> DryRun:
    begun = time.perf_counter()
    plan = task.plan
    _pretend(task.rank, plan.mesh.world_size)
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
    model = wrap(module, plan, torch.device("cpu"), start)
    for slot in slots_of(module):
        watch.hold(slot.current())
    wrapping_of(model).stepping = True  # the loop below is ``forward_backward``'s
    parameters = watch.live
    optimizer = _OPTIMIZERS[task.workload.optimizer](model.parameters())
    with _watched(module, watch, mode):
        batch = tree_map(_fake, batch)
        # the second step: the first one's has no optimizer states in its backward
        for _ in range(2):
            watch.forget_traffic()
            after_forward, forward_backward = _micro_batches(model, plan, batch, watch)
            watch.peak = watch.live
            optimizer.step()
            optimizer.zero_grad()
            step = watch.peak
    return DryRun(
        rank=task.rank,
        micro_batches=min(plan.gradient_accumulation_steps, _MICRO_BATCHES),
        parameters=parameters,
        after_forward=after_forward,
        forward_backward=forward_backward,
        optimizer_step=step,
        traffic=watch.traffic,
        seconds=time.perf_counter() - begun,
    )


def _pretend(rank: int, ranks: int) -> None:
    """Join a process group of which there is no other rank; its collectives leave what they are given."""
    if ranks == 1:
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415  (registers "fake")

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())


@contextmanager
def _watched(module: nn.Module, watch: Watch, mode: FakeTensorMode) -> Iterator[None]:
    with gpu_kernels(), resizes_seen(watch), mode, explained(module), watch:
        yield


def _fake(leaf: Any) -> Any:
    return torch.empty_like(leaf, device="cpu") if isinstance(leaf, torch.Tensor) else leaf


def _micro_batches(model: nn.Module, plan: Plan, batch: Any, watch: Watch) -> tuple[int, int]:
    """Run a step's forwards and backwards; return what lives after the last forward, and the most."""
    in_fp32 = plan.precision not in (Precision.FP32, Precision.BF16)
    count = min(plan.gradient_accumulation_steps, _MICRO_BATCHES)
    after_forward = 0
    watch.peak = watch.live
    for index in range(count):
        with reducing(model, last=index == count - 1):
            # as a training script does, the logits are held while backward runs
            output = called(model, batch)
            loss = example_loss(output, in_fp32=in_fp32)
            after_forward = watch.live
            loss.backward()  # type: ignore[no-untyped-call]
            del output, loss
    return after_forward, watch.peak
