"""Machines as values: a device, its node, and the links inside and between the nodes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum


class FigureKind(StrEnum):
    """How a hardware figure is known."""

    MEASURED = "measured"
    DERIVED = "derived"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where one figure comes from."""

    #: name of the figure's field, such as ``memory_bytes``
    field: str
    kind: FigureKind
    source: str


def kind_of(provenance: tuple[Provenance, ...], field: str) -> FigureKind:
    """Return how a figure is known; one that nobody gave a source for is assumed."""
    return next((entry.kind for entry in provenance if entry.field == field), FigureKind.ASSUMED)


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    CPU = "cpu"


class DeviceType(StrEnum):
    """The device type's name in torch. ROCm builds call their GPUs ``cuda`` too."""

    CUDA = "cuda"
    XPU = "xpu"
    HPU = "hpu"
    CPU = "cpu"
    #: Ascend, through torch_npu
    NPU = "npu"
    #: Apple
    MPS = "mps"


class FabricKind(StrEnum):
    """What joins the devices of one scale-up domain (``gpu_fabric`` of a probe)."""

    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"
    NVLINK_DOMAIN = "nvlink-domain"
    XGMI = "xgmi"
    PCIE = "pcie"
    NONE = "none"
    #: between Intel's GPUs
    XE_LINK = "xe-link"
    #: Gaudi's own Ethernet ports
    ROCE = "roce"


