"""What was found and will harm training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.hardware import FabricKind, NetworkKind
from parastrat.machine import Hazard
from parastrat.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.machine import Machine

#: NCCL's user guide starts containers with ``--shm-size=1g``
_ENOUGH_SHARED_MEMORY = GIB
#: a rank opens sockets to its neighbours and files of its data
_ENOUGH_FILES = 4096
_RDMA = frozenset({NetworkKind.INFINIBAND, NetworkKind.ROCE, NetworkKind.EFA})
_WITHOUT_SPEED = frozenset({NetworkKind.ETHERNET, NetworkKind.UNKNOWN})


def hazards_of(machine: Machine) -> tuple[Hazard, ...]:
    """Return what will harm training on a host, most harmful first."""
    return (*_accelerators(machine), *_limits(machine), *_network(machine), *_links(machine))


def _accelerators(machine: Machine) -> Iterator[Hazard]:
    if machine.trouble is not None:
        yield Hazard(
            what="accelerators cannot be read",
            why=machine.trouble,
            fix="pip install nvidia-ml-py"
            if "pynvml" in machine.trouble
            else "look at the driver (nvidia-smi, dmesg), and probe again",
        )
    if any(gpu.mig for gpu in machine.gpus):
        yield Hazard(
            what="MIG is on",
            why="slices of a GPU cannot reach each other: each is a device alone",
            fix="turn MIG off to train on several (nvidia-smi -mig 0)",
        )
    blocked = [str(at) for at, gpu in enumerate(machine.gpus) if gpu.peer_access is False and not gpu.mig]
    if blocked:
        yield Hazard(
            what=f"no peer access between GPUs ({', '.join(blocked)})",
            why="the driver refuses direct reads, and data between GPUs goes through the host's memory",
            fix="see `nvidia-smi topo -p2p r`; on bare metal IOMMU and PCIe ACS are often why",
        )
    if machine.fabric is FabricKind.NVLINK_DOMAIN:
        size = machine.scale_up_domain
        upto = "as many as it has" if size is None else f"{size}"
        yield Hazard(
            what=f"the NVLink domain is the clique, not the node: TP/EP up to {upto} may be on NVLink",
            why="the GPUs of several trays share one NVLink fabric",
            fix="give the job whole racks, and let IMEX run on each tray",
        )
        if machine.imex is False:
            yield Hazard(
                what="no IMEX channels",
                why="without /dev/nvidia-caps-imex-channels NCCL fails with error 800 between trays",
                fix="start nvidia-imex on each tray, and pass its channels to the container",
            )


def _limits(machine: Machine) -> Iterator[Hazard]:
    host, kind = machine.host, machine.network.kind
    if host.shm_bytes is not None and host.shm_bytes < _ENOUGH_SHARED_MEMORY:
        yield Hazard(
            what=f"/dev/shm {_size(host.shm_bytes)}",  # noqa: S108 - a name to read
            why="NCCL and the workers of a DataLoader pass data through it, and die where it is full",
            fix="start the container with --shm-size=8g (Kubernetes: emptyDir with medium: Memory)",
        )
    may_be_rdma = kind in _RDMA or kind is NetworkKind.UNKNOWN
    if host.memlock_unlimited is False and host.memlock_bytes is not None and may_be_rdma:
        yield Hazard(
            what=f"memlock {_size(host.memlock_bytes)}",
            why="RDMA registers memory that stays in place, and fails at this limit",
            fix="ulimit -l unlimited (docker: --ulimit memlock=-1; Slurm: PropagateResourceLimits)",
        )
    if host.open_files is not None and host.open_files < _ENOUGH_FILES:
        yield Hazard(
            what=f"{host.open_files:,} open files",
            why="each rank holds sockets to its peers and files of its data",
            fix="ulimit -n 65536",
        )


def _network(machine: Machine) -> Iterator[Hazard]:
    network = machine.network
    if network.kind in _WITHOUT_SPEED and network.node_bits_per_s is None:
        yield Hazard(
            what="speed unknown",
            why="the network's cards state none, and NCCL then assumes 10 Gb/s",
            fix="measure it between two nodes, and state it in the hardware file",
            is_gap=True,
        )
    if machine.host.numa_nodes is None:
        yield Hazard(
            what="numa unknown",
            why="the kernel does not show NUMA nodes here, so ranks cannot be placed on them",
            fix="probe on the host itself, outside of the container",
            is_gap=True,
        )
    if machine.excluded_hcas is None:
        yield Hazard(
            what="compute and storage cards look alike",
            why="more RDMA cards are active than there are accelerators, and PCIe does not tell them apart",
            fix="name the cards of the training network in NCCL_IB_HCA",
            is_gap=True,
        )


def _links(machine: Machine) -> Iterator[Hazard]:
    for at, gpu in enumerate(machine.gpus):
        if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
            yield _narrow(f"GPU {at}", gpu.pcie_width, gpu.pcie_width_max)
    seen = set()
    for card in machine.cards:
        is_narrow = card.pcie_width and card.pcie_width_max and card.pcie_width < card.pcie_width_max
        if is_narrow and card.active and card.name not in seen:
            seen.add(card.name)
            yield _narrow(card.name, card.pcie_width or 0, card.pcie_width_max or 0)


def _narrow(name: str, width: int, most: int) -> Hazard:
    return Hazard(
        what=f"{name} has {width} PCIe lanes of {most}",
        why="transfers to the host and through cards take longer in proportion",
        fix="seat the card again, or use a slot with all lanes",
    )


def _size(count: int) -> str:
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} bytes"
