"""What is measured to calibrate a machine, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from parastrat.hardware import DeviceType
from parastrat.units import MIB
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.hardware import Device, Hardware

#: largest side of a matrix product, by whether the device is a processor
_SIDE = {True: 1024, False: 8192}
#: a thin product's side over the largest
_THIN = (64, 16, 4)
#: bytes of the largest tensor that is copied; several times any cache
_COPIED = {True: 256 * MIB, False: 1024 * MIB}
#: bytes of a tensor that is made, of each process; larger than what a heap keeps for the next one
_MADE = 64 * MIB
#: bytes of a collective's whole buffer: hops decide the first, links the last
_BUFFERS = {
    True: tuple(4096 * 8**power for power in range(5)),
    False: tuple(4096 * 8**power for power in range(7)),
}
#: sequence length of the attention that is timed, which has eight heads of 64
_TOKENS = {True: 1024, False: 8192}


class Operation(StrEnum):
    MATMUL = "matmul"
    #: one tensor to another in the device's memory
    COPY = "copy"
    #: one tensor from another, in memory that is allocated for it
    MAKE = "make"
    #: host memory, pinned, to the device
    UPLOAD = "upload"
    #: one operator on one element, of many
    LAUNCH = "launch"
    #: causal, forward
    ATTENTION = "attention"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"
    #: from one rank to its neighbour
    SEND = "send"

    @property
    def is_collective(self) -> bool:
        return self in _COLLECTIVES


_COLLECTIVES = (
    Operation.ALL_GATHER,
    Operation.REDUCE_SCATTER,
    Operation.ALL_REDUCE,
    Operation.ALL_TO_ALL,
    Operation.SEND,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One thing to be timed."""

    operation: Operation
    precision: Precision = Precision.FP32
    #: m, n and k of a product; tokens of attention
    sides: tuple[int, ...] = ()
    #: copied, made, or the whole buffer of a collective
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long it took, all ranks doing the same at once: the slowest rank's seconds."""

    wanted: Wanted
    #: median
    seconds: float
    #: half of the range in which the middle half of the repeats lie, over the median
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What measured: processes, and the software that they ran."""

    ranks: int
    #: threads of each on a processor
    threads: int
    #: such as ``torch 2.13.0``
    software: str
    #: such as ``2026-11-22``
    date: str

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        together = "one process" if self.ranks == 1 else f"{self.ranks} processes at once"
        return f"{self.software}, {together}, {threads} each"


def wanted(hardware: Hardware) -> tuple[Wanted, ...]:
    """Return what is timed on one node of a cluster, the largest product first."""
    device = hardware.device
    processor = device.type is DeviceType.CPU
    main = precisions(device)[0]
    several = [
        *(
            Wanted(operation=Operation.MATMUL, precision=precision, sides=sides)
            for precision in precisions(device)
            for sides in (_shapes(_SIDE[processor]) if precision is main else [(_SIDE[processor],) * 3])
        ),
        *(Wanted(operation=Operation.COPY, bytes=_COPIED[processor] >> shift) for shift in (0, 2)),
        Wanted(operation=Operation.LAUNCH),
        Wanted(operation=Operation.ATTENTION, precision=main, sides=(_TOKENS[processor],)),
    ]
    if not processor:
        several.append(Wanted(operation=Operation.UPLOAD, bytes=_COPIED[processor] >> 2))
    else:
        several.append(Wanted(operation=Operation.MAKE, bytes=_MADE))
    if hardware.devices_per_node > 1:
        several += [
            Wanted(operation=each, bytes=size) for each in _COLLECTIVES for size in _BUFFERS[processor]
        ]
    return tuple(several)


def wanted_alone(hardware: Hardware) -> tuple[Wanted, ...]:
    """Return what one process with all cores of a host is timed at: the same as all its processes together.

    Nothing where there is one process anyway, or where devices compute.
    """
    ranks = hardware.devices_per_node
    if hardware.device.type is not DeviceType.CPU or ranks == 1:
        return ()
    main, side = precisions(hardware.device)[0], _SIDE[True]
    return (
        Wanted(operation=Operation.MATMUL, precision=main, sides=(ranks * side, side, side)),
        Wanted(operation=Operation.MAKE, bytes=ranks * _MADE),
    )


def precisions(device: Device) -> tuple[Precision, ...]:
    """Return the formats whose products are timed, first the one that the curve is of."""
    if device.type is DeviceType.CPU:
        return (Precision.FP32, Precision.BF16)
    return (Precision.BF16, Precision.FP32) if device.bf16_native else (Precision.FP32,)


def _shapes(side: int) -> list[tuple[int, int, int]]:
    """Return cubes, and products that are thin in one side each."""
    cubes = [(side >> shift,) * 3 for shift in range(4)]
    thin = [
        tuple(side // by if place == axis else side for place in range(3))
        for axis in range(3)
        for by in _THIN
    ]
    return [*cubes, *thin]  # type: ignore[list-item]  # three sides each
