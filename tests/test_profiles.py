"""The shipped profiles, and the names and files that hardware is loaded by."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parastrat import cpu_profile, profile_file, profiles
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


# ---- what is shipped


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
    assert 0 < stack.memory_margin <= 0.08
    assert 0 < stack.time_spread < 1
    assert stack.elementwise_factor >= 1
    shares = (stack.dp_overlap, stack.zero_overlap, stack.fsdp_overlap, stack.tp_overlap, stack.pp_overlap)
    assert all(0 <= share <= 1 for share in (*shares, stack.network_efficiency, stack.fragmentation))


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
        assert peak is None or 0.5 * peak < sustained <= peak, rate.name
    assert device.peak.fp16 is not None
    assert (device.peak.bf16 is not None) == device.bf16_native
    assert 0.5 < device.matmul.ceiling < 1
    assert min(device.matmul.m_half, device.matmul.n_half, device.matmul.k_half) >= 0
    assert 0.3 < device.attention_efficiency < 1
    # a step does 50 to 500 FLOP for each byte of memory traffic that it could do
    assert 50 < device.peak.fp16 / device.memory_bytes_per_s < 500


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


# ---- names


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("aws-p4d.24xlarge", "p4d.24xlarge"),
        ("dgx-a100-80", "dgx-a100"),
        ("h100-96gb-hbm2e-500w:8x400g", "grand-teton-h100-96gb"),
    ],
)
def test_an_alias_is_the_node(alias: str, name: str) -> None:
    assert profiles.load_hardware(f"{alias}:2") == profiles.load_hardware(f"{name}:2")


@pytest.mark.parametrize("folder", ["nodes", "devices"])
def test_aliases_lead_to_profiles_and_hide_none(folder: str) -> None:
    table = tomllib.loads((profiles.profiles_root() / folder / "aliases.toml").read_text(encoding="utf-8"))
    names = {path.stem for path in (profiles.profiles_root() / folder).glob("*.toml")}
    assert set(table.values()) <= names
    assert not set(table) & names


def test_an_alias_with_a_colon_needs_no_number_of_nodes() -> None:
    assert profiles.load_hardware("h100-96gb-hbm2e-500w:8x400g").num_nodes == 1


def test_no_folder_is_listed_to_load_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("listed a folder")

    monkeypatch.setattr(Path, "glob", refuse)
    profiles.load_hardware("aws-p5.48xlarge:2")
    profiles.load_hardware("h100x4:2")
    profiles.load_stack("torch")


@pytest.mark.parametrize(
    ("ref", "meant"),
    [
        ("dgx-h10", "dgx-h100"),
        ("DGX-H100", "dgx-h100"),
        ("gb200-nvl36", "gb200-nvl72"),
        ("h100-sxm", "h100-sxm5"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(ref: str, meant: str) -> None:
    with pytest.raises(ProfileError, match="unknown hardware") as caught:
        profiles.load_hardware(f"{ref}:2")
    assert f"did you mean {meant}" in caught.value.hint


@pytest.mark.parametrize("ref", ["", ":4", "aliases", "../nodes", ".", "nodes\0", "n" * 300, "zzzzzzzz"])
def test_what_is_no_name_lists_the_names(ref: str) -> None:
    with pytest.raises(ProfileError) as caught:
        profiles.load_hardware(ref)
    assert caught.value.hint


@pytest.mark.parametrize("count", ["0", "x", "-1", "", "2.0", "+3", "1e3", " 2", "٣", "8x400g"])
def test_a_malformed_number_of_nodes_is_quoted(count: str) -> None:
    with pytest.raises(ProfileError, match="number of nodes") as caught:
        profiles.load_hardware(f"dgx-h100:{count}")
    assert repr(count) in caught.value.message


def test_an_unknown_stack_is_answered_with_the_nearest() -> None:
    with pytest.raises(ProfileError, match="unknown stack") as caught:
        profiles.load_stack("megatron-cor")
    assert "megatron-core" in caught.value.hint


def test_an_unknown_model_is_none() -> None:
    assert profiles.model_table("no-such-model") is None


def test_a_device_alone_asks_how_many() -> None:
    with pytest.raises(ProfileError, match="is a device") as caught:
        profiles.load_hardware("h100-sxm5:2")
    assert "h100-sxm5x8" in caught.value.hint


# ---- DEVICExM


def test_a_generic_node_assumes_its_links_and_knows_no_network() -> None:
    hardware = profiles.load_hardware("h100-sxm5x4:2")
    assert (hardware.name, hardware.devices_per_node, hardware.world_size) == ("h100-sxm5x4:2", 4, 8)
    assert (hardware.scale_up_devices, hardware.scale_up_kind) == (4, FabricKind.NVSWITCH)
    for link in (hardware.scale_up, hardware.scale_out):
        assert link is not None
        assert {entry.kind for entry in link.provenance} == {FigureKind.ASSUMED}
    assert hardware.network == Network(kind=NetworkKind.UNKNOWN)
    assert hardware.host == Host()


def test_a_generic_node_of_one_has_no_fabric() -> None:
    hardware = profiles.load_hardware("rtx-4090x1:4")
    assert (hardware.scale_up, hardware.scale_up_kind) == (None, FabricKind.NONE)
    assert hardware.scale_out is not None


def test_a_device_alias_in_a_generic_node_takes_the_devices_name() -> None:
    assert profiles.load_hardware("h100x4").name == "h100-sxm5x4"


@pytest.mark.parametrize("ref", ["h100-sxm5x0", "cpux4", "h100-sxm5x", "nosuchx8"])
def test_a_generic_node_that_cannot_be(ref: str) -> None:
    with pytest.raises(ProfileError):
        profiles.load_hardware(ref)


# ---- ranks on a node


def test_fewer_ranks_leave_devices_idle() -> None:
    hardware = profiles.load_hardware("dgx-h100:2", ranks_per_node=4)
    assert (hardware.devices_per_node, hardware.scale_up_devices, hardware.world_size) == (4, 4, 8)
    assert hardware.accelerators_per_node is None


def test_more_ranks_share_devices_evenly() -> None:
    whole, shared = (profiles.load_hardware("dgx-h100", ranks_per_node=ranks) for ranks in (8, 16))
    assert (shared.accelerators_per_node, shared.world_size) == (8, 16)
    assert shared.device.memory_bytes * 2 == whole.device.memory_bytes
    assert shared.device.sustained.bf16 == pytest.approx((whole.device.sustained.bf16 or 0) / 2)


@pytest.mark.parametrize("ranks", [0, -1, 12])
def test_ranks_that_cannot_share(ranks: int) -> None:
    with pytest.raises(ProfileError, match="evenly"):
        profiles.load_hardware("dgx-h100", ranks_per_node=ranks)


def test_devices_that_are_shared_are_not_shared_again(tmp_path: Path) -> None:
    shared = profiles.load_hardware("dgx-h100", ranks_per_node=16)
    path = str(stored(tmp_path, shared))
    assert profiles.load_hardware(path, ranks_per_node=16) == shared
    with pytest.raises(ProfileError, match="already runs 16 ranks on 8"):
        profiles.load_hardware(path, ranks_per_node=8)


# ---- processes of CPU hosts


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


@pytest.mark.parametrize("ranks", [0, -2, 33])
def test_more_processes_than_cores(ranks: int) -> None:
    with pytest.raises(ProfileError, match="at least one core"):
        host(ranks)


def test_this_host_honours_the_control_group(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("100000 100000\n")
    (group / "memory.max").write_text(f"{GIB // 2}\n")
    for node in range(4):
        (tmp_path / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    found = cpu_profile.this_host(tmp_path)
    assert (found.cores, found.memory_bytes, found.numa_nodes) == (1, GIB // 2, 4)


def test_this_host_without_limits(tmp_path: Path) -> None:
    found = cpu_profile.this_host(tmp_path)
    assert found.cores >= 1
    assert found.memory_bytes > GIB // 4
    assert found.numa_nodes == 1


# ---- files of `probe -o`


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


# ---- broken installations


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("nodes", "devices", "curves", "stacks"):
        (tmp_path / folder).mkdir()
    source = profiles.profiles_root()
    for name in ("nodes/dgx-h100", "devices/h100-sxm5", "curves/h100-sxm5", "stacks/torch"):
        (tmp_path / f"{name}.toml").write_text((source / f"{name}.toml").read_text(encoding="utf-8"))
    monkeypatch.setattr(profile_file, "profiles_root", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        ("nodes/dgx-h100", None, "", "is empty"),
        ("nodes/dgx-h100", None, "= 3", "is not TOML"),
        ("nodes/dgx-h100", 'device = "h100-sxm5"', 'device = "h1"', "device 'h1' is not in profiles"),
        ("nodes/dgx-h100", "devices_per_node = 8", "", "devices_per_node and scale_up.devices"),
        ("nodes/dgx-h100", 'kind = "nvswitch"', 'kind = "wire"', "'wire' is not a valid FabricKind"),
        ("nodes/dgx-h100", "latency_us", "latency_ms", "scale_up.latency_us is missing"),
        ("nodes/dgx-h100", "all_reduce_gain", "all_reduce_gains", "unknown key scale_up.all_reduce_gains"),
        ("devices/h100-sxm5", "memory_mib = ", "memory = ", "figures.memory_mib is missing"),
        ("devices/h100-sxm5", "power_w = ", "power_kw = ", "unknown key figures.power_kw"),
        ("devices/h100-sxm5", 'kind = "measured"', 'kind = "known"', "kind must be one of measured"),
        ("devices/h100-sxm5", "value = 81559", 'value = "many"', "memory_mib must be a number"),
        ("devices/h100-sxm5", "value = 81559, ", "", "memory_mib must be { value, kind, source }"),
        ("devices/h100-sxm5", 'curve = "h100-sxm5"', 'curve = "h1"', "curve 'h1' is not in profiles"),
        ("devices/h100-sxm5", 'name = "h100-sxm5"', "name = 5", "name must be a text"),
        ("curves/h100-sxm5", "ceiling", "ceilin", "matmul.ceiling is missing"),
    ],
)
def test_a_malformed_profile_names_file_and_key(
    root: Path, name: str, old: str | None, new: str, fault: str
) -> None:
    path = root / f"{name}.toml"
    text = path.read_text(encoding="utf-8")
    assert old is None or old in text
    path.write_text(new if old is None else text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        profiles.load_hardware("dgx-h100")
    assert fault in caught.value.message
    assert path.name in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("dp_overlap", "dp_overlop", "dp_overlop"),
        ('"eager"', '"lazy"', "lazy"),
        ("time_spread", "spread", "spread"),
    ],
)
def test_a_malformed_stack_names_file_and_key(root: Path, old: str, new: str, fault: str) -> None:
    path = root / "stacks/torch.toml"
    text = path.read_text(encoding="utf-8").replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        profiles.load_stack("torch")
    assert fault in caught.value.message
    assert "torch.toml" in caught.value.message
