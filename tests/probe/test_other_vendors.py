"""Accelerators that NVML does not tell of: AMD's, Gaudi, and what PCIe alone shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from probe.synthetic_host import SyntheticHost

from parastrat.errors import ProbeError
from parastrat.hardware import DeviceType, Vendor
from parastrat.machine import Gpu
from parastrat.probe import hardware_of, reading
from parastrat.probe.files import LIVE


@pytest.fixture
def host(tmp_path: Path) -> SyntheticHost:
    return SyntheticHost(root=tmp_path)


def test_mi250x_is_two_devices_a_card(host: SyntheticHost) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    host.write(f"{nodes}/0/gpu_id", 0)
    host.write(f"{nodes}/0/properties", "cpu_cores_count 64\nsimd_count 0")
    for at in range(1, 9):
        lines = f"simd_count 440\ngfx_target_version 90010\ndevice_id {0x7408}\nlocation_id {at << 8}"
        host.write(f"{nodes}/{at}/gpu_id", 1000 + at)
        host.write(f"{nodes}/{at}/properties", lines)
        host.write(f"{nodes}/{at}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {65520 << 20}")
        host.write(f"{nodes}/{at}/io_links/0/properties", "type 2\nnode_to 0")
        other = at + 1 if at % 2 else at - 1
        for link in range(1, 5):
            host.write(f"{nodes}/{at}/io_links/{link}/properties", f"type 11\nnode_to {other}")
    for at in range(4):
        host.interface(f"hsn{at}", host.pci(f"pci0000:{at}0", f"{at}0:01.0"), speed=200_000)
    assert host.says("gpus", "vendor", "gfx", "gpu_fabric") == (8, "amd", "gfx90a", "xgmi")
    assert host.says("network", "per_gpu_gbps", "backend_library", "nvlink_per_gpu") == (
        *("slingshot", 100, "rccl"),
        None,
    )
    assert hardware_of(host.machine).device.name == "mi250x-gcd"
    assert host.machine.topology.gpu_gpu[0][1] == "XGMI"


def test_gaudi_speaks_hccl(host: SyntheticHost) -> None:
    for at in range(8):
        host.pci(f"pci0000:{at}0", f"{at}1:00.0", vendor="0x1da3", device="0x1020", class_="0x120000")
    assert host.summary["gpus"] == 0  # its driver is not loaded
    host.write("sys/module/habanalabs/version", "1.16")
    assert host.says("gpus", "vendor", "backend", "backend_fallback") == (8, "intel", "hccl", "gloo")
    assert host.says("backend_library", "nvlink_per_gpu") == (None, None)
    hardware = hardware_of(host.machine)
    assert (hardware.device.name, hardware.device.type) == ("gaudi2", DeviceType.HPU)


def test_gpus_of_a_recording_without_nvml(host: SyntheticHost) -> None:
    for at in range(2):
        host.pci(f"pci0000:{at}0", f"{at}1:00.0", vendor="0x10de", class_="0x030200")
    host.write("sys/module/nvidia/version", "580")
    assert host.says("gpus", "backend", "gpu_fabric") == (2, "nccl", None)
    with pytest.raises(ProbeError, match="nothing tells what these"):
        hardware_of(host.machine)


def test_a_laptops_graphics_is_no_accelerator(host: SyntheticHost) -> None:
    host.pci("pci0000:00", "00:02.0", vendor="0x8086", class_="0x030000")
    host.write("sys/module/i915/srcversion", "x")
    assert host.says("gpus", "backend") == (0, "gloo")


def test_amd_cards_without_xgmi(host: SyntheticHost) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    for at in (1, 2):
        host.write(f"{nodes}/{at}/gpu_id", at)
        host.write(f"{nodes}/{at}/properties", "simd_count 192\ngfx_target_version 110000")
        host.write(f"{nodes}/{at}/io_links/0/properties", f"type 2\nnode_to {3 - at}")
    assert host.says("gpus", "gfx", "gpu_fabric", "backend_library") == (2, "gfx1100", "pcie", "rccl")


def test_gpus_of_the_host_that_this_container_may_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = (Gpu(name=None), Gpu(name=None, vendor=Vendor.INTEL, type=DeviceType.HPU))
    monkeypatch.setattr(reading, "read_pci_accelerators", lambda _: seen)
    monkeypatch.setattr(reading, "is_folder", lambda *_: True)
    assert reading._without_driver(LIVE) == seen[1:]
    assert reading._without_driver(LIVE / "tmp") == seen
