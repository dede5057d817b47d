"""Hosts with GPUs that nobody recorded: clouds, machines without switches, cards of other vendors."""

from __future__ import annotations

from pathlib import Path

import pytest
from probe.synthetic_host import (
    A100,
    A100_PCIE,
    B200,
    GH200,
    H100,
    H200,
    L40S,
    RTX_4090,
    V100,
    SyntheticHost,
    behind_switch,
    cards,
    eight,
)

from parastrat.errors import ProbeError
from parastrat.probe import hardware_of

SWITCHED = {"nvlink_active": 18, "nvlink_remote_type": "SWITCH"}


@pytest.fixture
def host(tmp_path: Path) -> SyntheticHost:
    return SyntheticHost(root=tmp_path)


def test_p4d_shares_four_cards(host: SyntheticHost) -> None:
    eight(host, A100, nvlink_active=12, nvlink_remote_type="SWITCH")
    cards(host, 4, "rdmap{}s0", vendor="0x1d0f", device="0xefa1", layer="Unspecified", rate="100 Gb/sec")
    assert host.says("network", "efa_devices", "per_node_gbps", "per_gpu_gbps", "gdr") == (
        *("efa", 4, 400, 50),
        "efa",
    )
    assert host.says("needs_plugin", "nvlink_per_gpu", "gpu_gpu_path") == ("aws-ofi-nccl", 12, "NV12")


@pytest.mark.parametrize(
    ("product", "rate", "node"),
    [
        ("p5en.48xlarge", "100", 3200),
        ("p5en.48xlarge", "200", 3200),
        (None, "100", None),
        (None, "200", 3200),
    ],
)
def test_newer_efa_whose_driver_states_the_rate_of_the_first(
    host: SyntheticHost, product: str | None, rate: str, node: int | None
) -> None:
    eight(host, H200, **SWITCHED)
    cards(host, 16, "rdmap{}s0", vendor="0x1d0f", device="0xefa3", rate=f"{rate} Gb/sec (4X EDR)")
    if product:
        host.write("sys/devices/virtual/dmi/id/product_name", product)
        host.write("sys/devices/virtual/dmi/id/sys_vendor", "Amazon EC2")
    assert host.says("efa_devices", "per_node_gbps", "cloud") == (16, node, product and f"aws:{product}")


def test_slower_efa_that_serves_the_host(host: SyntheticHost) -> None:
    efa = {"vendor": "0x1d0f", "device": "0xefa3"}
    eight(host, B200, **SWITCHED)
    cards(host, 8, "rdmap{}s0", rate="400 Gb/sec (4X NDR)", **efa)
    for at in range(2):
        host.card(f"rdmap{at + 90}s0", f"pci0000:f{at}", f"f{at}:01.0", rate="100 Gb/sec", **efa)
    assert host.says("efa_devices", "per_gpu_gbps") == (8, 400)


