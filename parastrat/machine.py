"""What one host was found to have. None is unknown everywhere, never a guess."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from parastrat.hardware import DeviceType, FabricKind, HostSystem, Network, NetworkKind, Vendor


class PciPath(StrEnum):
    """How two PCIe devices reach each other, nearest first, in the words of ``nvidia-smi topo -m``."""

    #: through at most one switch
    PIX = "PIX"
    #: through several switches, below one root port
    PXB = "PXB"
    #: through a host bridge, usually the processor's
    PHB = "PHB"
    #: between host bridges of one NUMA node
    NODE = "NODE"
    #: between NUMA nodes
    SYS = "SYS"


class GpuDirect(StrEnum):
    """What lets network cards read and write device memory (``gdr`` of a probe)."""

    NVIDIA_PEERMEM = "nvidia_peermem"
    DMABUF = "dmabuf"
    EFA = "efa"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciPlace:
    """Where a device hangs: host bridge, bridges, device, outermost first."""

    chain: tuple[str, ...]
    numa_node: int | None = None

    @property
    def address(self) -> str:
        """Such as ``0000:1b:00.0``."""
        return self.chain[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator, of any kind."""

    #: as its driver names it
    name: str | None
    vendor: Vendor = Vendor.NVIDIA
    type: DeviceType = DeviceType.CUDA
    uuid: str | None = None
    memory_bytes: int | None = None
    #: such as ``9.0``, or ``gfx942``
    compute_capability: str | None = None
    #: split into slices that cannot reach each other
    mig: bool = False
    #: active NVLinks or xGMI links to others
    nvlinks: int | None = 0
    #: what the NVLinks lead to: ``SWITCH``, ``GPU`` or ``NPU``
    nvlink_remote: str | None = None
    #: a domain of NVLink that spans nodes
    nvlink_domain: bool = False
    #: PCI address and number of links of each accelerator that is linked directly
    peers: tuple[tuple[str, int], ...] = ()
    #: the driver lets it read the memory of all others
    peer_access: bool | None = None
    #: PCI address as sysfs writes it, such as ``0000:1b:00.0``
    bus_id: str | None = None
    numa_node: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One port of an RDMA card."""

    name: str
    kind: NetworkKind
    active: bool
    #: None where the driver states none
    bits_per_s: float | None
    place: PciPlace | None = None
    #: network interface of the same card
    interface: str | None = None
    #: index of the RoCE v2 address that can be routed; None without one
    roce_v2_gid: int | None = None
    #: such as ``0xefa2``
    device_id: str | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface of the kernel."""

    name: str
    #: ARP hardware type: 1 Ethernet, 32 InfiniBand, 772 loopback
    type: int | None
    up: bool
    #: has an IPv4 address; None where a recorded host does not say
    addressed: bool | None
    virtual: bool
    wireless: bool
    #: None where the driver states none, as virtual cards do
    bits_per_s: float | None
    #: part of a bond or a bridge, which speaks for it
    enslaved: bool = False
    #: PCI vendor, such as ``0x15b3``
    vendor: str | None = None
    place: PciPlace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a process may use of its host."""

    #: at least 1; a quota of 1.5 cores counts as one, because a process cannot have half a thread
    cores: int | None
    memory_bytes: int | None
    numa_nodes: int | None
    system: HostSystem
    #: of the whole machine, before control groups
    cores_online: int | None = None
    memory_total_bytes: int | None = None
    #: size of /dev/shm
    shm_bytes: int | None = None
    #: memory that a process may lock, which RDMA needs; None: unknown or unlimited
    memlock_bytes: int | None = None
    memlock_unlimited: bool | None = None
    open_files: int | None = None
    container: bool = False
    #: such as ``aws:p5.48xlarge``
    cloud: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How accelerators reach each other and the cards: ``NV18``, ``XGMI``, a PciPath, or None."""

    gpu_gpu: tuple[tuple[str | None, ...], ...] = ()
    #: one row an accelerator, one column a card of ``cards``
    gpu_card: tuple[tuple[str | None, ...], ...] = ()
    cards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """What was found and will harm training, or may because it is not known."""

    #: in a few words
    what: str
    why: str
    fix: str
    #: nothing is wrong as far as is known, but this is not
    is_gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One host, as it was found."""

    host: HostFacts
    gpus: tuple[Gpu, ...] = ()
    #: why the accelerators cannot be told; None: they can
    trouble: str | None = None
    #: what joins the accelerators of this host
    fabric: FabricKind | None = FabricKind.NONE
    cards: tuple[Card, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    network: Network = field(default_factory=lambda: Network(kind=NetworkKind.UNKNOWN))
    #: RDMA cards that are not of the training network; None where nothing tells them apart
    excluded_hcas: tuple[str, ...] | None = ()
    #: accelerators that share the fast fabric; exceeds the host where it spans nodes
    scale_up_domain: int | None = None
    #: IMEX channels are there, through which hosts of one NVLink domain share memory
    imex: bool | None = None
    gdr: GpuDirect = GpuDirect.NONE
    roce_v2_gid_index: int | None = None
    #: some of several interfaces was taken for sockets, because nothing told them apart
    socket_is_assumed: bool = False
    topology: Topology = field(default_factory=Topology)
    hazards: tuple[Hazard, ...] = ()
