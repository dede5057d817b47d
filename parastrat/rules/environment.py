"""PS51x and PS52x: environment variables of the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.errors import UnknownFactError
from parastrat.finding import Hit, Severity
from parastrat.hardware import FabricKind, NetworkKind
from parastrat.rules.rule import case_rule

if TYPE_CHECKING:
    from parastrat.case import Case

_NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TORCH_NCCL = (
    "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
)

_NVLINK = {FabricKind.NVSWITCH, FabricKind.NVLINK, FabricKind.NVLINK_DOMAIN}

#: variables that the NCCL guide lists for debugging and that have no rule of their own
_DEBUGGING = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_GDR_READ",
    "NCCL_PXN_DISABLE",
    "NCCL_LAUNCH_MODE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_IB_QPS_PER_CONNECTION",
)

#: names of earlier versions, and what they are called now
_RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_IB_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_IB_CUDA_SUPPORT": "NCCL_NET_GDR_LEVEL",
}


def _interface(case: Case) -> str | None:
    """Return the interface between the nodes; None where nobody knows it."""
    try:
        return case.hardware.network.socket_ifname
    except UnknownFactError:
        return None


@case_rule("PS511", Severity.WARNING, source=_NCCL_ENV, covers=("PIT606",))
def peer_access_is_disabled(case: Case) -> Hit | None:
    """NCCL_P2P_DISABLE turns NVLink off.

    It cures boards whose peer access hangs, and stays in scripts that move to machines with NVLink,
    where all traffic then goes through host memory, two to ten times slower.
    """
    if case.launch.env.get("NCCL_P2P_DISABLE") != "1" or case.hardware.scale_up_kind not in _NVLINK:
        return None
    return Hit(
        message=f"NCCL_P2P_DISABLE=1 on {case.hardware.name}, which has "
        f"{case.hardware.scale_up_kind.value}",
        fix="remove NCCL_P2P_DISABLE",
    )


@case_rule("PS512", Severity.WARNING, source=_NCCL_ENV, covers=("PIT607",))
def infiniband_is_disabled(case: Case) -> Hit | None:
    """NCCL_IB_DISABLE sends everything through sockets.

    It is a step of a diagnosis. Left on a cluster with InfiniBand or RoCE it costs most of the bandwidth.
    """
    kind = case.hardware.network.kind
    rdma = kind in {NetworkKind.INFINIBAND, NetworkKind.ROCE}
    if case.launch.env.get("NCCL_IB_DISABLE") != "1" or not rdma:
        return None
    return Hit(
        message=f"NCCL_IB_DISABLE=1 on {case.hardware.name}, whose nodes are joined by {kind.value}",
        fix="remove NCCL_IB_DISABLE",
    )


@case_rule("PS513", Severity.WARNING, source=_NCCL_ENV, covers=("PIT608", "PIT609"))
def debugging_is_left_on(case: Case) -> Hit | None:
    """Variables for debugging NCCL do not belong into a launch.

    NVIDIA's guide says that they should not be used in production nor retained in scripts: they may
    result in sub-optimal behaviour, crashes or hangs, and what they fixed is fixed by a newer version.
    """
    env = case.launch.env
    found = [name for name in _DEBUGGING if name in env]
    if env.get("NCCL_SHM_DISABLE") == "1":
        found.append("NCCL_SHM_DISABLE")
    if not found:
        return None
    return Hit(
        message=f"{', '.join(f'{name}={env[name]}' for name in found)} "
        f"{'is' if len(found) == 1 else 'are'} for debugging",
        fix=f"remove {', '.join(found)}",
    )


@case_rule(
    "PS514", Severity.ERROR, source="https://github.com/horovod/horovod/issues/584", covers=("PIT610",)
)
def loopback_between_nodes(case: Case) -> Hit | None:
    """The loopback interface ends at the node.

    Named as the interface of a job over several nodes, every rank listens where no other node can reach it.
    """
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    found = [name for name in names if case.launch.env.get(name, "").lstrip("=") == "lo"]
    if not found or case.launch.nodes == 1:
        return None
    return Hit(
        message=f"{found[0]}=lo for {case.launch.nodes} nodes",
        fix=f"set {found[0]} to {_interface(case) or 'the interface between the nodes'}",
    )


@case_rule("PS515", Severity.ERROR, source="https://github.com/pytorch/gloo", covers=("PIT613",))
def gloo_interface_is_a_pattern(case: Case) -> Hit | None:
    """GLOO_SOCKET_IFNAME takes exact names.

    NCCL's exclusions (^docker) and exact marks (=eth0) mean nothing to Gloo, which looks for an
    interface of that very name: "Unable to find address for: ^lo".
    """
    value = case.launch.env.get("GLOO_SOCKET_IFNAME", "")
    if not value.startswith(("^", "=")):
        return None
    return Hit(
        message=f"GLOO_SOCKET_IFNAME={value}",
        fix=f"set GLOO_SOCKET_IFNAME={_interface(case) or 'eth0 (the exact name)'}",
    )


@case_rule(
    "PS516",
    Severity.WARNING,
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index",
    covers=("PIT615",),
)
def gid_index_is_pinned(case: Case) -> Hit | None:
    """NCCL_IB_GID_INDEX should not be set.

    Since 2.21 NCCL finds the index itself, by address family and RoCE version. A pinned one is wrong on the
    first node whose cards are numbered otherwise.
    """
    index = case.launch.env.get("NCCL_IB_GID_INDEX")
    if index is None:
        return None
    return Hit(message=f"NCCL_IB_GID_INDEX={index}", fix="remove NCCL_IB_GID_INDEX")


@case_rule("PS517", Severity.WARNING, source=_TORCH_NCCL, covers=("PIT618",))
def variable_was_renamed(case: Case) -> Hit | None:
    """Use the current names of variables.

    Old ones are aliases for some versions and then ignored without a word, so that a timeout or a tuning
    that once worked is silently gone after an update.
    """
    found = [name for name in _RENAMED if name in case.launch.env]
    if not found:
        return None
    return Hit(
        message=f"{', '.join(found)} is an old name",
        fix="; ".join(f"use {_RENAMED[name]} instead of {name}" for name in found),
    )


@case_rule("PS518", Severity.WARNING, source=_TORCH_NCCL, covers=("PIT619",))
def waits_in_two_ways(case: Case) -> Hit | None:
    """Blocking waits and asynchronous error handling are alternatives.

    One makes every collective wait on the host, the other watches from a thread. Both together are slow and
    report the same failure twice.
    """
    env = case.launch.env
    blocking = env.get("TORCH_NCCL_BLOCKING_WAIT") == "1"
    watching = env.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0") != "0"
    if not blocking or not watching:
        return None
    return Hit(
        message="TORCH_NCCL_BLOCKING_WAIT=1 and TORCH_NCCL_ASYNC_ERROR_HANDLING="
        f"{env['TORCH_NCCL_ASYNC_ERROR_HANDLING']}",
        fix="remove TORCH_NCCL_BLOCKING_WAIT",
    )


@case_rule("PS519", Severity.INFO, source=_NCCL_ENV, covers=("PIT621",))
def nccl_log_is_loud(case: Case) -> Hit | None:
    """NCCL_DEBUG=INFO is for the first run.

    Every rank prints hundreds of lines at start and at every new communicator. WARN keeps what matters.
    """
    level = case.launch.env.get("NCCL_DEBUG", "")
    if level.upper() not in {"INFO", "TRACE"}:
        return None
    return Hit(
        message=f"NCCL_DEBUG={level} on {case.launch.world_size} ranks",
        fix="set NCCL_DEBUG=WARN",
    )


@case_rule(
    "PS520",
    Severity.WARNING,
    source="https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron/training/arguments.py#L1048",
    covers=("PIT628",),
)
def one_connection_under_fsdp(case: Case) -> Hit | None:
    """CUDA_DEVICE_MAX_CONNECTIONS=1 serialises FSDP.

    One hardware queue keeps Megatron's tensor-parallel kernels in order before Blackwell. FSDP's
    gathers need a second one to run beside compute; with one they wait, and Megatron refuses the
    combination.
    """
    plan = case.plan
    if case.launch.env.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1" or not plan.shards_parameters:
        return None
    return Hit(
        message=f"CUDA_DEVICE_MAX_CONNECTIONS=1 with {plan.strategy}",
        fix="remove CUDA_DEVICE_MAX_CONNECTIONS",
    )


@case_rule("PS521", Severity.WARNING, source=_NCCL_ENV, covers=("PIT625",))
def ranks_may_share_a_gpu(case: Case) -> Hit | None:
    """NCCL_MULTI_RANK_GPU_ENABLE is experimental.

    It lets several ranks share a GPU, which NCCL refuses otherwise. Their kernels wait for one another on
    the same device, and the guide says that this may lock up.
    """
    if case.launch.env.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
        return None
    return Hit(
        message=f"NCCL_MULTI_RANK_GPU_ENABLE=1 for {case.launch.ranks_per_node} ranks per node",
        fix="give every rank a GPU of its own and remove NCCL_MULTI_RANK_GPU_ENABLE",
    )


@case_rule("PS522", Severity.ERROR, source=_NCCL_ENV, covers=("PIT626",))
def multi_node_nvlink_is_forced(case: Case) -> Hit | None:
    """NCCL_MNNVL_ENABLE=1 demands an NVLink domain across nodes.

    NCCL finds such a domain itself. Forced where there is none, initialisation fails.
    """
    kind = case.hardware.scale_up_kind
    if case.launch.env.get("NCCL_MNNVL_ENABLE") != "1" or kind is FabricKind.NVLINK_DOMAIN:
        return None
    return Hit(
        message=f"NCCL_MNNVL_ENABLE=1 on {case.hardware.name}, whose devices are joined by {kind.value}",
        fix="remove NCCL_MNNVL_ENABLE",
    )


@case_rule(
    "PS523",
    Severity.WARNING,
    source="https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug",
    covers=("PIT627",),
)
def collectives_are_checked(case: Case) -> Hit | None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective with another one.

    It wraps each group and compares shapes and order between all ranks first. That finds ranks that
    disagree, at a multiple of the communication time, and is for finding bugs only.
    """
    if case.launch.env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() != "DETAIL":
        return None
    return Hit(
        message=f"TORCH_DISTRIBUTED_DEBUG=DETAIL on {case.launch.world_size} ranks",
        fix="remove TORCH_DISTRIBUTED_DEBUG, or set INFO",
    )
