"""The shipped profiles: complete, sourced and plausible."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from parastrat import profiles
from parastrat.hardware import (
    FabricKind,
    FigureKind,
    NetworkKind,
    Rates,
)
from parastrat.measured.constants import EVERY_CONSTANT

GIB = 1024**3
NODES = profiles.node_names()
GPU_NODES = tuple(name for name in NODES if name != "cpu")
GPU_DEVICES = tuple(name for name in profiles.device_names() if name != "cpu")
STACKS = profiles.stack_names()
FOLDERS = ("devices", "nodes", "curves")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (profiles.profiles_root() / folder).glob("*.toml")
    if path.stem != "aliases"
)


@pytest.mark.parametrize(
    "name",
    [
        "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72",
        "p4d.24xlarge", "p5.48xlarge", "8x-rtx-4090", "cpu",
    ],
)  # fmt: skip
def test_the_promised_nodes_load(name: str) -> None:
    hardware = profiles.load_hardware(f"{name}:3")
    assert hardware.name == f"{name}:3"
    assert hardware.num_nodes == 3
    assert hardware.world_size == 3 * hardware.devices_per_node


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_plausible(name: str) -> None:
    stack = profiles.load_stack(name)
    assert stack.name == name
    assert stack.source
    # a margin never exceeds 8 % of the card, whatever share of the estimate it is
    assert 0 < stack.memory_margin < 0.5
    assert 0 < stack.time_spread < 1
    assert stack.elementwise_factor >= 1
    overlaps = ("dp", "zero", "fsdp", "tp", "async_tp", "pp")
    shares = [getattr(stack, f"{name}_overlap") for name in overlaps]
    assert all(0 <= share <= 1 for share in (*shares, stack.network_efficiency, stack.fragmentation))
    # at least one byte is read and one written
    assert stack.fp8_cast_bytes >= 3


@pytest.mark.parametrize("name", STACKS)
def test_at_most_six_constants_of_a_stack_are_fitted(name: str) -> None:
    named = profiles.load_stack(name).fitted
    assert len(set(named)) == len(named) <= 6
    assert set(named) <= {constant.name for constant in EVERY_CONSTANT}


def test_the_promised_stacks_are_there() -> None:
    assert {"torch", "torch-compile", "megatron-core"} <= set(STACKS)


def test_where_the_main_weights_live() -> None:
    torch, megatron = profiles.load_stack("torch"), profiles.load_stack("megatron-core")
    assert (torch.master_weight_bytes, torch.mixed_parameter_bytes, torch.mixed_gradient_bytes) == (0, 4, 4)
    assert (megatron.master_weight_bytes, megatron.mixed_parameter_bytes) == (4, 2)
    assert megatron.mixed_gradient_bytes == 4


def figures(table: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(table, dict):
        return []
    if "value" in table:
        return [(path, table)]
    return [found for key, item in table.items() for found in figures(item, f"{path}.{key}")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_figure_has_a_kind_and_a_source(path: Path) -> None:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    found = figures(table)
    assert found
    for key, figure in found:
        assert set(figure) == {"value", "kind", "source"}, key
        assert figure["kind"] in list(FigureKind), key
        assert len(figure["source"]) >= 8, key


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_number_outside_a_figure_is_a_count(path: Path) -> None:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert table.get("name", path.stem) == path.stem
    if path.parent.name == "curves":  # the fit's own results
        return
    sections = (table, *(part for part in table.values() if isinstance(part, dict)))
    plain = {
        key
        for part in sections
        if "value" not in part
        for key, item in part.items()
        if type(item) in (int, float)
    }
    assert plain <= {"devices_per_node", "devices"}


@pytest.mark.parametrize("name", GPU_NODES)
def test_every_loaded_figure_says_where_it_is_from(name: str) -> None:
    hardware = profiles.load_hardware(name)
    stated = {entry.field for entry in hardware.device.provenance}
    rates = {f.name for f in dataclasses.fields(Rates)}
    present = {f"peak.{rate}" for rate in rates if getattr(hardware.device.peak, rate) is not None}
    present |= {
        f"sustained.{rate}" for rate in rates if getattr(hardware.device.sustained, rate) is not None
    }
    assert {"memory_bytes", "usable_memory_bytes", "memory_bytes_per_s", "launch_s", "matmul"} <= stated
    assert present <= stated
    for link in (hardware.scale_up, hardware.scale_out):
        assert link is not None
        assert {"nominal_bytes_per_s", "bytes_per_s", "latency_s"} <= {e.field for e in link.provenance}


@pytest.mark.parametrize("name", GPU_DEVICES)
def test_a_device_is_plausible(name: str) -> None:
    device = profiles.load_hardware(f"{name}x8").device
    assert device.name == name
    assert 0.97 * device.memory_bytes < device.usable_memory_bytes <= device.memory_bytes
    for rate in dataclasses.fields(Rates):
        peak, sustained = getattr(device.peak, rate.name), getattr(device.sustained, rate.name)
        assert (peak is None) == (sustained is None), rate.name
        # a card of 72 W holds half of its peak
        assert peak is None or 0.45 * peak < sustained <= peak, rate.name
    assert device.peak.fp16 is not None
    assert (device.peak.bf16 is not None) == device.bf16_native
    assert 0.5 < device.matmul.ceiling < 1
    assert min(device.matmul.m_half, device.matmul.n_half, device.matmul.k_half) >= 0
    assert 0.3 < device.attention_efficiency < 1
    # a step does 50 to 500 FLOP for each byte of memory traffic that it could do; H20 is cut down to 37
    assert 35 < device.peak.fp16 / device.memory_bytes_per_s < 500


@pytest.mark.parametrize("name", GPU_NODES)
def test_links_are_plausible(name: str) -> None:
    hardware = profiles.load_hardware(name)
    up, out = hardware.scale_up, hardware.scale_out
    assert up is not None
    assert out is not None
    for link in (up, out):
        assert 0 < link.bytes_per_s <= link.nominal_bytes_per_s
        assert 1e-6 < link.latency_s < 1e-3
    assert 1 <= up.all_reduce_gain < 1.5
    assert out.bytes_per_s < up.bytes_per_s
    assert out.latency_s > up.latency_s
    assert hardware.scale_up_devices >= hardware.devices_per_node
    node_bits_per_s = hardware.network.node_bits_per_s
    assert node_bits_per_s is not None
    nominal_bits_per_s = out.nominal_bytes_per_s * 8 * hardware.devices_per_node
    assert nominal_bits_per_s == pytest.approx(node_bits_per_s, rel=0.01)


def test_newer_devices_are_faster_and_larger() -> None:
    a100, h100, h200, b200 = (
        profiles.load_hardware(name).device for name in ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200")
    )
    speed = [d.matmul.ceiling * (d.sustained.bf16 or 0) for d in (a100, h100, b200)]
    assert speed == sorted(speed)
    assert a100.usable_memory_bytes < h200.usable_memory_bytes < b200.usable_memory_bytes
    assert a100.memory_bytes_per_s < h100.memory_bytes_per_s < h200.memory_bytes_per_s


def test_usable_memory_is_what_torch_reports() -> None:
    usable = profiles.load_hardware("dgx-h100").device.usable_memory_bytes
    assert 79.0 * GIB < usable < 79.2 * GIB


def test_nvl72_is_one_domain_over_nodes_of_four() -> None:
    hardware = profiles.load_hardware("gb200-nvl72:18")
    assert (hardware.devices_per_node, hardware.scale_up_devices, hardware.world_size) == (4, 72, 72)
    assert hardware.scale_up_kind is FabricKind.NVLINK_DOMAIN


def test_p4d_shares_400_gigabits_among_eight() -> None:
    hardware = profiles.load_hardware("p4d.24xlarge:2")
    assert hardware.network.kind is NetworkKind.EFA
    assert hardware.device.name == "a100-sxm4-40"
    assert hardware.scale_out is not None
    assert hardware.scale_out.nominal_bytes_per_s == 400e9 / 8 / 8


def test_what_nobody_stated_is_unknown() -> None:
    network = profiles.load_hardware("dgx-h100").network
    assert (network.plugin, network.ipoib, network.socket_ifname) == (None, None, None)


def test_collectives_over_nvlink_follow_their_curves_and_others_hops() -> None:
    h100, pcie, cpu = (profiles.load_hardware(ref) for ref in ("dgx-h100:1", "8x-rtx-4090:1", "cpu:1"))
    assert h100.scale_up is not None
    curves = h100.scale_up.curves
    assert curves is not None
    for curve in (curves.gather, curves.reduce, curves.exchange):
        # kernels start within microseconds, groups of eight reach most of the rate and pairs less
        assert 1e-6 < curve.start_s < 2e-5
        assert 0 < curve.hop_s < 5e-6
        assert 0.4 < curve.shares[0] < curve.shares[1] < curve.shares[2] <= 1
    for other in (pcie, cpu):
        assert other.scale_up is None or other.scale_up.curves is None


def test_products_of_unaligned_rows_take_longer_where_somebody_stated_it() -> None:
    stated = tomllib.loads((profiles.profiles_root() / "unaligned.toml").read_text(encoding="utf-8"))
    for capability, sizes in stated.items():
        assert set(sizes) == {"four_bytes", "two_bytes"}
        assert 1 <= sizes["four_bytes"]["value"] < sizes["two_bytes"]["value"] < 5
        assert all(entry["kind"] in list(FigureKind) for entry in sizes.values())
        assert all(entry["source"] for entry in sizes.values())
        assert re.fullmatch(r"\d+\.\d", capability)
    found = {
        name: profiles.load_hardware(name).device for name in ("dgx-a100", "dgx-h100", "dgx-1v", "cpu")
    }
    factors = {name: (each.aligned_to_four, each.aligned_to_two) for name, each in found.items()}
    assert factors == {
        "dgx-a100": (1.65, 3.0),
        "dgx-h100": (2.1, 3.4),
        "dgx-1v": (None, None),
        "cpu": (None, None),
    }
