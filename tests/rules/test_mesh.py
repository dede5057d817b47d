from __future__ import annotations

from dataclasses import replace

from builders import case, codes

from parastrat.case import Unknown
from parastrat.hardware import FabricKind
from parastrat.plan import Shard
from parastrat.rules.mesh import (
    heads_do_not_divide,
    kv_heads_do_not_divide,
    mesh_is_not_the_world,
    tensor_groups_straddle_domains,
    tensor_parallel_leaves_the_fast_domain,
)


def test_mesh_is_not_the_world() -> None:
    assert "PS200" in codes(dp_replicate=4, devices_per_node=8, num_nodes=1)
    assert "PS200" in codes(dp_replicate=16, devices_per_node=8, num_nodes=1)
    assert "PS200" not in codes(pp=2, dp_replicate=2, cp=2, tp=2, ep=2)


def test_mesh_writes_the_factors_out() -> None:
    hit = mesh_is_not_the_world.hit(case(tp=2, dp_shard=3, devices_per_node=8))
    assert (
        "pp 1 x dp_replicate 1 x dp_shard 3 x cp 1 x tp 2 = 6 ranks, but cluster has 8 devices"
        in hit.message
    )
    assert hit.fix == "use 4 data-parallel ranks in all"


def test_heads_do_not_divide() -> None:
    assert "PS201" in codes(tp=3, heads=16)
    assert "PS201" not in codes(tp=4, heads=16)
    assert "PS201" not in codes(tp=4, heads=None)


def test_heads_fix_names_degrees_that_divide() -> None:
    hit = heads_do_not_divide.hit(case(tp=16, heads=40, kv_heads=8, devices_per_node=16))
    assert hit.message == "40 heads cannot be split evenly over tp=16"
    assert hit.fix == "use tp 8 or 4, which divide 40 heads"


def test_fixes_name_degrees_that_leave_whole_data_axes() -> None:
    """Of 72 ranks pp 12 and cp 2 leave three, which no tp but 1 and 3 divides."""
    made = case(tp=3, pp=12, cp=2, heads=32, kv_heads=4)
    assert heads_do_not_divide.hit(made).fix == "use tp 1, which divides 32 heads"
    assert kv_heads_do_not_divide.hit(made).fix == "use tp 1, which divides 4"
    assert tensor_groups_straddle_domains.hit(made).fix == "use tp 1"


def test_heads_fix_splits_no_group_of_key_value_heads() -> None:
    hit = heads_do_not_divide.hit(case(tp=10, heads=48, kv_heads=6, dp_shard=24))
    # eight divide 48 heads, and split the groups of six
    assert hit.fix == "use tp 12 or 6, which divide 48 heads"


def test_kv_heads_do_not_divide() -> None:
    assert "PS202" in codes(tp=4, kv_heads=6)
    assert "PS202" not in codes(tp=4, kv_heads=8)
    assert "PS202" not in codes(tp=4, kv_heads=2)
    assert kv_heads_do_not_divide.hit(case(tp=4, kv_heads=6)).fix == "use tp 2 or 1, which divide 6"


def test_kv_heads_are_copied() -> None:
    assert "PS203" in codes(tp=4, kv_heads=2)
    assert "PS203" not in codes(tp=2, kv_heads=2)
    assert "PS203" not in codes(tp=4, kv_heads=3)


def test_tensor_parallel_leaves_the_fast_domain() -> None:
    assert "PS206" in codes(tp=16, scale_up_devices=8)
    assert "PS206" not in codes(tp=8, scale_up_devices=8)


def test_tensor_parallel_over_pcie() -> None:
    assert "PS207" in codes(tp=2, scale_up_kind=FabricKind.PCIE)
    assert "PS207" not in codes(tp=2, scale_up_kind=FabricKind.NVLINK)
    assert "PS207" not in codes(tp=1, scale_up_kind=FabricKind.PCIE)


def test_tensor_groups_straddle_domains() -> None:
    assert "PS208" in codes(tp=3, dp_shard=3)
    assert "PS208" not in codes(tp=4, dp_shard=3)
    assert "PS208" not in codes(tp=3, dp_shard=2)
    assert "PS208" not in codes(tp=12, dp_shard=2)


def test_the_fix_for_straddling_groups_divides_the_heads() -> None:
    # six and three divide the domain, and not 40 heads
    made = case(tp=5, dp_shard=6, scale_up_devices=6, heads=40, kv_heads=10)
    assert tensor_groups_straddle_domains.hit(made).fix == "use tp 2 or 1"
    unknown = replace(made, model=Unknown("model"))
    assert tensor_groups_straddle_domains.hit(unknown).fix == "use tp 6 or 3"


def test_shard_groups_straddle_domains() -> None:
    hsdp = {"shard": Shard.PARAMETERS, "dp_replicate": 2}
    assert "PS213" in codes(**hsdp, dp_shard=12)
    assert "PS213" not in codes(**hsdp, dp_shard=8)
    assert "PS213" not in codes(**hsdp, dp_shard=16)
    assert "PS213" not in codes(**hsdp, dp_shard=4)
    assert "PS213" not in codes(shard=Shard.PARAMETERS, dp_shard=12)
    # context ranks share the shards
    assert "PS213" in codes(**hsdp, cp=12)
    assert "PS213" not in codes(**hsdp, cp=8)


def test_vocabulary_does_not_divide() -> None:
    assert "PS214" in codes(tp=8, vocab=50257)
    assert "PS214" not in codes(tp=8, vocab=50304)
    assert "PS214" not in codes(tp=1, vocab=50257)


def test_a_domain_of_one_device_leaves_no_tp() -> None:
    hit = tensor_parallel_leaves_the_fast_domain.hit(case(tp=8, scale_up_devices=1))
    assert hit.message == "tp=8 spans scale-up domains of 1 device"
    assert hit.fix == "use no tp, and fsdp2 or pp between the domains"