def test_an_nvlink_domain_needs_imex(host: SyntheticHost) -> None:
    fabric = {"state": 3, "status": 0, "clusterUuid": "5fe9d1a0", "cliqueId": 1}
    for at in range(4):
        gb200 = ("NVIDIA GB200", 189471, (10, 0))
        host.gpu(gb200, f"pci000{at}:00", f"0{at}:01.0", at // 2, **SWITCHED, fabric=fabric)
    assert host.says("gpu_fabric", "scale_up_domain") == ("nvlink-domain", 72)
    assert "no IMEX channels" not in host.summary["warn"]  # the record has no devices at all
    host.write("dev/null", "")
    assert "no IMEX channels" in host.summary["warn"]
    host.write("dev/nvidia-caps-imex-channels/channel0", "")
    assert "no IMEX channels" not in host.summary["warn"]


def test_cards_beside_efa_are_not_counted(host: SyntheticHost) -> None:
    eight(host, B200, **SWITCHED)
    cards(host, 8, "rdmap{}s0", vendor="0x1d0f", device="0xefa3", rate="400 Gb/sec (4X NDR)")
    for at in range(2):
        host.card(f"mlx5_{at}", f"pci0000:f{at}/0000:f{at}:00.0", f"f{at + 4}:00.0", layer="Ethernet")
    assert host.says("network", "efa_devices", "per_gpu_gbps", "exclude_hcas") == (
        *("efa", 8, 400),
        ["mlx5_0", "mlx5_1"],
    )


def test_slingshot_and_four_gpus_that_are_linked_directly(host: SyntheticHost) -> None:
    for at in range(4):
        bridge = f"pci0000:{at}0/0000:{at}0:01.0"
        host.gpu(A100, bridge, f"{at}1:00.0", at, nvlink_active=12, nvlink_remote_type="GPU")
        folder = host.pci(f"pci0000:{at}0/0000:{at}0:02.0", f"{at}2:00.0", numa=at, vendor="0x17db")
        host.interface(f"hsn{at}", folder, speed=200_000)
    host.write("sys/devices/system/node/online", "0-3")
    host.interface("nmn0", host.pci("pci0000:00/0000:00:00.0", "00:01.0"), speed=1000)
    assert host.summary["socket_ifname"] == "hsn0"
    assert host.says("network", "per_gpu_gbps", "needs_plugin") == ("slingshot", 200, "aws-ofi-nccl")
    assert host.says("gpu_fabric", "gpu_gpu_path", "nic_gpu_path") == ("nvlink", "NV4", "PHB")
    assert host.summary["env"] == {"NCCL_SOCKET_IFNAME": "hsn"}


def test_gpudirect_tcpx_has_a_card_for_the_host(host: SyntheticHost) -> None:
    eight(host, H100, **SWITCHED)
    for at in range(5):
        folder = host.pci(f"pci0000:e0/0000:e0:0{at}.0", f"e{at + 1}:00.0", vendor="0x1ae0")
        host.interface(f"eth{at}", folder, speed=200_000)
    assert host.says("network", "per_node_gbps", "per_gpu_gbps") == ("tcpx", 800, 100)
    assert host.says("socket_ifname", "needs_plugin") == ("eth0", "nccl-plugin-gpudirecttcpx")


def test_one_virtual_card_of_google_is_ethernet(host: SyntheticHost) -> None:
    eight(host, A100, nvlink_active=12, nvlink_remote_type="SWITCH")
    folder = host.pci("pci0000:e0", "e0:04.0", vendor="0x1ae0")
    host.interface("ens4", folder, speed=100_000)
    assert host.says("network", "per_node_gbps", "gdr", "backend_fallback") == (
        *("ethernet", 100, "none"),
        "gloo",
    )


def test_consumer_cards_on_two_sockets(host: SyntheticHost) -> None:
    for at in range(4):
        host.gpu(RTX_4090, f"pci0000:{at}0/0000:{at}0:01.0", f"{at}1:00.0", at // 2)
    host.interface("eno1", host.pci("pci0000:f0/0000:f0:01.0", "f1:00.0", numa=1), speed=25_000)
    assert host.says("gpu_fabric", "nvlink_per_gpu", "gpu_gpu_path") == ("pcie", 0, "SYS")
    # the card's nearest GPU is in another root complex of the same socket
    assert host.says("nic_gpu_path", "per_node_gbps", "per_gpu_gbps") == ("NODE", 25, 6)
    assert host.says("backend", "backend_library", "env") == (
        *("nccl", "nccl"),
        {"NCCL_SOCKET_IFNAME": "eno1"},
    )


def test_two_gpus_behind_one_bridge_of_the_processor(host: SyntheticHost) -> None:
    for at in range(2):
        host.gpu(L40S, f"pci0000:10/0000:10:0{at + 1}.0", f"1{at + 1}:00.0")
    assert host.says("gpu_gpu_path", "scale_up_domain") == ("PHB", 2)


def test_bridges_between_pairs_of_cards(host: SyntheticHost) -> None:
    address = [f"{at}1:00.0" for at in range(4)]
    for at in range(4):
        peer = f"00000000:{address[at ^ 1]}"
        facts = {"nvlink_active": 12, "nvlink_remote_type": "GPU", "nvlink_peers": {peer: 12}}
        host.gpu(A100_PCIE, f"pci0000:{at}0/0000:{at}0:01.0", address[at], at // 2, **facts)
    topology = host.machine.topology
    assert topology.gpu_gpu[0] == ("X", "NV12", "SYS", "SYS")
    assert host.says("gpu_fabric", "gpu_gpu_path") == ("nvlink", "SYS")


def test_pairs_are_not_guessed(host: SyntheticHost) -> None:
    facts = {"nvlink_active": 12, "nvlink_remote_type": "GPU"}
    for at in range(4):
        host.gpu(A100_PCIE, f"pci0000:{at}0/0000:{at}0:01.0", f"{at}1:00.0", at // 2, **facts)
    assert "NV4" not in host.machine.topology.gpu_gpu[0]


def test_eight_gpus_of_which_each_has_four_neighbours(host: SyntheticHost) -> None:
    eight(host, V100, nvlink_active=6, nvlink_remote_type="GPU")
    # six links cannot join seven others alike; which are joined is not recorded
    assert host.says("gpu_fabric", "nvlink_per_gpu", "gpu_gpu_path") == ("nvlink", 6, "SYS")
    assert not any("NV" in (path or "") for row in host.machine.topology.gpu_gpu for path in row)


def test_sixteen_gpus_and_six_links(host: SyntheticHost) -> None:
    for at in range(16):
        host.gpu(
            *(V100, f"pci0000:{at:x}0/0000:{at:x}0:01.0", f"{at:x}1:00.0", at // 8),
            nvlink_active=6,
            nvlink_remote_type="SWITCH",
        )
    assert host.says("gpus", "gpu_fabric", "gpu_gpu_path") == (16, "nvswitch", "NV6")


def test_far_ends_that_a_vm_hides(host: SyntheticHost) -> None:
    eight(host, H100, nvlink_active=18)
    assert host.says("gpu_fabric", "gpu_gpu_path") == ("nvswitch", "NV18")


def test_slices_have_no_fabric(host: SyntheticHost) -> None:
    eight(host, A100, nvlink_active=12, nvlink_remote_type="SWITCH", mig=[1, 1])
    assert host.says("gpus", "gpu_fabric", "backend") == (8, "none", "nccl")
    assert "MIG is on" in host.summary["warn"]
    with pytest.raises(ProbeError, match="MIG"):
        hardware_of(host.machine)


def test_one_gpu_has_nobody_to_reach(host: SyntheticHost) -> None:
    host.gpu(H200, behind_switch(0, 0, 1), "19:00.0", **SWITCHED)
    assert host.says("gpus", "gpu_fabric", "gpu_gpu_path", "scale_up_domain") == (1, "none", None, 1)


def test_a_driver_without_gpus(host: SyntheticHost) -> None:
    host.record = {"driver": "580.65.06", "gpus": []}
    host.write("sys/module/nvidia/initstate", "live")
    assert host.says("gpus", "gpu_fabric", "backend", "gdr") == (0, "none", "gloo", "none")


def test_what_the_driver_refuses_is_unknown(host: SyntheticHost) -> None:
    eight(host, H100, nvlink_active=None, nvlink_remote_type=None, bus_id=None, mig=None)
    assert host.says("gpus", "nvlink_per_gpu", "gpu_gpu_path") == (8, None, None)
    # what the profile of this GPU has between eight of them
    assert host.summary["gpu_fabric"] == "nvswitch"


@pytest.mark.parametrize("answer", ["NVMLError_NotSupported", {"error": "NotSupported"}, 0])
def test_links_that_are_not_supported_are_none(host: SyntheticHost, answer: object) -> None:
    for at in range(2):
        host.gpu(L40S, f"pci0000:10/0000:10:0{at + 1}.0", f"1{at + 1}:00.0", nvlink_active=answer)
    assert host.says("nvlink_per_gpu", "gpu_fabric") == (0, "pcie")


def test_a_gpu_that_was_lost_is_named(host: SyntheticHost) -> None:
    eight(host, H100, **SWITCHED)
    host.gpus[3] = {"error": "NVMLError_GpuIsLost"}
    assert host.summary["gpus"] == 8
    with pytest.raises(ProbeError, match="3 of 8"):
        hardware_of(host.machine)


def test_a_driver_in_trouble_is_told(host: SyntheticHost) -> None:
    host.record = {"gpus": [], "trouble": "NVMLError_LibRmVersionMismatch", "message": "Mismatch"}
    assert host.says("gpus", "gpu_fabric") == (None, None)
    assert host.summary["warn"][0] == "accelerators cannot be read"


def test_a_vm_with_a_flat_bus(host: SyntheticHost) -> None:
    for at in range(8):
        folder = f"sys/devices/LNXSYSTM:00/VMBUS:01/{at}/pci000{at}:00/000{at}:00:00.0"
        host.write(f"{folder}/numa_node", at // 4)
        host.link(f"sys/bus/pci/devices/000{at}:00:00.0", folder)
        host.gpus.append(
            {"name": H100[0], "cuda_cc": [9, 0], "bus_id": f"0000000{at}:00:00.0", **SWITCHED},
        )
        host.card(f"mlx5_ib{at}", f"pci01{at:02x}:00", f"0{at}:02.0", at // 4)
    host.card("mlx5_0", "pci00ff:00", "ff:02.0", layer="Ethernet", net="eth0", rate="100 Gb/sec")
    assert host.says("network", "exclude_hcas", "per_gpu_gbps") == ("infiniband", ["mlx5_0"], 400)
    assert host.says("gpu_gpu_path", "nic_gpu_path", "socket_ifname") == ("NV18", "NODE", "eth0")


@pytest.mark.parametrize(
    ("driver", "kernel", "gdr"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06",
            "6.8.0-45-generic",
            "dmabuf",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06", "5.4.0-1", "none"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1", "6.8.0-45-generic", "none"),
        (None, "6.8.0-45-generic", "unknown"),
    ],
)
def test_gpudirect_without_peermem(host: SyntheticHost, driver: str | None, kernel: str, gdr: str) -> None:
    eight(host, H100, **SWITCHED)
    cards(host, 8, "mlx5_{}")
    host.write("proc/sys/kernel/osrelease", kernel)
    if driver:
        host.write("proc/driver/nvidia/version", driver)
    assert host.summary["gdr"] == gdr
    host.write("sys/kernel/mm/memory_peers/nv_mem_nc/version", "1")
    assert host.summary["gdr"] == "nvidia_peermem"


def test_fewer_lanes_than_the_slot_has(host: SyntheticHost) -> None:
    eight(host, H100, **SWITCHED, pcie_width_cur=16, pcie_width_max=16, pcie_gen_cur=1, pcie_gen_max=5)
    host.gpus[2]["pcie_width_cur"] = 8
    cards(host, 8, "mlx5_{}")
    place = next((host.root / "sys/bus/pci/devices").glob("0000:13:00.0"))
    (place / "current_link_width").write_text("4")
    (place / "max_link_width").write_text("16")
    # a generation that is low now may be an idle link's
    assert host.summary["warn"] == ["GPU 2 has 8 PCIe lanes of 16", "mlx5_0 has 4 PCIe lanes of 16"]


def test_memory_of_gpus_is_no_numa_node_to_run_on(host: SyntheticHost) -> None:
    host.gpu(GH200, "pci0009:01/0009:01:00.0", "01:00.0")
    host.write("sys/devices/system/node/online", "0-8")
    host.write("sys/devices/system/node/has_cpu", "0")
    assert host.summary["numa_nodes"] == 1


def test_peer_access_that_the_driver_refuses(host: SyntheticHost) -> None:
    for at in range(2):
        host.gpu(L40S, f"pci0000:10/0000:10:0{at + 1}.0", f"1{at + 1}:00.0")
    host.record = {"p2p": [[None, 1], [1, None]]}
    assert host.summary["warn"] == ["no peer access between GPUs (0, 1)"]
