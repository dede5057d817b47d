"""What is trained: the batch, the sequence, the optimizer and the number format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from parastrat.hardware import DeviceType

if TYPE_CHECKING:
    from parastrat.hardware import Device


class Precision(StrEnum):
    """Number format of training. ``-mixed`` keeps fp32 weights and computes in the short format."""

    FP32 = "fp32"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"
    BF16 = "bf16"
    FP8 = "fp8"

    @property
    def compute_bytes(self) -> int:
        """Bytes of one activation element."""
        return 4 if self is Precision.FP32 else 2

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one element of the weights that the optimizer updates."""
        return 2 if self is Precision.BF16 else 4


def usual_precision(device: Device) -> Precision:
    """Return mixed precision in the short format that the device computes natively; fp32 on CPUs."""
    if device.type is DeviceType.CPU:
        return Precision.FP32
    return Precision.BF16_MIXED if device.bf16_native else Precision.FP16_MIXED


class Optimizer(StrEnum):
    """Optimizers whose state sizes are known."""

    ADAMW = "adamw"
    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"
    ADAFACTOR = "adafactor"
    ADAMW_8BIT = "adamw-8bit"
    #: of matrices in repeated blocks; AdamW updates the rest beside it
    MUON = "muon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training job, independent of how it is parallelised."""

    #: samples (sequences, images) of one optimizer step, over all devices
    global_batch_size: int
    #: tokens in a sample; None for samples without tokens
    sequence_length: int | None
    optimizer: Optimizer
    precision: Precision
    #: parts of a micro-batch's tokens whose logits the loss makes one after another, and again in backward
    loss_chunks: int = 1
    #: names of the fields that nobody stated and that were defaulted
    assumed: tuple[str, ...] = ()
