"""Which of several RDMA cards serve training."""

from __future__ import annotations

from pathlib import Path

import pytest
from probe.synthetic_host import H100, SyntheticHost, behind_switch, cards, eight

SWITCHED = {"nvlink_active": 18, "nvlink_remote_type": "SWITCH"}


@pytest.fixture
def host(tmp_path: Path) -> SyntheticHost:
    return SyntheticHost(root=tmp_path)


def test_storage_cards_on_infiniband_too(host: SyntheticHost) -> None:
    eight(host, H100, **SWITCHED)
    cards(host, 8, "mlx5_{}")
    for at in range(2):
        host.card(f"mlx5_{at + 8}", f"pci0000:f{at}/0000:f{at}:01.0", f"f{at + 4}:00.0", at)
    assert host.summary["compute_hcas"] == [f"mlx5_{at}" for at in range(8)]
    assert host.says("exclude_hcas", "per_gpu_gbps") == (["mlx5_8", "mlx5_9"], 400)


def test_infiniband_for_storage_and_roce_beside_the_gpus(host: SyntheticHost) -> None:
    eight(host, H100, **SWITCHED)
    cards(host, 8, "mlx5_{}", layer="Ethernet")
    host.card("mlx5_8", "pci0000:f0/0000:f0:01.0", "f4:00.0")
    assert host.says("network", "exclude_hcas") == ("roce", ["mlx5_8"])


def test_two_cards_for_eight_gpus_serve_both(host: SyntheticHost) -> None:
    eight(host, H100, **SWITCHED)
    host.card("mlx5_0", behind_switch(0, 0, 1), "13:00.0")
    host.card("mlx5_1", "pci0000:f0/0000:f0:01.0", "f4:00.0", 1)
    assert host.says("compute_hcas", "per_gpu_gbps") == (["mlx5_0", "mlx5_1"], 100)


def test_cards_that_nothing_tells_apart(host: SyntheticHost) -> None:
    host.gpu(H100, behind_switch(0, 0, 1), "13:00.0")
    for at in range(3):
        host.card(f"mlx5_{at}", f"pci0000:f{at}/0000:f{at}:01.0", f"f{at}:02.0")
    assert host.says("network", "compute_hcas", "exclude_hcas", "per_gpu_gbps") == (
        *("infiniband", None, None),
        None,
    )
    assert host.summary["warn"] == ["compute and storage cards look alike"]


def test_slower_cards_of_a_flat_bus_are_left_out(host: SyntheticHost) -> None:
    for at in range(4):
        host.gpu(H100, f"pci000{at}:00", f"0{at}:01.0", **SWITCHED)
        host.card(f"mlx5_{at}", f"pci001{at}:00", f"1{at}:01.0")
    host.card("mlx5_4", "pci0020:00", "20:01.0", rate="200 Gb/sec (4X HDR)")
    assert host.says("exclude_hcas", "per_gpu_gbps") == (["mlx5_4"], 400)


def test_roce_that_cannot_leave_its_link_is_left_out(host: SyntheticHost) -> None:
    address = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    host.card("mlx5_0", "pci0000:10", "10:01.0", layer="Ethernet", gids=[("RoCE v2", "fe80::1")])
    host.card("mlx5_1", "pci0000:10", "10:02.0", layer="Ethernet", gids=[("RoCE v2", address)])
    assert host.says("compute_hcas", "per_node_gbps") == (["mlx5_1"], 400)


def test_the_farthest_card_sets_the_path(host: SyntheticHost) -> None:
    host.gpu(H100, behind_switch(0, 0, 8), "19:00.0")
    host.gpu(H100, behind_switch(0, 1, 8), "29:00.0")
    host.card("mlx5_0", behind_switch(0, 0, 1), "13:00.0")
    host.card("mlx5_1", "pci0000:f0/0000:f0:01.0", "f4:00.0")
    assert host.says("compute_hcas", "nic_gpu_path") == (["mlx5_0", "mlx5_1"], "NODE")
