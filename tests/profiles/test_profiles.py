"""The names that hardware, stacks and models are loaded by."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from parastrat import profiles
from parastrat.errors import ProfileError
from parastrat.hardware import (
    FabricKind,
    FigureKind,
    Host,
    Network,
    NetworkKind,
)

GIB = 1024**3


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


@pytest.mark.parametrize("folder", ["nodes", "devices", "models"])
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
        ("rtx4090x2", "rtx-4090x2:2?"),
        ("2xRTX_4090", "rtx-4090x2:2?"),
        ("dgxa100", "dgx-a100:2?"),
        ("nvl72", "gb300-nvl72, gb200-nvl72"),
        ("v100-sxm2", "v100-sxm2-32"),
        ("8x-h100-sxm", "h100-sxm5x8"),
        ("2x-a10-sxm", "a10x2?"),
        ("8 h100", "h100x8:2?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(ref: str, meant: str) -> None:
    with pytest.raises(ProfileError, match="unknown hardware") as caught:
        profiles.load_hardware(f"{ref}:2")
    assert f"did you mean {meant}" in caught.value.hint


@pytest.mark.parametrize(
    ("ref", "meant"),
    [("dgx-h100x4", "dgx-h100:4"), ("4 x DGX-H100", "dgx-h100:4"), ("4x8xh100", "h100x8:4")],
)
def test_numbers_of_nodes_are_told_from_numbers_of_devices(ref: str, meant: str) -> None:
    with pytest.raises(ProfileError, match="unknown hardware") as caught:
        profiles.load_hardware(ref)
    assert caught.value.hint == f"4 nodes are {meant}"


@pytest.mark.parametrize("ref", ["apple", "tpu-v5e", "gtx-1080x2", "xx"])
def test_for_what_is_like_no_name_none_is_proposed(ref: str) -> None:
    with pytest.raises(ProfileError, match="unknown hardware") as caught:
        profiles.load_hardware(f"{ref}:2")
    assert caught.value.hint == "`parastrat profiles` lists all names"


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


def test_a_generic_node_assumes_its_links_and_knows_no_network() -> None:
    hardware = profiles.load_hardware("h100-sxm5x4:2")
    assert (hardware.name, hardware.devices_per_node, hardware.world_size) == ("h100-sxm5x4:2", 4, 8)
    assert (hardware.scale_up_devices, hardware.scale_up_kind) == (4, FabricKind.NVSWITCH)
    for link in (hardware.scale_up, hardware.scale_out):
        assert link is not None
        assert {entry.kind for entry in link.provenance} == {FigureKind.ASSUMED}
    assert hardware.network == Network(kind=NetworkKind.UNKNOWN)
    assert hardware.host == Host()


def test_a_nodes_host_memory_has_a_rate_where_its_modules_are_known() -> None:
    assert profiles.load_hardware("dgx-h100").host.memory_bytes_per_s == 450e9
    assert profiles.load_hardware("p5.48xlarge").host.memory_bytes_per_s is None


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


def test_fewer_ranks_leave_devices_idle() -> None:
    hardware = profiles.load_hardware("dgx-h100:2", ranks_per_node=4)
    assert (hardware.devices_per_node, hardware.scale_up_devices, hardware.world_size) == (4, 4, 8)
    assert hardware.accelerators_per_node is None


def test_more_ranks_share_devices_evenly() -> None:
    whole, shared = (profiles.load_hardware("dgx-h100", ranks_per_node=ranks) for ranks in (8, 16))
    assert (shared.accelerators_per_node, shared.world_size) == (8, 16)
    assert shared.device.memory_bytes * 2 == whole.device.memory_bytes
    assert shared.device.sustained.bf16 == pytest.approx((whole.device.sustained.bf16 or 0) / 2)
    assert shared.device.host_bytes_per_s == pytest.approx((whole.device.host_bytes_per_s or 0) / 2)


@pytest.mark.parametrize("ranks", [0, -1, 12])
def test_ranks_that_cannot_share(ranks: int) -> None:
    with pytest.raises(ProfileError, match="evenly"):
        profiles.load_hardware("dgx-h100", ranks_per_node=ranks)


def test_devices_that_are_shared_are_not_shared_again(tmp_path: Path) -> None:
    shared = profiles.load_hardware("dgx-h100", ranks_per_node=16)
    path = str(tmp_path / "host.toml")
    Path(path).write_text(profiles.hardware_toml(shared), encoding="utf-8")
    assert profiles.load_hardware(path, ranks_per_node=16) == shared
    with pytest.raises(ProfileError, match="already runs 16 ranks on 8"):
        profiles.load_hardware(path, ranks_per_node=8)
