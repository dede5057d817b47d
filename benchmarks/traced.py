"""Traced models beside real ones: the peak of a step that is estimated, and that of a step that runs.

Usage: python benchmarks/traced.py [NAME...]

The estimate is that of one device, from a trace on fake tensors, without what an accelerator's context and
allocator add: with the kernels that an accelerator would take, and with those of the CPU. The step runs in
fp32 on the CPU with AdamW, real tensors watched by torch's MemTracker, so that the error is that of the
latter estimate; what kernels are worth is the ratio of both.
"""

from __future__ import annotations

import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.hooks import RemovableHandle
from traced_models import SUBJECTS, Subject

from parastrat.case import Facts
from parastrat.memory.phases import memory_by_phase
from parastrat.plan import Backend, Mesh, Plan
from parastrat.profiles import load_hardware, load_stack
from parastrat.runtime.building import Builder, build_module
from parastrat.runtime.precision import autocast_forward
from parastrat.runtime.tracing import watched
from parastrat.runtime.tracing.example_inputs import made
from parastrat.runtime.tracing.example_loss import example_loss
from parastrat.runtime.tracing.fakes import as_with_values
from parastrat.runtime.tracing.trace import TracedSource, traced_module
from parastrat.units import MIB
from parastrat.workload import Optimizer, Precision, Workload

#: no device of its own has a say: only bytes are read
_ON = "h100-sxm5x1"
GOAL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Bytes at the peak of a step."""

    #: with an accelerator's kernels
    estimated: int
    #: with the CPU's
    here: int
    real: int

    @property
    def error(self) -> float:
        return self.here / self.real - 1


def peaks_of(subject: Subject, precision: Precision = Precision.FP32) -> Peaks:
    """Return a model's peaks; under mixed precision those of autocast."""
    with patch.object(watched, "gpu_kernels", as_with_values):
        here = estimated(subject, precision)
    return Peaks(estimated=estimated(subject, precision), here=here, real=real(subject, precision))


def traced(subject: Subject, module: nn.Module, *, divides: bool = True) -> TracedSource:
    """Return a model as a source."""
    return traced_module(module, ref="it", sample_inputs=subject.inputs, divides=divides)


def estimated(subject: Subject, precision: Precision = Precision.FP32, *, divides: bool = True) -> int:
    """Return the estimate, from a trace of the model; what tp would divide is looked for, or is not."""
    module = build_module(Builder(ref="it", build=subject.build))
    source, length = traced(subject, module, divides=divides), subject.length
    stack = load_stack("torch")
    facts = Facts(
        model=source.at(length, precision, stack.kernels),
        hardware=load_hardware(_ON),
        workload=Workload(
            global_batch_size=subject.samples,
            sequence_length=length,
            optimizer=Optimizer.ADAMW,
            precision=precision,
        ),
        stack=stack,
    )
    plan = Plan(
        mesh=Mesh(),
        micro_batch_size=subject.samples,
        gradient_accumulation_steps=1,
        precision=precision,
        backend=Backend.NCCL,
    )
    (rank,) = memory_by_phase(facts, plan)
    # what an allocator adds differs by phase, and may make another one the highest
    return round(max(sum(phase.parts.values()) - phase.parts["overhead"] for phase in rank.phases))


def real(subject: Subject, precision: Precision = Precision.FP32) -> int:
    """Return the peak of a second step: the first one makes the optimizer's states."""
    torch.manual_seed(0)
    module = subject.build().train()
    mixed = autocast_forward(module, torch.device("cpu"), precision)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=True)
    inputs = made(traced(subject, module).inputs.make, subject.samples, subject.length)
    _step(module, optimizer, inputs, mixed=mixed)
    tracker = MemTracker()
    tracker.track_external(module, optimizer, *_tensors(inputs))
    with frozen_parts_watched(), tracker:
        _step(module, optimizer, inputs, mixed=mixed)
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


@contextmanager
def frozen_parts_watched() -> Iterator[None]:
    """Let MemTracker ask for the gradients of frozen parameters, which torch refuses: there are none."""
    with ExitStack() as stack:
        for name in ("register_hook", "register_post_accumulate_grad_hook"):
            stack.enter_context(patch.object(torch.Tensor, name, _registered(getattr(torch.Tensor, name))))
        yield


def _registered(register: Callable[..., Any]) -> Callable[..., Any]:
    def registered(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        return register(tensor, hook) if tensor.requires_grad else RemovableHandle(OrderedDict())

    return registered


def _step(module: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any, *, mixed: bool) -> None:
    output = module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
    example_loss(output, in_fp32=mixed).backward()
    del output
    optimizer.step()
    optimizer.zero_grad()


def _tensors(inputs: Any) -> list[torch.Tensor]:
    several = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    return [each for each in several if isinstance(each, torch.Tensor)]


def main() -> None:
    """Print a line for each model, and what the errors come to."""
    names = sys.argv[1:] or list(SUBJECTS)
    print(f"{'model':12} {'estimated MiB':>13} {'with CPU kernels':>16} {'real MiB':>9} {'error':>7}")
    errors = []
    for name in names:
        peaks = peaks_of(SUBJECTS[name])
        errors.append(abs(peaks.error))
        print(
            f"{name:12} {peaks.estimated / MIB:13.2f} {peaks.here / MIB:16.2f} {peaks.real / MIB:9.2f} "
            f"{peaks.error:+7.1%}",
            flush=True,
        )
    within = sum(error <= GOAL for error in errors)
    typical, worst = statistics.median(errors), max(errors)
    print(f"median {typical:.1%}, {within} of {len(errors)} within {GOAL:.0%}, worst {worst:.1%}")


if __name__ == "__main__":
    main()
