from __future__ import annotations

from builders import case, codes, cpu_hosts

from parastrat.assess import columns_of
from parastrat.hardware import DeviceType, NetworkKind
from parastrat.plan import Backend, Shard
from parastrat.rules import findings_of

#: sixteen GPUs on two nodes behind 25 Gbit/s
SLOW = {"shard": Shard.PARAMETERS, "dp_shard": 16, "node_bits_per_s": 25e9}


def test_full_shard_over_a_slow_network() -> None:
    assert "PS320" in codes(**SLOW)
    assert "PS320" not in codes(**(SLOW | {"node_bits_per_s": 100e9}))
    assert "PS320" not in codes(**(SLOW | {"node_bits_per_s": None}))
    assert "PS320" not in codes(**(SLOW | {"dp_shard": 8, "dp_replicate": 2}))
    assert "PS320" not in codes(**(SLOW | {"shard": Shard.NONE}))
    assert "PS320" not in codes(**(SLOW | {"dp_shard": 8, "scale_up_devices": 4}))


def test_full_shard_fix_shards_inside_the_node() -> None:
    made = case(**SLOW)
    (finding,) = (f for f in findings_of(made, columns_of(made)) if f.code == "PS320")
    assert "25 Gbit/s" in finding.message
    assert "--dp-shard 8 --dp-replicate 2" in finding.fix


def test_full_shard_fix_over_nodes_of_one_rank_shards_nothing() -> None:
    """It named hsdp with --dp-shard 1, which is none."""
    alone = {"devices_per_node": 1, "scale_up_devices": 1, "num_nodes": 8, "node_bits_per_s": 25e9}
    made = case(**alone, shard=Shard.PARAMETERS, dp_shard=4, tp=2)
    (finding,) = (f for f in findings_of(made, columns_of(made)) if f.code == "PS320")
    assert finding.fix == "use ddp+tp (--strategy ddp+tp) if a device's memory allows"
    across = [
        ({"cp": 4, "dp_shard": 2}, "use ddp+cp (--strategy ddp+cp) if"),
        ({"cp": 8}, "use ddp+cp (--strategy ddp+cp) if"),
        ({"dp_shard": 8, "ep": 4}, "leave ep out"),
    ]
    for mesh, said in across:
        made = case(**alone, shard=Shard.PARAMETERS, **mesh)
        (finding,) = (f for f in findings_of(made, columns_of(made)) if f.code == "PS320")
        assert (finding.fix or "").startswith(said)


def test_network_is_unknown() -> None:
    assert "PS321" in codes(dp_replicate=16, network=NetworkKind.UNKNOWN)
    assert "PS321" in codes(dp_replicate=16, network=NetworkKind.NONE)
    assert "PS321" not in codes(dp_replicate=8, network=NetworkKind.UNKNOWN)
    assert "PS321" not in codes(dp_replicate=16)
    for kind, said in (
        (NetworkKind.UNKNOWN, "cluster:2 is unknown"),
        (NetworkKind.NONE, "no network was found"),
    ):
        made = case(dp_replicate=16, network=kind, hardware_name="cluster:2")
        (finding,) = (each for each in findings_of(made, columns_of(made)) if each.code == "PS321")
        assert said in finding.message


def test_plugin_is_missing() -> None:
    assert "PS322" in codes(dp_replicate=16, network=NetworkKind.EFA, plugin=False)
    assert "PS322" not in codes(dp_replicate=16, network=NetworkKind.EFA, plugin=True)
    assert "PS322" not in codes(dp_replicate=16, network=NetworkKind.EFA, plugin=None)
    assert "PS322" not in codes(dp_replicate=16, plugin=False)
    assert "PS322" not in codes(dp_replicate=8, network=NetworkKind.EFA, plugin=False)
    assert "PS322" not in codes(**cpu_hosts(network=NetworkKind.EFA, plugin=False))


def test_plugin_is_unproven() -> None:
    assert "PS323" in codes(dp_replicate=16, network=NetworkKind.SLINGSHOT, plugin=None)
    assert "PS323" not in codes(dp_replicate=16, network=NetworkKind.SLINGSHOT, plugin=True)
    assert "PS323" not in codes(dp_replicate=16, plugin=None)
    assert "PS323" not in codes(dp_replicate=8, network=NetworkKind.SLINGSHOT, plugin=None)


def test_network_bypasses_nothing() -> None:
    assert "PS324" in codes(dp_replicate=16, gpudirect=False)
    assert "PS324" in codes(dp_replicate=16, gpudirect=False, network=NetworkKind.ROCE)
    assert "PS324" not in codes(dp_replicate=16, gpudirect=None)
    assert "PS324" not in codes(dp_replicate=16, gpudirect=False, network=NetworkKind.ETHERNET)
    assert "PS324" not in codes(dp_replicate=8, gpudirect=False)
    assert "PS324" not in codes(**cpu_hosts(gpudirect=False))


def test_nodes_over_wifi() -> None:
    assert "PS325" in codes(dp_replicate=16, network=NetworkKind.WIFI)
    assert "PS325" not in codes(dp_replicate=8, network=NetworkKind.WIFI)
    assert "PS325" not in codes(dp_replicate=16)


def test_gloo_interface_is_open() -> None:
    ethernet = cpu_hosts(network=NetworkKind.ETHERNET, socket_ifname=None)
    assert "PS326" in codes(**ethernet)
    assert "PS326" not in codes(**(ethernet | {"socket_ifname": "eth0"}))
    assert "PS326" not in codes(**ethernet, env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert "PS326" not in codes(**(ethernet | {"num_nodes": 1, "devices_per_node": 2}))
    assert "PS326" not in codes(dp_replicate=16, socket_ifname=None, backend=Backend.NCCL)


def test_hash_store_between_processes() -> None:
    assert "PS330" in codes(dp_replicate=2, store="hash")
    assert "PS330" not in codes(store="hash")
    assert "PS330" not in codes(dp_replicate=2, store="tcp")


def test_file_store_between_nodes() -> None:
    assert "PS331" in codes(dp_replicate=16, store="file")
    assert "PS331" not in codes(dp_replicate=8, store="file")
    assert "PS331" not in codes(dp_replicate=16, store="tcp")


def test_store_has_no_such_name() -> None:
    assert "PS332" in codes(store="etcd")
    assert all("PS332" not in codes(store=store) for store in ("tcp", "file", "hash"))


def test_rules_about_rdma_need_cuda() -> None:
    assert "PS324" not in codes(dp_replicate=16, gpudirect=False, device_type=DeviceType.XPU)
