"""Every row of the collected backend table, by its id there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import case, cpu_hosts

from parastrat.hardware import DeviceType, FabricKind, Hardware, HostSystem, NetworkKind, Vendor
from parastrat.plan import Backend
from parastrat.rules.backend import Asked, backend_between_nodes, decide_backend
from parastrat.rules.backend_table import ROWS

GPU_INIT = "cpu:gloo,cuda:nccl"


def gpus(**changes: Any) -> Hardware:
    return case(**({"dp_replicate": 16, "socket_ifname": "eth0"} | changes)).hardware


def cpus(**changes: Any) -> Hardware:
    return case(**cpu_hosts(**changes)).hardware


#: row of the table, hardware, what is asked, backend and init
TABLE = [
    ("gpu_ib", gpus(), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("gpu_roce", gpus(network=NetworkKind.ROCE), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("gpu_eth", gpus(network=NetworkKind.ETHERNET), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("gpu_efa", gpus(network=NetworkKind.EFA), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("gpu_slingshot", gpus(network=NetworkKind.SLINGSHOT), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("gpu_tcpx", gpus(network=NetworkKind.TCPX), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("gpu_nvl72", gpus(scale_up_kind=FabricKind.NVLINK_DOMAIN), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("gpu_single", gpus(dp_replicate=8), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("gpu_one", gpus(dp_replicate=1), Asked.DOCUMENTED, None, ""),
    ("gpu_oversub", gpus(accelerators_per_node=4), Asked.DOCUMENTED, Backend.GLOO, "gloo"),
    ("gpu_windows", gpus(host_system=HostSystem.WINDOWS), Asked.DOCUMENTED, Backend.GLOO, "gloo"),
    ("gpu_wsl", gpus(host_system=HostSystem.WSL2), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("rocm", gpus(vendor=Vendor.AMD), Asked.DOCUMENTED, Backend.NCCL, GPU_INIT),
    ("xpu", gpus(device_type=DeviceType.XPU), Asked.DOCUMENTED, Backend.XCCL, "cpu:gloo,xpu:xccl"),
    ("hpu", gpus(device_type=DeviceType.HPU), Asked.DOCUMENTED, Backend.HCCL, "cpu:gloo,hpu:hccl"),
    ("npu", gpus(device_type=DeviceType.NPU), Asked.DOCUMENTED, Backend.HCCL, "cpu:gloo,npu:hccl"),
    ("mps", gpus(device_type=DeviceType.MPS), Asked.DOCUMENTED, Backend.GLOO, "gloo"),
    ("cpu_ib_ipoib", cpus(ipoib=True), Asked.DOCUMENTED, Backend.GLOO, "gloo"),
    ("cpu_ib_noipoib", cpus(ipoib=False), Asked.DOCUMENTED, Backend.MPI, "mpi"),
    ("cpu_eth", cpus(network=NetworkKind.ETHERNET), Asked.DOCUMENTED, Backend.GLOO, "gloo"),
    ("cpu_ibverbs", cpus(), Asked.GLOO_IBVERBS, Backend.GLOO, "gloo"),
    ("ucc", gpus(), Asked.UCC, Backend.NCCL, GPU_INIT),
    ("torchcomms", gpus(), Asked.TORCHCOMMS, Backend.NCCL, GPU_INIT),
    ("fake", gpus(), Asked.FAKE, None, "fake"),
    ("none", gpus(), Asked.UNSTATED, Backend.NCCL, GPU_INIT),
]

#: rows of our own, for what the collected table leaves open
OWN = [
    ("cpu_one", cpus(dp_replicate=1, num_nodes=1), None),
    ("cpu_one_node", cpus(devices_per_node=2, num_nodes=1, ipoib=False), Backend.GLOO),
    ("cpu_ib_unknown", cpus(ipoib=None), Backend.GLOO),
    ("cpu_unknown", cpus(network=NetworkKind.UNKNOWN), Backend.GLOO),
    ("gpu_unknown", gpus(network=NetworkKind.UNKNOWN), Backend.NCCL),
]


@pytest.mark.parametrize(("row", "hardware", "asked", "backend", "init"), TABLE, ids=[t[0] for t in TABLE])
def test_row(row: str, hardware: Hardware, asked: Asked, backend: Backend | None, init: str) -> None:
    decision = decide_backend(hardware, asked)
    assert (decision.row, decision.backend, decision.init) == (row, backend, init)


@pytest.mark.parametrize(("row", "hardware", "backend"), OWN, ids=[entry[0] for entry in OWN])
def test_own_row(row: str, hardware: Hardware, backend: Backend | None) -> None:
    decision = decide_backend(hardware)
    assert (decision.row, decision.backend) == (row, backend)


def test_all_25_collected_rows_and_no_untested_one() -> None:
    assert len(TABLE) == 25
    assert {row.row for row in ROWS} == {entry[0] for entry in TABLE} | {entry[0] for entry in OWN}
    assert len({row.row for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row.row for row in ROWS])
def test_rows_give_reason_and_source(row: Any) -> None:
    assert row.url.startswith("https://")
    assert len(row.reason.split()) > 5


def test_mpi_comes_with_three_ways_out() -> None:
    decision = decide_backend(cpus(ipoib=False, socket_ifname="eno1", node_bits_per_s=2e11))
    assert len(decision.options) == 3
    assert "IP over InfiniBand" in decision.options[0]
    assert "eno1" in decision.options[1]
    assert "200 Gbit/s" in decision.options[1]
    assert "USE_MPI=1" in decision.options[2]


def test_unknown_ipoib_says_both_and_is_not_certain() -> None:
    decision = decide_backend(cpus(ipoib=None))
    assert not decision.certain
    assert "Gloo" in decision.reason
    assert "MPI" in decision.reason
    assert decide_backend(cpus(ipoib=True)).certain


def test_no_fallback_to_gloo_where_pipelines_run() -> None:
    decision = decide_backend(gpus(network=NetworkKind.ETHERNET))
    assert "Gloo" in decision.fallback
    assert "never under a pipeline" in decision.fallback


def test_a_host_probed_alone_is_judged_as_one_of_several() -> None:
    alone = replace(cpus(ipoib=False), num_nodes=1, devices_per_node=2)
    assert decide_backend(alone).backend is Backend.GLOO
    assert backend_between_nodes(alone).row == "cpu_ib_noipoib"


def test_gloo_environment_names_the_ip_interface_only() -> None:
    assert decide_backend(cpus(ipoib=True, socket_ifname="ib0")).env == {"GLOO_SOCKET_IFNAME": "ib0"}
    assert decide_backend(cpus(ipoib=None, socket_ifname="eno1")).env == {}
    assert decide_backend(cpus(ipoib=False, socket_ifname="eno1")).env == {}
    ethernet = cpus(network=NetworkKind.ETHERNET, socket_ifname="eno1")
    assert decide_backend(ethernet).env == {"GLOO_SOCKET_IFNAME": "eno1"}


def test_nccl_environment() -> None:
    cards = gpus(compute_hcas=("mlx5_0", "mlx5_3"), socket_ifname="ens1")
    assert decide_backend(cards).env == {"NCCL_IB_HCA": "=mlx5_0,mlx5_3", "NCCL_SOCKET_IFNAME": "ens1"}
    assert decide_backend(gpus(dp_replicate=8, compute_hcas=("mlx5_0",))).env == {}
    efa = decide_backend(gpus(network=NetworkKind.EFA)).env
    assert efa == {"FI_PROVIDER": "efa", "NCCL_SOCKET_IFNAME": "^docker,lo,veth"}
    slingshot = decide_backend(gpus(network=NetworkKind.SLINGSHOT, plugin=True)).env
    assert slingshot == {"NCCL_NET": "AWS Libfabric", "NCCL_SOCKET_IFNAME": "hsn"}
    assert "NCCL_NET" not in decide_backend(gpus(network=NetworkKind.SLINGSHOT, plugin=None)).env


def test_asking_for_more_changes_the_environment() -> None:
    assert decide_backend(gpus(), Asked.TORCHCOMMS).env["TORCH_DISTRIBUTED_USE_TORCHCOMMS"] == "1"
    assert decide_backend(cpus(), Asked.GLOO_IBVERBS).env["GLOO_DEVICE_TRANSPORT"] == "IBVERBS"
    assert decide_backend(gpus(), Asked.FAKE).env == {}
    # verbs mean nothing to GPUs
    assert decide_backend(gpus(), Asked.GLOO_IBVERBS).row == "gpu_ib"
