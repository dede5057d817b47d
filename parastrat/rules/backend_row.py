"""One row of the backend table, and the hardware that rows tell apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from parastrat.hardware import DeviceType, NetworkKind

if TYPE_CHECKING:
    from parastrat.hardware import Hardware
    from parastrat.plan import Backend


class Asked(StrEnum):
    """What somebody wants beyond the documented choice; each is answered by a row of its own."""

    #: nothing: the documented choice
    DOCUMENTED = "documented"
    #: ``init_process_group(backend=None)``
    UNSTATED = "unstated"
    UCC = "ucc"
    TORCHCOMMS = "torchcomms"
    #: a dry run without communication
    FAKE = "fake"
    #: Gloo over InfiniBand verbs
    GLOO_IBVERBS = "gloo-ibverbs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRow:
    """One situation and its backend."""

    row: str
    #: the hardware that the row is about
    when: Callable[[Hardware], bool]
    #: None for no process group, or, on rows that somebody asked for, for the documented backend
    backend: Backend | None
    #: argument of ``init_process_group``; empty without a process group
    init: str
    reason: str
    #: what to do when the choice fails; empty where nothing is left
    fallback: str
    url: str
    asked: Asked = Asked.DOCUMENTED
    #: every fact that the choice rests on is known
    certain: bool = True


def is_gpu(hardware: Hardware) -> bool:
    """GPUs that torch calls cuda, AMD's among them."""
    return hardware.device.type is DeviceType.CUDA


def is_cpu(hardware: Hardware) -> bool:
    """Processes on CPUs."""
    return hardware.device.type is DeviceType.CPU


def is_infiniband(hardware: Hardware) -> bool:
    """InfiniBand between the nodes."""
    return hardware.network.kind is NetworkKind.INFINIBAND


def shares_devices(hardware: Hardware) -> bool:
    """More ranks than accelerators in a node."""
    accelerators = hardware.accelerators_per_node
    return accelerators is not None and accelerators < hardware.devices_per_node


def device_is(kind: DeviceType) -> Callable[[Hardware], bool]:
    """Devices of one type."""
    return lambda hardware: hardware.device.type is kind


def gpus_on(*kinds: NetworkKind) -> Callable[[Hardware], bool]:
    """GPUs with one of some networks between the nodes."""
    return lambda hardware: is_gpu(hardware) and hardware.network.kind in kinds
