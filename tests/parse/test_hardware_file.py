"""Hardware that a user stored, written and read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parastrat import profiles
from parastrat.errors import ProfileError
from parastrat.hardware import (
    Device,
    DeviceType,
    FabricKind,
    FigureKind,
    Hardware,
    Host,
    HostSystem,
    Link,
    MatmulCurve,
    Network,
    NetworkKind,
    Provenance,
    Rates,
    Vendor,
)

GIB = 1024**3
GPU_NODES = tuple(name for name in profiles.node_names() if name != "cpu")


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


def stored(tmp_path: Path, hardware: Hardware) -> Path:
    path = tmp_path / "host.toml"
    path.write_text(profiles.hardware_toml(hardware), encoding="utf-8")
    return path


@pytest.mark.parametrize("ref", [*(f"{name}:2" for name in GPU_NODES), "h100x4", "rtx-4090x1", "cpu"])
def test_a_stored_profile_reads_back_equal(ref: str, tmp_path: Path) -> None:
    hardware = profiles.load_hardware(ref)
    assert profiles.load_hardware(str(stored(tmp_path, hardware))) == hardware


def test_a_stored_host_times_another_number_of_nodes(tmp_path: Path) -> None:
    path = stored(tmp_path, profiles.load_hardware("dgx-h100"))
    hardware = profiles.load_hardware(f"{path}:4")
    assert (hardware.num_nodes, hardware.world_size, hardware.name) == (4, 32, f"{path}:4")


def test_a_stored_cpu_host_is_split_anew(tmp_path: Path) -> None:
    path = stored(tmp_path, host(2))
    hardware = profiles.load_hardware(str(path), ranks_per_node=4)
    assert (hardware.devices_per_node, hardware.num_nodes) == (4, 3)
    assert hardware.device.memory_bytes == 16 * GIB


POSITIVE = st.floats(min_value=1e-9, max_value=1e18)
SHARE = st.floats(min_value=0, max_value=2)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
COUNTS = st.integers(min_value=1, max_value=10**15)
OPTIONAL_BOOL = st.none() | st.booleans()
PROVENANCE = st.lists(
    st.builds(Provenance, field=NAMES, kind=st.sampled_from(FigureKind), source=NAMES), max_size=3
).map(tuple)
RATES = st.builds(Rates, **{field.name: st.none() | POSITIVE for field in dataclasses.fields(Rates)})
LINKS = st.builds(
    Link,
    nominal_bytes_per_s=POSITIVE,
    bytes_per_s=POSITIVE,
    latency_s=SHARE,
    all_reduce_gain=SHARE,
    provenance=PROVENANCE,
)
DEVICES = st.builds(
    Device,
    name=NAMES,
    vendor=st.sampled_from(Vendor),
    type=st.sampled_from(DeviceType),
    memory_bytes=st.integers(min_value=10**9, max_value=10**12),
    usable_memory_bytes=st.integers(min_value=1, max_value=10**9),
    memory_bytes_per_s=POSITIVE,
    peak=RATES,
    sustained=RATES,
    matmul=st.builds(MatmulCurve, ceiling=POSITIVE, m_half=SHARE, n_half=SHARE, k_half=SHARE),
    bf16_native=st.booleans(),
    launch_s=SHARE,
    attention_efficiency=SHARE,
    newest_attention_efficiency=st.none() | SHARE,
    host_bytes_per_s=st.none() | POSITIVE,
    compute_capability=st.none() | NAMES,
    power_w=st.none() | POSITIVE,
    provenance=PROVENANCE,
)
HARDWARE = st.builds(
    Hardware,
    name=NAMES,
    device=DEVICES,
    devices_per_node=COUNTS,
    num_nodes=COUNTS,
    scale_up_devices=COUNTS,
    scale_up_kind=st.sampled_from(FabricKind),
    scale_up=st.none() | LINKS,
    scale_out=st.none() | LINKS,
    host=st.builds(
        Host,
        cores=st.none() | COUNTS,
        memory_bytes=st.none() | COUNTS,
        numa_nodes=st.none() | COUNTS,
        system=st.none() | st.sampled_from(HostSystem),
    ),
    network=st.builds(
        Network,
        kind=st.sampled_from(NetworkKind),
        node_bits_per_s=st.none() | POSITIVE,
        ipoib=OPTIONAL_BOOL,
        socket_ifname=st.none() | NAMES,
        gpudirect=OPTIONAL_BOOL,
        plugin=OPTIONAL_BOOL,
        compute_hcas=st.lists(NAMES, max_size=3).map(tuple),
    ),
    accelerators_per_node=st.none() | COUNTS,
)


@given(HARDWARE)
def test_any_hardware_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, hardware: Hardware
) -> None:
    path = stored(tmp_path_factory.getbasetemp(), hardware)
    assert profiles.read_hardware_file(path) == hardware


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("parastrat.hardware/1", "parastrat.hardware/9", "schema is 'parastrat.hardware/9'"),
        ("devices_per_node = 8", "devices_per_nod = 8", "unknown key hardware.devices_per_nod"),
        ("devices_per_node = 8", "", "hardware.devices_per_node is missing"),
        ("devices_per_node = 8", "devices_per_node = 0", "hardware.devices_per_node must be above 0"),
        ("devices_per_node = 8", "devices_per_node = -8", "must be a whole number from 0, not -8"),
        ("devices_per_node = 8", "devices_per_node = 8.5", "must be a whole number from 0, not 8.5"),
        ("devices_per_node = 8", 'devices_per_node = "8"', "must be a whole number from 0, not '8'"),
        ("devices_per_node = 8", "devices_per_node = true", "must be a whole number from 0, not True"),
        ('vendor = "nvidia"', 'vendor = "acme"', "hardware.device.vendor must be one of nvidia, amd"),
        ("bf16_native = true", "bf16_native = 1", "hardware.device.bf16_native must be a bool"),
        ("[hardware.device.matmul]", "[hardware.device.matmull]", "unknown key hardware.device.matmull"),
        ("power_w = 700.0", "power_w = nan", "hardware.device.power_w must be a number"),
        ("power_w = 700.0", "power_w = inf", "hardware.device.power_w must be a number"),
        ("compute_hcas = []", "compute_hcas = [1]", "hardware.network.compute_hcas[0] must be a str"),
        ("compute_hcas = []", 'compute_hcas = "mlx5_0"', "hardware.network.compute_hcas must be a list"),
        (
            "bf16_native = true",
            "bf16_native = true\nwhole_memory = 7.0",
            "whole_memory must be a share, at most",
        ),
        (
            "bf16_native = true",
            "bf16_native = true\nwhole_products = 0.0",
            "whole_products must be above 0",
        ),
        ("usable_memory_bytes = ", "usable_memory_bytes = 99", "usable_memory_bytes is above memory_bytes"),
        ("[hardware.host]", "[[hardware.host]]", "hardware.host must be a table"),
        ("schema =", "shape = 1\nschema =", "unknown key 'shape'"),
        ("schema =", "schema", "is not TOML"),
    ],
)
def test_a_faulty_file_is_answered_with_its_key(old: str, new: str, fault: str, tmp_path: Path) -> None:
    path = stored(tmp_path, profiles.load_hardware("dgx-h100"))
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        profiles.load_hardware(str(path))
    assert fault in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("text", "fault"), [("", "schema is none"), ('schema = "parastrat.hardware/1"', "missing")]
)
def test_an_empty_file(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=fault):
        profiles.load_hardware(str(path))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        profiles.load_hardware(f"{tmp_path}/none.toml:2")
    with pytest.raises(ProfileError, match="directory"):
        profiles.load_hardware(f"{tmp_path}/")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="is not TOML"):
        profiles.load_hardware(str(tmp_path / "bytes.toml"))
