"""Cards, interfaces and routes, in trees that are made for the question."""

from __future__ import annotations

from pathlib import Path

import pytest

from parastrat.hardware import Network, NetworkKind
from parastrat.machine import Gpu
from parastrat.probe import network
from parastrat.probe.network import read_default_interface, read_infiniband, read_interfaces

ROUTES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth1 00000000 010200C0 0003 0 0 200 00000000 0 0 0
eth0 00000000 010200C0 0003 0 0 100 00000000 0 0 0
ib0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0
"""


def read_network(root: Path, *, accelerators: int) -> Network:
    """The network of a host with accelerators whose place on the bus is unknown."""
    gpus = [Gpu(name="NVIDIA H100 80GB HBM3") for _ in range(accelerators)]
    return network.read_network(root, gpus).network


def card(
    root: Path, name: str, *, vendor: str = "0x15b3", layer: str, state: str = "4: ACTIVE", rate: str
) -> None:
    port = root / "sys/class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (port.parents[1] / "device").mkdir()
    (port.parents[1] / "device/vendor").write_text(vendor)
    for key, value in (("link_layer", layer), ("state", state), ("rate", rate)):
        (port / key).write_text(value + "\n")


def interface(root: Path, name: str, *, kind: int = 1, state: str = "up", speed: int = -1) -> Path:
    folder = root / "sys/class/net" / name
    folder.mkdir(parents=True)
    for key, value in (("type", kind), ("operstate", state), ("speed", speed)):
        (folder / key).write_text(f"{value}\n")
    return folder


def routes(root: Path) -> None:
    (root / "proc/net").mkdir(parents=True)
    (root / "proc/net/route").write_text(ROUTES)


@pytest.mark.parametrize(
    ("vendor", "layer", "kind"),
    [
        ("0x15b3", "InfiniBand", NetworkKind.INFINIBAND),
        ("0x15b3", "Ethernet", NetworkKind.ROCE),
        ("0x1d0f", "Unspecified", NetworkKind.EFA),
        # EFA is told by its vendor, whatever layer its driver states
        ("0x1d0f", "InfiniBand", NetworkKind.EFA),
    ],
)
def test_kind_of_a_card(tmp_path: Path, vendor: str, layer: str, kind: NetworkKind) -> None:
    card(tmp_path, "c0", vendor=vendor, layer=layer, rate="100 Gb/sec (4X EDR)")
    assert read_network(tmp_path, accelerators=0).kind is kind


def test_a_card_that_is_not_active_does_not_count(tmp_path: Path) -> None:
    card(tmp_path, "mlx5_0", layer="InfiniBand", state="2: INIT", rate="200 Gb/sec (4X HDR)")
    interface(tmp_path, "eno1", speed=25_000)
    found = read_network(tmp_path, accelerators=0)
    assert found.kind is NetworkKind.ETHERNET
    assert found.node_bits_per_s == 25e9
    assert found.compute_hcas == ()


def test_rates_add_up_and_cards_are_counted_in_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        card(tmp_path, f"mlx5_{number}", layer="InfiniBand", rate="200 Gb/sec (4X HDR)")
    found = read_network(tmp_path, accelerators=0)
    assert found.node_bits_per_s == 600e9
    assert found.compute_hcas == ("mlx5_1", "mlx5_9", "mlx5_10")


def test_cards_beyond_the_gpus_leave_the_rate_unknown(tmp_path: Path) -> None:
    for number in range(3):
        card(tmp_path, f"mlx5_{number}", layer="InfiniBand", rate="200 Gb/sec (4X HDR)")
    assert read_network(tmp_path, accelerators=2).node_bits_per_s is None
    assert read_network(tmp_path, accelerators=3).node_bits_per_s == 600e9


def test_a_card_without_a_rate_makes_the_sum_unknown(tmp_path: Path) -> None:
    card(tmp_path, "mlx5_0", layer="InfiniBand", rate="")
    assert read_infiniband(tmp_path)[0].bits_per_s is None
    assert read_network(tmp_path, accelerators=0).node_bits_per_s is None


@pytest.mark.parametrize(
    ("state", "with_routes", "ipoib"), [("up", True, True), ("up", False, True), ("down", True, False)]
)
def test_ipoib_is_an_interface_that_is_up(
    tmp_path: Path, state: str, with_routes: bool, ipoib: bool
) -> None:
    card(tmp_path, "mlx5_0", layer="InfiniBand", rate="100 Gb/sec (2X HDR)")
    interface(tmp_path, "ib0", kind=32, state=state)
    if with_routes:
        routes(tmp_path)
    assert read_network(tmp_path, accelerators=0).ipoib is ipoib


def test_ipoib_needs_an_address(tmp_path: Path) -> None:
    interface(tmp_path, "ib7", kind=32)
    routes(tmp_path)
    assert read_network(tmp_path, accelerators=0).ipoib is False


def test_default_route_with_the_lowest_metric(tmp_path: Path) -> None:
    assert read_default_interface(tmp_path) is None
    routes(tmp_path)
    assert read_default_interface(tmp_path) == "eth0"


def test_sockets_use_the_default_route_where_gpus_carry_their_own_data(tmp_path: Path) -> None:
    interface(tmp_path, "ib0", kind=32)
    routes(tmp_path)
    assert read_network(tmp_path, accelerators=0).socket_ifname == "ib0"
    assert read_network(tmp_path, accelerators=8).socket_ifname == "eth0"


def test_of_two_interfaces_without_a_route_the_first_is_taken_and_that_is_told(tmp_path: Path) -> None:
    for name in ("eth10", "eth9"):
        interface(tmp_path, name, speed=1000)
    facts = network.read_network(tmp_path)
    assert facts.network.socket_ifname == "eth9"
    assert facts.socket_is_assumed
    routes(tmp_path)
    facts = network.read_network(tmp_path)
    assert facts.network.socket_ifname == "eth0"
    assert not facts.socket_is_assumed


def test_bridges_and_loopback_are_no_network(tmp_path: Path) -> None:
    interface(tmp_path, "lo", kind=772)
    interface(tmp_path, "docker0")
    assert [entry.name for entry in read_interfaces(tmp_path)] == ["docker0"]
    assert read_network(tmp_path, accelerators=0).kind is NetworkKind.NONE


def test_speed_of_a_virtual_card_is_unknown(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", speed=-1)
    found = read_network(tmp_path, accelerators=0)
    assert found.kind is NetworkKind.ETHERNET
    assert found.node_bits_per_s is None


def test_slingshot_is_told_by_its_interfaces(tmp_path: Path) -> None:
    for number in range(4):
        interface(tmp_path, f"hsn{number}", speed=200_000)
    found = read_network(tmp_path, accelerators=4)
    assert found.kind is NetworkKind.SLINGSHOT
    assert found.node_bits_per_s == 800e9


def test_bond_is_real_although_the_kernel_calls_it_virtual(tmp_path: Path) -> None:
    target = tmp_path / "sys/devices/virtual/net/bond0"
    target.mkdir(parents=True)
    for key, value in (("type", 1), ("operstate", "up"), ("speed", 50_000)):
        (target / key).write_text(f"{value}\n")
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/bond0").symlink_to("../../devices/virtual/net/bond0")
    assert read_network(tmp_path, accelerators=0).kind is NetworkKind.UNKNOWN
    (target / "bonding").mkdir()
    assert read_network(tmp_path, accelerators=0).node_bits_per_s == 50e9
