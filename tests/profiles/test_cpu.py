"""Hosts without accelerators."""

from __future__ import annotations

from pathlib import Path

import pytest

from parastrat import profiles
from parastrat.errors import ProfileError
from parastrat.hardware import (
    DeviceType,
    FigureKind,
    Hardware,
    Host,
    HostSystem,
    Network,
    NetworkKind,
)
from parastrat.probe.host import LIVE, read_host
from parastrat.profiles import cpu

GIB = 1024**3


def host(ranks_per_node: int | None = None, network: Network | None = None) -> Hardware:
    return profiles.cpu_hardware(
        cores=32,
        memory_bytes=64 * GIB,
        numa_nodes=2,
        ranks_per_node=ranks_per_node,
        num_nodes=3,
        network=network,
        name="cpu",
    )


def test_a_cpu_host_runs_a_process_for_each_numa_node() -> None:
    hardware = host()
    assert (hardware.name, hardware.devices_per_node, hardware.world_size) == ("cpu:3", 2, 6)
    assert hardware.device.type is DeviceType.CPU
    assert hardware.device.memory_bytes == 32 * GIB
    assert not hardware.device.bf16_native
    assert hardware.host == Host(
        cores=32, memory_bytes=64 * GIB, numa_nodes=2, system=HostSystem.LINUX
    )  # fmt: skip


def test_processes_split_cores_and_memory_evenly() -> None:
    two, eight = host(2), host(8)
    assert eight.device.memory_bytes * 4 == two.device.memory_bytes
    assert (eight.device.sustained.fp32 or 0) * 4 == pytest.approx(two.device.sustained.fp32)
    assert eight.device.memory_bytes_per_s * 4 == pytest.approx(two.device.memory_bytes_per_s)


def test_one_process_has_no_fabric_and_a_share_of_ethernet() -> None:
    alone = host(1)
    assert alone.scale_up is None
    assert alone.network.kind is NetworkKind.ETHERNET
    assert alone.scale_out is not None
    assert {e.field: e.kind for e in alone.scale_out.provenance}[
        "nominal_bytes_per_s"
    ] is FigureKind.ASSUMED


def test_a_stated_network_is_shared_and_never_beats_loopback() -> None:
    slow = host(2, Network(kind=NetworkKind.ETHERNET, node_bits_per_s=1e9)).scale_out
    fast = host(2, Network(kind=NetworkKind.INFINIBAND, node_bits_per_s=400e9))
    assert slow is not None
    assert slow.nominal_bytes_per_s == 1e9 / 8 / 2
    assert fast.network.kind is NetworkKind.INFINIBAND
    assert fast.scale_out is not None
    assert fast.scale_up is not None
    assert fast.scale_out.bytes_per_s == fast.scale_up.bytes_per_s


@pytest.mark.parametrize("ranks", [0, -2])
def test_without_a_process_there_is_nothing_to_train_on(ranks: int) -> None:
    with pytest.raises(ProfileError, match=f"{ranks} processes on 32 cores"):
        host(ranks)


def test_more_processes_than_cores_share_them() -> None:
    one, half = host(32).device, host(64).device
    assert half.peak.fp32 == one.peak.fp32 / 2
    assert half.memory_bytes_per_s == one.memory_bytes_per_s / 2
    assert half.memory_bytes == one.memory_bytes // 2


def recorded(root: Path, **files: str) -> Path:
    """Write a host of 8 cores and 4 GiB, and further files of its kernel."""
    written = {"sys/devices/system/cpu/online": "0-7", "proc/meminfo": "MemTotal: 4194304 kB"}
    for name, text in {**written, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_this_host_honours_the_control_groups_as_the_probe_does(tmp_path: Path) -> None:
    """A limit may stand at any group above the process, and in files of version 1."""
    groups = {
        "proc/self/cgroup": "0::/slurm/job_7/step_0\n3:memory:/box",
        "sys/fs/cgroup/slurm/job_7/cpu.max": "300000 100000",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{GIB}",
    }
    found = cpu.this_host(recorded(tmp_path, **groups))
    assert (found.cores, found.memory_bytes) == (3, GIB)
    (tmp_path / "proc/self/cgroup").unlink()
    assert cpu.this_host(recorded(tmp_path, **{"sys/fs/cgroup/cpu.max": "200000 100000"})).cores == 2


def test_nodes_without_processors_are_memory_alone(tmp_path: Path) -> None:
    nodes = {"sys/devices/system/node/has_cpu": "0-1"}
    nodes |= {f"sys/devices/system/node/node{number}/cpulist": "" for number in range(4)}
    assert cpu.this_host(recorded(tmp_path, **nodes)).numa_nodes == 2


def test_this_host_without_limits(tmp_path: Path) -> None:
    found = cpu.this_host(recorded(tmp_path))
    assert (found.cores, found.memory_bytes, found.numa_nodes) == (8, 4 * GIB, 1)
    here, probed = cpu.this_host(), read_host(LIVE)
    assert (here.cores, here.memory_bytes) == (probed.cores, probed.memory_bytes)
    assert here.numa_nodes == (probed.numa_nodes or 1)


def test_a_system_that_does_not_say_what_it_has_is_named_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read") as caught:
        cpu.this_host(tmp_path)
    assert "probe -o" in caught.value.hint