class NetworkKind(StrEnum):
    """What joins the nodes (``network`` of a probe)."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    SLINGSHOT = "slingshot"
    TCPX = "tcpx"
    ETHERNET = "ethernet"
    WIFI = "wifi"
    NONE = "none"
    UNKNOWN = "unknown"


class HostSystem(StrEnum):
    """The operating system, as far as backends depend on it."""

    LINUX = "linux"
    WINDOWS = "windows"
    WSL2 = "wsl2"
    DARWIN = "darwin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Dense matrix-multiply rates in FLOP/s by number format; None where the device lacks it."""

    fp32: float | None = None
    tf32: float | None = None
    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    fp4: float | None = None

    def times(self, factor: float) -> Rates:
        """Return them times a factor; what the device lacks stays absent."""
        return Rates(**{name: rate and rate * factor for name, rate in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulCurve:
    """How a matrix multiply approaches the sustained rate as its sides grow.

    rate(m, n, k) = ceiling * sustained * m/(m + m_half) * n/(n + n_half) * k/(k + k_half).
    """

    #: the fastest shapes over the sustained rate
    ceiling: float
    m_half: float
    n_half: float
    k_half: float


#: keys that a query sees, rows and elements of a head at which a rate of attention is stated
ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_WIDTH = 4096, 2**20, 128
ALIGNED_ELEMENTS = 8  #: of two bytes each, in what a vector load takes: rows are aligned to so many


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCurve:
    """How a rate of attention falls with what each kernel has, relative to that of large ones.

    rate = R * keys/(keys + keys_half) * rows/(rows + rows_half) * width/(width + width_half), of the keys
    that a query sees in the mean, of queries times heads, and of the elements of a head.
    """

    keys_half: float = 0.0
    rows_half: float = 0.0
    width_half: float = 0.0

    def slowed(self, keys: float, rows: float, width: float) -> float:
        """Return how many times as long a kernel takes as at the shape that a device's share is of."""
        sizes = (keys, rows, width), (ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_WIDTH)
        halves = self.keys_half, self.rows_half, self.width_half
        own, reference = (
            math.prod(1 + half / size for half, size in zip(halves, of, strict=True)) for of in sizes
        )
        return own / reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one CPU process."""

    name: str
    vendor: Vendor
    type: DeviceType
    memory_bytes: int  #: as the driver reports it
    #: what a training process can allocate, after driver and context
    usable_memory_bytes: int
    memory_bytes_per_s: float
    peak: Rates  #: datasheet rates, dense, without sparsity
    sustained: Rates  #: rates that long matrix multiplies reach
    matmul: MatmulCurve
    bf16_native: bool  #: the bf16 formats are native, not emulated
    launch_s: float  #: time of one kernel launch from eager Python
    #: flash-attention forward's share of the sustained rate of matrix multiplies, where a query sees
    #: ATTENTION_KEYS and a kernel has ATTENTION_ROWS of heads with ATTENTION_WIDTH
    attention_efficiency: float = 0.5
    #: that of kernels made for the device (cuDNN's, FlashAttention-3); None: the same
    newest_attention_efficiency: float | None = None
    #: that of the first FlashAttention, in Triton, and of torch's flex_attention; None: as the second's
    first_attention_efficiency: float | None = None
    flex_attention_efficiency: float | None = None
    attention: AttentionCurve = AttentionCurve()
    newest_attention: AttentionCurve | None = None
    #: how many times as long products in 16 bits take whose rows are aligned to 4 or 8 bytes, and to 2;
    #: None: unknown, and as long
    aligned_to_four: float | None = None
    aligned_to_two: float | None = None
    #: host memory to device, one direction; None where there is no such link or it is unknown
    host_bytes_per_s: float | None = None
    #: of a processor that several processes share, what one process with all cores does of what they do
    #: together: of products, and of what is made in memory; None: as much
    whole_products: float | None = None
    whole_memory: float | None = None
    fresh_bytes_per_s: float | None = None  #: of memory that a host gives its processes anew; None: unknown
    compute_capability: str | None = None
    power_w: float | None = None
    provenance: tuple[Provenance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCurve:
    """How much longer than its bytes a collective takes inside one scale-up domain.

    t = start + (n-1) * hop + x / (share(n) * rate) + ramp * x / (x + ramp_bytes), where x are the bytes
    that a rank moves: small messages go by protocols of low latency, large ones wait for that of high
    bandwidth.
    """

    start_s: float
    hop_s: float
    ramp_s: float = 0.0
    ramp_bytes: float = 1.0
    #: of the link's rate that groups of 2, 4, and 8 and more reach; between those by the logarithm
    share_of_two: float = 1.0
    share_of_four: float = 1.0
    share_of_eight: float = 1.0

    @property
    def shares(self) -> tuple[float, float, float]:
        """The shares of groups of 2, 4 and 8."""
        return self.share_of_two, self.share_of_four, self.share_of_eight


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCurves:
    """One backend's collectives inside a domain."""

    #: all-gather and reduce-scatter
    gather: CollectiveCurve
    #: all-reduce
    reduce: CollectiveCurve
    #: all-to-all
    exchange: CollectiveCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one device sees of a fabric, in one direction: all its links together.

    Where each link leads to one neighbour (a mesh without a switch) that is their sum, not one link's.
    ``bytes_per_s`` is the bus bandwidth that large ring collectives reach, as nccl-tests defines it;
    ``nominal_bytes_per_s`` is the datasheet's.
    """

    nominal_bytes_per_s: float
    bytes_per_s: float
    #: one hop of a ring, or one point-to-point message
    latency_s: float
    #: the collectives' bandwidth relative to ``bytes_per_s`` for all-reduce (in-switch reduction)
    all_reduce_gain: float = 1.0
    #: None: hops of ``latency_s`` alone
    curves: CollectiveCurves | None = None
    provenance: tuple[Provenance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One node's processor side. None is unknown."""

    cores: int | None = None
    memory_bytes: int | None = None
    numa_nodes: int | None = None
    #: of all its sockets together
    memory_bytes_per_s: float | None = None
    system: HostSystem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What backend and network rules read. None is unknown, never a guess."""

    kind: NetworkKind
    #: rate of one node into the network, bits per second
    node_bits_per_s: float | None = None
    #: an IP-over-InfiniBand interface is up and has an address
    ipoib: bool | None = None
    #: the interface that sockets should use
    socket_ifname: str | None = None
    #: network cards read and write device memory directly
    gpudirect: bool | None = None
    #: the NCCL plugin that this network needs is installed
    plugin: bool | None = None
    #: RDMA cards of the training network
    compute_hcas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A whole cluster of equal nodes."""

    #: as the user would name it, such as ``dgx-h100:8``
    name: str
    device: Device
    devices_per_node: int
    num_nodes: int
    #: devices that share the fast fabric; may exceed the node (72 on NVL72)
    scale_up_devices: int
    scale_up_kind: FabricKind
    scale_up: Link | None
    scale_out: Link | None
    host: Host
    network: Network
    #: physical accelerators in a node when ranks share them; None when each rank has its own
    accelerators_per_node: int | None = None

    @property
    def world_size(self) -> int:
        """Devices of the cluster."""
        return self.devices_per_node * self.num_nodes
