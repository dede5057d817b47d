"""Profiles that ``scripts/make_profiles.py`` writes, and the names that its tables promise."""

from __future__ import annotations

import csv
import importlib.util
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from parastrat import profiles
from parastrat.hardware import DeviceType, FabricKind, FigureKind, NetworkKind, Vendor
from parastrat.plan import Backend
from parastrat.profiles.files import read_profile
from parastrat.rules.backend import decide_backend

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
PUBLISHED = (
    (ROOT / "tests" / "data" / "published_hardware.txt").read_text(encoding="utf-8").splitlines()[1:]
)


def rows(name: str) -> list[dict[str, str]]:
    with (SCRIPTS / "data" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


DEVICES = rows("gpus.csv")
NODES = rows("clusters.csv")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(SCRIPTS)
    spec = importlib.util.spec_from_file_location("make_profiles", SCRIPTS / "make_profiles.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("device_profile", "node_profile", "profile_figures"):
        sys.modules.pop(name, None)


def test_the_tables_are_whole() -> None:
    assert (len(DEVICES), len(NODES)) == (40, 49)
    assert len(PUBLISHED) == 11


def test_the_script_changes_nothing(script: ModuleType) -> None:
    made = dict(script.written())
    assert len(made) == 64
    stale = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run scripts/make_profiles.py"


def test_what_says_that_the_script_wrote_it_is_written_by_it(script: ModuleType) -> None:
    """A row or a rule that is gone leaves no profile behind."""
    headed = {
        path
        for folder in ("devices", "nodes")
        for path in (ROOT / "profiles" / folder).glob("*.toml")
        if path.read_text(encoding="utf-8").startswith(script.HEADER)
    }
    assert headed == {path for path, _ in script.written()}


def test_a_profile_that_somebody_wrote_is_left_alone(script: ModuleType, tmp_path: Path) -> None:
    for folder in ("devices", "nodes"):
        shutil.copytree(ROOT / "profiles" / folder, tmp_path / folder)
    own = tmp_path / "devices" / "l40s.toml"
    own.write_text('name = "l40s"\n', encoding="utf-8")
    made = {path for path, _ in script.written(tmp_path)}
    assert own not in made
    assert tmp_path / "devices" / "l4.toml" in made
    own.write_text(f"{script.HEADER}\n", encoding="utf-8")
    assert own in {path for path, _ in script.written(tmp_path)}


@pytest.mark.parametrize("row", NODES, ids=lambda row: row["id"])
def test_every_node_of_the_table_is_a_name(row: dict[str, str]) -> None:
    hardware = profiles.load_hardware(f"{row['id']}:2")
    assert hardware.device.name == row["gpu"]
    assert hardware.devices_per_node == int(row["gpus_per_node"])
    assert hardware.network.node_bits_per_s == float(row["node_gbps"]) * 1e9
    assert hardware.scale_up_devices == (
        72 if "72-GPU" in row["intra_fabric"] else hardware.devices_per_node
    )


@pytest.mark.parametrize("row", DEVICES, ids=lambda row: row["id"])
def test_any_number_of_every_device_is_a_machine_with_assumed_links(row: dict[str, str]) -> None:
    hardware = profiles.load_hardware(f"{row['id']}x4:2")
    assert (hardware.device.name, hardware.world_size) == (row["id"], 8)
    assert hardware.device.memory_bytes == int(row["nvml_total_mib"]) * 2**20
    for link in (hardware.scale_up, hardware.scale_out):
        assert link is not None
        assert {entry.kind for entry in link.provenance} == {FigureKind.ASSUMED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_machines_of_published_runs_are_names(name: str) -> None:
    assert profiles.load_hardware(name).num_nodes == 1


def test_the_detail_behind_a_name_is_in_the_profile() -> None:
    plain, detailed = (profiles.load_hardware(name) for name in ("dgx-a100", "dgx-a100@800g-per-node"))
    assert detailed.network.node_bits_per_s == 800e9
    assert plain.network.node_bits_per_s == 1600e9


@pytest.mark.parametrize(
    ("name", "vendor", "kind", "fabric", "backend"),
    [
        ("frontier", Vendor.AMD, DeviceType.CUDA, FabricKind.XGMI, Backend.NCCL),
        ("azure-nd96isr-mi300x-v5", Vendor.AMD, DeviceType.CUDA, FabricKind.XGMI, Backend.NCCL),
        ("8x-mi325x", Vendor.AMD, DeviceType.CUDA, FabricKind.XGMI, Backend.NCCL),
        ("8x-mi355x", Vendor.AMD, DeviceType.CUDA, FabricKind.XGMI, Backend.NCCL),
        ("hls-gaudi2", Vendor.INTEL, DeviceType.HPU, FabricKind.ROCE, Backend.HCCL),
        ("hls-gaudi3", Vendor.INTEL, DeviceType.HPU, FabricKind.ROCE, Backend.HCCL),
        ("aurora", Vendor.INTEL, DeviceType.XPU, FabricKind.XE_LINK, Backend.XCCL),
    ],
)
def test_accelerators_of_other_vendors_have_their_backend(
    name: str, vendor: Vendor, kind: DeviceType, fabric: FabricKind, backend: Backend
) -> None:
    hardware = profiles.load_hardware(f"{name}:4")
    assert (hardware.device.vendor, hardware.device.type, hardware.scale_up_kind) == (vendor, kind, fabric)
    assert decide_backend(hardware).backend is backend


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mi300x", FigureKind.ASSUMED),
        ("v100-sxm2-32", FigureKind.ASSUMED),
        ("rtx-4090", FigureKind.ASSUMED),
        ("l40s", FigureKind.DERIVED),
        ("h100-sxm5", FigureKind.DERIVED),
    ],
)
def test_a_borrowed_curve_is_assumed(name: str, kind: FigureKind) -> None:
    device = profiles.load_hardware(f"{name}x8").device
    assert next(entry.kind for entry in device.provenance if entry.field == "matmul") is kind


@pytest.mark.parametrize("name", ["gh200-96", "l40s", "8x-h800-sxm5"])
def test_what_a_table_remembers_is_assumed(name: str) -> None:
    is_node = name.startswith("8x")
    file = read_profile("nodes" if is_node else "devices", name)
    assert file is not None
    figure = "network.node_gbit_per_s" if is_node else "figures.power_w"
    assert file.figure(figure).kind is FigureKind.ASSUMED


def test_what_a_table_saw_is_not() -> None:
    file = read_profile("devices", "l40s")
    assert file is not None
    assert file.figure("figures.memory_mib").kind is FigureKind.MEASURED
    assert file.figure("peak_tflops.bf16").kind is FigureKind.DERIVED


def test_networks_that_only_some_machines_have() -> None:
    kinds = {
        name: profiles.load_hardware(name).network.kind for name in ("frontier", "alps", "g5.12xlarge")
    }
    assert set(kinds.values()) == {NetworkKind.SLINGSHOT, NetworkKind.EFA}


def test_hosts_are_of_nodes_that_the_script_writes(script: ModuleType) -> None:
    made = {path.stem for path, _ in script.written() if path.parent.name == "nodes"}
    hosts = rows("hosts.csv")
    assert {row["node"] for row in hosts} <= made
    for row in hosts:
        host = profiles.load_hardware(row["node"]).host
        assert host.cores == int(row["cores"])
        assert host.memory_bytes == (int(row["memory_gib"]) * 2**30 if row["memory_gib"] else None)


@pytest.mark.parametrize(
    ("name", "cores", "memory_gib"),
    [
        ("p3dn.24xlarge", 48, 768),
        ("a3-megagpu-8g", 104, 1872),
        ("a4x-highgpu-4g", 140, 884),
        ("frontier", 64, 512),
        ("gb200-nvl72", 144, 960),
        ("dgx-b300", 128, 2048),
    ],
)
def test_cores_and_memory_that_vendors_state(name: str, cores: int, memory_gib: int) -> None:
    host = profiles.load_hardware(name).host
    assert (host.cores, host.memory_bytes) == (cores, memory_gib * 2**30)


def test_a_vcpu_taken_for_a_core_is_assumed() -> None:
    file = read_profile("nodes", "lambda-8x-v100")
    assert file is not None
    assert file.figure("host.cores").kind is FigureKind.ASSUMED
    assert file.figure("host.memory_gib").kind is FigureKind.DERIVED


def test_a_meshs_link_is_the_sum_of_a_devices_links() -> None:
    mesh, switched = (profiles.load_hardware(name).scale_up for name in ("alps", "dgx-h100"))
    assert mesh is not None
    assert switched is not None
    assert mesh.nominal_bytes_per_s == switched.nominal_bytes_per_s == 450e9


def test_the_rules_name_devices_and_nodes_that_are_in_the_tables() -> None:
    rules = tomllib.loads((SCRIPTS / "data" / "rules.toml").read_text(encoding="utf-8"))
    devices = {row["id"] for row in DEVICES}
    nodes = {row["id"] for row in (*NODES, *rows("other_nodes.csv"))}
    assert set(rules["device"]) <= devices
    assert set(rules["peer_to_peer"]["devices"]) <= devices
    assert {*rules["seen"]["rates"], *rules["seen"]["memory"], *rules["seen"]["bandwidth"]} <= devices
    assert {*rules["seen"]["network"], *rules["node_names"]} <= nodes
    assert set(rules["gpudirect"]) <= {rules["node_names"].get(node, node) for node in nodes}
