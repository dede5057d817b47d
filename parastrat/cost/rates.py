"""Rates that a device reaches in a number format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.errors import ProfileError
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.hardware import Device


def reached_share(facts: Facts) -> float:
    """Return the share of a device's sustained rate that large products of a stack reach."""
    device, stack = facts.hardware.device, facts.stack
    return device.matmul.ceiling * stack.matmul_factor * stack.rate_on(device.name)


def sustained_flops_per_s(device: Device, precision: Precision) -> float:
    """Return the rate of large matrix multiplies in a number format.

    A format that the device lacks runs at the next wider one's rate; that it lacks it is a rule's matter.
    bf16 that torch emulates runs in fp32: fp16's matrix units do not know it.
    torch multiplies fp32 in full fp32 unless told otherwise, so TF32 does not count.

    Raises:
        ProfileError: the device states no rate that the format could run at.
    """
    rates = device.sustained
    ladder = {
        Precision.FP8: (rates.fp8, rates.bf16, rates.fp16, rates.fp32),
        Precision.FP16_MIXED: (rates.fp16, rates.bf16, rates.fp32),
        Precision.FP32: (rates.fp32,),
    }.get(precision, (rates.bf16, rates.fp16 if device.bf16_native else None, rates.fp32))
    found = next((rate for rate in ladder if rate), device.peak.fp32)
    if found is None:
        raise ProfileError(
            f"{device.name} states no rate for {precision}",
            hint="state the rate under sustained_tflops of the device's profile",
        )
    return found
