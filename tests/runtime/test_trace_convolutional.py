"""A traced network of convolutions beside its closed form, and what its norms move."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from parastrat.assess import assess
from parastrat.case import Case, Facts
from parastrat.model import ModelSpec, OperatorKind
from parastrat.plan import Backend, Mesh, Plan, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.runtime.tracing.trace import traced_module, traced_source
from parastrat.sources import load_source
from parastrat.stack import Kernels
from parastrat.workload import Optimizer, Precision, Workload

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "imagenet.py") + ":build"
BATCH = 32


@cache
def specs(precision: Precision) -> tuple[ModelSpec, ModelSpec]:
    """The preset's closed form, and the example's ResNet-50 as it is traced."""
    preset = load_source("resnet-50")
    assert preset is not None
    traced = traced_source(EXAMPLE)
    return tuple(source.at(None, precision, Kernels.EAGER) for source in (preset, traced))  # type: ignore[return-value]


def total(spec: ModelSpec, kind: OperatorKind, field: str) -> float:
    return sum(
        getattr(operator, field) * operator.count * block.repeat
        for block in spec.blocks
        for operator in block.operators
        if operator.kind is kind
    )


def dispatched(spec: ModelSpec) -> int:
    return sum(operator.count * block.repeat for block in spec.blocks for operator in block.operators)


def assessed(model: ModelSpec, node: str, stack: str) -> Case:
    hardware = load_hardware(node)
    world = hardware.world_size
    plan = Plan(
        mesh=Mesh(dp_replicate=world),
        shard=Shard.NONE,
        micro_batch_size=BATCH,
        gradient_accumulation_steps=1,
        precision=model.precision,
        backend=Backend.NCCL,
    )
    workload = Workload(
        global_batch_size=BATCH * world,
        sequence_length=None,
        optimizer=Optimizer.SGD_MOMENTUM,
        precision=model.precision,
    )
    return assess(Facts(model=model, hardware=hardware, workload=workload, stack=load_stack(stack)), plan)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16_MIXED])
def test_resnet_50_traced_and_in_closed_form(precision: Precision) -> None:
    preset, traced = specs(precision)
    flops = [total(spec, OperatorKind.CONVOLUTION, "flops") for spec in (preset, traced)]
    assert flops[1] == pytest.approx(flops[0])
    moved = [total(spec, OperatorKind.ELEMENTWISE, "bytes") for spec in (preset, traced)]
    assert moved[1] == pytest.approx(moved[0], rel=0.01)
    # the trace has the average over pixels, the loss and a cast as well
    assert 0 < dispatched(traced) - dispatched(preset) <= 5


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16_MIXED])
@pytest.mark.parametrize("stack", ["torch", "torch-compile"])
@pytest.mark.parametrize("node", ["dgx-h100", "dgx-1v"])
def test_both_are_estimated_alike(precision: Precision, stack: str, node: str) -> None:
    preset, traced = (assessed(spec, node, stack).estimate for spec in specs(precision))
    assert traced.time.step == pytest.approx(preset.time.step, rel=0.02)
    assert traced.memory.total == pytest.approx(preset.memory.total, rel=0.02)


def test_batch_statistics_are_one_more_reading() -> None:
    sides = 4 * 8 * 8

    def moved(norm: nn.Module) -> float:
        module = nn.Sequential(nn.Conv2d(4, 4, 1), norm)
        source = traced_module(module, ref="m", sample_inputs=torch.zeros(2, 4, 8, 8))
        return total(source.at(None, Precision.FP32, Kernels.EAGER), OperatorKind.ELEMENTWISE, "bytes")

    plain = moved(nn.Hardswish())
    for norm in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4)):
        # up to its weights and statistics, which are a few numbers
        assert moved(norm) - plain == pytest.approx(4 * sides, rel=0.2)


def test_a_trace_says_that_its_operators_are_torchs() -> None:
    preset, traced = specs(Precision.FP32)
    assert traced.dispatched
    slow = replace(traced, dispatched=False)
    times = [assessed(spec, "dgx-h100", "torch").estimate.time.step for spec in (traced, slow)]
    assert times[1] > times[0]
    assert preset.dispatched
