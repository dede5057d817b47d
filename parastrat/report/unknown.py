"""Facts that a host did not tell, and what would make them known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.hardware import NetworkKind
from parastrat.machine import GpuDirect

if TYPE_CHECKING:
    from parastrat.machine import Machine

_OUTSIDE = "probe on the host itself, outside of the container"


def unknown_facts(machine: Machine) -> list[tuple[str, str]]:
    """Return each unknown fact with what would make it known."""
    host, network, gpus = machine.host, machine.network, machine.gpus
    matrices = (machine.topology.gpu_gpu, machine.topology.gpu_card)
    paths = [path for rows in matrices for row in rows for path in row]
    is_wired = network.kind not in {NetworkKind.NONE, NetworkKind.WIFI}
    unknown = (
        (host.cores is None, "number of cores", "the kernel's list /sys/devices/system/cpu/online"),
        (host.memory_bytes is None, "size of the memory", "the kernel's table /proc/meminfo"),
        (host.shm_bytes is None, "size of /dev/shm", "mount a tmpfs there"),
        (host.memlock_unlimited is None, "limit of locked memory", "`ulimit -l` in the shell that trains"),
        (host.numa_nodes is None, "NUMA nodes", _OUTSIDE),
        (network.kind is NetworkKind.UNKNOWN, "kind of the network", _OUTSIDE),
        (
            is_wired and network.node_bits_per_s is None,
            "rate of the network",
            "measure it between two hosts (ib_write_bw, iperf3), and state it in the file of -o",
        ),
        (
            machine.gdr is GpuDirect.UNKNOWN,
            "GPUDirect",
            "run once over two hosts with NCCL_DEBUG=INFO, and look for GDRDMA in the log",
        ),
        (
            machine.excluded_hcas is None,
            "which RDMA cards serve training",
            "ask the administrator, and name them in NCCL_IB_HCA",
        ),
        (
            any(gpu.nvlinks is None for gpu in gpus),
            "links between the accelerators",
            "probe with their driver's library at hand (pip install nvidia-ml-py; rocm-smi)",
        ),
        (bool(gpus) and machine.fabric is None, "what joins the accelerators", "`nvidia-smi topo -m`"),
        (None in paths, "some paths", "probe on the host itself: virtual machines flatten PCIe"),
        (
            machine.socket_is_assumed,
            "the interface for sockets",
            "`ip route get` with another host's address names it; set NCCL_SOCKET_IFNAME to it",
        ),
    )
    return [(what, remedy) for is_open, what, remedy in unknown if is_open]
