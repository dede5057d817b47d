"""Whole recorded hosts, against what is known to be in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parastrat.errors import ProbeError
from parastrat.hardware import DeviceType, FabricKind, Hardware, HostSystem, NetworkKind
from parastrat.probe import probe_hardware

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(path.name for path in HOSTS.iterdir() if path.is_dir())


def probed(name: str, ranks_per_node: int | None = None) -> Hardware:
    return probe_hardware(root=HOSTS / name, ranks_per_node=ranks_per_node)


@pytest.mark.parametrize("name", NAMES)
def test_finds_what_is_known_to_be_there(name: str) -> None:
    expected = json.loads((HOSTS / name / "expected.json").read_text())
    found = probed(name)
    network = found.network
    assert network.kind == expected["network"]
    assert found.scale_up_kind == expected["gpu_fabric"]
    assert network.ipoib == expected.get("ipoib", False)
    gpus = found.devices_per_node if found.device.type is DeviceType.CUDA else 0
    assert gpus == expected["gpus"]
    for key, value in (
        ("cpus_effective", found.host.cores),
        ("mem_limit_bytes", found.host.memory_bytes),
        ("numa_nodes", found.host.numa_nodes),
        ("compute_hcas", list(network.compute_hcas)),
    ):
        if key in expected:
            assert value == expected[key], key


@pytest.mark.parametrize(
    ("name", "interface"),
    [
        ("cpu-ib-ipoib", "ib0"),
        ("cpu-ib-noipoib", "eno1"),
        ("container-limited", "eth0"),
        ("laptop-nothing", "wlp0s20f3"),
        # two cards are up and the record has no routes: a guess could choose the storage network
        ("dgx-h100-ndr", None),
    ],
)
def test_names_the_interface_for_sockets(name: str, interface: str | None) -> None:
    assert probed(name).network.socket_ifname == interface


def test_a_process_on_a_cpu_host_has_its_share() -> None:
    hardware = probed("cpu-ib-ipoib")
    assert hardware.devices_per_node == hardware.host.numa_nodes == 2
    assert hardware.device.memory_bytes == hardware.host.memory_bytes // 2
    assert probed("cpu-ib-ipoib", ranks_per_node=4).device.memory_bytes == 403_456_000_000 // 4


def test_what_a_container_hides_is_unknown() -> None:
    hardware = probed("container-limited")
    assert hardware.host.numa_nodes is None
    assert hardware.network.node_bits_per_s is None
    assert hardware.network.kind is NetworkKind.UNKNOWN


def test_names_itself_auto_and_says_what_it_found() -> None:
    assert probed("laptop-nothing").name == "auto: 1 CPU process on 8 cores, 15.3 GiB"
    assert probed("dgx-h100-ndr").name == "auto: 8 x h100-sxm5"


def test_gpu_host_takes_figures_of_its_profile_and_rates_of_its_cards() -> None:
    hardware = probed("dgx-h100-ndr")
    assert hardware.device.name == "h100-sxm5"
    assert hardware.scale_up_kind is FabricKind.NVSWITCH
    assert hardware.scale_up_devices == 8
    assert hardware.scale_out is not None
    assert hardware.scale_out.nominal_bytes_per_s == 400e9 / 8
    assert hardware.network.gpudirect is True
    assert hardware.host.system is HostSystem.LINUX


def test_fewer_ranks_than_gpus_leave_some_idle() -> None:
    assert probed("dgx-h100-ndr", ranks_per_node=4).world_size == 4


def test_more_processes_than_cores_are_refused() -> None:
    with pytest.raises(Exception, match="9 processes on 8 cores"):
        probed("laptop-nothing", ranks_per_node=9)


def test_amd_accelerators_are_not_taken_for_a_cpu_host(tmp_path: Path) -> None:
    _minimal_host(tmp_path)
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "gpu_id").write_text("45123\n")
    with pytest.raises(ProbeError, match="1 AMD"):
        probe_hardware(root=tmp_path)


def test_a_driver_in_trouble_stops_the_probe(tmp_path: Path) -> None:
    _minimal_host(tmp_path)
    (tmp_path / "nvml.json").write_text(
        '{"gpus": [], "trouble": "NVMLError_Unknown", "message": "Unknown"}'
    )
    with pytest.raises(ProbeError, match="NVML: Unknown"):
        probe_hardware(root=tmp_path)


def test_a_host_without_any_interface_has_no_network(tmp_path: Path) -> None:
    _minimal_host(tmp_path)
    assert probe_hardware(root=tmp_path).network.kind is NetworkKind.NONE


def test_an_empty_folder_is_not_a_host(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="cores"):
        probe_hardware(root=tmp_path)


def test_this_machine_can_be_probed() -> None:
    hardware = probe_hardware(ranks_per_node=1)
    assert hardware.devices_per_node == 1
    assert hardware.host.cores
    assert hardware.host.memory_bytes


def _minimal_host(root: Path) -> None:
    (root / "sys/devices/system/cpu").mkdir(parents=True)
    (root / "sys/devices/system/cpu/online").write_text("0-3\n")
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text("MemTotal:        8000000 kB\n")
