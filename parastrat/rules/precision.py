"""PS41x: number formats and what the device offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.columns import code_of
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import case_rule, plan_rule
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask

_BF16 = code_of(Precision.BF16)
_BF16_MIXED = code_of(Precision.BF16_MIXED)
_FP16_MIXED = code_of(Precision.FP16_MIXED)
_FP8 = code_of(Precision.FP8)


@plan_rule(
    "PS410",
    Severity.WARNING,
    source="https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_bf16_supported.html",
    covers=("PIT401", "PIT807"),
)
def bf16_is_emulated(p: Columns) -> Mask:
    """bf16 needs a device that computes in it.

    Before Ampere, torch emulates the format, and `torch.cuda.is_bf16_supported()` says True all the same.
    It trains, at the speed of fp32 or below; other frameworks refuse. fp16 with loss scaling is native.
    """
    return ((p.precision == _BF16) | (p.precision == _BF16_MIXED)) & (p.bf16_native == 0)


@bf16_is_emulated.message
def _(case: Case) -> Hit:
    device = case.hardware.device
    short = "fp16-mixed" if device.peak.fp16 is not None else "fp32"
    return Hit(
        message=f"{case.plan.precision.value} on {device.name}, which emulates bf16",
        fix=f"use {short} (--precision {short})",
    )


@plan_rule(
    "PS411",
    Severity.ERROR,
    source="https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/index.html",
    covers=("PIT404",),
)
def fp8_is_missing(p: Columns) -> Mask:
    """fp8 needs a device that multiplies in it.

    Hopper, Ada and later do; Transformer Engine and torchao refuse on anything else.
    """
    return (p.precision == _FP8) & (p.has_fp8 == 0)


@fp8_is_missing.message
def _(case: Case) -> Hit:
    device = case.hardware.device
    mixed = "bf16-mixed" if device.bf16_native else "fp16-mixed"
    return Hit(
        message=f"fp8 on {device.name}, which has no fp8 matrix units",
        fix=f"use {mixed} (--precision {mixed})",
    )


@plan_rule(
    "PS412",
    Severity.INFO,
    source="https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
    covers=("PIT402",),
)
def fp16_needs_scaling(p: Columns) -> Mask:
    """fp16 gradients need loss scaling.

    The format ends at 6e-5 below (6e-8 with denormals): small gradients become zero, and the model stops
    learning or diverges without an error. A gradient scaler multiplies the loss and divides the update.
    bf16 has the range of fp32 and needs none.
    """
    return p.precision == _FP16_MIXED


@fp16_needs_scaling.message
def _(case: Case) -> Hit:
    native = case.hardware.device.bf16_native
    better = ", or use bf16-mixed, which this device has" if native else ""
    return Hit(
        message=f"fp16-mixed on {case.hardware.device.name}: gradients below 6e-8 vanish without "
        "loss scaling",
        fix=f"scale the loss with torch.amp.GradScaler{better}",
    )


@plan_rule(
    "PS413",
    Severity.WARNING,
    source="https://arxiv.org/abs/2010.06192",
)
def bf16_weights_lose_updates(p: Columns) -> Mask:
    """Weights kept in bf16 lose small updates.

    With 8 bits of mantissa an update below 1/256 of a weight rounds away. Late in training most are that
    small. Mixed precision keeps fp32 weights; pure bf16 needs stochastic rounding or Kahan summation.
    """
    return p.precision == _BF16


@bf16_weights_lose_updates.message
def _(case: Case) -> Hit:
    saved = (Precision.BF16_MIXED.parameter_bytes - Precision.BF16.parameter_bytes) * case.model.parameters
    return Hit(
        message=f"all {case.model.parameters:,} weights are kept in bf16 (saves {saved / 1e9:,.1f} GB over "
        "all ranks): updates below 1/256 of a weight round away",
        fix="use bf16-mixed (--precision bf16-mixed), or an optimizer with stochastic rounding",
    )


@case_rule(
    "PS414",
    Severity.WARNING,
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
def plan_changes_the_precision(case: Case) -> Hit | None:
    """A plan keeps the workload's precision.

    The number format changes what is trained, so it is the job's choice and never the planner's. A plan
    with another one was made for another job.
    """
    asked, planned = case.workload.precision, case.plan.precision
    if asked is planned:
        return None
    return Hit(
        message=f"the workload says {asked.value}, the plan {planned.value}",
        fix=f"use --precision {asked.value} for the plan too",
    )
