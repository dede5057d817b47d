"""Hosts without accelerators, and containers, that nobody recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from probe.synthetic_host import SyntheticHost

ROUTABLE = "0000:0000:0000:0000:0000:ffff:0a00:0001"
LINK_LOCAL = "fe80:0000:0000:0000:0a00:00ff:fe00:0001"
GLOBAL_IPV6 = "2001:0db8:0000:0000:0000:0000:0000:0001"
UNSET = "0000:0000:0000:0000:0000:0000:0000:0000"


@pytest.fixture
def host(tmp_path: Path) -> SyntheticHost:
    return SyntheticHost(root=tmp_path)


def ethernet(host: SyntheticHost, name: str = "eno1", bus: int = 0xF1, speed: int = 25_000) -> str:
    """Add a card for Ethernet; return its folder."""
    folder = host.pci("pci0000:f0/0000:f0:01.0", f"{bus:02x}:00.0")
    return host.interface(name, folder, speed=speed)


def test_a_port_that_is_down_is_no_network(host: SyntheticHost) -> None:
    host.card("mlx5_0", "pci0000:10/0000:10:01.0", "11:00.0", state="1: DOWN")
    ethernet(host)
    assert host.says("network", "compute_hcas", "exclude_hcas") == ("ethernet", [], ["mlx5_0"])
    assert host.says("backend", "per_node_gbps") == ("gloo", 25)


def test_a_port_without_a_subnet_manager_is_no_network(host: SyntheticHost) -> None:
    host.card("mlx5_0", "pci0000:10/0000:10:01.0", "11:00.0", state="2: INIT")
    assert host.summary["network"] == "none"


def test_a_card_for_infiniband_that_speaks_ethernet_is_roce(host: SyntheticHost) -> None:
    gids = [("IB/RoCE v1", LINK_LOCAL), ("RoCE v2", LINK_LOCAL), ("RoCE v2", ROUTABLE)]
    rate = "100 Gb/sec (4X EDR)"
    host.card("mlx5_0", "pci0000:10", "10:01.0", layer="Ethernet", gids=gids, rate=rate, net="eth0")
    assert host.says("network", "backend", "roce_v2_gid_index") == ("roce", "gloo", 2)
    assert host.says("per_node_gbps", "socket_ifname", "gdr") == (100, "eth0", "none")


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        ([("RoCE v2", LINK_LOCAL), ("RoCE v2", UNSET)], None),
        ([("RoCE v2", GLOBAL_IPV6), ("IB/RoCE v1", ROUTABLE)], 0),
        ([("RoCE v2", GLOBAL_IPV6), ("RoCE v2", ROUTABLE)], 1),
    ],
)
def test_addresses_that_can_be_routed(
    host: SyntheticHost, gids: list[tuple[str, str]], index: int | None
) -> None:
    host.card("mlx5_0", "pci0000:10", "10:01.0", layer="Ethernet", gids=gids)
    assert host.summary["roce_v2_gid_index"] == index


def test_cards_that_differ_have_no_common_index(host: SyntheticHost) -> None:
    for at, gids in enumerate(([("RoCE v2", ROUTABLE)], [("x", LINK_LOCAL), ("RoCE v2", ROUTABLE)])):
        host.card(f"mlx5_{at}", "pci0000:10", f"10:0{at}.0", layer="Ethernet", gids=gids)
    assert host.says("network", "roce_v2_gid_index") == ("roce", None)


@pytest.mark.parametrize("told_by", ["master", "slaves"])
def test_a_bond_speaks_for_its_parts(host: SyntheticHost, told_by: str) -> None:
    bond = host.interface("bond0", speed=50_000)
    host.write(f"{bond}/bonding/slaves", "eth0 eth1" if told_by == "slaves" else "")
    for at in range(2):
        part = ethernet(host, f"eth{at}", 0xF1 + at)
        if told_by == "master":
            host.link(f"{part}/master", bond)
    assert host.says("network", "socket_ifname", "per_node_gbps") == ("ethernet", "bond0", 50)


def test_rdma_in_software_is_none(host: SyntheticHost) -> None:
    port = "sys/devices/virtual/infiniband/rxe0/ports/1"
    for name, value in (("link_layer", "Ethernet"), ("state", "4: ACTIVE"), ("rate", "100 Gb/sec")):
        host.write(f"{port}/{name}", value)
    host.link("sys/class/infiniband/rxe0", "sys/devices/virtual/infiniband/rxe0")
    ethernet(host)
    assert host.says("network", "exclude_hcas") == ("ethernet", ["rxe0"])


def test_iwarp_is_not_roce(host: SyntheticHost) -> None:
    host.card("irdma0", "pci0000:10", "10:01.0", vendor="0x8086", layer="Ethernet", net="eth0")
    assert host.summary["network"] == "roce"
    host.write("sys/devices/pci0000:10/0000:10:01.0/infiniband/irdma0/node_type", "4: RNIC")
    assert host.summary["network"] == "ethernet"


def test_amazons_other_cards_are_not_efa(host: SyntheticHost) -> None:
    host.card("x0", "pci0000:10", "10:01.0", vendor="0x1d0f", device="0xec20", layer="Ethernet")
    assert host.says("network", "efa_devices") == ("none", 0)


def test_a_cable_comes_before_wifi(host: SyntheticHost) -> None:
    wifi = host.interface("wlan0", host.pci("pci0000:00", "00:14.3"), speed=-1)
    host.write(f"{wifi}/wireless/status", "0")
    assert host.says("network", "socket_ifname") == ("wifi", "wlan0")
    ethernet(host)
    assert host.says("network", "per_node_gbps") == ("ethernet", 25)


def test_drivers_that_report_no_state_have_a_carrier(host: SyntheticHost) -> None:
    folder = ethernet(host)
    host.write(f"{folder}/operstate", "unknown")
    assert host.summary["network"] == "none"
    host.write(f"{folder}/carrier", "1")
    assert host.summary["network"] == "ethernet"


def test_speeds_that_drivers_write_for_unknown(host: SyntheticHost) -> None:
    folder = ethernet(host)
    for speed in (-1, 0, 4294967295, "", "Unknown!"):
        host.write(f"{folder}/speed", speed)
        assert host.summary["per_node_gbps"] is None
    assert "speed unknown" in host.summary["warn"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ({"cpuset/cpuset.cpus": "0-7"}, 8),
        ({"cpuset/cpuset.effective_cpus": "0-3,8", "cpuset/cpuset.cpus": "0-63"}, 5),
        ({"cpu.max": "max 100000", "cpuset.cpus.effective": "4-5"}, 2),
        ({"cpu.max": "0 100000"}, 64),
        ({"cpu.max": "20000 100000"}, 1),
    ],
)
def test_limits_of_cores_in_both_versions(host: SyntheticHost, files: dict[str, str], cores: int) -> None:
    for name, text in files.items():
        host.write(f"sys/fs/cgroup/{name}", text)
    assert host.summary["cpus_effective"] == cores


def test_limits_of_a_pod_stand_above_its_container(host: SyntheticHost) -> None:
    pod = "kubepods.slice/kubepods-pod1.slice"
    host.write("proc/self/cgroup", f"0::/{pod}/cri-containerd-1.scope")
    host.write(f"sys/fs/cgroup/{pod}/cpu.max", "800000 100000")
    host.write(f"sys/fs/cgroup/{pod}/memory.max", 2**34)
    host.write(f"sys/fs/cgroup/{pod}/cri-containerd-1.scope/cpu.max", "max 100000")
    host.write(f"sys/fs/cgroup/{pod}/cri-containerd-1.scope/memory.max", 2**35)
    assert host.says("cpus_effective", "mem_limit_bytes") == (8, 2**34)


@pytest.mark.parametrize(("limit", "allowed"), [("9223372036854771712", 1048576000 * 1024), (2**33, 2**33)])
def test_limit_of_memory_in_the_first_version(host: SyntheticHost, limit: object, allowed: int) -> None:
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", limit)
    assert host.summary["mem_limit_bytes"] == allowed


def test_affinity_of_the_recorded_process(host: SyntheticHost) -> None:
    host.write("proc/self/status", "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7,16")
    assert host.summary["cpus_effective"] == 9


@pytest.mark.parametrize(
    ("name", "text", "cores"),
    [
        ("proc/cpuinfo", "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1", 2),
        ("sys/devices/system/cpu/cpu0/online", "1", 1),
        ("proc/version", "Linux", None),
    ],
)
def test_cores_where_the_list_is_missing(
    host: SyntheticHost, name: str, text: str, cores: int | None
) -> None:
    (host.root / "sys/devices/system/cpu/online").unlink()
    host.write(name, text)
    assert host.summary["cpus_effective"] == cores


@pytest.mark.parametrize(
    ("mounts", "size"),
    [
        ("shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0", 64 * 2**20),
        ("tmpfs /dev/shm tmpfs rw,size=8g 0 0", 8 * 2**30),
        ("tmpfs /dev/shm tmpfs rw,size=25% 0 0", 1048576000 * 1024 // 4),
        # tmpfs takes half of the memory where nothing is said
        ("tmpfs /dev/shm tmpfs rw,nosuid 0 0", 1048576000 * 1024 // 2),
        ("tmpfs /dev/shm tmpfs rw,size=1g 0 0\nshm /dev/shm tmpfs rw,size=2g 0 0", 2 * 2**30),
        ("tmpfs /run tmpfs rw,size=1g 0 0", None),
        ("overlay /dev/shm overlay rw 0 0", None),
    ],
)
def test_shared_memory(host: SyntheticHost, mounts: str, size: int | None) -> None:
    host.write("proc/mounts", mounts)
    assert host.summary["shm_bytes"] == size


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        ({"online": "0"}, 1),
        ({"online": "0-7"}, 8),
        ({"online": "0-3", "node0/cpulist": "0-31", "node1/cpulist": "32-63", "node2/cpulist": ""}, 2),
        ({"node0/cpulist": "0-31", "node1/cpulist": "32-63"}, 2),
        ({"online": "0-33", "has_cpu": "0-1"}, 2),
        ({}, None),
    ],
)
def test_numa_nodes_are_those_with_processors(
    host: SyntheticHost, files: dict[str, str], nodes: int | None
) -> None:
    (host.root / "sys/devices/system/node/online").unlink()
    for name, text in files.items():
        host.write(f"sys/devices/system/node/{name}", text)
    assert host.summary["numa_nodes"] == nodes


@pytest.mark.parametrize(
    ("vendor", "product", "cloud"),
    [
        ("Amazon EC2", "p4d.24xlarge", "aws:p4d.24xlarge"),
        ("Amazon EC2", "c7i.metal-24xl", "aws:c7i.metal-24xl"),
        ("Google", "Google Compute Engine", "gcp"),
        ("Microsoft Corporation", "Virtual Machine", "azure"),
        ("Microsoft Corporation", "Surface Laptop", None),
        ("Dell Inc.", "PowerEdge XE9680", None),
    ],
)
def test_whose_machine_it_is(host: SyntheticHost, vendor: str, product: str, cloud: str | None) -> None:
    host.write("sys/devices/virtual/dmi/id/sys_vendor", vendor)
    host.write("sys/devices/virtual/dmi/id/product_name", product)
    assert host.summary["cloud"] == cloud


@pytest.mark.parametrize(("limit", "warns"), [("8388608", True), ("unlimited", False)])
def test_locked_memory_matters_to_rdma(host: SyntheticHost, limit: str, warns: bool) -> None:
    host.write("proc/self/limits", f"Max locked memory         {limit}    {limit}   bytes")
    ethernet(host)
    assert host.summary["warn"] == []
    host.card("mlx5_0", "pci0000:10/0000:10:01.0", "11:00.0")
    assert host.summary["warn"] == (["memlock 8 MiB"] if warns else [])


def test_signs_of_a_container(host: SyntheticHost) -> None:
    assert not host.machine.host.container
    host.write("run/.containerenv", "engine=podman")
    assert host.machine.host.container
