"""PS32x and PS33x: the network between the nodes, and the store that ranks meet at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.finding import Hit, Severity
from parastrat.hardware import DeviceType, NetworkKind
from parastrat.plan import Backend, Shard
from parastrat.rules.rule import case_rule

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.plan import Mesh

_NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs"
_STORES = "https://docs.pytorch.org/docs/stable/distributed.html#distributed-key-value-store"

#: node rates below this are slow for gathering parameters in every block, bits per second
_SLOW_BITS_PER_S = 100e9

#: the NCCL plugin of each network that needs one
_PLUGINS = {
    NetworkKind.EFA: "aws-ofi-nccl",
    NetworkKind.SLINGSHOT: "aws-ofi-nccl (cxi provider)",
    NetworkKind.TCPX: "Google's NCCL plugin for GPUDirect-TCPX",
}


@case_rule("PS320", Severity.WARNING, source="https://github.com/oumi-ai/oumi/pull/213", covers=("PIT111",))
def full_shard_over_a_slow_network(case: Case) -> Hit | None:
    """Do not shard parameters flat over slow Ethernet.

    FSDP gathers every parameter twice a step and reduces every gradient. Sharding inside the node and
    replicating between nodes (HSDP) leaves only the gradients to the network: measured on four nodes 74
    against 55 samples a second.
    """
    hardware, plan = case.hardware, case.plan
    rate = hardware.network.node_bits_per_s
    inner = plan.mesh.dp_shard * plan.mesh.cp * plan.mesh.tp
    shards = plan.shard is Shard.PARAMETERS and plan.mesh.dp_shard * plan.mesh.cp > 1
    flat = shards and inner > hardware.scale_up_devices
    if not flat or hardware.num_nodes == 1 or rate is None or rate >= _SLOW_BITS_PER_S:
        return None
    ranks = plan.mesh.dp_shard * plan.mesh.cp
    return Hit(
        message=f"parameters are sharded over {ranks} ranks across nodes that share "
        f"{rate / 1e9:,.0f} Gbit/s each",
        fix=_sharded_inside(plan.mesh, hardware.devices_per_node),
    )


def _sharded_inside(mesh: Mesh, devices: int) -> str:
    """Name the plan whose shards stay inside a node of so many devices."""
    shard = max(1, devices // (mesh.cp * mesh.tp))
    if mesh.ep > 1 and shard * mesh.cp * mesh.tp % mesh.ep:
        return "leave ep out: it regroups the ranks of several nodes"
    if shard * mesh.cp == 1 or shard * mesh.cp * mesh.tp > devices:
        # no two ranks of a node share parameters
        axes = [axis for axis in ("cp", "tp", "ep", "pp") if getattr(mesh, axis) > 1]
        whole = "+".join(["ddp", *axes])
        return f"use {whole} (--strategy {whole}) if a device's memory allows"
    if mesh.dp % shard == 0:
        return f"use hsdp (--dp-shard {shard} --dp-replicate {mesh.dp // shard}) if a node's memory allows"
    return "use hsdp with one shard group per node, if a node's memory allows"


@case_rule("PS321", Severity.WARNING, source=f"{_NCCL_GUIDE}/env.html")
def network_is_unknown(case: Case) -> Hit | None:
    """The network between the nodes should be known.

    Step times of plans over several nodes rest on it: a factor of twenty lies between Ethernet and
    InfiniBand. Containers often hide it.
    """
    kind, nodes = case.hardware.network.kind, case.hardware.num_nodes
    if nodes == 1 or kind not in {NetworkKind.UNKNOWN, NetworkKind.NONE}:
        return None
    name = case.hardware.name
    if kind is NetworkKind.NONE:
        message = f"no network was found that joins the {nodes} nodes of {name}; one is assumed"
    else:
        message = f"the network between the {nodes} nodes of {name} is unknown"
    return Hit(
        message=message,
        fix="run `parastrat probe` on the host itself, or state [network] in the hardware file",
    )


@case_rule("PS322", Severity.WARNING, source="https://github.com/aws/aws-ofi-nccl", covers=("PIT617",))
def plugin_is_missing(case: Case) -> Hit | None:
    """Cloud networks need their NCCL plugin.

    NCCL drives InfiniBand and RoCE itself. For EFA, Slingshot and TCPX it loads a plugin, and without it
    silently uses sockets: everything works at a fraction of the speed. "Using network" in the log of
    NCCL_DEBUG=INFO tells.
    """
    network = case.hardware.network
    name = _PLUGINS.get(network.kind)
    over_network = case.hardware.num_nodes > 1 and case.plan.backend is Backend.NCCL
    if name is None or network.plugin is not False or not over_network:
        return None
    return Hit(
        message=f"{network.kind.value} without {name}: NCCL will use sockets",
        fix=f"install {name} in the image",
    )


@case_rule("PS323", Severity.INFO, source="https://github.com/aws/aws-ofi-nccl")
def plugin_is_unproven(case: Case) -> Hit | None:
    """Check once that NCCL uses the network's plugin.

    A missing plugin costs most of the bandwidth and shows no error; one line of the log proves it.
    """
    network = case.hardware.network
    name = _PLUGINS.get(network.kind)
    over_network = case.hardware.num_nodes > 1 and case.plan.backend is Backend.NCCL
    if name is None or network.plugin is not None or not over_network:
        return None
    return Hit(
        message=f"{network.kind.value} needs {name}; whether the image has it is unknown",
        fix='run once with NCCL_DEBUG=INFO and look for "Using network": it must not say Socket',
    )


@case_rule(
    "PS324",
    Severity.WARNING,
    source=f"{_NCCL_GUIDE}/troubleshooting.html",
    covers=("PIT706",),
)
def network_bypasses_nothing(case: Case) -> Hit | None:
    """RDMA cards should read device memory directly.

    Without GPUDirect every message is copied through host memory, which costs bandwidth and cores. It needs
    the nvidia-peermem module or a kernel with dma-buf.
    """
    network, hardware = case.hardware.network, case.hardware
    rdma = network.kind in {NetworkKind.INFINIBAND, NetworkKind.ROCE}
    if not rdma or network.gpudirect is not False or hardware.num_nodes == 1:
        return None
    if hardware.device.type is not DeviceType.CUDA:
        return None
    return Hit(
        message=f"no GPUDirect on {hardware.name}: {network.kind.value} traffic goes through host memory",
        fix="load nvidia-peermem (modprobe nvidia-peermem), or use a kernel and driver with dma-buf",
    )


@case_rule(
    "PS325", Severity.WARNING, source="https://github.com/stas00/ml-engineering/tree/744d01e/network"
)
def nodes_over_wifi(case: Case) -> Hit | None:
    """Wireless links are for tests.

    They are slow, shared and lose packets. A collective is done when the slowest rank is, so every
    hiccup of one link is a hiccup of the whole step.
    """
    if case.hardware.network.kind is not NetworkKind.WIFI or case.hardware.num_nodes == 1:
        return None
    return Hit(
        message=f"{case.hardware.num_nodes} nodes of {case.hardware.name} talk over wifi",
        fix="use a cable, or one node",
    )


@case_rule(
    "PS326",
    Severity.WARNING,
    source="https://github.com/pytorch/pytorch/issues/69197",
    covers=("PIT524",),
)
def gloo_interface_is_open(case: Case) -> Hit | None:
    """Name the interface that Gloo should use between nodes.

    Gloo takes the address that the host's own name resolves to. On many systems that is 127.0.1.1, and
    ranks on other nodes cannot connect.
    """
    hardware = case.hardware
    named = hardware.network.socket_ifname or "GLOO_SOCKET_IFNAME" in case.launch.env
    if case.plan.backend is not Backend.GLOO or hardware.num_nodes == 1 or named:
        return None
    return Hit(
        message=f"gloo between {hardware.num_nodes:,} nodes, and no interface is named",
        fix="set GLOO_SOCKET_IFNAME to the exact name of the interface (`ip -br addr` lists them)",
    )


@case_rule("PS330", Severity.ERROR, source=_STORES)
def hash_store_between_processes(case: Case) -> Hit | None:
    """A HashStore lives in one process.

    Threads and unit tests meet at it. Ranks in processes of their own never see each other there; they use
    a TCPStore.
    """
    if case.launch.store != "hash" or case.launch.world_size == 1:
        return None
    return Hit(
        message=f"store hash for {case.launch.world_size} processes",
        fix="use store tcp",
    )


@case_rule("PS331", Severity.WARNING, source=_STORES)
def file_store_between_nodes(case: Case) -> Hit | None:
    """A FileStore between nodes needs a file system that locks.

    It serves where no port is open. NFS with weak locking loses keys, and the file of the last run must be
    gone before the next one.
    """
    if case.launch.store != "file" or case.launch.nodes == 1:
        return None
    return Hit(
        message=f"store file for {case.launch.nodes} nodes",
        fix="use store tcp, or a shared file system with POSIX locks and a fresh file for each run",
    )


@case_rule("PS332", Severity.ERROR, source=_STORES)
def store_has_no_such_name(case: Case) -> Hit | None:
    """Ranks meet at a tcp, file or hash store.

    TCPStore is the default and what torchrun uses; FileStore needs no port; HashStore is for one process.
    """
    if case.launch.store in {"tcp", "file", "hash"}:
        return None
    return Hit(message=f"store {case.launch.store} is none of tcp, file, hash", fix="use store tcp")
