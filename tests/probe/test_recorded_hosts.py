"""Whole recorded hosts, against what is known to be in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parastrat.errors import ProbeError
from parastrat.hardware import FabricKind, Hardware, HostSystem, NetworkKind
from parastrat.probe import hardware_of, probe_hardware, read_machine
from parastrat.probe.summary import FALLBACKS, summary
from parastrat.rules.backend_table import ROWS

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(path.name for path in HOSTS.iterdir() if path.is_dir())

VOCABULARY = {
    *("gpu_fabric", "network", "backend", "backend_fallback", "backend_library", "gdr", "nic_gpu_path"),
    *("gpu_gpu_path", "needs_plugin", "gpus", "nvlink_per_gpu", "scale_up_domain", "efa_devices"),
    *("per_gpu_gbps", "per_node_gbps", "numa_nodes", "roce_v2_gid_index", "cpus_effective"),
    *("mem_limit_bytes", "shm_bytes", "ipoib", "socket_ifname", "compute_hcas", "exclude_hcas", "env"),
}


def probed(name: str, ranks_per_node: int | None = None) -> Hardware:
    return probe_hardware(root=HOSTS / name, ranks_per_node=ranks_per_node)


def found_in(name: str) -> dict[str, Any]:
    machine = read_machine(HOSTS / name)
    return summary(machine, hardware_of(machine))


@pytest.mark.parametrize("name", NAMES)
def test_finds_what_is_known_to_be_there(name: str) -> None:
    expected = json.loads((HOSTS / name / "expected.json").read_text())
    found = found_in(name)
    notes = expected.pop("warn", [])
    assert {key: found[key] for key in expected} == expected
    if name != "amd-mi300x-kfd":  # whose note is about the record's format
        assert found["warn"] == notes


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_the_vocabulary_is_there(name: str) -> None:
    assert set(found_in(name)) >= VOCABULARY


@pytest.mark.parametrize(
    ("name", "gpus", "cards"),
    [
        ("dgx-h100-ndr", "NV18", "PIX"),
        ("dgx-a100-hdr", "NV12", "PXB"),
        ("aws-p5-efa", "NV18", "PIX"),
        ("gb200-nvl72-tray", "NV18", "NODE"),
        ("amd-mi300x-kfd", None, None),
        ("laptop-nothing", None, None),
    ],
)
def test_paths(name: str, gpus: str | None, cards: str | None) -> None:
    found = found_in(name)
    assert (found["gpu_gpu_path"], found["nic_gpu_path"]) == (gpus, cards)


def test_paths_of_each_pair() -> None:
    topology = read_machine(HOSTS / "dgx-a100-hdr").topology
    assert topology.cards[:3] == ("mlx5_0", "mlx5_1", "mlx5_2")
    # GPU 0 has two cards behind its switches, and two in another quarter of the machine
    assert topology.gpu_card[0] == ("PXB", "PXB", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS")
    assert topology.gpu_gpu[0][:2] == ("X", "NV12")


@pytest.mark.parametrize(
    ("name", "interface"),
    [
        ("cpu-ib-ipoib", "ib0"),
        ("cpu-ib-noipoib", "eno1"),
        ("container-limited", "eth0"),
        ("laptop-nothing", "wlp0s20f3"),
        # two are up and the record has no routes: the first on the bus, as NCCL takes it
        ("dgx-h100-ndr", "enp41s0f0np0"),
        ("roce-h20-400g", "eth0"),
        ("amd-mi300x-kfd", None),
    ],
)
def test_names_the_interface_for_sockets(name: str, interface: str | None) -> None:
    assert probed(name).network.socket_ifname == interface


def test_says_that_the_interface_is_assumed() -> None:
    assert read_machine(HOSTS / "dgx-h100-ndr").socket_is_assumed
    assert not read_machine(HOSTS / "laptop-nothing").socket_is_assumed


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


def test_fallbacks_are_of_rows_that_exist() -> None:
    assert set(FALLBACKS) <= {row.row for row in ROWS}
    named = {row.row for row in ROWS if row.fallback.startswith(("Gloo", "MPI")) or "Gloo" in row.fallback}
    assert named - {"cpu_ibverbs"} == set(FALLBACKS)


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


def test_more_processes_than_cores_share_them_and_are_called_so() -> None:
    assert probed("laptop-nothing", ranks_per_node=8).name.startswith("auto: 8 CPU processes on 8 cores,")
    shared = probed("laptop-nothing", ranks_per_node=9)
    assert shared.name.startswith("auto: 9 CPU processes that share 8 cores,")
    assert shared.world_size == 9


def test_amd_accelerators_that_no_profile_describes_are_not_taken_for_a_cpu_host(tmp_path: Path) -> None:
    _minimal_host(tmp_path)
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "gpu_id").write_text("45123\n")
    with pytest.raises(ProbeError, match="AMD GPU 0x0000"):
        probe_hardware(root=tmp_path)


def test_amd_host_takes_the_figures_of_its_profile() -> None:
    hardware = probed("amd-mi300x-kfd")
    assert (hardware.device.name, hardware.devices_per_node) == ("mi300x", 8)
    assert hardware.scale_up_kind is FabricKind.XGMI


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
    with pytest.raises(ProbeError, match="is no recorded host"):
        probe_hardware(root=tmp_path)


@pytest.mark.parametrize(
    ("name", "missing"), [("sys/devices/system/cpu/online", "cores"), ("proc/meminfo", "memory")]
)
def test_a_host_that_hides_its_size_has_facts_but_is_no_hardware(
    tmp_path: Path, name: str, missing: str
) -> None:
    _minimal_host(tmp_path)
    (tmp_path / name).unlink()
    machine = read_machine(tmp_path)
    assert summary(machine, None)["backend"] == "gloo"
    with pytest.raises(ProbeError, match=missing):
        hardware_of(machine)


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
